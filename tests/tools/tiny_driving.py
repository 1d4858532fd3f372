"""A hand-written driving artifact: the right interface, trivial kernels, built in milliseconds.

It lets the tools be tested without the compiler. Vision and policy answer with a fixed road that
bends a little with the frame's brightness and with the number of frames seen since the reset.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.frames import nv12_format
from runtime.artifact import write_artifact

VISION_WIDTH, POLICY_WIDTH = 1576, 1000
VISION_SLICES = {
    "meta": [0, 55],
    "desire_pred": [55, 87],
    "pose": [87, 99],
    "wide_from_device_euler": [99, 105],
    "road_transform": [105, 117],
    "lane_lines": [117, 645],
    "lane_lines_prob": [645, 653],
    "road_edges": [653, 917],
    "lead": [917, 1061],
    "lead_prob": [1061, 1064],
    "hidden_state": [1064, 1576],
}
POLICY_SLICES = {"plan": [0, 990], "desire_state": [990, 998], "pad": [998, 1000]}

SOURCE = """
// Brightness of a frame in [0, 1), from every 997th byte: enough to tell frames apart.
float brightness(const __global uchar* frame, int size) {
    float sum = 0.0f;
    int count = 0;
    for (int i = 0; i < size; i += 997) { sum += frame[i]; count++; }
    return sum / (256.0f * count);
}

__kernel void advance(__global float* counter, const __global float* desire) {
    counter[0] += 1.0f + 0.0f * desire[0];
}

__kernel void vision(__global float* out, const __global float* bias, const __global float* mode,
                     const __global uchar* road, const __global uchar* wide,
                     const __global float* road_transform, const __global float* wide_transform,
                     const __global float* counter) {
    int i = get_global_id(0);
    float light = brightness(road, ROAD_BYTES) + 0.1f * brightness(wide, ROAD_BYTES);
    float seen = road_transform[8] * wide_transform[8];
    out[i] = bias[i] + mode[i] * (light + 0.001f * counter[0]) + 1e-3f * seen;
}

__kernel void policy(__global float* out, const __global float* bias, const __global float* mode,
                     const __global float* traffic, const __global float* counter) {
    int i = get_global_id(0);
    float value = bias[i] + mode[i] * (0.01f * counter[0] - traffic[1]);
    out[i] = counter[0] == (float)(BAD_FRAME) ? NAN : value;
}
"""

Floats = NDArray[np.float32]


def write_tiny_driving(
    path: Path, sizes: tuple[tuple[int, int], ...] = ((960, 540),), *, bad_frame: int = -1
) -> Path:
    """Write the artifact.

    Args:
        path: where to.
        sizes: (width, height) of the cameras it accepts.
        bad_frame: 1-based run since the reset whose policy output is NaN; -1 for none.
    """
    builder = _Builder()
    for width, height in sizes:
        builder.add_camera(width, height, bad_frame)
    write_artifact(path, builder.manifest(sizes), builder.data)
    return path


class _Builder:
    def __init__(self) -> None:
        self.buffers: list[dict[str, Any]] = []
        self.programs: list[dict[str, Any]] = []
        self.kernels: list[dict[str, Any]] = []
        self.entries: dict[str, Any] = {}
        self.data = b""
        weights = {"vision": _vision_weights(), "policy": _policy_weights()}
        self.weights = {
            f"{role}_{part}": self._weight(f"{role}_{part}", array)
            for role, pair in weights.items()
            for part, array in zip(("bias", "mode"), pair, strict=True)
        }
        self.counter = self._buffer("counter", "state", "float32", (1,))
        self.vision_out = self._buffer("vision_outputs", "output", "float32", (1, VISION_WIDTH))
        self.policy_out = self._buffer("policy_outputs", "output", "float32", (1, POLICY_WIDTH))

    def add_camera(self, width: int, height: int, bad_frame: int) -> None:
        payload = nv12_format(width, height).payload_bytes
        source = SOURCE.replace("ROAD_BYTES", str(payload)).replace("BAD_FRAME", str(bad_frame))
        self.programs.append({"source": source, "options": "", "binary": b""})
        inputs = [
            self._buffer("road_frame", "input", "uint8", (payload,)),
            self._buffer("wide_frame", "input", "uint8", (payload,)),
            self._buffer("road_transform", "input", "float32", (3, 3)),
            self._buffer("wide_transform", "input", "float32", (3, 3)),
            self._buffer("desire", "input", "float32", (8,)),
            self._buffer("traffic_convention", "input", "float32", (1, 2)),
        ]
        road, wide, road_transform, wide_transform, desire, traffic = inputs
        advance = self._kernel("advance", [self.counter, desire], 1)
        vision = self._kernel(
            "vision",
            [
                self.vision_out,
                self.weights["vision_bias"],
                self.weights["vision_mode"],
                road,
                wide,
                road_transform,
                wide_transform,
                self.counter,
            ],
            VISION_WIDTH,
        )
        policy = self._kernel(
            "policy",
            [
                self.policy_out,
                self.weights["policy_bias"],
                self.weights["policy_mode"],
                traffic,
                self.counter,
            ],
            POLICY_WIDTH,
        )
        self.entries[f"run:{width}x{height}"] = {
            "inputs": inputs,
            "outputs": [self.vision_out, self.policy_out],
            "launches": [advance, vision, policy],
        }
        self.entries[f"prepare:{width}x{height}"] = {
            "inputs": inputs[:-1],
            "outputs": [],
            "launches": [advance],
        }

    def manifest(self, sizes: tuple[tuple[int, int], ...]) -> dict[str, Any]:
        checkpoints = {"vision": "tiny-vision", "policy": "tiny-policy"}
        return {
            "magic": "modeld-artifact",
            "format": 1,
            "abi": 1,
            "name": "tiny",
            "kind": "driving",
            "models": [
                {"role": role, "file": f"{role}.onnx", "sha256": "0" * 64, "checkpoint": name}
                for role, name in checkpoints.items()
            ],
            "metadata": _metadata(sizes, checkpoints),
            "target": {"name": "cpu", "device": "none", "driver": "none", "options": ""},
            "buffers": self.buffers,
            "arena_size": 0,
            "programs": self.programs,
            "kernels": self.kernels,
            "entries": self.entries,
            "self_test": {},
            "sha256": {},
            "data_size": 0,
        }

    def _buffer(
        self, name: str, kind: str, dtype: str, shape: tuple[int, ...], offset: int = 0
    ) -> int:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.buffers.append(
            {
                "name": name,
                "kind": kind,
                "dtype": dtype,
                "shape": list(shape),
                "offset": offset,
                "size": size,
            }
        )
        return len(self.buffers) - 1

    def _weight(self, name: str, array: Floats) -> int:
        offset = len(self.data)
        raw = array.tobytes()
        self.data += raw + b"\0" * (-len(raw) % 256)
        return self._buffer(name, "weight", "float32", array.shape, offset)

    def _kernel(self, name: str, args: list[int], items: int) -> int:
        self.kernels.append(
            {
                "name": name,
                "program": len(self.programs) - 1,
                "args": args,
                "global": [items, 1, 1],
                "local": [1, 1, 1],
                "origin": [],
                "flops": 0,
                "bytes": 0,
            }
        )
        return len(self.kernels) - 1


def _metadata(sizes: tuple[tuple[int, int], ...], checkpoints: dict[str, str]) -> dict[str, Any]:
    cameras = []
    for width, height in sizes:
        layout = nv12_format(width, height)
        cameras.append(
            {
                "width": width,
                "height": height,
                "stride": layout.stride,
                "uv_offset": layout.uv_offset,
                "payload_bytes": layout.payload_bytes,
            }
        )
    image = {"shape": [1, 12, 128, 256], "dtype": "uint8"}
    return {
        "interface": "split-2025",
        "run_hz": 20,
        "context_hz": 5,
        "image_mode": "bilinear-fixed",
        "drop_policy": "skip",
        "cameras": cameras,
        "models": {
            "vision": {
                "checkpoint": checkpoints["vision"],
                "inputs": {"img": image, "big_img": image},
                "output_width": VISION_WIDTH,
                "output_slices": VISION_SLICES,
            },
            "policy": {
                "checkpoint": checkpoints["policy"],
                "inputs": {
                    "desire_pulse": {"shape": [1, 25, 8], "dtype": "float32"},
                    "traffic_convention": {"shape": [1, 2], "dtype": "float32"},
                    "features_buffer": {"shape": [1, 25, 512], "dtype": "float32"},
                },
                "output_width": POLICY_WIDTH,
                "output_slices": POLICY_SLICES,
            },
        },
    }


def _vision_weights() -> tuple[Floats, Floats]:
    """A straight road, and a mode that shifts the lane lines."""
    bias, mode = np.zeros(VISION_WIDTH, np.float32), np.zeros(VISION_WIDTH, np.float32)
    for name, offsets_m in (("lane_lines", (-5.4, -1.8, 1.8, 5.4)), ("road_edges", (-7.0, 7.0))):
        start, stop = VISION_SLICES[name]
        half = (stop - start) // 2
        curve = np.zeros((len(offsets_m), 33, 2), np.float32)
        curve[:, :, 0] = np.array(offsets_m, np.float32)[:, None]
        curve[:, :, 1] = 1.22
        bias[start : start + half] = curve.ravel()
        mode[start : start + half : 2] = 0.3
    start, stop = VISION_SLICES["lane_lines_prob"]
    bias[start:stop] = np.array([0, -1, 0, 3, 0, 3, 0, -1], np.float32)
    return bias, mode


def _policy_weights() -> tuple[Floats, Floats]:
    """A steady 15 m/s straight on, and a mode that curves the plan."""
    bias, mode = np.zeros(POLICY_WIDTH, np.float32), np.zeros(POLICY_WIDTH, np.float32)
    time_s = (10.0 * (np.arange(33) / 32) ** 2).astype(np.float32)
    plan = np.zeros((33, 15), np.float32)
    plan[:, 0], plan[:, 3] = 15.0 * time_s, 15.0
    bias[:495] = plan.ravel()
    bend = np.zeros((33, 15), np.float32)
    bend[:, 1] = 0.02 * (15.0 * time_s) ** 2 / 100.0
    mode[:495] = bend.ravel()
    return bias, mode

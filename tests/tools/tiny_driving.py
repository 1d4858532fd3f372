"""A hand-written driving artifact: the right interface, trivial kernels, built in milliseconds.

It lets the tools be tested without the compiler. Vision and policy answer with a fixed road that
bends a little with the frame's brightness and with the number of frames seen since the reset.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.frames import nv12_format
from runtime.format.artifact import write_artifact
from runtime.format.interfaces import Interface
from scheduler.driving.derive import derive, example_parts
from scheduler.driving.revisions import load_revisions


def _interface() -> Interface:
    revision = load_revisions()["split-2025"]
    parts = [replace(p, checkpoint=f"tiny-{p.role}") for p in example_parts(revision)]
    return derive("split-2025", "made by hand", parts, (), revision.rules)


INTERFACE = _interface()
VISION, POLICY = INTERFACE.models
VISION_SLICES = VISION.slices

SOURCE = """
// Brightness of a frame in [0, 1), from every 997th byte: enough to tell frames apart.
float brightness(const __global uchar* frame, const __global int* geometry) {
    float sum = 0.0f;
    int count = 0;
    int size = geometry[3] + geometry[2] * geometry[1] / 2;
    for (int i = 0; i < size; i += 997) { sum += frame[i]; count++; }
    return sum / (256.0f * count);
}

__kernel void advance(__global float* counter, const __global float* desire) {
    counter[0] += 1.0f + 0.0f * desire[0];
}

__kernel void vision(__global float* out, const __global float* bias, const __global float* mode,
                     const __global uchar* road, const __global uchar* wide,
                     const __global int* road_geometry, const __global int* wide_geometry,
                     const __global float* road_transform, const __global float* wide_transform,
                     const __global float* counter) {
    int i = get_global_id(0);
    float light = brightness(road, road_geometry) + 0.1f * brightness(wide, wide_geometry);
    float seen = road_transform[8] * wide_transform[8];
    out[i] = bias[i] + mode[i] * (light + 0.001f * counter[0]) + 1e-3f * seen;
}

__kernel void policy(__global float* out, const __global float* bias, const __global float* mode,
                     const __global float* traffic, const __global float* counter) {
    int i = get_global_id(0);
    HANG
    float value = bias[i] + mode[i] * (0.01f * counter[0] - traffic[1]);
    out[i] = counter[0] == (float)(BAD_FRAME) ? NAN : value;
}
"""

# Each work-item runs for ever: all workers of the device are taken. What is volatile is read again
# and again, so no compiler takes the loop for one that ends.
HANG = "while (*(const volatile __global float*)(traffic + 1) > 0.5f) {}"

Floats = NDArray[np.float32]
CAMERAS = ("road", "wide")


def write_tiny_driving(
    path: Path,
    largest: tuple[int, int] = (960, 540),
    *,
    bad_frame: int = -1,
    hangs: bool = False,
    speed_mps: float = 15.0,
    name: str = "tiny",
    self_test: dict[str, Any] | None = None,
) -> Path:
    """Write the artifact.

    Args:
        path: where to.
        largest: (width, height) of the largest camera that it has room for.
        bad_frame: 1-based run since the reset whose policy output is NaN; -1 for none.
        hangs: whether a run never ends while the driver sits on the right.
        speed_mps: of the plan, which tells two such models apart.
        name: of the model.
        self_test: of the manifest; None for none.
    """
    source = SOURCE.replace("BAD_FRAME", str(bad_frame)).replace("HANG", HANG if hangs else "")
    builder = _Builder(nv12_format(*largest).payload_bytes, source, speed_mps, name)
    write_artifact(path, {**builder.manifest(), "self_test": self_test or {}}, builder.data)
    return path


class _Builder:
    def __init__(self, capacity: int, source: str, speed_mps: float, name: str) -> None:
        self.name = name
        self.buffers: list[dict[str, Any]] = []
        self.kernels: list[dict[str, Any]] = []
        self.data = b""
        self.programs = [{"source": source, "options": "", "binary": b""}]
        weights = {"vision": _vision_weights(), "policy": _policy_weights(speed_mps)}
        self.weights = {
            f"{role}_{part}": self._weight(f"{role}_{part}", array)
            for role, pair in weights.items()
            for part, array in zip(("bias", "mode"), pair, strict=True)
        }
        self.counter = self._buffer("counter", "state", "float32", (1,))
        outputs = [
            self._buffer(f"{part.role}_outputs", "output", "float32", (1, part.width))
            for part in INTERFACE.models
        ]
        frames = [self._buffer(f"{c}_frame", "input", "uint8", (capacity,)) for c in CAMERAS]
        for frame in frames:
            self.buffers[frame]["partial"] = True
        geometries = [self._buffer(f"{c}_geometry", "input", "int32", (4,)) for c in CAMERAS]
        transforms = [self._buffer(f"{c}_transform", "input", "float32", (3, 3)) for c in CAMERAS]
        desire = self._buffer("desire", "input", "float32", (8,))
        traffic = self._buffer("traffic_convention", "input", "float32", (1, 2))
        seen = [*frames, *geometries, *transforms]
        advance = self._kernel("advance", [self.counter, desire], 1)
        vision = [outputs[0], self.weights["vision_bias"], self.weights["vision_mode"], *seen]
        policy = [outputs[1], self.weights["policy_bias"], self.weights["policy_mode"], traffic]
        launches = [
            advance,
            self._kernel("vision", [*vision, self.counter], VISION.width),
            self._kernel("policy", [*policy, self.counter], POLICY.width),
        ]
        inputs = [*seen, desire]
        self.entries: dict[str, Any] = {
            "run": {"inputs": [*inputs, traffic], "outputs": outputs, "launches": launches},
            "prepare": {"inputs": inputs, "outputs": [], "launches": [advance]},
        }

    def manifest(self) -> dict[str, Any]:
        source = {"sha256": "0" * 64}
        models = [
            {"role": one.role, "file": f"{one.role}.onnx", **source, "checkpoint": one.checkpoint}
            for one in INTERFACE.models
        ]
        return {
            "magic": "modeld-artifact", "format": 1, "abi": 1,
            "name": self.name, "kind": "driving", "models": models,
            "metadata": {"interface": INTERFACE.plain()},
            "target": {"name": "cpu", "device": "none", "driver": "none", "options": ""},
            "buffers": self.buffers, "arena_size": 0, "programs": self.programs,
            "kernels": self.kernels, "entries": self.entries,
            "self_test": {}, "sha256": {}, "data_size": 0,
        }  # fmt: skip

    def _buffer(
        self, name: str, kind: str, dtype: str, shape: tuple[int, ...], offset: int = 0
    ) -> int:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        about = {"name": name, "kind": kind, "dtype": dtype, "shape": list(shape)}
        self.buffers.append({**about, "offset": offset, "size": size})
        return len(self.buffers) - 1

    def _weight(self, name: str, array: Floats) -> int:
        offset = len(self.data)
        raw = array.tobytes()
        self.data += raw + b"\0" * (-len(raw) % 256)
        return self._buffer(name, "weight", "float32", array.shape, offset)

    def _kernel(self, name: str, args: list[int], items: int) -> int:
        about = {"name": name, "program": len(self.programs) - 1, "args": args}
        size = {"global": [items, 1, 1], "local": [1, 1, 1]}
        self.kernels.append({**about, **size, "origin": [], "flops": 0, "bytes": 0})
        return len(self.kernels) - 1


def _vision_weights() -> tuple[Floats, Floats]:
    """A straight road, and a mode that shifts the lane lines."""
    bias, mode = np.zeros(VISION.width, np.float32), np.zeros(VISION.width, np.float32)
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


def _policy_weights(speed_mps: float) -> tuple[Floats, Floats]:
    """A steady speed straight on, and a mode that curves the plan."""
    bias, mode = np.zeros(POLICY.width, np.float32), np.zeros(POLICY.width, np.float32)
    time_s = (10.0 * (np.arange(33) / 32) ** 2).astype(np.float32)
    plan = np.zeros((33, 15), np.float32)
    plan[:, 0], plan[:, 3] = speed_mps * time_s, speed_mps
    bias[:495] = plan.ravel()
    bend = np.zeros((33, 15), np.float32)
    bend[:, 1] = 0.02 * (speed_mps * time_s) ** 2 / 100.0
    mode[:495] = bend.ravel()
    return bias, mode

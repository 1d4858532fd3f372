"""The driving program again, in numpy and onnxruntime: what the compiled one is compared with.

Written from the formulas, not from the compiler: integer image code on whole arrays, queues as
lists.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Array = NDArray[Any]
f32 = np.float32


def warp_plane(plane: Array, m: Array, width: int, height: int) -> Array:
    """Sample a (h, w) uint8 plane at m * (x, y, 1): bilinear, 1/32 px, 15-bit weights, clamped."""
    x = np.arange(width, dtype=f32)[None, :]
    y = np.arange(height, dtype=f32)[:, None]
    x0, y0, w = ((m[i, 0] * x + m[i, 1] * y) + m[i, 2] for i in range(3))
    with np.errstate(divide="ignore"):
        scale = np.where(w == 0, f32(0), f32(32) / w)
    sx = np.clip(np.rint(x0 * scale), -(2**21), 2**21).astype(np.int64)
    sy = np.clip(np.rint(y0 * scale), -(2**21), 2**21).astype(np.int64)
    ix, iy = (np.clip(s >> 5, -32768, 32767) for s in (sx, sy))
    ax, ay = (sx & 31) / 32.0, (sy & 31) / 32.0
    rows, columns = plane.shape
    total: Array = np.full((height, width), 1 << 14, np.int64)
    for dy, wy in ((0, 1 - ay), (1, ay)):
        for dx, wx in ((0, 1 - ax), (1, ax)):
            weight = np.minimum(np.rint(wx * wy * 32768), 32767).astype(np.int64)
            tap = plane[np.clip(iy + dy, 0, rows - 1), np.clip(ix + dx, 0, columns - 1)]
            total += weight * tap
    return np.asarray(np.clip(total >> 15, 0, 255), np.uint8)


def chroma_transform(m: Array) -> Array:
    """Transform between half-resolution images with pixel centres kept, in float32 steps."""
    m = m.astype(f32)
    wide = np.stack(
        [m[:, 0] * f32(2), m[:, 1] * f32(2), m[:, 0] * f32(0.5) + m[:, 1] * f32(0.5) + m[:, 2]], 1
    )
    return np.stack(
        [
            wide[0] * f32(0.5) - wide[2] * f32(0.25),
            wide[1] * f32(0.5) - wide[2] * f32(0.25),
            wide[2],
        ]
    )


def model_image(
    frame: Array, m: Array, width: int, height: int, stride: int, uv_offset: int
) -> Array:
    """(6, 128, 256) uint8 of an NV12 frame."""
    luma = frame[: stride * height].reshape(height, stride)[:, :width]
    chroma = frame[uv_offset : uv_offset + stride * (height // 2)].reshape(height // 2, stride)
    y = warp_plane(luma, m, 512, 256)
    half = chroma_transform(m)
    u = warp_plane(chroma[:, 0:width:2], half, 256, 128)
    v = warp_plane(chroma[:, 1:width:2], half, 256, 128)
    return np.stack([y[::2, ::2], y[1::2, ::2], y[::2, 1::2], y[1::2, 1::2], u, v])


class FrameLoop:
    """State and models of the reference loop."""

    def __init__(self, vision: Path, policy: Path, camera: Any) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.vision = onnxruntime.InferenceSession(str(vision), options)
        self.policy = onnxruntime.InferenceSession(str(policy), options)
        self.camera = camera
        image = np.zeros((6, 128, 256), np.uint8)
        self.images = {n: deque([image] * 5, maxlen=5) for n in ("road", "wide")}
        self.features = deque([np.zeros(512, f32)] * 100, maxlen=100)
        self.desires = deque([np.zeros(8, f32)] * 100, maxlen=100)

    def push(self, inputs: dict[str, Array]) -> None:
        """Advance image and desire queues."""
        c = self.camera
        for name in ("road", "wide"):
            image = model_image(
                inputs[f"{name}_frame"],
                inputs[f"{name}_transform"],
                c.width,
                c.height,
                c.stride,
                c.uv_offset,
            )
            self.images[name].append(image)
        self.desires.append(inputs["desire"])

    def run(self, inputs: dict[str, Array], hidden: slice) -> tuple[Array, Array]:
        """Return raw vision and policy outputs of one frame."""
        self.push(inputs)
        pair = {
            name: np.concatenate([queue[0], queue[-1]])[None] for name, queue in self.images.items()
        }
        seen = self.vision.run(None, {"img": pair["road"], "big_img": pair["wide"]})[0]
        self.features.append(seen[0, hidden])
        pooled = [np.max(list(self.desires)[4 * i : 4 * i + 4], axis=0) for i in range(25)]
        history = [self.features[i] for i in range(-97, 0, 4)]
        decided = self.policy.run(
            None,
            {
                "desire_pulse": np.stack(pooled)[None],
                "traffic_convention": inputs["traffic_convention"],
                "features_buffer": np.stack(history)[None],
            },
        )[0]
        return seen, decided

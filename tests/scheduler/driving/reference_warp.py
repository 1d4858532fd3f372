"""The warp again, in numpy: both rules of sampling, on a whole frame buffer with any geometry.

Written from the formulas. Addresses are computed as the compiled program promises them, in 32-bit
integers that wrap around and are then held to the buffer, so that geometries that contradict
themselves have a defined result too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.frame_format import FrameFormat

Array = NDArray[Any]
f32 = np.float32
# What a transform between half-resolution planes is multiplied with in the nearest rule.
HALVES = np.array([[1, 1, 0.5], [1, 1, 0.5], [2, 2, 1]], f32)
FAR = 2.0**21


def geometry_of(form: FrameFormat) -> Array:
    """Return what the warp takes: (4,) int32."""
    return np.array([form.width, form.height, form.stride, form.uv_offset], np.int32)


def model_image(frame: Array, m: Array, geometry: Array, mode: str) -> Array:
    """Return the driving model's view, (6, 128, 256) uint8, of a frame of exactly the capacity."""
    y = plane_view(frame, m, luma(geometry), mode, (512, 256))
    half = centred_half(m) if mode == "bilinear" else m * HALVES
    u, v = (plane_view(frame, half, chroma(geometry, i), mode, (256, 128)) for i in (0, 1))
    return np.stack([y[::2, ::2], y[1::2, ::2], y[::2, 1::2], y[1::2, 1::2], u, v])


def luma_image(frame: Array, m: Array, geometry: Array, mode: str) -> Array:
    """Return the driver monitoring model's view, (960, 1440) uint8."""
    return plane_view(frame, m, luma(geometry), mode, (1440, 960))


def luma(geometry: Array) -> tuple[int, ...]:
    """Return columns, rows, offset, step and stride of the luma plane."""
    width, height, stride, _ = (int(n) for n in geometry)
    return width, height, 0, 1, stride


def chroma(geometry: Array, which: int) -> tuple[int, ...]:
    """Return the same of U (0) or V (1)."""
    width, height, stride, offset = (int(n) for n in geometry)
    return width >> 1, height >> 1, offset + which, 2, stride


def centred_half(m: Array) -> Array:
    """Return S_in * M * S_out with S_out: x -> 2 x + 0.5 and S_in: x -> (x - 0.5) / 2."""
    out = np.empty((3, 3), f32)
    with np.errstate(all="ignore"):
        out[:, 0], out[:, 1] = m[:, 0] * f32(2), m[:, 1] * f32(2)
        out[:, 2] = (m[:, 0] * f32(0.5) + m[:, 1] * f32(0.5)) + m[:, 2]
        for row in (0, 1):
            out[row] = out[row] * f32(0.5) - out[2] * f32(0.25)
    return out


def plane_view(
    frame: Array, m: Array, plane: tuple[int, ...], mode: str, size: tuple[int, int]
) -> Array:
    """Return one plane seen through a transform, (size[1], size[0]) uint8."""
    x = np.arange(size[0], dtype=f32)[None, :]
    y = np.arange(size[1], dtype=f32)[:, None]
    with np.errstate(all="ignore"):
        x0, y0, w = ((m[i, 0] * x + m[i, 1] * y) + m[i, 2] for i in range(3))
        if mode == "nearest":
            at = [np.where(w == 0, f32(0), v / w) for v in (x0, y0)]
            column, row = (whole(p, 0.0) for p in at)
            return tap(frame, plane, column, row)
        scale = np.where(w == 0, f32(0), f32(32) / w)
        sx, sy = (whole(v * scale, -FAR) for v in (x0, y0))
    column, row = (np.clip(s >> 5, -32768, 32767) for s in (sx, sy))
    right, below = sx % 32, sy % 32  # of 32
    total: Array = np.full((size[1], size[0]), 1 << 14, np.int64)
    for dy, wy in ((0, 32 - below), (1, below)):
        for dx, wx in ((0, 32 - right), (1, right)):
            weight = np.minimum(wx * wy * 32, 32767)  # in 1/2^15, held to int16
            total += weight * tap(frame, plane, column + dx, row + dy)
    return np.asarray(np.clip(total >> 15, 0, 255), np.uint8)


def whole(position: Array, low: float) -> Array:
    """Return positions rounded half to even, between `low` and 2^21; `low` for NaN."""
    near = np.rint(position).astype(np.float64)
    return np.where(np.isnan(near), low, np.clip(near, low, FAR)).astype(np.int64)


def tap(frame: Array, plane: tuple[int, ...], column: Array, row: Array) -> Array:
    """Return samples of a plane, whose border repeats; any address is held to the buffer."""
    columns, rows, offset, step, stride = plane
    column = np.minimum(np.maximum(column, 0), wrapped(columns - 1))
    row = np.minimum(np.maximum(row, 0), wrapped(rows - 1))
    at = wrapped(row * stride + column * step + offset)
    at = np.where(at < 0, at + len(frame), at)  # as indices count from the end
    return np.asarray(frame[np.clip(at, 0, len(frame) - 1)])


def wrapped(value: Any) -> Any:
    """Return integers as 32-bit two's complement has them."""
    return (np.asarray(value, np.int64) + 2**31) % 2**32 - 2**31

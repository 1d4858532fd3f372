"""Warps a camera frame to a model's view: perspective, NV12, packing to 6 channels.

The layout of the frame is given at run time, so one program supports cameras of any size. There are
two sampling rules:

    bilinear   fixed point as in OpenCV's warpPerspective: source positions are rounded to 1/32
               pixel, tap weights to 1/2^15, everything else is integer arithmetic
    nearest    positions are rounded to whole pixels, half to even

All floating-point steps are single operations in float32 (no contraction), so the result has the
same bits on every device. A NaN position becomes the first row or column. No geometry can make the
warp read outside the frame's buffer, because the gather clips its indices.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor

BILINEAR, NEAREST = "bilinear", "nearest"
POSITION_BITS = 5  # bilinear: source positions in 1/32 pixel
WEIGHT_BITS = 15  # bilinear: tap weights in 1/2^15
MODEL_WIDTH, MODEL_HEIGHT = 512, 256  # luma pixels of the driving model's view
MONITORING_WIDTH, MONITORING_HEIGHT = 1440, 960  # luma pixels of the driver monitoring model's view
# A position beyond this is outside any image (int16 pixels at 1/32). Clamping it first keeps the
# conversion to int defined and does not change the result.
FAR = float(2**21)


@dataclass(frozen=True, slots=True)
class _Plane:
    """One channel inside a frame. All values but `step` are only known at run time, each int32."""

    last_column: Tensor  # greatest indices of a sample (last_column, last_row)
    last_row: Tensor
    offset: Tensor | int  # bytes before the first sample
    step: int  # bytes between samples
    stride: Tensor  # bytes between rows


def model_image(frame: Tensor, transform: Tensor, geometry: Tensor, mode: str) -> Tensor:
    """Return the driving model's view of a camera frame.

    Args:
        frame: (capacity,) uint8, NV12; bytes after the planes are unused.
        transform: (3, 3) float32, model pixel -> camera pixel (homogeneous, luma resolution).
        geometry: (4,) int32: width and height in luma pixels, stride in bytes, byte offset of the
            chroma plane.
        mode: "bilinear" or "nearest".

    Returns:
        (6, 128, 256) uint8: luma at (even, even), (odd, even), (even, odd), (odd, odd) row and
        column, then U, then V.
    """
    y = _luma(frame, transform, geometry, mode, MODEL_WIDTH, MODEL_HEIGHT)
    half = half_resolution(transform) if mode == BILINEAR else half_index(transform)
    # U and V are sampled at the same positions, which are stored once and read twice.
    at = [p.contiguous() for p in _positions(half, mode, MODEL_WIDTH // 2, MODEL_HEIGHT // 2)]
    columns, rows, stride, offset = (geometry[i] for i in range(4))
    last = (columns >> 1) - 1, (rows >> 1) - 1
    chroma = [_sample(frame, _Plane(*last, offset + i, 2, stride), mode, *at) for i in (0, 1)]
    quarters = [y[0::2, 0::2], y[1::2, 0::2], y[0::2, 1::2], y[1::2, 1::2]]
    return Tensor.stack([*quarters, *chroma])


def luma_image(frame: Tensor, transform: Tensor, geometry: Tensor, mode: str) -> Tensor:
    """Return the monitoring model's view, luma of (960, 1440) uint8; see `model_image`."""
    return _luma(frame, transform, geometry, mode, MONITORING_WIDTH, MONITORING_HEIGHT)


def half_resolution(transform: Tensor) -> Tensor:
    """Return the transform between half-resolution images, keeping pixel centers: S_in * M * S_out.

    S_out maps a chroma pixel to luma (x*2 + 0.5), S_in maps luma to chroma ((x - 0.5)*0.5).
    """
    c0, c1, c2 = (transform[:, i : i + 1] for i in range(3))
    wide = Tensor.cat([c0 * 2.0, c1 * 2.0, c0 * 0.5 + c1 * 0.5 + c2], 1)
    r0, r1, r2 = (wide[i : i + 1] for i in range(3))
    return Tensor.cat([r0 * 0.5 - r2 * 0.25, r1 * 0.5 - r2 * 0.25, r2], 0).contiguous()


def half_index(transform: Tensor) -> Tensor:
    """Return the transform between half-resolution images, with halved indices: S^-1 * M * S.

    A chroma sample is taken at its even luma pixel, as the nearest rule requires.
    """
    row, column = Tensor.arange(3).reshape(3, 1), Tensor.arange(3).reshape(1, 3)
    last_row, last_column = row.eq(2), column.eq(2)
    return (transform * last_row.where(2.0, 1.0) * last_column.where(0.5, 1.0)).contiguous()


def _luma(frame: Tensor, m: Tensor, geometry: Tensor, mode: str, width: int, height: int) -> Tensor:
    plane = _Plane(geometry[0] - 1, geometry[1] - 1, 0, 1, geometry[2])
    return _sample(frame, plane, mode, *_positions(m, mode, width, height))


def _positions(m: Tensor, mode: str, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Return source x and y, each (height, width) int32: in 1/32 pixel, in pixels if "nearest"."""
    x = Tensor.arange(width, dtype=dt.float32).reshape(1, width)
    y = Tensor.arange(height, dtype=dt.float32).reshape(height, 1)

    def row(i: int) -> Tensor:
        return m[i, 0] * x + m[i, 1] * y + m[i, 2]

    w = row(2)
    if mode == BILINEAR:
        scale = w.eq(0.0).where(0.0, float(1 << POSITION_BITS) / w)
        return _rounded(row(0) * scale, -FAR), _rounded(row(1) * scale, -FAR)
    sx, sy = (w.eq(0.0).where(0.0, row(i) / w) for i in (0, 1))
    return _rounded(sx, 0.0), _rounded(sy, 0.0)


def _rounded(position: Tensor, low: float) -> Tensor:
    """Return positions rounded to int32 and clipped to [low, FAR]; NaN becomes `low`."""
    near = position.round()
    # A comparison with NaN is false.
    return (near >= low).where(near.minimum(FAR), low).cast(dt.int32)


def _sample(frame: Tensor, plane: _Plane, mode: str, sx: Tensor, sy: Tensor) -> Tensor:
    """Return the samples of one plane at the given positions, uint8."""
    if mode == NEAREST:
        return _read(frame, plane, sx, sy)
    fraction = (1 << POSITION_BITS) - 1
    ax, ay = (sx & fraction), (sy & fraction)
    ix, iy = (_to_int16(s >> POSITION_BITS) for s in (sx, sy))
    total = Tensor.full(sx.shape, 1 << (WEIGHT_BITS - 1), dt.int32)
    for dy in (0, 1):
        for dx in (0, 1):
            weight = _tap_weight(ax, dx) * _tap_weight(ay, dy)  # in 1/2^10, exact
            weight = (weight << (WEIGHT_BITS - 2 * POSITION_BITS)).minimum(32767)
            tap = _read(frame, plane, ix + dx, iy + dy)
            total = total + weight * tap.cast(dt.int32)
    return (total >> WEIGHT_BITS).clip(0, 255).cast(dt.uint8)


def _read(frame: Tensor, plane: _Plane, x: Tensor, y: Tensor) -> Tensor:
    """Return samples of a plane; outside of it, the border repeats."""
    column = x.maximum(0).minimum(plane.last_column)
    line = y.maximum(0).minimum(plane.last_row)
    address = line * plane.stride + column * plane.step + plane.offset
    # Valid for any geometry. The gather also clips, and handles negative indices.
    return frame.gather(address.clip(0, frame.size - 1))


def _to_int16(value: Tensor) -> Tensor:
    return value.clip(-32768, 32767)


def _tap_weight(fraction: Tensor, tap: int) -> Tensor:
    """Return the 1/32 weight of the near (0) or far (1) tap."""
    return fraction if tap else (1 << POSITION_BITS) - fraction

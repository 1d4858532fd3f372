"""The warp of a camera frame to what a model sees: perspective, NV12, packing to 6 channels.

The layout of the frame is given at run time, so that one program takes cameras of any size. Two
rules of sampling:

    bilinear   fixed point in the manner of OpenCV's warpPerspective: source positions are rounded
               to 1/32 pixel, tap weights to 1/2^15, the rest is integer arithmetic
    nearest    positions are rounded to whole pixels, half to even

All floating-point steps are single operations in float32 (no contraction), so that the result is
the same bits on every device. A position that is not a number is the first row or column.
Whatever a geometry says, nothing outside of the frame's buffer is read: a gather stays inside.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor

BILINEAR, NEAREST = "bilinear", "nearest"
POSITION_BITS = 5  # bilinear: source position in 1/32 pixel
WEIGHT_BITS = 15  # tap weights in 1/2^15
MODEL_WIDTH, MODEL_HEIGHT = 512, 256  # luma pixels of the driving model's view
MONITORING_WIDTH, MONITORING_HEIGHT = 1440, 960  # of the driver monitoring model's
# Beyond this a position is outside any image (int16 pixels at 1/32): clamping it first keeps the
# conversion to int defined and cannot change the result.
FAR = float(2**21)


@dataclass(frozen=True, slots=True)
class _Plane:
    """One channel inside a frame, where all but the step is known at run time, each int32."""

    last_column: Tensor  # last_column, last_row: greatest index of a sample
    last_row: Tensor
    offset: Tensor | int  # bytes before the first sample
    step: int  # bytes from sample to sample
    stride: Tensor  # bytes from row to row


def model_image(frame: Tensor, transform: Tensor, geometry: Tensor, mode: str) -> Tensor:
    """Return the driving model's view of a camera frame.

    Args:
        frame: (capacity,) uint8, NV12; what lies behind the planes is not used.
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
    # U and V sample the same positions: they are stored once and read twice.
    at = [p.contiguous() for p in _positions(half, mode, MODEL_WIDTH // 2, MODEL_HEIGHT // 2)]
    columns, rows, stride, offset = (geometry[i] for i in range(4))
    last = (columns >> 1) - 1, (rows >> 1) - 1
    chroma = [_sample(frame, _Plane(*last, offset + i, 2, stride), mode, *at) for i in (0, 1)]
    quarters = [y[0::2, 0::2], y[1::2, 0::2], y[0::2, 1::2], y[1::2, 1::2]]
    return Tensor.stack([*quarters, *chroma])


def luma_image(frame: Tensor, transform: Tensor, geometry: Tensor, mode: str) -> Tensor:
    """Return the monitoring model's view of luma, (960, 1440) uint8; see `model_image`."""
    return _luma(frame, transform, geometry, mode, MONITORING_WIDTH, MONITORING_HEIGHT)


def half_resolution(transform: Tensor) -> Tensor:
    """Return the transform between half-resolution images, pixel centres kept: S_in * M * S_out.

    S_out maps a chroma pixel to luma (x*2 + 0.5), S_in maps luma to chroma ((x - 0.5)*0.5).
    """
    c0, c1, c2 = (transform[:, i : i + 1] for i in range(3))
    wide = Tensor.cat([c0 * 2.0, c1 * 2.0, c0 * 0.5 + c1 * 0.5 + c2], 1)
    r0, r1, r2 = (wide[i : i + 1] for i in range(3))
    return Tensor.cat([r0 * 0.5 - r2 * 0.25, r1 * 0.5 - r2 * 0.25, r2], 0).contiguous()


def half_index(transform: Tensor) -> Tensor:
    """Return the transform between half-resolution images, indices halved: S^-1 * M * S.

    Every chroma sample counts as that of its even luma pixel, as the nearest rule has it.
    """
    row, column = Tensor.arange(3).reshape(3, 1), Tensor.arange(3).reshape(1, 3)
    last_row, last_column = row.eq(2), column.eq(2)
    return (transform * last_row.where(2.0, 1.0) * last_column.where(0.5, 1.0)).contiguous()


def _luma(frame: Tensor, m: Tensor, geometry: Tensor, mode: str, width: int, height: int) -> Tensor:
    plane = _Plane(geometry[0] - 1, geometry[1] - 1, 0, 1, geometry[2])
    return _sample(frame, plane, mode, *_positions(m, mode, width, height))


def _positions(m: Tensor, mode: str, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Return source x and y, each (height, width) int32: in 1/32 pixel, or pixels if "nearest"."""
    x = Tensor.arange(width, dtype=dt.float32).reshape(1, width)
    y = Tensor.arange(height, dtype=dt.float32).reshape(height, 1)

    def row(i: int) -> Tensor:
        return m[i, 0] * x + m[i, 1] * y + m[i, 2]

    w = row(2)
    if mode == BILINEAR:
        scale = w.eq(0.0).where(0.0, float(1 << POSITION_BITS) / w)
        return _whole(row(0) * scale, -FAR), _whole(row(1) * scale, -FAR)
    sx, sy = (w.eq(0.0).where(0.0, row(i) / w) for i in (0, 1))
    return _whole(sx, 0.0), _whole(sy, 0.0)


def _whole(position: Tensor, low: float) -> Tensor:
    """Return positions rounded to int32 from `low` on; what is not a number is `low`."""
    near = position.round()
    # A comparison with NaN is false.
    return (near >= low).where(near.minimum(FAR), low).cast(dt.int32)


def _sample(frame: Tensor, plane: _Plane, mode: str, sx: Tensor, sy: Tensor) -> Tensor:
    """Return uint8 of the shape of the positions: one plane of the frame."""
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
    """Return samples of the frame; outside of the plane its border repeats."""
    column = x.maximum(0).minimum(plane.last_column)
    line = y.maximum(0).minimum(plane.last_row)
    address = line * plane.stride + column * plane.step + plane.offset
    # Whatever the geometry says. A gather takes care of that, too, and of negative indices.
    return frame.gather(address.clip(0, frame.size - 1))


def _to_int16(value: Tensor) -> Tensor:
    return value.clip(-32768, 32767)


def _tap_weight(fraction: Tensor, tap: int) -> Tensor:
    """Return the 1/32 weight of the near (0) or far (1) tap."""
    return fraction if tap else (1 << POSITION_BITS) - fraction

"""The warp of a camera frame to the model image: perspective, NV12, packing to 6 channels.

Fixed-point bilinear sampling in the manner of OpenCV's warpPerspective: source positions are
rounded to 1/32 pixel, tap weights to 1/2^15, and everything after the position is integer
arithmetic, so that the result is the same bits on every device. All floating-point steps are single
operations in float32 (no contraction).
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor

POSITION_BITS = 5  # source position in 1/32 pixel
WEIGHT_BITS = 15  # tap weights in 1/2^15
MODEL_WIDTH, MODEL_HEIGHT = 512, 256  # luma pixels of the model's view
# Beyond this a position is outside any image (int16 pixels at 1/32): clamping it first keeps the
# conversion to int defined and cannot change the result.
FAR = float(2**21)


@dataclass(frozen=True, slots=True)
class Camera:
    """Layout of an NV12 frame: a luma plane, then interleaved U and V at half resolution.

    Attributes:
        width, height: luma pixels.
        stride: bytes per row of both planes.
        uv_offset: byte offset of the chroma plane.
        payload_bytes: bytes of the frame that a run takes.
    """

    width: int
    height: int
    stride: int
    uv_offset: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class _Plane:
    """One channel inside the frame: size in samples, bytes from sample to sample and row to row."""

    width: int
    height: int
    offset: int
    step: int
    stride: int


def model_image(frame: Tensor, transform: Tensor, camera: Camera) -> Tensor:
    """Return the model's view of a camera frame.

    Args:
        frame: (payload_bytes,) uint8, NV12.
        transform: (3, 3) float32, model pixel -> camera pixel (homogeneous, luma resolution).
        camera: layout of the frame.

    Returns:
        (6, 128, 256) uint8: luma at (even, even), (odd, even), (even, odd), (odd, odd) row and
        column, then U, then V.
    """
    width, height = camera.width, camera.height
    luma = _Plane(width, height, 0, 1, camera.stride)
    y = _sample(frame, luma, *_positions(transform, MODEL_WIDTH, MODEL_HEIGHT))
    half = half_resolution(transform)
    # U and V sample the same positions: they are stored once and read twice.
    at = [p.contiguous() for p in _positions(half, MODEL_WIDTH // 2, MODEL_HEIGHT // 2)]
    chroma = [
        _sample(frame, _Plane(width // 2, height // 2, camera.uv_offset + i, 2, camera.stride), *at)
        for i in (0, 1)
    ]
    quarters = [y[0::2, 0::2], y[1::2, 0::2], y[0::2, 1::2], y[1::2, 1::2]]
    return Tensor.stack([*quarters, *chroma])


def half_resolution(transform: Tensor) -> Tensor:
    """Return the transform between half-resolution images, pixel centres kept: S_in * M * S_out.

    S_out maps a chroma pixel to luma (x*2 + 0.5), S_in maps luma to chroma ((x - 0.5)*0.5).
    """
    c0, c1, c2 = (transform[:, i : i + 1] for i in range(3))
    wide = Tensor.cat([c0 * 2.0, c1 * 2.0, c0 * 0.5 + c1 * 0.5 + c2], 1)
    r0, r1, r2 = (wide[i : i + 1] for i in range(3))
    return Tensor.cat([r0 * 0.5 - r2 * 0.25, r1 * 0.5 - r2 * 0.25, r2], 0).contiguous()


def _positions(m: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Return source x and y of every pixel, each (height, width) int32 in 1/32 pixel."""
    x = Tensor.arange(width, dtype=dt.float32).reshape(1, width)
    y = Tensor.arange(height, dtype=dt.float32).reshape(height, 1)

    def row(i: int) -> Tensor:
        return m[i, 0] * x + m[i, 1] * y + m[i, 2]

    w = row(2)
    scale = w.eq(0.0).where(0.0, float(1 << POSITION_BITS) / w)
    return _fixed_point(row(0) * scale), _fixed_point(row(1) * scale)


def _sample(frame: Tensor, plane: _Plane, sx: Tensor, sy: Tensor) -> Tensor:
    """Return uint8 of the shape of the positions: one plane of the frame, bilinear."""
    fraction = (1 << POSITION_BITS) - 1
    ax, ay = (sx & fraction), (sy & fraction)
    ix, iy = (_to_int16(s >> POSITION_BITS) for s in (sx, sy))
    total = Tensor.full(sx.shape, 1 << (WEIGHT_BITS - 1), dt.int32)
    for dy in (0, 1):
        for dx in (0, 1):
            weight = _tap_weight(ax, dx) * _tap_weight(ay, dy)  # in 1/2^10, exact
            weight = (weight << (WEIGHT_BITS - 2 * POSITION_BITS)).minimum(32767)
            column = (ix + dx).clip(0, plane.width - 1)
            line = (iy + dy).clip(0, plane.height - 1)
            at = line * plane.stride + column * plane.step + plane.offset
            total = total + weight * frame.gather(at).cast(dt.int32)
    return (total >> WEIGHT_BITS).clip(0, 255).cast(dt.uint8)


def _fixed_point(position: Tensor) -> Tensor:
    return position.round().clip(-FAR, FAR).cast(dt.int32)


def _to_int16(value: Tensor) -> Tensor:
    return value.clip(-32768, 32767)


def _tap_weight(fraction: Tensor, tap: int) -> Tensor:
    """Return the 1/32 weight of the near (0) or far (1) tap."""
    return fraction if tap else (1 << POSITION_BITS) - fraction

"""Both warps of a camera picture to a model's view, and the matrices that they take.

Pixel by pixel rules on whole arrays.

All floating point is float32, one operation after the other, because the last bit of a position
decides which pixel is taken. After that everything is int32: addresses wrap around, and are then
held to the buffer, so that pictures that contradict themselves have a defined view, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Matrix = NDArray[np.float32]
Angles = NDArray[np.float64]
Whole = NDArray[np.int32]
f32 = np.float32
# Rows and columns of the driving models' views, of half of it, and of the view of the driver.
VIEW, HALF, DRIVER = (256, 512), (128, 256), (960, 1440)
FAR = 2.0**21
# What a matrix between planes of half size is multiplied with where corners are kept.
HALVES = np.array([[1, 1, 0.5], [1, 1, 0.5], [2, 2, 1]], f32)


class Plane(NamedTuple):
    """Where the samples of a plane lie in a buffer."""

    columns: int
    rows: int
    offset: int
    step: int
    stride: int


@dataclass(frozen=True, slots=True)
class Picture:
    """An NV12 frame: `data` uint8 from the first luma byte to the last chroma byte at least.

    `key` names the content, so that nobody warps one picture twice in the same way.
    """

    data: Bytes
    width: int
    height: int
    stride: int
    uv_offset: int
    key: object

    def planes(self) -> tuple[Plane, Plane, Plane]:
        """Y, and U and V of half as many columns and rows."""
        half = self.width >> 1, self.height >> 1
        u, v = (Plane(*half, self.uv_offset + i, 2, self.stride) for i in (0, 1))
        return Plane(self.width, self.height, 0, 1, self.stride), u, v


def view(picture: Picture, matrix: Matrix, mode: str) -> Bytes:
    """(6, 128, 256) uint8: luma of (even, even), (odd, even), (even, odd), (odd, odd), then U, V.

    Pairs are (row, column). `matrix` takes a pixel of the view to a pixel of the picture.
    """
    half = half_of_bilinear(matrix) if mode == "bilinear" else half_of_nearest(matrix)
    luma, *chroma = picture.planes()
    y = seen(picture.data, luma, matrix, mode, VIEW)
    u, v = (seen(picture.data, plane, half, mode, HALF) for plane in chroma)
    return np.stack([y[::2, ::2], y[1::2, ::2], y[::2, 1::2], y[1::2, 1::2], u, v])


def driver_view(picture: Picture, matrix: Matrix, mode: str) -> Bytes:
    """(960, 1440) uint8: the luma that the driver monitoring model sees."""
    return seen(picture.data, picture.planes()[0], matrix, mode, DRIVER)


def half_of_bilinear(m: Matrix) -> Matrix:
    """The matrix between planes of half size, centres of pixels kept: a half goes on and off."""
    m = m.astype(f32)
    with np.errstate(all="ignore"):
        # Chroma pixel c stands at 2c + 1/2 of luma; luma l is at (l - 1/2) / 2 of chroma.
        shift = (m[:, 0] * f32(0.5) + m[:, 1] * f32(0.5)) + m[:, 2]
        wide = np.stack([m[:, 0] * f32(2), m[:, 1] * f32(2), shift], axis=1)
        rows = [wide[i] * f32(0.5) - wide[2] * f32(0.25) for i in (0, 1)]
    return np.stack([*rows, wide[2]])


def half_of_nearest(m: Matrix) -> Matrix:
    """The matrix between planes of half size, corners kept: no half pixel at all."""
    return m.astype(f32) * HALVES


def bilinear(plane: Bytes, m: Matrix, size: tuple[int, int]) -> Bytes:
    """Four taps at positions of 1/32 pixel, weights of 15 bits, the border repeated."""
    return seen(plane.reshape(-1), _alone(plane), m, "bilinear", size)


def nearest(plane: Bytes, m: Matrix, size: tuple[int, int]) -> Bytes:
    """One tap, rounded half to even, clipped; pixel (0, 0) where nothing is defined."""
    return seen(plane.reshape(-1), _alone(plane), m, "nearest", size)


def _alone(plane: Bytes) -> Plane:
    rows, columns = plane.shape
    return Plane(columns, rows, 0, 1, columns)


def seen(data: Bytes, plane: Plane, m: Matrix, mode: str, size: tuple[int, int]) -> Bytes:
    """One plane of a buffer seen through a matrix, `size` rows and columns of it."""
    rows, columns = np.arange(size[0], dtype=f32)[:, None], np.arange(size[1], dtype=f32)
    with np.errstate(all="ignore"):
        x, y, w = ((m[i, 0] * columns + m[i, 1] * rows) + m[i, 2] for i in range(3))
        if mode == "nearest":
            column, row = (_rounded(np.where(w == 0, f32(0), p / w), 0.0) for p in (x, y))
            return _tap(data, plane, column, row)
        scale = np.where(w == 0, f32(0), f32(32) / w)
        px, py = (_rounded(p * scale, -FAR) for p in (x, y))
    left, top = (np.clip(p >> 5, -32768, 32767) for p in (px, py))
    total = np.full(size, 1 << 14, np.int32)
    for down, high in enumerate((32 - (py & 31), py & 31)):
        for along, wide in enumerate((32 - (px & 31), px & 31)):
            weight = np.minimum(wide * high * 32, 32767)  # a signed short
            total += weight * _tap(data, plane, left + along, top + down)
    found: Bytes = np.clip(total >> 15, 0, 255).astype(np.uint8)
    return found


def _rounded(position: Matrix, low: float) -> Whole:
    """Half to even, between `low` and 2^21; `low` where there is no number."""
    near: Whole = np.nan_to_num(np.clip(np.rint(position), low, FAR), nan=low).astype(np.int32)
    return near


def _tap(data: Bytes, plane: Plane, column: Whole, row: Whole) -> Bytes:
    """Samples of a plane, whose border repeats; any address is held to the buffer."""
    column = np.minimum(np.maximum(column, 0), _wrapped(plane.columns - 1))
    row = np.minimum(np.maximum(row, 0), _wrapped(plane.rows - 1))
    at = row * np.int32(plane.stride) + column * np.int32(plane.step) + _wrapped(plane.offset)
    found: Bytes = data[np.clip(at, 0, data.size - 1)]
    return found


def _wrapped(value: int) -> np.int32:
    """An integer as 32-bit two's complement has it."""
    return np.int32((value + 2**31) % 2**32 - 2**31)


# --- from angles and lenses: device is x forward, y right, z down; view x right, y down ---------


@dataclass(frozen=True, slots=True)
class Lens:
    """A pinhole camera whose axis meets the middle of the picture; pixels."""

    width: int
    height: int
    focal: float


def intrinsics(focal: float, cx: float, cy: float) -> Angles:
    return np.array([[focal, 0, cx], [0, focal, cy], [0, 0, 1]], np.float64)


ROAD_VIEW = intrinsics(910.0, 256.0, 47.6)
WIDE_VIEW = intrinsics(455.0, 256.0, (256.0 + 47.6) / 2)
# Rows: view's x is device's y, view's y is device's z, view's z is device's x.
DEVICE_TO_VIEW = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], np.float64)


def rotation(roll: float, pitch: float, yaw: float) -> Angles:
    """About x by roll, then about y by pitch, then about z by yaw, axes fixed."""
    cos, sin = np.cos, np.sin
    about_x = np.array([[1, 0, 0], [0, cos(roll), -sin(roll)], [0, sin(roll), cos(roll)]])
    about_y = np.array([[cos(pitch), 0, sin(pitch)], [0, 1, 0], [-sin(pitch), 0, cos(pitch)]])
    about_z = np.array([[cos(yaw), -sin(yaw), 0], [sin(yaw), cos(yaw), 0], [0, 0, 1]])
    found: Angles = about_z @ about_y @ about_x
    return found


def transform(lens: Lens, model_view: Angles, rpy: Sequence[float]) -> NDArray[np.float32]:
    """Model pixel -> ray in the level frame -> device frame -> camera pixel, (3, 3) float32."""
    camera = intrinsics(lens.focal, lens.width / 2, lens.height / 2)
    # The message carries the angles in single precision.
    angles = [float(np.float32(angle)) for angle in rpy]
    to_ray = np.linalg.inv(model_view @ DEVICE_TO_VIEW)
    to_camera = camera @ DEVICE_TO_VIEW @ rotation(*angles)
    return (to_camera @ to_ray).astype(np.float32)

"""Both warps of a camera picture to a model's view, pixel by pixel rules on whole arrays.

All floating point is float32, one operation after the other, because the last bit of a position
decides which pixel is taken; after that everything is integers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
f32 = np.float32
VIEW = (256, 512)  # rows, columns of the model's view
HALF = (128, 256)


@dataclass(frozen=True, slots=True)
class Picture:
    """An NV12 frame: `data` uint8 from the first luma byte to the last chroma byte at least.

    `key` names the content, so that nobody warps one picture twice in the same way.
    """

    data: NDArray[np.uint8]
    width: int
    height: int
    stride: int
    uv_offset: int
    key: object

    def planes(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        """Y (height, width), U and V (height/2, width/2)."""
        rows = self.data[: self.height * self.stride].reshape(self.height, self.stride)
        half = self.height // 2
        pairs = self.data[self.uv_offset : self.uv_offset + half * self.stride]
        pairs = pairs.reshape(half, self.stride)[:, : self.width]
        return rows[:, : self.width], pairs[:, 0::2], pairs[:, 1::2]


def view(picture: Picture, matrix: NDArray[np.float32], mode: str) -> NDArray[np.uint8]:
    """(6, 128, 256) uint8: luma of (even, even), (odd, even), (even, odd), (odd, odd), then U, V.

    Pairs are (row, column). `matrix` takes a pixel of the view to a pixel of the picture.
    """
    if mode == "bilinear":
        warp, half = bilinear, half_of_bilinear(matrix)
    else:
        warp, half = nearest, half_of_nearest(matrix)
    y, u, v = picture.planes()
    luma = warp(y, matrix, VIEW)
    return np.stack(
        [
            luma[0::2, 0::2],
            luma[1::2, 0::2],
            luma[0::2, 1::2],
            luma[1::2, 1::2],
            warp(u, half, HALF),
            warp(v, half, HALF),
        ]
    )


def half_of_bilinear(m: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix between planes of half size, centres of pixels kept: a half goes on and off."""
    m = m.astype(f32)
    # Chroma pixel c stands at 2c + 1/2 of luma; luma l is at (l - 1/2) / 2 of chroma.
    shift = (m[:, 0] * f32(0.5) + m[:, 1] * f32(0.5)) + m[:, 2]
    wide = np.stack([m[:, 0] * f32(2), m[:, 1] * f32(2), shift], axis=1)
    rows = [wide[i] * f32(0.5) - wide[2] * f32(0.25) for i in (0, 1)]
    return np.stack([*rows, wide[2]])


def half_of_nearest(m: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix between planes of half size, corners kept: no half pixel at all."""
    factors = np.array([[1, 1, 0.5], [1, 1, 0.5], [2, 2, 1]], f32)
    return m.astype(f32) * factors


def _projected(m: NDArray[np.float32], size: tuple[int, int]) -> list[NDArray[np.float32]]:
    """x*w, y*w and w of every pixel of the view."""
    rows, columns = np.indices(size).astype(f32)
    return [(m[i, 0] * columns + m[i, 1] * rows) + m[i, 2] for i in range(3)]


def bilinear(
    plane: NDArray[np.uint8], m: NDArray[np.float32], size: tuple[int, int]
) -> NDArray[np.uint8]:
    """Four taps at positions of 1/32 pixel, weights of 15 bits, the border repeated."""
    x, y, w = _projected(m.astype(f32), size)
    factor = np.zeros(size, f32)
    np.divide(f32(32), w, out=factor, where=w != 0)
    far = 2.0**30
    px, py = (np.clip(np.rint(c * factor), -far, far).astype(np.int64) for c in (x, y))
    left, top = (np.clip(p >> 5, -32768, 32767) for p in (px, py))
    fx, fy = (p & 31 for p in (px, py))
    height, width = plane.shape
    total = np.full(size, 1 << 14, np.int64)
    for down, along in ((0, 0), (0, 1), (1, 0), (1, 1)):
        part = (fx if along else 32 - fx) * (fy if down else 32 - fy)  # of 1024
        weight = np.minimum(part * 32, 32767)  # a signed short
        row = np.clip(top + down, 0, height - 1)
        column = np.clip(left + along, 0, width - 1)
        total += weight * plane[row, column]
    found: NDArray[np.uint8] = np.clip(total >> 15, 0, 255).astype(np.uint8)
    return found


def nearest(
    plane: NDArray[np.uint8], m: NDArray[np.float32], size: tuple[int, int]
) -> NDArray[np.uint8]:
    """One tap, rounded half to even, clipped; pixel (0, 0) where nothing is defined."""
    x, y, w = _projected(m.astype(f32), size)
    height, width = plane.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        columns, rows = x / w, y / w
    undefined = (w == 0) | np.isnan(columns) | np.isnan(rows)
    columns = np.clip(np.rint(np.where(undefined, f32(0), columns)), 0, width - 1)
    rows = np.clip(np.rint(np.where(undefined, f32(0), rows)), 0, height - 1)
    found: NDArray[np.uint8] = plane[rows.astype(np.int64), columns.astype(np.int64)]
    return found

"""Decoded pictures as upright NV12 planes, whatever their pixel format and orientation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]

# Chroma of what has no colour.
NEUTRAL: Final = 128
# A display matrix that is this close to a quarter turn is one; its numbers are rounded.
_SKEW: Final = 0.01


@dataclass(frozen=True, slots=True)
class Orientation:
    """How a picture is turned before it is shown: rows and columns exchanged, then mirrored.

    Attributes:
        is_transposed: rows become columns.
        flips_x: left and right are exchanged, after that.
        flips_y: top and bottom are.
    """

    is_transposed: bool = False
    flips_x: bool = False
    flips_y: bool = False

    def __str__(self) -> str:
        """Return what a person would call it."""
        return _NAMES[self.is_transposed, self.flips_x, self.flips_y]

    def turn(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return (h, w, ...) rows as they are shown; a view."""
        turned = rows.swapaxes(0, 1) if self.is_transposed else rows
        return turned[:: -1 if self.flips_y else 1, :: -1 if self.flips_x else 1]


UPRIGHT: Final = Orientation()
_NAMES: Final = {
    (False, False, False): "upright",
    (False, True, True): "rotated by 180 degrees",
    (False, True, False): "mirrored left to right",
    (False, False, True): "mirrored top to bottom",
    (True, True, False): "rotated by 90 degrees clockwise",
    (True, False, True): "rotated by 90 degrees counterclockwise",
    (True, False, False): "rotated by 90 degrees clockwise and mirrored left to right",
    (True, True, True): "rotated by 90 degrees clockwise and mirrored top to bottom",
}


def orientation_of(picture: Any) -> Orientation | None:
    """Return how a decoded picture is to be turned; None where it is by no quarter turns.

    The display matrix takes pixels (x, y), y down, as a row to where they are shown
    (ISO 14496-12, 8.3.2): ``x' = a x + c y, y' = b x + d y`` of ``[[a, b, u], [c, d, v], ...]``.
    """
    matrix = picture.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return UPRIGHT
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].astype(np.float64).tolist()
    straight, turned = min(abs(a), abs(d)), min(abs(b), abs(c))
    if max(abs(b), abs(c)) <= _SKEW * straight:
        return Orientation(False, a < 0.0, d < 0.0)
    if max(abs(a), abs(d)) <= _SKEW * turned:
        return Orientation(True, c < 0.0, b < 0.0)
    return None


def is_gray(picture: Any) -> bool:
    """Tell whether a picture has brightness alone, as whole numbers of 8 to 16 bits."""
    name, bits = picture.format.name, picture.format.components[0].bits
    return bool(name.startswith("gray") and not name.startswith("grayf") and 8 <= bits <= 16)


def nv12_planes(picture: Any, orientation: Orientation) -> Planes:
    """Return luma (h, w) and interleaved chroma (h/2, w), as shown, of a picture of any format."""
    luma, pairs = _gray_planes(picture) if is_gray(picture) else _color_planes(picture)
    if orientation == UPRIGHT:
        return luma, pairs
    halves = pairs.reshape(pairs.shape[0], -1, 2)
    turned = np.asarray(orientation.turn(halves), order="C")
    return np.asarray(orientation.turn(luma), order="C"), turned.reshape(turned.shape[0], -1)


def _color_planes(picture: Any) -> Planes:
    if picture.format.name in ("yuv420p", "yuvj420p"):
        # Interleaving is exact; FFmpeg's own conversion would rescale full-range yuvj420p.
        luma = _rows(picture.planes[0])
        chroma = np.empty((luma.shape[0] // 2, luma.shape[1]), np.uint8)
        chroma[:, 0::2] = _rows(picture.planes[1])
        chroma[:, 1::2] = _rows(picture.planes[2])
        return luma, chroma
    converted = picture if picture.format.name == "nv12" else picture.reformat(format="nv12")
    luma = _rows(converted.planes[0])
    # PyAV counts a chroma plane's width in UV pairs.
    pairs = np.frombuffer(converted.planes[1], np.uint8)
    chroma = pairs.reshape(converted.planes[1].height, converted.planes[1].line_size)
    return luma, chroma[:, : luma.shape[1]]


def _gray_planes(picture: Any) -> Planes:
    """FFmpeg's own conversion would take the plane for full range and squeeze it."""
    bits = picture.format.components[0].bits
    plane = picture.planes[0]
    if bits > 8:
        order = ">u2" if picture.format.is_big_endian else "<u2"
        rows = np.frombuffer(plane, order).reshape(plane.height, -1)[:, : plane.width]
        # Ranges are whole multiples of those of 8 bits: a shift, rounded to the nearest.
        rounded = rows.astype(np.uint32) + (1 << (bits - 9)) >> (bits - 8)
        luma = np.minimum(rounded, 255).astype(np.uint8)
    else:
        luma = _rows(plane)
    return luma, np.full((luma.shape[0] // 2, luma.shape[1]), NEUTRAL, np.uint8)


def _rows(plane: Any) -> NDArray[np.uint8]:
    rows: NDArray[np.uint8] = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return rows[:, : plane.width]

"""Draws into an RGB picture with numpy: anti-aliased polygons, boxes, lines and text.

Coordinates are pixels, u to the right, v down; the center of the first pixel is (0.5, 0.5).
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

# --- A bitmap font of 5 x 7 cells, drawn for this project -------------------------------------
# A glyph has seven rows of two hexadecimal digits; the highest of five bits is the leftmost cell.

CELL_WIDTH, CELL_HEIGHT = 6, 7

_GLYPHS = {
    " ": "00000000000000",
    "0": "0e11131519110e",
    "1": "040c040404040e",
    "2": "0e11010204081f",
    "3": "1f02040201110e",
    "4": "02060a121f0202",
    "5": "1f101e0101110e",
    "6": "0608101e11110e",
    "7": "1f010204080808",
    "8": "0e11110e11110e",
    "9": "0e11110f01020c",
    "A": "0e11111f111111",
    "B": "1e11111e11111e",
    "C": "0e11101010110e",
    "D": "1e11111111111e",
    "E": "1f10101e10101f",
    "F": "1f10101e101010",
    "G": "0e11101713110f",
    "H": "1111111f111111",
    "I": "0e04040404040e",
    "J": "0702020202120c",
    "K": "11121418141211",
    "L": "1010101010101f",
    "M": "111b1515111111",
    "N": "11191513111111",
    "O": "0e11111111110e",
    "P": "1e11111e101010",
    "Q": "0e11111115120d",
    "R": "1e11111e141211",
    "S": "0f10100e01011e",
    "T": "1f040404040404",
    "U": "1111111111110e",
    "V": "11111111110a04",
    "W": "1111111515150a",
    "X": "11110a040a1111",
    "Y": "1111110a040404",
    "Z": "1f01020408101f",
    "a": "00000e010f110f",
    "b": "1010161911111e",
    "c": "00000e1010110e",
    "d": "01010d1311110f",
    "e": "00000e111f100e",
    "f": "0609081c080808",
    "g": "000f11110f010e",
    "h": "10101619111111",
    "i": "04000c0404040e",
    "j": "0200060202120c",
    "k": "10101214181412",
    "l": "0c04040404040e",
    "m": "00001a15151111",
    "n": "00001619111111",
    "o": "00000e1111110e",
    "p": "00001e111e1010",
    "q": "00000d130f0101",
    "r": "00001619101010",
    "s": "00000e100e011e",
    "t": "08081c08080906",
    "u": "0000111111130d",
    "v": "00001111110a04",
    "w": "0000111115150a",
    "x": "0000110a040a11",
    "y": "000011110f010e",
    "z": "00001f0204081f",
    ".": "00000000000c0c",
    ",": "000000000c0408",
    ":": "000c0c000c0c00",
    "/": "00010204081000",
    "%": "18190204081303",
    "+": "0004041f040400",
    "-": "0000001f000000",
    "(": "02040808080402",
    ")": "08040202020408",
    "?": "0e110102040004",
    "=": "00001f001f0000",
    "_": "0000000000001f",
    "\N{SUPERSCRIPT TWO}": "0c12040e000000",
}


@functools.lru_cache(maxsize=512)
def text_mask(text: str, scale: int) -> NDArray[np.float32]:
    """Return the coverage of each pixel by a line of text.

    `text`: characters that the font lacks become question marks. `scale`: pixels per cell. The
    result is (7 scale, 6 scale len(text)) float32, 0 or 1.
    """
    cells = np.zeros((CELL_HEIGHT, CELL_WIDTH * max(len(text), 1)), np.float32)
    for position, character in enumerate(text):
        rows = bytes.fromhex(_GLYPHS.get(character, _GLYPHS["?"]))
        bits = np.unpackbits(np.frombuffer(rows, np.uint8)[:, None], axis=1)[:, 3:]
        cells[:, CELL_WIDTH * position : CELL_WIDTH * position + 5] = bits
    mask = np.kron(cells, np.ones((scale, scale), np.float32))
    mask.setflags(write=False)
    return mask


Color = tuple[int, int, int]
Points = NDArray[np.float64]

# Number of lines on which a polygon is sampled per row; coverage along a line is exact.
LINES_PER_ROW = 4


class Canvas:
    """A picture with methods for drawing.

    `rgb`: (h, w, 3) uint8, modified.
    """

    def __init__(self, rgb: NDArray[np.uint8]) -> None:
        self.rgb = rgb
        self.height, self.width = rgb.shape[:2]

    def fill(self, outline: Points, color: Color, opacity: float) -> None:
        """Fill a polygon with the even-odd rule.

        `outline`: (n, 2) vertices; non-finite ones are ignored. `color`: red, green, blue, 0 to
        255. `opacity`: 0 to 1.
        """
        points = outline[np.isfinite(outline).all(axis=1)]
        if len(points) < 3 or opacity <= 0:
            return
        # Clip points far outside the picture, which would only cost time.
        limit = 20.0 * self.width
        points = np.clip(points, -limit, limit)
        top = max(int(np.floor(points[:, 1].min())), 0)
        bottom = min(int(np.ceil(points[:, 1].max())), self.height)
        left = max(int(np.floor(points[:, 0].min())), 0)
        right = min(int(np.ceil(points[:, 0].max())) + 1, self.width)
        if top >= bottom or left >= right:
            return
        cover = _coverage(points - [left, top], bottom - top, right - left)
        self._blend(top, left, cover, color, opacity)

    def box(self, u: float, v: float, width: float, height: float, style: BoxStyle) -> None:
        """Fill an upright rectangle."""
        color, opacity = style
        corners = np.array([[u, v], [u + width, v], [u + width, v + height], [u, v + height]])
        self.fill(corners, color, opacity)

    def line(self, points: Points, width: float, color: Color, opacity: float) -> None:
        """Draw straight lines between consecutive points."""
        for start, end in itertools.pairwise(points):
            along = end - start
            length = float(np.hypot(*along))
            if not 0 < length < np.inf:
                continue
            side = 0.5 * width * np.array([-along[1], along[0]]) / length
            self.fill(
                np.array([start + side, end + side, end - side, start - side]), color, opacity
            )

    def text(self, u: int, v: int, text: str, scale: int, color: Color) -> None:
        """Write a line of text with its upper left corner at a pixel; clipped at the borders."""
        mask = text_mask(text, scale)
        top, left = max(v, 0), max(u, 0)
        cover = mask[top - v : self.height - v, left - u : self.width - u]
        if cover.size:
            self._blend(top, left, cover, color, 1.0)

    def _blend(
        self, top: int, left: int, cover: NDArray[np.float32], color: Color, opacity: float
    ) -> None:
        height, width = cover.shape
        area = self.rgb[top : top + height, left : left + width]
        # In the bounding box of a thin line, almost no pixel is covered.
        covered = np.nonzero(cover)
        alpha = np.float32(opacity) * cover[covered][:, None]
        pixels = area[covered].astype(np.float32)
        pixels += (np.array(color, np.float32) - pixels) * alpha
        area[covered] = (pixels + np.float32(0.5)).astype(np.uint8)


BoxStyle = tuple[Color, float]


def text_size(text: str, scale: int) -> tuple[int, int]:
    """Return width and height of a line of text in pixels."""
    return (CELL_WIDTH * len(text) - 1) * scale, CELL_HEIGHT * scale


def _coverage(points: Points, height: int, width: int) -> NDArray[np.float32]:
    """Return the coverage of each pixel by a polygon, 0 to 1, (height, width) float32.

    Each row is sampled on a few lines. The edges that cross a line are sorted. The parts between
    the first and the second crossing, the third and the fourth, and so on are inside. A running sum
    along the line fills them; each end adds its fractional coverage of a pixel.
    """
    line, u = _crossings(points, height)
    # Each line has an even number of crossings, so signs alternate over all of them.
    order = np.lexsort((u, line))
    row, at = line[order] // LINES_PER_ROW, np.clip(u[order], 0.0, float(width))
    sign = 1.0 - 2.0 * (np.arange(len(at)) % 2)
    pixel = at.astype(np.intp)
    part = at - pixel
    stride = width + 2
    first = row * stride + pixel
    steps = np.bincount(first, sign * (1.0 - part), height * stride)
    steps += np.bincount(first + 1, sign * part, height * stride)
    cover = np.cumsum(steps.reshape(height, stride)[:, :width], axis=1, dtype=np.float32)
    return np.asarray(np.clip(cover * np.float32(1 / LINES_PER_ROW), 0.0, 1.0))


def _crossings(points: Points, height: int) -> tuple[NDArray[np.intp], Points]:
    """Return the line number and the u coordinate of each crossing of the outline; (n,) both."""
    start, end = points, np.roll(points, -1, axis=0)
    # Vertical positions in units of lines; line i is at i + 0.5.
    low = np.minimum(start[:, 1], end[:, 1]) * LINES_PER_ROW
    high = np.maximum(start[:, 1], end[:, 1]) * LINES_PER_ROW
    last_line = float(height * LINES_PER_ROW)
    first = np.clip(np.ceil(low - 0.5), 0.0, last_line).astype(np.intp)
    behind = np.clip(np.ceil(high - 0.5), 0.0, last_line).astype(np.intp)
    counts = np.maximum(behind - first, 0)
    edge = np.repeat(np.arange(len(points)), counts)
    offset = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
    line = first[edge] + offset
    rise = (end[edge, 1] - start[edge, 1]) * LINES_PER_ROW
    share = (line + 0.5 - start[edge, 1] * LINES_PER_ROW) / rise
    return line, start[edge, 0] + share * (end[edge, 0] - start[edge, 0])

"""Drawing into an RGB picture with numpy: filled polygons with smooth edges, boxes, text.

Coordinates are pixels, u right, v down; the middle of the first pixel is (0.5, 0.5).
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from tools.views.font import CELL_HEIGHT, CELL_WIDTH, text_mask

Color = tuple[int, int, int]
Points = NDArray[np.float64]

# Lines on which a polygon is sampled in each row; along a line its coverage is exact.
LINES_PER_ROW = 4


class Canvas:
    """A picture that is drawn on.

    Args:
        rgb: (h, w, 3) uint8, modified.
    """

    def __init__(self, rgb: NDArray[np.uint8]) -> None:
        self.rgb = rgb
        self.height, self.width = rgb.shape[:2]

    def fill(self, outline: Points, color: Color, opacity: float) -> None:
        """Fill a polygon; what lies within it twice is outside again.

        Args:
            outline: (n, 2) vertices; those that are not finite are left out.
            color: red, green, blue.
            opacity: 0 to 1.
        """
        points = outline[np.isfinite(outline).all(axis=1)]
        if len(points) < 3 or opacity <= 0:
            return
        # A wild curve projects far away; there it only costs time.
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
        """Draw straight pieces between points."""
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
        # Of the box around a thin line nearly nothing is covered.
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
    """Return how much of each pixel a polygon covers, 0 to 1, (height, width) float32.

    Each row is sampled on a few lines. The edges that cross a line are sorted; between the first
    and the second, the third and the fourth, ... is inside. Ends within a pixel count by their
    share: a span adds its slope at both ends, and a running sum along the line fills it.
    """
    line, u = _crossings(points, height)
    # Each line is crossed an even number of times, so that signs alternate over all of them.
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
    """Return line and place of each crossing of the outline with a line; (n,) both."""
    start, end = points, np.roll(points, -1, axis=0)
    # In lines; line i lies at i + 0.5.
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

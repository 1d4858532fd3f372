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
        alpha = (opacity * cover)[:, :, None]
        mixed = area + (np.array(color, np.float32) - area) * alpha
        np.copyto(area, np.clip(mixed + 0.5, 0, 255), casting="unsafe")


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
    lines = (np.arange(height * LINES_PER_ROW) + 0.5) / LINES_PER_ROW
    start, end = points, np.roll(points, -1, axis=0)
    rise = end[:, 1] - start[:, 1]
    slanted = np.abs(rise) > 1e-9
    start, end, rise = start[slanted], end[slanted], rise[slanted]
    low, high = np.minimum(start[:, 1], end[:, 1]), np.maximum(start[:, 1], end[:, 1])
    crosses = (lines[:, None] >= low) & (lines[:, None] < high)
    share = (lines[:, None] - start[:, 1]) / rise
    # What does not cross sorts behind all that does.
    u = np.where(crosses, start[:, 0] + share * (end[:, 0] - start[:, 0]), np.inf)
    deepest = int(crosses.sum(axis=1).max(initial=0))
    u = np.sort(u, axis=1)[:, :deepest]
    steps = np.zeros((height, width + 2), np.float64)
    row = np.repeat(np.arange(height), LINES_PER_ROW)
    for column in range(deepest):
        sign = 1.0 if column % 2 == 0 else -1.0
        inside = np.isfinite(u[:, column])
        at = np.clip(u[inside, column], 0.0, float(width))
        pixel = at.astype(np.intp)
        part = at - pixel
        np.add.at(steps, (row[inside], pixel), sign * (1.0 - part))
        np.add.at(steps, (row[inside], pixel + 1), sign * part)
    cover = np.cumsum(steps, axis=1)[:, :width] / LINES_PER_ROW
    return np.clip(cover, 0.0, 1.0).astype(np.float32)

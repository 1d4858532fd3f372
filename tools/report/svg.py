"""Small inline SVG charts for the reports: axes with round ticks, lines, dots, level lines.

Plain strings, no dependency; colours come from CSS classes of the page that embeds them.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

LINE_PX = 15

Points = NDArray[np.floating]
Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Margins:
    """Space around the plotting area in pixels."""

    left: int = 52
    right: int = 16
    top: int = 12
    bottom: int = 38


@dataclass(slots=True)
class Chart:
    """One chart; add marks, then ``render()``."""

    width: int  # pixels of the whole chart
    height: int  # pixels of the whole chart
    x_range: Range  # data values at the left and right edge
    y_range: Range  # data values at the bottom and top edge
    x_label: str  # text below the axis
    y_label: str  # text at the axis; "" for none
    summary: str  # what the chart shows, for readers that do not see it
    margins: Margins = field(default_factory=Margins)
    _marks: list[str] = field(default_factory=list)
    _levels: list[tuple[float, str]] = field(default_factory=list)

    def line(self, xs: Points, ys: Points, css: str) -> None:
        """Draw a line through the points; it breaks at NaN."""
        self._marks.append(f'<path class="{css}" d="{path_data(self._pixels(xs, ys))}"/>')

    def ribbon_across(self, ys: Points, left: Points, right: Points, css: str) -> None:
        """Fill the area between two curves that are functions of y."""
        edge = np.concatenate([self._pixels(left, ys), self._pixels(right, ys)[::-1]])
        self._marks.append(f'<path class="{css}" d="{path_data(edge)}Z"/>')

    def dots(self, xs: Points, ys: Points, css: str, radius: float = 1.6) -> None:
        """Draw a dot at every finite point."""
        self._marks.extend(
            f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'
            for x, y in self._pixels(xs, ys)
            if math.isfinite(x) and math.isfinite(y)
        )

    def level(self, y: float, label: str, css: str) -> None:
        """Draw a horizontal line across the chart with a label in the right margin."""
        if not self.y_range[0] <= y <= self.y_range[1]:
            return
        right = self.width - self.margins.right
        at = self._pixels(np.array([self.x_range[0]]), np.array([y]))[0, 1]
        self._marks.append(
            f'<line class="{css}" x1="{self.margins.left}" x2="{right}" '
            f'y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        self._levels.append((float(at), label))

    def render(self) -> str:
        """Return the chart as one ``<svg>`` element."""
        m = self.margins
        inner = (self.width - m.left - m.right, self.height - m.top - m.bottom)
        # Unique in a page and the same in every run.
        clip = f"clip-{zlib.crc32(''.join([self.summary, *self._marks]).encode()):08x}"
        return (
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.summary)}"><title>{escape(self.summary)}</title>'
            f'<clipPath id="{clip}"><rect x="{m.left}" y="{m.top}" width="{inner[0]}" '
            f'height="{inner[1]}"/></clipPath>{self._axes()}'
            f'<g clip-path="url(#{clip})">{"".join(self._marks)}</g>{self._level_labels()}</svg>'
        )

    def _pixels(self, xs: Points, ys: Points) -> NDArray[np.float64]:
        m = self.margins
        (x0, x1), (y0, y1) = self.x_range, self.y_range
        px = m.left + (np.asarray(xs, float) - x0) / (x1 - x0) * (self.width - m.left - m.right)
        inner = self.height - m.top - m.bottom
        py = self.height - m.bottom - (np.asarray(ys, float) - y0) / (y1 - y0) * inner
        return np.stack([px, py], axis=1)

    def _level_labels(self) -> str:
        """Write the labels from the top down, each at least one line below the one before."""
        parts, lowest = [], -math.inf
        for at, label in sorted(self._levels):
            lowest = max(at + 4, lowest + LINE_PX)
            x = self.width - self.margins.right + 6
            parts.append(
                f'<text class="level-label" x="{x}" y="{lowest:.1f}">{escape(label)}</text>'
            )
        return "".join(parts)

    def _axes(self) -> str:
        m, parts = self.margins, []
        bottom, right = self.height - m.bottom, self.width - m.right
        for value in ticks(self.y_range, max(2, (bottom - m.top) // 36)):
            at = self._pixels(np.array([self.x_range[0]]), np.array([value]))[0, 1]
            parts.append(
                f'<line class="grid" x1="{m.left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
                f'<text class="tick" x="{m.left - 7}" y="{at + 4:.1f}" text-anchor="end">'
                f"{value:g}</text>"
            )
        for value in ticks(self.x_range, max(2, (right - m.left) // 70)):
            at = self._pixels(np.array([value]), np.array([self.y_range[0]]))[0, 0]
            parts.append(
                f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
                f'<text class="tick" x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">'
                f"{value:g}</text>"
            )
        parts.append(f'<line class="axis" x1="{m.left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        middle = (m.left + right) / 2
        parts.append(
            f'<text class="label" x="{middle:.0f}" y="{self.height - 4}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
        )
        if self.y_label:
            parts.append(
                f'<text class="label" transform="translate(13 {(m.top + bottom) / 2:.0f}) '
                f'rotate(-90)" text-anchor="middle">{escape(self.y_label)}</text>'
            )
        return "".join(parts)


def path_data(pixels: NDArray[np.float64]) -> str:
    """Return SVG path data through (n, 2) pixel points; a point with NaN lifts the pen."""
    commands: list[str] = []
    pen_down = False
    for x, y in pixels:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen_down = False
            continue
        commands.append(f"{'L' if pen_down else 'M'}{x:.1f} {y:.1f}")
        pen_down = True
    return "".join(commands)


def ticks(value_range: Range, count: int) -> list[float]:
    """Return about ``count`` round values (1, 2 or 5 times a power of ten apart) in the range."""
    low, high = value_range
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # Rounded to the step's own digits, so that 0.30000000000000004 is written 0.3.
    digits = max(0, -math.floor(math.log10(step)))
    return [round(index * step, digits) + 0.0 for index in range(first, last + 1)]


def padded_range(values: Points, *, floor: float | None = None, minimum_span: float = 1.0) -> Range:
    """Return a range around the finite values with 8 % of air, at least ``minimum_span`` wide."""
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    span = max(high - low, minimum_span)
    middle = (low + high) / 2
    low, high = middle - 0.58 * span, middle + 0.58 * span
    return (low, high) if floor is None else (floor, max(high, floor + minimum_span))

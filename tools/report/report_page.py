"""Renders the parts that all reports share: the page, tiles, tables, and charts as inline SVG.

All parts are strings of HTML. Colours come from CSS classes in `STYLE`, which every page embeds.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.files.user_file import whole_file
from tools.errors import UsageError

# The style sheet of all reports. It has a light and a dark theme, and rules for printing.
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a202c; --soft: #5a6577;
  --rule: #dde2e9; --grid: #eceff3; --axis: #98a2b3; --accent: #1d4ed8; --good: #166534;
  --bad: #b91c1c; --unsure: #92400e; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #12161d; --ink: #e6eaf0; --soft: #a3adbd; --rule: #2f3845; --grid: #232b36;
    --axis: #6b7789; --accent: #7aa2ff; --good: #4ade80; --bad: #f87171; --unsure: #fbbf24; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
main { max-width: min(1560px, 100%); margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 34px 0 2px; }
h3 { font-size: 14px; font-weight: 600; margin: 6px 0 0; }
/* A line of text holds about 90 letters, however wide the window is. */
p { margin: 0 0 10px; color: var(--soft); max-width: 76ch; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, monospace; color: var(--ink);
  overflow-wrap: anywhere; }
.lead { font-size: 19px; line-height: 1.4; color: var(--ink); margin: 8px 0 6px; }
.lead.good { color: var(--good); } .lead code { font-size: 0.85em; }
.good { color: var(--good); } .bad, .warning { color: var(--bad); font-weight: 600; }
.unsure { color: var(--unsure); font-weight: 600; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--accent); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr));
  margin: 20px 0 0; border-top: 2px solid var(--ink); border-bottom: 1px solid var(--rule); }
.tile { padding: 12px 10px 10px 0; }
.tile span { display: block; }
.tile .name, .tile .note { color: var(--soft); font-size: 13px; min-height: 19px; }
.tile .value { font-size: 25px; line-height: 1.25; font-variant-numeric: tabular-nums; }
svg, video, img { display: block; width: 100%; height: auto; }
figure { margin: 0; }
.panel { display: grid; grid-template-columns: minmax(0, 1fr) 330px; gap: 0 18px; margin: 0 0 22px;
  align-items: start; }
.panel .road svg { border-radius: 3px; }
.panel figcaption { grid-column: 1; color: var(--soft); font-size: 13px; padding-top: 4px;
  font-variant-numeric: tabular-nums; }
.row { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 16px; }
.row.four { grid-template-columns: repeat(4, minmax(0, 1fr)); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; margin-top: 6px; }
th, td { text-align: left; vertical-align: top; padding: 4px 24px 4px 0;
  border-bottom: 1px solid var(--rule); }
th { font-weight: 500; color: var(--soft); white-space: nowrap; }
td.number { white-space: nowrap; text-align: right; font-variant-numeric: tabular-nums; }
th.number { text-align: right; }
td.long { overflow-wrap: anywhere; max-width: 76ch; }
td.best { font-weight: 600; color: var(--good); }
.keys span { white-space: nowrap; }
.key { display: inline-block; width: 18px; height: 9px; margin: 0 5px 0 10px; border-radius: 2px; }
.path-key { background: #22c55e; margin-left: 0; } .lane-key { background: #38bdf8; }
.edge-key { background: #ef4444; } .true-key { background: #f59e0b; height: 3px; }
.plan-key { background: #16a34a; margin: 0 2px; }
.car-key { background: #94a3b8; margin: 0 2px; }
.path { fill: #22c55e; } .lane { fill: #38bdf8; } .edge { fill: #ef4444; }
.true, .chart .true { fill: none; stroke: #f59e0b; stroke-width: 2.5; stroke-dasharray: 9 6; }
.chart .true { stroke-width: 1.2; stroke-dasharray: 5 3; }
.grid { stroke: var(--grid); } .axis { stroke: var(--axis); }
.tick, .label, .level-label { font-size: 12px; fill: var(--soft); }
.level-label { fill: var(--ink); }
.chart path { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.chart .exec-line { stroke: var(--accent); stroke-opacity: 0.5; stroke-width: 1; }
.exec-dot { fill: var(--accent); }
.level-median { stroke: var(--ink); } .level-p99 { stroke: var(--unsure); stroke-dasharray: 5 3; }
.level-budget { stroke: var(--bad); stroke-dasharray: 2 3; }
.chart .drop-line { stroke: var(--bad); }
.chart .top-path { fill: #22c55e; fill-opacity: 0.3; } .chart .top-plan { stroke: #16a34a; }
.chart .top-lane { stroke: #0284c7; } .chart .faint { stroke-opacity: 0.35; }
.chart .top-edge { stroke: #ef4444; stroke-dasharray: 4 3; }
.chart .plan-line { stroke: #16a34a; } .chart .car-line { stroke: #94a3b8; stroke-width: 2.4; }
@media (max-width: 1300px) { .row.four { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 800px) {
  main { padding: 20px 14px 36px; }
  h1 { font-size: 22px; overflow-wrap: anywhere; }
  .panel, .row, .row.four { grid-template-columns: minmax(0, 1fr); }
  .panel .top { max-width: 330px; order: 1; }
  /* Charts of half a page shrink to its width; their letters must not. */
  .pair .tick, .pair .label { font-size: 17px; }
  .wide > svg { min-width: 760px; }
  /* A table that is too wide moves by itself, not the page; no column shrinks to single letters. */
  table { display: block; overflow-x: auto; }
  td:not(.number) { min-width: 6em; }
  .tile .value { font-size: 21px; }
  th, td { padding-right: 14px; } }
@media print { .panel, .tiles { break-inside: avoid; } }
"""

LINE_PX = 15

Points = NDArray[np.floating]
Range = tuple[float, float]
PAGE_END = "</main></body></html>\n"
# Text of a number with or without a unit; such cells are aligned to the right.
_NUMBER: Final = re.compile(
    r"-|[<+\u2212-]?\s?\d[\d,.]*(e[+-]?\d+)?"
    r"( ?(%|\u00b0|[mc]?m|m?s|m/s[2\u00b2]?|rad|deg|KiB|MiB))?",
    re.ASCII,
)
# Verdicts in cells, and their CSS classes.
_WORDS: Final = {
    **dict.fromkeys(("holds", "AGREE", "passed"), "good"),
    **dict.fromkeys(("fails", "FAILS", "DIFFER", "changed"), "bad"),
    **dict.fromkeys(("FAILED", "not judged"), "unsure"),
}


def page_start(title: str, more_style: str = "") -> str:
    """Return the beginning of a page, up to its first section.

    `title` is the window's title in plain text. `more_style` is CSS to add to the style sheet.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}{more_style}</style></head><body><main>"
    )


def whole_page(title: str, sections: Iterable[str], more_style: str = "") -> str:
    """Return a complete page as HTML text; the arguments are those of `page_start`."""
    return f"{page_start(title, more_style)}{''.join(sections)}{PAGE_END}"


def title_of_two(left: str, right: str) -> str:
    """Return the title of a page about two files, given their paths.

    A common file name is written once, with both directories: ``log.zst: old and new``.
    """
    first, second = Path(left), Path(right)
    if first.name != second.name or first.parent.name == second.parent.name:
        return f"{first.name} and {second.name}"
    return f"{first.name}: {first.parent.name} and {second.parent.name}"


def tiles_section(tiles: Sequence[tuple[str, str, str]]) -> str:
    """Return a row of tiles, given the name, value and note of each in plain text."""
    cells = "".join(
        f'<div class="tile"><span class="name">{escape(name)}</span>'
        f'<span class="value">{escape(value)}</span><span class="note">{escape(note)}</span></div>'
        for name, value, note in tiles
    )
    return f'<section class="tiles">{cells}</section>'


def table_part(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of plain text, which scrolls sideways if it is wider than the page.

    Numbers are aligned to the right and never wrapped. A column title is aligned like its first
    cell.
    """
    drawn = list(rows)
    first = drawn[0] if drawn else ()
    head = "".join(
        f"<th{_css(cell) if _NUMBER.fullmatch(cell) else ''}>{escape(title)}</th>"
        for title, cell in zip(header, [*first, *[""] * len(header)], strict=False)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{_css(cell)}>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in drawn
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _css(cell: str) -> str:
    css = "number" if _NUMBER.fullmatch(cell) else _WORDS.get(cell, "")
    return f' class="{css}"' if css else ""


def facts_part(facts: Mapping[str, str]) -> str:
    """Return a table of names and texts; long texts are wrapped."""
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="long">{escape(text)}</td></tr>'
        for name, text in facts.items()
    )
    return f"<table>{rows}</table>"


def folded(summary: str, content: str) -> str:
    """Return HTML content folded below a summary line in plain text; "" without content."""
    if not content:
        return ""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def write_page(path: Path, parts: Iterable[str]) -> None:
    """Write a page. The file is replaced atomically.

    `parts` are written one by one as they are generated.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with whole_file(path) as file:
            for part in parts:
                # File names can contain bytes that are not valid text.
                file.write(part.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(
            f"{path}: the report cannot be written ({error.strerror or error}); free some disk "
            "space or name another file"
        ) from error


@dataclass(frozen=True, slots=True)
class Margins:
    """The space around the plotting area in pixels."""

    left: int = 52
    right: int = 16
    top: int = 12
    bottom: int = 38


@dataclass(slots=True)
class Chart:
    """A chart. Call the drawing methods, then ``render()``.

    Drawing methods take (n,) data values, and the CSS class of the mark.
    """

    width: int  # total width in pixels
    height: int  # total height in pixels
    x_range: Range  # data values at the left and right edge
    y_range: Range  # data values at the bottom and top edge
    x_label: str  # text below the horizontal axis
    y_label: str  # text next to the vertical axis; "" for none
    summary: str  # description of the chart for screen readers
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
        # The id is unique in a page and the same in every run.
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
        """Return the labels from the top down, at least one line apart."""
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
    """Return SVG path data through (n, 2) pixel points; a point with NaN interrupts the line."""
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
    # Round to the digits of the step, so that 0.30000000000000004 is written 0.3.
    digits = max(0, -math.floor(math.log10(step)))
    return [round(index * step, digits) + 0.0 for index in range(first, last + 1)]


def padded_range(values: Points, *, floor: float | None = None, minimum_span: float = 1.0) -> Range:
    """Return a range around the finite values with 8 % of padding on each side.

    The values' span counts as at least `minimum_span`. `floor` replaces the lower end.
    """
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    span = max(high - low, minimum_span)
    middle = (low + high) / 2
    low, high = middle - 0.58 * span, middle + 0.58 * span
    return (low, high) if floor is None else (floor, max(high, floor + minimum_span))

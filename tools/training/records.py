"""What a training writes down of itself: one JSON object a line, and the page of its curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.lib.report_page import tiles_section, whole_page, write_page
from tools.lib.svg import Chart, Range, padded_range

NAME = "history.jsonl"
PAGE = "curves.html"
# Losses of steps are averaged over so many points of a curve.
_POINTS = 240
_STYLE = """
.chart .curve { stroke: var(--accent); stroke-width: 1.4; }
"""

Row = Mapping[str, Any]


class Records:
    """The history of one training, appended to as it goes."""

    def __init__(self, directory: Path, rows: Sequence[Row] = ()) -> None:
        """Begin a history, or go on with the rows of a checkpoint."""
        self._path = directory / NAME
        self._page = directory / PAGE
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows]
        self._path.write_text(
            "".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8"
        )

    def add(self, **row: Any) -> None:
        """Write a row: `stage`, `step`, `minutes` and figures."""
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write_page(self, title: str, figures: Sequence[tuple[str, str, str]] = ()) -> None:
        """Write the page of curves.

        Args:
            title: of the page.
            figures: name, value and note of each tile.
        """
        sections = [f"<h1>{title}</h1>"]
        if figures:
            sections.append(tiles_section(figures))
        for stage in dict.fromkeys(row["stage"] for row in self.rows):
            rows = [row for row in self.rows if row["stage"] == stage]
            sections.append(f"<h2>{stage}</h2>{_charts(stage, rows)}")
        write_page(self._page, [whole_page(title, sections, _STYLE)])


def _charts(stage: str, rows: Sequence[Row]) -> str:
    """Return a chart for each figure that the rows of a stage have."""
    known: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("stage", "step", "minutes") and isinstance(value, float):
                known.setdefault(name, []).append((row["minutes"], value))
    charts = [
        f"<figure><h3>{name}</h3>{_chart(f'{stage}: {name}', np.array(points))}</figure>"
        for name, points in known.items()
        if len(points) > 1
    ]
    return f'<div class="row">{"".join(charts)}</div>'


def _chart(summary: str, points: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    x, y = points[:, 0], points[:, 1]
    if len(points) > _POINTS:
        groups = np.array_split(np.arange(len(points)), _POINTS)
        x = np.array([x[group].mean() for group in groups])
        y = np.array([y[group].mean() for group in groups])
    end: Range = (float(x.min()), float(max(x.max(), x.min() + 1e-3)))
    # The first steps would hide all others.
    shown = y[len(y) // 20 :]
    chart = Chart(360, 220, end, padded_range(shown, minimum_span=1e-3), "minutes", "", summary)
    chart.line(x, y, "curve")
    return chart.render()

"""Records of a training: a history with one JSON object per line, and a page of its curves.

It also shows the progress of a training, and detects a divergence from the losses.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.errors import TrainingError
from tools.lib.json_output import json_text
from tools.report.report_page import (
    Chart,
    Range,
    padded_range,
    tiles_section,
    whole_page,
    write_page,
)

NAME = "history.jsonl"
PAGE = "curves.html"
PICTURE = "curves.svg"
# The maximum number of points of a curve; losses of more steps are averaged.
_POINTS = 240
# Number of charts per row of the picture.
_ACROSS = 3
_STYLE = """
.chart .curve { stroke: var(--accent); stroke-width: 1.4; }
"""

_PICTURE_STYLE = """
text { font: 12px system-ui, "DejaVu Sans", Arial, sans-serif; fill: #5a6577; }
.name { font-size: 14px; font-weight: 600; fill: #1a202c; }
.grid { stroke: #dde2e9; } .axis { stroke: #98a2b3; }
.curve { stroke: #1d4ed8; stroke-width: 1.6; fill: none; }
"""

Row = Mapping[str, Any]


class Records:
    """The history of one training, appended to while it runs."""

    def __init__(self, directory: Path, rows: Sequence[Row] = ()) -> None:
        """Start a history, or continue with the rows of a checkpoint."""
        self._path = directory / NAME
        self._page, self._picture = directory / PAGE, directory / PICTURE
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows]
        self._rewrite()

    def add(self, **row: Any) -> None:
        """Append a row with `stage`, `step`, `minutes` and metrics."""
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json_text(row) + "\n")

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Remove the rows of an interrupted block; after an error they are kept."""
        count = len(self.rows)
        try:
            yield
        except Exception:
            raise
        except BaseException:  # an interrupt, or the command line's exception for SIGTERM
            del self.rows[count:]
            self._rewrite()
            raise

    def _rewrite(self) -> None:
        self._path.write_text("".join(json_text(row) + "\n" for row in self.rows), encoding="utf-8")

    def write_picture(self, stage: str, summary: str) -> None:
        """Write the charts of one stage as an SVG file, for documents.

        `summary` is its text alternative.
        """
        charts = _charts(stage, [row for row in self.rows if row["stage"] == stage])
        high = 250 * max(1, -(-len(charts) // _ACROSS))
        size = f'viewBox="0 0 {370 * _ACROSS} {high}" role="img"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} aria-label="{escape(summary)}">',
            f"<style>{_PICTURE_STYLE}</style>",
        ]
        for index, (name, chart) in enumerate(charts):
            x, y = 370 * (index % _ACROSS), 250 * (index // _ACROSS)
            parts.append(f'<text class="name" x="{x + 52}" y="{y + 18}">{escape(name)}</text>')
            place = f'<svg x="{x}" y="{y + 22}" width="360" height="220" '
            parts.append(chart.replace("<svg ", place, 1))
        write_page(self._picture, [*parts, "</svg>\n"])

    def write_page(self, title: str, figures: Sequence[tuple[str, str, str]] = ()) -> None:
        """Write the page of curves.

        `figures` are name, value and note of each tile.
        """
        sections = [f"<h1>{title}</h1>"]
        if figures:
            sections.append(tiles_section(figures))
        for stage in dict.fromkeys(row["stage"] for row in self.rows):
            rows = [row for row in self.rows if row["stage"] == stage]
            figures_of_it = "".join(
                f"<figure><h3>{escape(name)}</h3>{chart}</figure>"
                for name, chart in _charts(stage, rows)
            )
            sections.append(f'<h2>{escape(stage)}</h2><div class="row">{figures_of_it}</div>')
        write_page(self._page, [whole_page(title, sections, _STYLE)])


def _charts(stage: str, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return name and chart of each metric in the rows of a stage."""
    known: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("stage", "step", "minutes") and isinstance(value, float):
                known.setdefault(name, []).append((row["minutes"], value))
    return [
        (name, _chart(f"{stage}: {name}", np.array(points)))
        for name, points in known.items()
        if len(points) > 1
    ]


def _chart(summary: str, points: NDArray[np.float64]) -> str:
    x, y = points[:, 0], points[:, 1]
    if len(points) > _POINTS:
        groups = np.array_split(np.arange(len(points)), _POINTS)
        x = np.array([x[group].mean() for group in groups])
        y = np.array([y[group].mean() for group in groups])
    end: Range = (float(x.min()), float(max(x.max(), x.min() + 1e-3)))
    # The value range ignores the first steps, which would dwarf all others.
    shown = y[len(y) // 20 :]
    chart = Chart(360, 220, end, padded_range(shown, minimum_span=1e-3), "minutes", "", summary)
    chart.line(x, y, "curve")
    return chart.render()


# Interval of progress lines without a terminal, in seconds.
_LINE_S = 60.0


class TrainingProgress:
    """A progress bar over the minutes of a training."""

    def __init__(self, minutes: float, *, show: bool) -> None:
        """Start the display; without `show` nothing is printed."""
        self._minutes = minutes
        self._bar: Any | None = None
        self._show = show
        self._printed_s = -_LINE_S
        if show and sys.stderr.isatty():
            from tqdm import tqdm

            form = "{l_bar}{bar}| {n:.1f} of {total:g} min{postfix}"
            self._bar = tqdm(total=minutes, file=sys.stderr, bar_format=form)

    def update(self, minutes: float, stage: str, text: str) -> None:
        """Show the minutes spent so far, the stage, and a text about it."""
        if self._bar is not None:
            self._bar.n = min(round(minutes, 2), self._minutes)
            self._bar.set_description_str(stage, refresh=False)
            self._bar.set_postfix_str(text)
            return
        now = time.perf_counter()
        if self._show and now - self._printed_s >= _LINE_S:
            self._printed_s = now
            print(f"{minutes:.1f} of {self._minutes:g} min, {stage}: {text}", file=sys.stderr)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.close()


# Number of remembered losses.
_MEMORY = 400
# Minimum number of losses before a divergence can be detected.
_LEAST = 100
# A loss is far above the median if its distance is this many times the median distance of the
# losses. In successful trainings the noise of batches reached 8 at most.
FAR = 30.0
RESUME = "continue from the last checkpoint with --resume and half the --learning-rate"
# Number of consecutive losses far above the median that count as a divergence.
_IN_A_ROW = 10


class Watch:
    """Detects a divergence from successive losses; `advice` is part of the error."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._losses: deque[float] = deque(maxlen=_MEMORY)
        self._far = 0

    def see(self, stage: str, step: int, loss: float) -> None:
        """Check the loss of a step.

        Raises:
            TrainingError: it is not finite, or the losses are far above their median.
        """
        if not math.isfinite(loss):
            raise self._error(stage, step, f"{loss}")
        if len(self._losses) >= _LEAST:
            middle = median(self._losses)
            usual = median(abs(value - middle) for value in self._losses)
            limit = middle + FAR * max(usual, 1e-3 * abs(middle), 1e-6)
            self._far = self._far + 1 if loss > limit else 0
            if self._far >= _IN_A_ROW:
                raise self._error(
                    stage, step, f"{loss:.4g} for {self._far} steps, {middle:.4g} before"
                )
            if loss > limit:
                return
        self._losses.append(loss)

    def _error(self, stage: str, step: int, found: str) -> TrainingError:
        return TrainingError(
            f"{stage} stage, step {step}: expected a loss that falls, found {found}: the training "
            f"diverged; {self._advice}"
        )

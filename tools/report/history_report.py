"""Judges the metrics of a history by their past values, and renders them as an HTML page.

A `Series` has the values of one metric in all runs of the same command, subject and device. The
last value is compared with the values since the last change point. It must be within a few median
absolute deviations of their median, which single outliers hardly change. Change points come from
the package ruptures (extra ``history``), which is imported only when needed. The page plots each
metric over the commits with its allowed range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.texts import count_text
from tools.report.history import Run
from tools.report.report_page import (
    Chart,
    Margins,
    folded,
    padded_range,
    table_part,
    whole_page,
    write_page,
)

# Fewer earlier runs do not show how much a metric varies.
MIN_PAST: Final = 5
# Older values depend more on the machine than on the code.
MAX_PAST: Final = 50
# Maximum number of runs of a metric to analyze. The time to find change points grows faster than
# their number.
MAX_RUNS: Final = 1000
# Allowed number of standard deviations: one run in 16 000 exceeds it by chance.
DEVIATIONS: Final = 4.0
# Standard deviation / median absolute deviation of normally distributed values.
MAD_SIGMA: Final = 1.4826
# The smallest difference that matters: a share of the median, and an absolute value by the suffix
# of the metric's name. Smaller ones pass even if the past values do not vary.
LEAST_SHARE: Final = 0.02
LEAST: Final = {"_ms": 0.02, "_m": 1e-3, "_rad": 5e-4, "_mps": 5e-3, "_mps2": 1e-2, "_deg": 0.02}
# The minimum number of values between two change points, so that one outlier makes none.
MIN_LEVEL: Final = 3
# Patterns of metrics that should be low, and of those that should be high.
LOWER: Final = (
    *("*_ms", "*_bytes*", "*_mib", "*_mean_*", "*_p99_*", "*_max_*", "*_lost_frames"),
    *("*_new_frames", "*departures", "*collisions", "*time.*", "*launches", "*kernels"),
)
HIGHER: Final = ("*gflops", "*completed*", "*_share", "*time_gap_min_s", "km")

Floats = NDArray[np.float64]
State = Literal["beyond", "better", "within", "short"]

# Limits of the page's length. The command's JSON has all metrics.
MAX_CHARTS = 120
MAX_ROWS = 200
# The maximum number of metrics to name in a sentence.
MAX_NAMED = 3
STATES = {
    "beyond": ("bad", "outside the allowed range"),
    "better": ("good", "better than the allowed range"),
    "within": ("", "within the allowed range"),
    "short": ("", f"not judged: fewer than {MIN_PAST} earlier runs"),
}
STYLE = """
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr));
  gap: 20px 24px; margin-top: 12px; }
.chart .value-line { stroke: var(--accent); stroke-opacity: 0.45; }
.value-dot { fill: var(--accent); }
.chart .allowed { stroke: var(--axis); stroke-dasharray: 4 4; stroke-width: 1; }
.chart .change { stroke: var(--unsure); stroke-width: 2; } .last-dot { fill: var(--ink); }
figcaption p { margin: 0; font-size: 13px; }
"""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A lasting change of a metric."""

    at: int  # index of the first run after the change
    before: float  # median before the change
    after: float  # median after the change


@dataclass(frozen=True, slots=True)
class Series:
    """One metric over the runs of the same command, subject and device."""

    figure: str  # name of the metric
    runs: tuple[Run, ...]  # oldest first
    values: Floats  # (n,) one value per run
    allowed: tuple[float, float]  # range for the last value; infinite if it is not judged
    past: int  # number of earlier runs that determine the range
    changes: tuple[ChangePoint, ...] = ()

    @property
    def state(self) -> State:
        """The verdict on the last value; "short" if there are too few earlier runs."""
        if self.past < MIN_PAST:
            return "short"
        last, (low, high) = float(self.values[-1]), self.allowed
        if low <= last <= high:
            return "within"
        direction = better(self.figure)
        is_better = (direction < 0 and last < low) or (direction > 0 and last > high)
        return "better" if is_better else "beyond"


def better(figure: str) -> int:
    """Return -1 if lower values of a metric are better, 1 if higher ones are, 0 if unknown."""
    if any(fnmatchcase(figure, pattern) for pattern in HIGHER):
        return 1
    return -1 if any(fnmatchcase(figure, pattern) for pattern in LOWER) else 0


def judge_runs(runs: Sequence[Run], patterns: Sequence[str] = ()) -> list[Series]:
    """Return the series of all metrics, those outside their allowed range first.

    `runs` are in the order they were made. `patterns` select metrics by name, with * and ?; without
    patterns all are judged.
    """
    groups: dict[tuple[str, str, str, str], list[Run]] = {}
    for run in runs:
        for figure in run.figures:
            if not patterns or any(fnmatchcase(figure, pattern) for pattern in patterns):
                key = (run.command, run.subject, run.device, figure)
                groups.setdefault(key, []).append(run)
    series = [_series(key[-1], group[-MAX_RUNS:]) for key, group in groups.items()]
    order = ("beyond", "better", "within", "short")
    return sorted(series, key=lambda one: (order.index(one.state), not one.changes))


def _series(figure: str, runs: Sequence[Run]) -> Series:
    values = np.array([run.figures[figure] for run in runs])
    past = values[:-1]
    begin = change_points(past, smallest_change(figure, past))
    # A new level replaces the old one only when it has at least MIN_PAST values.
    since = min(begin[-1] if begin else 0, max(0, past.size - MIN_PAST))
    past = past[max(since, past.size - MAX_PAST) :]
    changes = _changes(values, change_points(values, smallest_change(figure, values)))
    return Series(figure, tuple(runs), values, _allowed(figure, past), int(past.size), changes)


def _changes(values: Floats, begins: Sequence[int]) -> tuple[ChangePoint, ...]:
    edges = [0, *begins, values.size]
    levels = [float(np.median(values[one:other])) for one, other in pairwise(edges)]
    changed = zip(begins, levels, levels[1:], strict=False)
    return tuple(ChangePoint(at, before, after) for at, before, after in changed)


def _allowed(figure: str, past: Floats) -> tuple[float, float]:
    if past.size < MIN_PAST:
        return -math.inf, math.inf
    median = float(np.median(past))
    spread = DEVIATIONS * MAD_SIGMA * float(np.median(np.abs(past - median)))
    room = max(spread, smallest_change(figure, past))
    return median - room, median + room


def smallest_change(figure: str, values: Floats) -> float:
    """Return the smallest difference of a metric that matters, in the metric's unit."""
    size = abs(float(np.median(values))) if values.size else 0.0
    floors = [least for ending, least in LEAST.items() if figure.endswith(ending)]
    return max(LEAST_SHARE * size, *floors, 0.0)


def change_points(values: Floats, least: float) -> list[int]:
    """Return the rising indices of the first values after each change.

    The segments are optimal for the linear kernel (Killick et al., PELT; Celisse et al. 2018), with
    a penalty of 3 log n per segment, which independent noise of unit variance does not exceed.

    `values` is (n,). Steps of at most `least` are ignored.
    """
    if values.size < 2 * MIN_LEVEL:
        return []
    import ruptures

    # The median of three removes single outliers but keeps the positions of steps.
    padded = np.concatenate([values[:1], values, values[-1:]])
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 3), axis=1)
    steps = np.abs(np.diff(values))
    sigma = max(MAD_SIGMA * float(np.median(steps)) / math.sqrt(2.0), 0.5 * least, 1e-12)
    signal = np.asarray(smooth / sigma)[:, None]
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_LEVEL).fit(signal)
    begins = [int(at) for at in search.predict(pen=3.0 * math.log(values.size))[:-1]]
    edges = [0, *begins, values.size]
    medians = [float(np.median(values[one:other])) for one, other in pairwise(edges)]
    return [
        at
        for at, one, other in zip(begins, medians, medians[1:], strict=False)
        if abs(other - one) > least
    ]


def value_of(value: float) -> str:
    """Return a value with four significant digits, without an exponent below 1e12."""
    text = f"{value:.4g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < 1e12 else text


def verdict_of(series: Sequence[Series]) -> str:
    """Return one sentence about all metrics."""
    beyond = sum(one.state == "beyond" for one in series)
    judged = sum(one.state != "short" for one in series)
    total = count_text(len(series), "figure")
    if beyond:
        noun = "is" if beyond == 1 else "are"
        names = [one.figure for one in series if one.state == "beyond"]
        more = f" and {beyond - MAX_NAMED} more" if beyond > MAX_NAMED else ""
        which = f"{', '.join(names[:MAX_NAMED])}{more}"
        return f"{beyond} of {total} {noun} outside the allowed range: {which}."
    if not judged:
        return f"No figure could be judged: each needs {MIN_PAST} earlier runs; {total} found."
    rest = f" {len(series) - judged} have too few earlier runs." if judged < len(series) else ""
    return f"Nothing is outside the allowed range: {judged} of {total} judged.{rest}"


def range_text(series: Series) -> str:
    """Return the allowed range of the last value as text; "-" if it is not judged."""
    low, high = series.allowed
    return f"{value_of(low)} to {value_of(high)}" if math.isfinite(low) else "-"


def change_texts(series: Series) -> list[str]:
    """Return a line about each change, with the first commit after the change."""
    return [
        f"changed at {series.runs[one.at].name} ({series.runs[one.at].date[:10]}): "
        f"{value_of(one.before)} to {value_of(one.after)}"
        for one in series.changes
    ]


def write_history(
    path: Path, runs: Sequence[Run], series: Sequence[Series], damaged: Sequence[str]
) -> None:
    """Write the page. The file is replaced atomically.

    `runs` are all runs, `series` the metrics to show, both in order. `damaged` has a text about
    each damaged line of the history.

    Raises:
        UsageError: the file cannot be written.
    """
    states = {one.state for one in series}
    css = "bad" if "beyond" in states else "good" if states - {"short"} else "unsure"
    last = runs[-1] if runs else None
    about = "" if last is None else f" The last is of {last.name}, {last.date}."
    warnings = "".join(f'<p class="warning">{escape(text)}</p>' for text in damaged)
    rest = len(series) - MAX_CHARTS
    header = (
        f'<header><h1>History</h1><p class="lead {css}">{escape(verdict_of(series))}</p>'
        f"<p>{escape(count_text(len(runs), 'run') + '.' + about)} Dots are runs, oldest on the "
        "left; dashed lines are the range allowed for the last one; vertical lines are lasting "
        f"changes.</p>{warnings}</header>"
    )
    sections = [
        header,
        '<section class="pair">',
        *(_figure(one) for one in series[:MAX_CHARTS]),
        "</section>",
        f"<p>{rest} more figures are in the JSON only.</p>" if rest > 0 else "",
        folded(f"The last {count_text(min(len(runs), MAX_ROWS), 'run')}", _table(runs)),
    ]
    write_page(path, [whole_page("History", sections, STYLE)])


def _figure(series: Series) -> str:
    last = series.runs[-1]
    css, said = STATES[series.state]
    count = np.arange(1.0, series.values.size + 1.0)
    low, high = series.allowed
    bounds = [low, high] if math.isfinite(low) else []
    size = float(np.abs(series.values).max())
    values = np.append(series.values, bounds)
    limits = padded_range(values, minimum_span=max(float(np.ptp(values)), 0.02 * size, 1e-9))
    name = f"{series.figure} of {last.command} {last.subject}"
    chart = Chart(
        560, 190, (0.5, count[-1] + 0.5), limits, "run", "", f"{name} over runs", Margins(left=66)
    )
    for bound in bounds:
        chart.line(np.array([0.5, count[-1] + 0.5]), np.array([bound, bound]), "allowed")
    for one in series.changes:
        chart.line(np.array([one.at + 0.5] * 2), np.array(limits), "change")
    chart.line(count, series.values, "value-line")
    chart.dots(count[:-1], series.values[:-1], "value-dot", 2.2)
    chart.dots(count[-1:], series.values[-1:], "last-dot", 3.6)
    found = f"{value_of(float(series.values[-1]))} at {last.name}, {said}"
    found += f": {range_text(series)}" if bounds else ""
    lines = [
        f'<p class="{css}">{escape(found)}</p>',
        *(f"<p>{escape(text)}</p>" for text in change_texts(series)),
        f"<p>{escape(', '.join(filter(None, (last.command, last.subject, last.device))))}</p>",
    ]
    return (
        f"<figure><h3>{escape(series.figure)}</h3>{chart.render()}"
        f"<figcaption>{''.join(lines)}</figcaption></figure>"
    )


def _table(runs: Sequence[Run]) -> str:
    rows = [
        (run.date, run.name, run.command, run.subject, run.device or "-", run.model[:16] or "-")
        for run in reversed(runs[-MAX_ROWS:])
    ]
    return table_part(("date", "commit", "command", "subject", "device", "model"), rows)

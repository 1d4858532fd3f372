"""The page of a history: each figure over the commits, what its past allows, its changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from runtime.texts import count_text
from tools.report.history import Run
from tools.report.history_judge import MIN_PAST, Series
from tools.report.report_page import folded, table_part, whole_page, write_page
from tools.report.svg import Chart, Margins, padded_range

# More make the page long; the command's JSON has all.
MAX_CHARTS = 120
MAX_ROWS = 200
# As many as a sentence bears.
MAX_NAMED = 3
STATES = {
    "beyond": ("bad", "beyond what its past allows"),
    "better": ("good", "better than its past"),
    "within": ("", "within what its past allows"),
    "short": ("", f"not judged: fewer than {MIN_PAST} runs before it"),
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


def value_of(value: float) -> str:
    """Return a figure with four digits, and no exponent where a person would write none."""
    text = f"{value:.4g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < 1e12 else text


def verdict_of(series: Sequence[Series]) -> str:
    """Return one sentence about all figures."""
    beyond = sum(one.state == "beyond" for one in series)
    judged = sum(one.state != "short" for one in series)
    total = count_text(len(series), "figure")
    if beyond:
        noun = "is" if beyond == 1 else "are"
        names = [one.figure for one in series if one.state == "beyond"]
        more = f" and {beyond - MAX_NAMED} more" if beyond > MAX_NAMED else ""
        which = f"{', '.join(names[:MAX_NAMED])}{more}"
        return f"{beyond} of {total} {noun} beyond what the past allows: {which}."
    if not judged:
        return f"No figure could be judged: each needs {MIN_PAST} earlier runs; {total} found."
    rest = f" {len(series) - judged} have too short a past." if judged < len(series) else ""
    return f"Nothing is beyond what the past allows: {judged} of {total} judged.{rest}"


def range_text(series: Series) -> str:
    """Return which values the past allows."""
    low, high = series.allowed
    return f"{value_of(low)} to {value_of(high)}" if math.isfinite(low) else "-"


def change_texts(series: Series) -> list[str]:
    """Return a line about each change, with the commit that has the new level first."""
    return [
        f"changed at {series.runs[one.at].name} ({series.runs[one.at].date[:10]}): "
        f"{value_of(one.before)} to {value_of(one.after)}"
        for one in series.changes
    ]


def write_history(
    path: Path, runs: Sequence[Run], series: Sequence[Series], damaged: Sequence[str]
) -> None:
    """Write the page; the file appears complete or not at all.

    `runs`: all, in order. `series`: those that are to be shown, in order. `damaged`: a line about
    each damaged one.

    Raises:
        UsageError: the file cannot be written.
    """
    css = "bad" if any(one.state == "beyond" for one in series) else "good"
    last = runs[-1] if runs else None
    about = "" if last is None else f" The last is of {last.name}, {last.date}."
    warnings = "".join(f'<p class="warning">{escape(text)}</p>' for text in damaged)
    rest = len(series) - MAX_CHARTS
    header = (
        f'<header><h1>History</h1><p class="lead {css}">{escape(verdict_of(series))}</p>'
        f"<p>{escape(count_text(len(runs), 'run') + '.' + about)} Dots are runs, oldest on the "
        "left; dashed lines are what the past allows the last one; upright lines are changes to "
        f"another level.</p>{warnings}</header>"
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

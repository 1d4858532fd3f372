"""Parts of pages about comparisons: verdict, tables, plots of both logs over the frames.

Plain strings of HTML without script; colours come from `COMPARE_STYLE`, which goes into a page
beside the style of the reports. Called by ``tools.compare.page`` and by the regression report.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from tools.behaviour.describe import gates_sentence, path_sentence
from tools.compare.describe import FINDING_HEADER, KIND_TEXTS, finding_row, name_of, verdict
from tools.compare.findings import Comparison, FieldSeries, FieldStatistics, Finding
from tools.report.report_page import table_part
from tools.report.svg import Chart, Margins, padded_range

COMPARE_STYLE = """
.chart .left-line { stroke: var(--accent); }
.chart .right-line { stroke: #d97706; stroke-dasharray: 5 3; }
.chart .off-line { stroke: var(--bad); }
.left-key { background: var(--accent); } .right-key { background: #d97706; }
.off-key { background: var(--bad); }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 18px;
  margin: 0 0 18px; break-inside: avoid; }
.pair h3 { grid-column: 1 / -1; }
@media (max-width: 800px) { .pair { grid-template-columns: minmax(0, 1fr); } }
"""
_SIZE = (560, 190)
_MARGINS = Margins(left=66)


def verdict_part(comparison: Comparison, *, with_names: bool = True) -> str:
    """Return what the change does in a sentence, the verdict, both names and the warnings."""
    css = "good" if comparison.passed else "bad"
    behaviour = comparison.behaviour
    said = [path_sentence(behaviour.rows), gates_sentence(behaviour.gates)]
    lead = escape(" ".join(filter(None, said)))
    warnings = "".join(f'<p class="warning">{escape(text)}</p>' for text in comparison.warnings)
    names = (
        f"<p>left: <code>{escape(comparison.left)}</code>, "
        f"right: <code>{escape(comparison.right)}</code></p>"
    )
    return (
        f'<p class="lead">{lead}</p><p class="{css}">{escape(verdict(comparison))}</p>'
        f"{names if with_names else ''}{warnings}"
    )


def findings_part(findings: Sequence[Finding]) -> str:
    """Return the table of findings, worst first, and what their kinds mean; "" without any."""
    if not findings:
        return ""
    rows = [finding_row(finding) for finding in findings]
    kinds = dict.fromkeys(finding.kind for finding in findings)
    meanings = "; ".join(f"{kind}: {KIND_TEXTS[kind]}" for kind in kinds)
    return f"<p>{escape(meanings)}.</p>{table_part(FINDING_HEADER, rows)}"


def statistics_part(statistics: Sequence[FieldStatistics]) -> str:
    """Return the table of fields that are not equal to the last bit, the largest share first."""
    differing = [field for field in statistics if field.differing]
    differing.sort(key=_share, reverse=True)
    header = ("field", "values", "differing", "mean", "standard error", "rms", "largest")
    rows = [
        (
            name_of(field),
            f"{field.values:,}",
            f"{field.differing:,}",
            f"{field.mean_difference:+.2e}",
            f"{field.standard_error:.1e}",
            f"{field.rms_difference:.2e}",
            f"{field.largest:.2e}",
            f"{field.drift_per_frame:+.1e}",
            f"{field.left_rms:.3g}",
        )
        for field in differing
    ]
    return table_part((*header, "drift per frame", "rms of left"), rows) if rows else ""


def _share(field: FieldStatistics) -> float:
    return field.rms_difference / field.left_rms if field.left_rms > 0 else field.rms_difference


def plots_part(
    findings: Sequence[Finding], series: Sequence[FieldSeries], most: int | None = 12
) -> str:
    """Return two plots for each field with a finding: both logs, and the largest difference.

    `findings`: worst first; fields without numbers have no plot. `series`: of the fields that
    differ. `most`: fields to draw; None for all.
    """
    by_name = {(one.service, one.field): one for one in series}
    wanted = dict.fromkeys((finding.service, finding.field) for finding in findings)
    drawn = [by_name[name] for name in wanted if name in by_name][:most]
    if not drawn:
        return ""
    legend = (
        '<p><span class="key left-key"></span>left, <span class="key right-key"></span>right: mean '
        'of the field\'s values in each frame; <span class="key off-key"></span>the largest '
        "difference of any of them</p>"
    )
    return legend + "".join(field_plots(one) for one in drawn)


def field_plots(series: FieldSeries) -> str:
    """Return the two plots of one field."""
    name = f"{series.service}.{series.field}"
    frames = series.frames.astype(np.float64)
    return (
        f'<div class="pair"><h3>{escape(name)}</h3>'
        f"{_both(name, frames, series)}{_difference(name, frames, series)}</div>"
    )


def _both(name: str, frames: NDArray[np.float64], series: FieldSeries) -> str:
    both = np.concatenate([series.left, series.right])
    chart = _chart(frames, _y_range(both), f"{name} in both logs over the frames")
    chart.line(frames, series.left, "left-line")
    chart.line(frames, series.right, "right-line")
    return chart.render()


def _difference(name: str, frames: NDArray[np.float64], series: FieldSeries) -> str:
    top = float(np.max(series.largest[np.isfinite(series.largest)], initial=0.0))
    y_range = (0.0, 1.1 * top if top > 0 else 1.0)
    chart = _chart(frames, y_range, f"largest difference of {name} over the frames")
    chart.line(frames, series.largest, "off-line")
    return chart.render()


def _y_range(values: NDArray[np.float64]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    # A range of a unit would draw small values as one line; of zero there is no picture at all.
    span = float(np.ptp(finite)) if finite.size else 1.0
    size = float(np.max(np.abs(finite), initial=0.0))
    return padded_range(finite, minimum_span=max(span, 1e-6 * size, 1e-12))


def _chart(frames: NDArray[np.float64], y_range: tuple[float, float], summary: str) -> Chart:
    first, last = float(frames[0]), float(frames[-1])
    x_range = (first, max(last, first + 1.0))
    return Chart(*_SIZE, x_range, y_range, "frame", "", summary, _MARGINS)

"""Renders the comparison of two logs as one self-contained HTML page.

The page shows the verdict, the worst frame from above, and the effect on the drive in metres.
Findings, plots and statistics are folded. The parts are strings of HTML without scripts, which
pages about regressions use, too. `COMPARE_STYLE` has their colours and is added to the style of
the reports. The worst frame is drawn from the logs; no camera frame is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cereal.errors import CerealError
from cereal.log_reader import read_log
from runtime.texts import count_text
from tools.behaviour.describe import (
    TITLE,
    behaviour_part,
    gates_sentence,
    path_sentence,
    worst_frame,
)
from tools.compare.findings import (
    FINDING_HEADER,
    KIND_TEXTS,
    Comparison,
    FieldSeries,
    FieldStatistics,
    Finding,
    finding_row,
    name_of,
    verdict,
)
from tools.report.report_page import (
    Chart,
    Margins,
    folded,
    padded_range,
    table_part,
    title_of_two,
    whole_page,
    write_page,
)

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
_MARGINS = Margins(left=66)
# Paths are drawn up to this distance.
FAR_M = 100.0
_SIZE = (560, 190)

Points = NDArray[np.float64]


def worst_paths(comparison: Comparison) -> tuple[int, Points, Points] | None:
    """Return the frame in which the paths differ most, and both paths, read again from the files.

    The result is the frame id, and two (n, 2) float64 paths in metres (x forward, y right). It is
    None if no path differs, or if a log cannot be read again.
    """
    frame = worst_frame(comparison.behaviour.rows)
    if frame < 0:
        return None
    paths = [_path_at(Path(name), frame) for name in (comparison.left, comparison.right)]
    left, right = paths
    return None if left is None or right is None else (frame, left, right)


def _path_at(log: Path, frame: int) -> Points | None:
    try:
        for event in read_log(log):
            if event.which() == "modelV2" and event.modelV2.frameId == frame:
                position = event.modelV2.position
                x, y = list(position.x), list(position.y)
                return np.array([x, y], np.float64).T if len(x) == len(y) else None
    except (CerealError, OSError):
        return None
    return None


def paths_part(frame: int, left: Points, right: Points, sides: tuple[str, str]) -> str:
    """Return two charts as HTML: both paths from above, and the distance between them.

    Args:
        frame: the frame id.
        left: (n, 2) path of the reference in metres (x forward, y right).
        right: (n, 2) path of the other side.
        sides: the names of both sides.
    """
    here, there = (path[_drawn(path)] for path in (left, right))
    if len(here) < 2 or len(there) < 2:
        return ""
    lateral = np.concatenate([here[:, 1], there[:, 1]])
    far = float(min(max(here[-1, 0], there[-1, 0]), FAR_M))
    about = f"Both paths of frame {frame} from above"
    limits = padded_range(lateral, minimum_span=1.0)
    above = Chart(*_SIZE, (0.0, max(far, 1.0)), limits, "m ahead", "m to the right", about)
    above.line(here[:, 0], here[:, 1], "left-line")
    above.line(there[:, 0], there[:, 1], "right-line")
    apart = np.interp(here[:, 0], there[:, 0], there[:, 1], right=math.nan) - here[:, 1]
    factor, unit = (1e3, "mm") if _largest(apart) < 0.1 else (1.0, "m")
    about = f"How far the path of frame {frame} moves to the right"
    between = Chart(
        *_SIZE,
        (0.0, max(far, 1.0)),
        padded_range(factor * apart, minimum_span=1e-3),
        "m ahead",
        f"{unit} to the right",
        about,
    )
    between.line(here[:, 0], factor * apart, "off-line")
    return (
        f'<div class="pair"><h3>Frame {frame}, in which the path moves most: '
        f'<span class="key left-key"></span>{sides[0]} <span class="key right-key"></span>'
        f'{sides[1]} <span class="key off-key"></span>between them</h3>'
        f"{above.render()}{between.render()}</div>"
    )


def _drawn(path: Points) -> NDArray[np.bool_]:
    """Return a mask of the points that are finite, near, and further ahead than all before."""
    x = path[:, 0]
    ahead = np.append(True, x[1:] > np.maximum.accumulate(x)[:-1])[: x.size]
    drawn: NDArray[np.bool_] = np.isfinite(path).all(axis=1) & (x <= FAR_M) & ahead
    return drawn


def _largest(values: Points) -> float:
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page. The file is replaced atomically.

    Raises:
        UsageError: the file cannot be written.
    """
    write_page(path, [render(comparison)])


def render(comparison: Comparison) -> str:
    """Return the page as HTML text."""
    title = title_of_two(comparison.left, comparison.right)
    findings, worst = comparison.findings, worst_paths(comparison)
    sections = [
        f"<header><h1>{escape(title)}</h1>{verdict_part(comparison)}</header>",
        "" if worst is None else f"<section>{paths_part(*worst, ('left', 'right'))}</section>",
        _section(TITLE, behaviour_part(comparison.behaviour, ("left", "right"))),
        folded(count_text(len(findings), "finding"), findings_part(findings)),
        folded("Curves of the fields that differ most", plots_part(findings, comparison.series)),
        folded("Fields not equal to the last bit", statistics_part(comparison.statistics)),
    ]
    return whole_page(title, sections, COMPARE_STYLE)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def verdict_part(comparison: Comparison, *, with_names: bool = True) -> str:
    """Return as HTML the effect on the path in a sentence, the verdict, names and warnings."""
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
    """Return the table of findings and the meaning of their kinds as HTML; "" without any."""
    if not findings:
        return ""
    rows = [finding_row(finding) for finding in findings]
    kinds = dict.fromkeys(finding.kind for finding in findings)
    meanings = "; ".join(f"{kind}: {KIND_TEXTS[kind]}" for kind in kinds)
    return f"<p>{escape(meanings)}.</p>{table_part(FINDING_HEADER, rows)}"


def statistics_part(statistics: Sequence[FieldStatistics]) -> str:
    """Return as HTML the table of fields that are not bit-equal, largest relative rms first."""
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

    Args:
        findings: the findings, worst first. Fields without numbers have no plot.
        series: the values of the fields that differ.
        most: the largest number of fields to draw; None for all.
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
    """Return the two plots of one field as HTML."""
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
    # The range follows the values, so that small differences are visible, but is never empty.
    span = float(np.ptp(finite)) if finite.size else 1.0
    size = float(np.max(np.abs(finite), initial=0.0))
    return padded_range(finite, minimum_span=max(span, 1e-6 * size, 1e-12))


def _chart(frames: NDArray[np.float64], y_range: tuple[float, float], summary: str) -> Chart:
    first, last = float(frames[0]), float(frames[-1])
    x_range = (first, max(last, first + 1.0))
    return Chart(*_SIZE, x_range, y_range, "frame", "", summary, _MARGINS)

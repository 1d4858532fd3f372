"""Renders an HTML page of labelled frames with a model's lines, and tables of the metrics."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from tools.behaviour.footage import LEFT_LINE, PROBABLE, RIGHT_LINE, Subject
from tools.behaviour.labels import SIDES, LabelledFrame, Labels
from tools.messages.camera import project
from tools.messages.drive_log import Curves
from tools.report.report_page import PAGE_END, page_start, path_data, table_part

# The metrics in the tables: summary -> distances. --json has all.
SHOWN = {
    "both lines": ("8 m", "15 m", "30 m", "all"),
    "left": ("all",),
    "right": ("all",),
    "seen paint": ("all",),
    "lane centre": ("15 m", "all"),
    "path": ("15 m", "all"),
}
HEADER = ("what", "at", "mean m", "median m", "p90 m", "bias m", "median px", "p90 px", "missing")
# Curves are drawn up to this distance.
FAR_M = 60.0
# Rows of the picture shown above the farthest label.
MORE_ROWS = 60
# Largest SVG coordinate in picture widths: curves can project to infinity.
LIMIT_PICTURES = 4.0

STYLE = """
.foot { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 14px; margin-top: 14px; }
.foot figcaption { color: var(--soft); font-size: 13px; font-variant-numeric: tabular-nums; }
.foot path { fill: none; stroke-width: 2; } .said { stroke: #38bdf8; } .unsure { stroke: #bae6fd; }
.foot .unsure { stroke-dasharray: 6 5; } .driven { stroke: #22c55e; }
.paint { fill: #f97316; } .drawn { fill: none; stroke: #f97316; }
"""


def table_rows(subject: Subject) -> list[list[object]]:
    """Return the cells of a subject's table under `HEADER`; None if nothing was compared."""
    return [
        [
            one.what,
            one.at,
            one.mean_m,
            one.median_m,
            one.p90_m,
            one.bias_m,
            one.median_px,
            one.p90_px,
            f"{one.missing} of {one.points}",
        ]
        for one in subject.figures
        if one.at in SHOWN[one.what]
    ]


def headline(subject: Subject) -> str:
    """Return one line: frames with output, probable lines, and how well the lane is followed."""
    left, right = subject.errors.coverage
    frames = len(subject.errors.probabilities)
    follows = "-" if subject.following is None else f"{subject.following:.2f}"
    return (
        f"{subject.name}: {subject.errors.answered} of {frames} frames answered; probable: left "
        f"{left:.0%}, right {right:.0%}; follows the lane: {follows}"
    )


def page_parts(
    labels: Labels, subjects: Sequence[Subject], pictures: Mapping[int, bytes]
) -> Iterator[str]:
    """Yield the page's HTML: metrics of all subjects, and frames with the first subject's lines.

    `subjects` are models, then references. `pictures` are JPEG files by the clip's frame number.
    """
    yield page_start(f"Lines on {labels.clip}", STYLE)
    yield (
        f"<header><h1>Lane lines on {escape(labels.clip)}</h1>{_lead(subjects)}"
        f"<p>{len(labels.frames)} labelled frames. "
        "Metres are on a level road, positive right of the label.</p></header>"
    )
    for subject in subjects:
        yield f"<section><h2>{escape(headline(subject))}</h2>{_table(subject)}</section>"
    yield (
        f"<section><h2>Frames with the lines of {escape(subjects[0].name)}</h2><p>Orange: labels, "
        "filled where paint was seen. Blue: the model's lines, dashed where it does not think them "
        f'probable. Green: its path, to {FAR_M:g} m.</p><div class="foot">'
    )
    for frame in labels.frames:
        if frame.number in pictures:
            yield _figure(labels, frame, subjects[0].curves, pictures[frame.number])
    yield f"</div></section>{PAGE_END}"


def _lead(subjects: Sequence[Subject]) -> str:
    """Return the mean distance of each subject's lines from the labels as HTML."""
    off = [
        f"{subject.name} {100.0 * one.mean_m:.1f} cm"
        for subject in subjects
        for one in subject.figures
        if (one.what, one.at) == ("both lines", "all") and one.mean_m is not None
    ]
    said = f"Mean distance of the lane lines from the labels: {', '.join(off)}."
    return f'<p class="lead">{escape(said)}</p>' if off else ""


def _table(subject: Subject) -> str:
    return table_part(HEADER, [[_cell(value) for value in row] for row in table_rows(subject)])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:z.2f}" if isinstance(value, float) else str(value)


def _figure(labels: Labels, frame: LabelledFrame, curves: Mapping[int, Curves], jpeg: bytes) -> str:
    width, height = labels.size
    # Crop most of the sky above the farthest row.
    top = max(0, int(labels.rows_px[-1]) - MORE_ROWS)
    found = curves.get(frame.number)
    shapes = _shapes(labels, found) if found is not None else ""
    image = base64.b64encode(jpeg).decode()
    label = f"Frame {frame.number} with labels and lines"
    return (
        f'<figure><svg viewBox="0 {top} {width} {height - top}" role="img" aria-label="{label}">'
        f'<image width="{width}" height="{height}" preserveAspectRatio="none" '
        f'href="data:image/jpeg;base64,{image}"/>{shapes}{_marks(labels, frame)}</svg>'
        f"<figcaption>{_caption(frame, found)}</figcaption></figure>"
    )


def _caption(frame: LabelledFrame, found: Curves | None) -> str:
    if found is None:
        return f"frame {frame.number}: no answer"
    left, right = found.lane_line_probs[[LEFT_LINE, RIGHT_LINE]]
    return f"frame {frame.number}: left {left:.2f}, right {right:.2f} probable"


def _shapes(labels: Labels, found: Curves) -> str:
    below = np.array([0.0, 0.0, labels.video_camera.height_m])
    lines = [
        (found.lane_lines_m[at], "said" if found.lane_line_probs[at] > PROBABLE else "unsure")
        for at in (LEFT_LINE, RIGHT_LINE)
    ]
    drawn = [*lines, (found.plan_m + below, "driven")]
    return "".join(f'<path class="{css}" d="{_path(labels, curve)}"/>' for curve, css in drawn)


def _path(labels: Labels, curve_m: NDArray[np.floating]) -> str:
    near = curve_m[curve_m[:, 0] <= FAR_M].astype(np.float64)
    pixels = project(near, labels.camera, labels.video_camera.rpy_rad)
    limit = LIMIT_PICTURES * labels.size[0]
    # Pixel centres are whole numbers in pixel coordinates, and at .5 in the drawing.
    return path_data(np.clip(pixels, -limit, limit) + 0.5)


def _marks(labels: Labels, frame: LabelledFrame) -> str:
    marks = []
    for side in range(len(SIDES)):
        for row, column, paint in zip(
            labels.rows_px, frame.columns_px[side], frame.is_paint[side], strict=True
        ):
            if np.isfinite(column):
                css = "paint" if paint else "drawn"
                marks.append(
                    f'<circle class="{css}" cx="{column + 0.5:.1f}" cy="{row + 0.5:.1f}" r="3"/>'
                )
    return "".join(marks)

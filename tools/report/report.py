"""Renders the report on a drive as one self-contained HTML page.

The page shows execution times, dropped frames, pictures with the planned path, and top views. It
has no scripts and no external resources: pictures are embedded JPEG, and drawings are inline SVG.
The report of the demo uses some of its sections.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.cameras import Camera
from runtime.format.manifest import Manifest
from runtime.texts import count_text
from tools.messages.camera import project
from tools.messages.drive_log import OUTPUT_SERVICES, Curve, Curves, DriveLog
from tools.messages.drive_messages import Mounting
from tools.report.report_page import (
    Chart,
    Margins,
    facts_part,
    padded_range,
    path_data,
    tiles_section,
    whole_page,
    write_page,
)

# One period of the model at 20 Hz. Longer execution times cause dropped frames.
BUDGET_MS = 50.0
# Half the widths of the car and of a line, for ribbons.
HALF_CAR_M = 0.9
HALF_LINE_M = 0.08
# Range of drawn distances: nearer points are below the bonnet, farther ones a pixel wide.
NEAR_M = 3.0
FAR_M = 90.0
# Lines are as opaque as they are probable, but never less than this.
MIN_OPACITY = 0.15
TOP_VIEW_X_M = 80.0
TOP_VIEW_Y_M = 14.0

# Prefix of the checkpoints of ``modeld make-model``.
EXAMPLE_PREFIX = "example-"
# The maximum number of pictures on the page.
MAX_PICTURES = 4
# The longest history of a known driving model: 5 s at 20 Hz.
WARM_UP_FRAMES = 100
# Descriptions of the source of execution times.
PUBLISHED_TIMES = "as published in modelV2.modelExecutionTime"
MEASURED_TIMES = "measured separately: the log itself is deterministic and contains no timings"

Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Picture:
    """A camera frame to show."""

    row: int  # index of the frame in the drive log's arrays
    jpeg: bytes  # the encoded frame, at any scale
    camera: Camera  # the camera, whose pixels are the units of the overlay
    truth: Curves | None = None  # outputs of a perfect model; None if they are unknown


@dataclass(frozen=True, slots=True)
class Report:
    """The content of the page."""

    title: str  # heading
    summary: str  # sentence below the heading
    facts: Mapping[str, str]  # facts about the drive, name -> value
    drive: DriveLog  # the daemon's messages
    frames_sent: int  # number of camera frames sent to the daemon
    pictures: Sequence[Picture]  # frames to show, in time order
    mounting: Mounting  # calibration for the overlays
    times_from: str = PUBLISHED_TIMES  # source of the execution times


def describe_models(manifest: Manifest) -> str:
    """Return role and checkpoint of each model, and a note if the weights are random."""
    models = ", ".join(f"{model.role} {model.checkpoint}" for model in manifest.models)
    if any(model.checkpoint.startswith(EXAMPLE_PREFIX) for model in manifest.models):
        models += " (example models have random weights: their outputs are meaningless)"
    return models or "none stated"


def pictures_of(
    drive: DriveLog, frames: Sequence[tuple[int, bytes]], camera: Camera
) -> list[Picture]:
    """Return pictures of the frames, given as (frame id, JPEG), for which the drive has curves.

    Frames before the model's history is full are left out if there are later ones.
    """
    rows = {int(frame_id): row for row, frame_id in enumerate(drive.frame_ids)}
    pictures = [
        Picture(rows[frame_id], jpeg, camera)
        for frame_id, jpeg in frames
        if frame_id in drive.curves
    ]
    return [one for one in pictures if one.row >= WARM_UP_FRAMES] or pictures


def write_report(path: Path, report: Report) -> None:
    """Write the page. The file is replaced atomically.

    Raises:
        UsageError: the file cannot be written.
    """
    write_page(path, [render(report)])


def render(report: Report) -> str:
    """Return the page as HTML text."""
    lead = answers_lead(report.drive, report.frames_sent, BUDGET_MS)
    sections = [
        f"<header><h1>{escape(report.title)}</h1>{lead}",
        f"<p>{escape(report.summary)}</p></header>",
        counts_section(report),
    ]
    if report.drive.frame_ids.size:
        sections += [pictures_section(report), _motion(report.drive), timing_section(report)]
    else:
        sections.append('<p class="warning">The daemon published no modelV2 message.</p>')
    sections.append(_facts(report))
    return whole_page(report.title, sections)


def counts_section(report: Report) -> str:
    """Return the section of message counts and a summary of the execution times."""
    drive = report.drive
    times = drive.execution_ms
    valid = drive.counts["modelV2:valid"]
    tiles = [
        ("camera frames", f"{report.frames_sent}", ""),
        ("modelV2 published", f"{drive.counts['modelV2']}", f"{valid} valid"),
        ("frames without one", f"{report.frames_sent - drive.counts['modelV2']}", ""),
    ]
    if times.size:
        worst = f"maximum {times.max():.1f} ms"
        tiles += [
            ("median execution", f"{np.median(times):.1f} ms", f"budget {BUDGET_MS:g} ms at 20 Hz"),
            ("99th percentile", f"{np.percentile(times, 99):.1f} ms", worst),
            ("values", "finite" if drive.all_finite else "NOT FINITE", ""),
        ]
    return tiles_section(tiles)


def timing_section(report: Report) -> str:
    """Return the section of execution times and dropped frames; needs at least one message."""
    drive = report.drive
    ids = drive.frame_ids.astype(float)
    x_range = (float(ids[0]), max(float(ids[-1]), ids[0] + 1.0))
    times = drive.execution_ms
    median, p99 = float(np.median(times)), float(np.percentile(times, 99))
    # The axis ends above the 99th percentile, so that one slow frame does not flatten the others.
    top = max(1.35 * p99, 1.2 * median, 1.0)
    # Both charts have the same right margin, so that their frames line up.
    margins = Margins(right=112)
    about = "Execution time of every frame"
    chart = Chart(1120, 250, x_range, (0.0, top), "frame id", "ms", about, margins)
    chart.line(ids, np.minimum(times, top), "exec-line")
    chart.dots(ids, np.minimum(times, top), "exec-dot")
    chart.level(median, f"median {median:.1f} ms", "level-median")
    chart.level(p99, f"p99 {p99:.1f} ms", "level-p99")
    chart.level(BUDGET_MS, f"budget {BUDGET_MS:g} ms", "level-budget")
    above = int((times > top).sum())
    note = f" Drawn at the top of the axis because they lie beyond it: {above}." if above else ""
    drops = Chart(
        1120,
        130,
        x_range,
        (0.0, max(5.0, 1.1 * float(drive.drop_percent.max()))),
        "frame id",
        "%",
        "Smoothed share of dropped frames",
        margins,
    )
    drops.line(ids, drive.drop_percent, "drop-line")
    lost = "<p>No frame was dropped.</p>"
    if drive.missing_frames or float(drive.drop_percent.max()) > 0.0:
        missing = count_text(drive.missing_frames, "frame")
        lost = (
            f"<p>{missing} between the first and the last message without an answer; the chart is "
            f'of <code>frameDropPerc</code>.</p><div class="wide">{drops.render()}</div>'
        )
    return (
        "<section><h2>Execution time</h2><p>Image preparation, inference and parsing of one frame, "
        f'{escape(report.times_from)}.{note}</p><div class="wide">{chart.render()}</div>'
        f"<h2>Frame drops</h2>{lost}</section>"
    )


def pictures_section(report: Report) -> str:
    """Return the section of pictures and top views."""
    panels = "".join(panel(picture, report) for picture in report.pictures)
    truth = ""
    if any(picture.truth is not None for picture in report.pictures):
        truth = ' <span><span class="key true-key"></span>ground truth</span>'
    return (
        "<section><h2>Road and top view</h2>"
        '<p class="keys"><span><span class="key path-key"></span>planned path, as wide as a car'
        "</span> "
        '<span><span class="key lane-key"></span>lane lines, faint where improbable</span> '
        f'<span><span class="key edge-key"></span>road edges</span>{truth}</p>'
        f"{panels}</section>"
    )


def panel(picture: Picture, report: Report) -> str:
    """Return a picture with the model's output drawn over it, and the frame's top view."""
    drive, row = report.drive, picture.row
    caption = (
        f"frame {drive.frame_ids[row]} · {drive.times_s[row]:.2f} s · "
        f"{drive.execution_ms[row]:.1f} ms · "
        f"planned speed {drive.plan_speed_mps[row]:.1f} m/s, {_car_speed(drive, row)} · "
        f"planned curvature {drive.curvature_1pm[row]:+z.4f} 1/m"
    )
    return (
        f'<figure class="panel"><div class="road">{_overlay(picture, report)}</div>'
        f'<div class="top">{_top_view(drive, row, picture.truth)}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def road_figure(picture: Picture, report: Report) -> str:
    """Return a picture with the model's output drawn over it, below the report's title."""
    drive, row = report.drive, picture.row
    caption = (
        f"frame {drive.frame_ids[row]} · planned speed {drive.plan_speed_mps[row]:.1f} m/s, "
        f"{_car_speed(drive, row)}"
    )
    return (
        f"<figure><h3>{escape(report.title)}</h3>{_overlay(picture, report)}"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _car_speed(drive: DriveLog, row: int) -> str:
    """Return the car's speed in its latest message before a frame, as text."""
    before = int(np.searchsorted(drive.car_times_s, drive.times_s[row], side="right"))
    if not before:
        return "actual speed unknown"
    return f"actual speed {drive.car_speed_mps[before - 1]:z.1f} m/s"


def _overlay(picture: Picture, report: Report) -> str:
    """Return the frame with the model's output as SVG, whose units are pixels of the camera."""
    camera = picture.camera
    frame_id = int(report.drive.frame_ids[picture.row])
    curves = report.drive.curves[frame_id]
    shapes = [
        _ribbon(edge, HALF_LINE_M, "edge", 0.8, picture, report.mounting)
        for edge in curves.road_edges_m
    ]
    for line, probability in zip(curves.lane_lines_m, curves.lane_line_probs, strict=True):
        opacity = max(float(probability), MIN_OPACITY)
        shapes.append(_ribbon(line, HALF_LINE_M, "lane", opacity, picture, report.mounting))
    plan = _on_road(curves.plan_m, report.mounting)
    shapes.append(_ribbon(plan, HALF_CAR_M, "path", 0.45, picture, report.mounting))
    if picture.truth is not None:
        true = [*_seen(picture.truth), _on_road(picture.truth.plan_m, report.mounting)]
        shapes += [_true_line(curve, picture, report.mounting) for curve in true]
    image = base64.b64encode(picture.jpeg).decode()
    label = f"Frame {frame_id} with the planned path and the lane lines"
    return (
        f'<svg viewBox="0 0 {camera.width} {camera.height}" role="img" '
        f'aria-label="{escape(label)}"><image width="{camera.width}" height="{camera.height}" '
        f'preserveAspectRatio="none" href="data:image/jpeg;base64,{image}"/>'
        f"{''.join(shapes)}</svg>"
    )


def _on_road(plan_m: Curve, mounting: Mounting) -> Points:
    """Return a plan, which starts at the camera, moved down to the road."""
    return np.asarray(plan_m + np.array([0.0, 0.0, mounting.height_m]), np.float64)


def _seen(curves: Curves) -> list[Points]:
    """Return the probable lane lines and the road edges."""
    there = curves.lane_lines_m[curves.lane_line_probs > 0.5]
    return [*there, *curves.road_edges_m]


def _true_line(curve_m: Points, picture: Picture, mounting: Mounting) -> str:
    """Draw a thin line along a curve."""
    inside = curve_m[(curve_m[:, 0] >= NEAR_M) & (curve_m[:, 0] <= FAR_M)]
    pixels = project(inside, picture.camera, mounting.rpy_rad)
    return f'<path class="true" d="{path_data(pixels)}"/>'


def _ribbon(
    curve_m: Points,
    half_width_m: float,
    css: str,
    opacity: float,
    picture: Picture,
    mounting: Mounting,
) -> str:
    inside = (curve_m[:, 0] >= NEAR_M) & (curve_m[:, 0] <= FAR_M)
    curve = curve_m[inside]
    if len(curve) < 2:
        return ""
    side = np.array([0.0, half_width_m, 0.0])
    edges = [project(curve + sign * side, picture.camera, mounting.rpy_rad) for sign in (-1, 1)]
    outline = np.concatenate([edges[0], edges[1][::-1]])
    # Curves can project to infinity, but large SVG coordinates are not drawn.
    limit = 20.0 * picture.camera.width
    outline = np.clip(outline[np.isfinite(outline).all(axis=1)], -limit, limit)
    return f'<path class="{css}" fill-opacity="{opacity:.2f}" d="{path_data(outline)}Z"/>'


def _top_view(drive: DriveLog, row: int, truth: Curves | None) -> str:
    chart = Chart(
        330,
        438,
        (-TOP_VIEW_Y_M, TOP_VIEW_Y_M),
        (0.0, TOP_VIEW_X_M),
        "m to the right",
        "m ahead",
        f"Top view of frame {drive.frame_ids[row]}",
        Margins(left=46, right=8, top=6, bottom=38),
    )
    curves = drive.curves[int(drive.frame_ids[row])]
    for edge in curves.road_edges_m:
        chart.line(edge[:, 1], edge[:, 0], "top-edge")
    for line, probability in zip(curves.lane_lines_m, curves.lane_line_probs, strict=True):
        chart.line(line[:, 1], line[:, 0], "top-lane" if probability > 0.5 else "top-lane faint")
    plan = curves.plan_m
    chart.ribbon_across(plan[:, 0], plan[:, 1] - HALF_CAR_M, plan[:, 1] + HALF_CAR_M, "top-path")
    chart.line(plan[:, 1], plan[:, 0], "top-plan")
    if truth is not None:
        for curve in _seen(truth):
            chart.line(curve[:, 1], curve[:, 0], "true")
        chart.line(truth.plan_m[:, 1], truth.plan_m[:, 0], "true")
    return chart.render()


def _motion(drive: DriveLog) -> str:
    x_range = (0.0, max(float(drive.times_s[-1]), 0.1))
    charts = []
    speeds = np.concatenate([drive.plan_speed_mps, drive.car_speed_mps])
    for title, label, values, limits in (
        ("Speed", "m/s", drive.plan_speed_mps, padded_range(speeds, minimum_span=4.0)),
        (
            "Desired curvature",
            "1/km",
            1e3 * drive.curvature_1pm,
            padded_range(1e3 * drive.curvature_1pm, minimum_span=2.0),
        ),
        (
            "Desired acceleration",
            "m/s²",
            drive.acceleration_mps2,
            padded_range(drive.acceleration_mps2, minimum_span=1.0),
        ),
    ):
        chart = Chart(362, 210, x_range, limits, "s", label, title)
        if title == "Speed":
            chart.line(drive.car_times_s, drive.car_speed_mps, "car-line")
        chart.line(drive.times_s, values, "plan-line")
        charts.append(f"<figure><h3>{title}</h3>{chart.render()}</figure>")
    return (
        "<section><h2>Motion</h2><p>What the model plans and asks for"
        ' <span class="key plan-key"></span>, and the actual speed'
        f' <span class="key car-key"></span>.</p><div class="row">{"".join(charts)}</div></section>'
    )


def _facts(report: Report) -> str:
    counts = ", ".join(f"{report.drive.counts[name]} {name}" for name in OUTPUT_SERVICES)
    facts = facts_part({**report.facts, "messages": counts})
    return f"<section><h2>How this was made</h2>{facts}</section>"


def answers_lead(drive: DriveLog, frames_sent: int, budget_ms: float) -> str:
    """Return as HTML a conclusion about missing, invalid and late outputs.

    `frames_sent` is the number of camera frames sent to the daemon, `budget_ms` the time for one
    frame at 20 Hz.
    """
    times = drive.execution_ms
    answered, valid = drive.counts["modelV2"], drive.counts["modelV2:valid"]
    sent = count_text(frames_sent, "frame")
    wrong = []
    if answered < frames_sent:
        wrong.append(f"{frames_sent - answered} of {sent} have no answer")
    if valid < answered:
        wrong.append(f"{answered - valid} of {count_text(answered, 'answer')} are not valid")
    if not drive.all_finite:
        wrong.append("outputs contain NaN or infinity")
    said = f"{'; '.join(wrong).capitalize()}." if wrong else f"All {sent} have valid answers."
    late = float(np.mean(times > budget_ms)) if times.size else 0.0
    if times.size:
        slow = f"{late:.0%} of them took longer" if late > 0.01 else "nearly all took less"
        said += f" Half took at most {np.median(times):.1f} ms; {slow} than {budget_ms:g} ms, "
        said += "the budget at 20 Hz."
    kind = " bad" if wrong else " good" if late <= 0.01 else ""
    return f'<p class="lead{kind}">{escape(said)}</p>'

"""Draws the model's answer over one camera frame, with a bar of numbers below.

Lane lines, road edges and the planned path are strips on the road; the lead vehicle has a frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.cameras import Camera
from tools.messages.camera import project
from tools.views.answer import Answer, Curve, Lead, Rpy
from tools.views.canvas import Canvas, Color, Points, text_size

# Half the width of a car, for the strip of the planned path, and of a line on the road.
HALF_CAR_M = 0.9
HALF_LINE_M = 0.08
# Range of drawing: nearer is under the hood, farther is one pixel wide.
NEAR_M = 3.0
FAR_M = 90.0
# Distance of points along a curve. The model's own are up to 12 m apart, which shows as corners.
STEP_M = 1.0
# Opacity of improbable lines, which stay just visible.
MIN_OPACITY = 0.12
MIN_LEAD_PROBABILITY = 0.5
LEAD_WIDTH_M = 1.8
# Height of the center of a car's back over the road.
LEAD_HEIGHT_M = 0.7
# Execution times beyond one period at 20 Hz are shown as a warning.
BUDGET_MS = 50.0

# Columns of the bar and their widths in characters.
CELL_CHARACTERS = {
    "frame": 8,
    "time": 9,
    "model": 10,
    "car": 10,
    "plan": 10,
    "curvature": 11,
    "accel": 12,
    "drops": 8,
}

GREEN: Color = (34, 197, 94)
BLUE: Color = (56, 189, 248)
RED: Color = (239, 68, 68)
AMBER: Color = (251, 191, 36)
WHITE: Color = (248, 250, 252)
GREY: Color = (160, 174, 192)
INK: Color = (15, 23, 42)


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """The facts on a frame besides its picture."""

    frame_id: int  # frame id of the main camera
    time_s: float  # time since the first frame
    missing: int  # number of frames missing before it
    execution_ms: float | None  # measured execution time of the model; None if unknown
    answer: Answer | None  # the model's answer; None if there is none for this frame


def draw_overlay(rgb: NDArray[np.uint8], camera: Camera | None, facts: FrameFacts) -> None:
    """Draw the overlay into a picture.

    `rgb`: (h, w, 3) uint8, modified. `camera`: intrinsics of the picture; None: draw only the
    numbers. `facts`: the data to draw.
    """
    canvas = Canvas(rgb)
    answer = facts.answer
    if answer is not None and camera is not None:
        _draw_road(canvas, answer, camera)
    _draw_bar(canvas, facts)
    _draw_marks(canvas, facts)


def _draw_road(canvas: Canvas, answer: Answer, camera: Camera) -> None:
    rpy = answer.rpy_rad
    for edge in answer.road_edges_m:
        canvas.fill(ribbon(edge, HALF_LINE_M, camera, rpy), RED, 0.75)
    for line, probability in zip(answer.lane_lines_m, answer.lane_line_probs, strict=False):
        opacity = float(np.clip(np.nan_to_num(probability), MIN_OPACITY, 1.0))
        canvas.fill(ribbon(line, HALF_LINE_M, camera, rpy), BLUE, opacity)
    canvas.fill(ribbon(answer.plan_on_road_m, HALF_CAR_M, camera, rpy), GREEN, 0.4)
    for lead in answer.leads[:1]:
        if lead.probability >= MIN_LEAD_PROBABILITY:
            _draw_lead(canvas, lead, answer, camera)


def ribbon(curve_m: Curve, half_width_m: float, camera: Camera, rpy_rad: Rpy) -> Points:
    """Return the outline of a strip along a curve on the road, in pixels; empty if invisible.

    `curve_m`: (n, 3) in the calibrated frame: x forward, y right, z down. `half_width_m`: distance
    of each edge from the curve. `camera`: camera of the picture. `rpy_rad`: device_from_calib.
    """
    curve = curve_m[np.isfinite(curve_m).all(axis=1)]
    if len(curve) < 2:
        return np.zeros((0, 2))
    # Use points with increasing x only, since interpolation needs one y per x.
    ahead = np.concatenate([[True], np.diff(np.maximum.accumulate(curve[:, 0])) > 0])
    curve = curve[ahead]
    first, last = max(NEAR_M, curve[0, 0]), min(FAR_M, curve[-1, 0])
    if last - first < STEP_M:
        return np.zeros((0, 2))
    x = np.linspace(first, last, int((last - first) / STEP_M) + 2)
    y, z = (np.interp(x, curve[:, 0], curve[:, axis]) for axis in (1, 2))
    sides = [
        project(np.stack([x, y + sign * half_width_m, z], axis=1), camera, rpy_rad)
        for sign in (-1.0, 1.0)
    ]
    return np.concatenate([sides[0], sides[1][::-1]])


def _draw_lead(canvas: Canvas, lead: Lead, answer: Answer, camera: Camera) -> None:
    """Draw corners around the back of the lead vehicle, with distance and speed below."""
    z = answer.height_m - LEAD_HEIGHT_M
    sides = np.array([[lead.x_m, lead.y_m + sign * 0.5 * LEAD_WIDTH_M, z] for sign in (-1, 1)])
    (left, v), (right, _) = project(sides, camera, answer.rpy_rad)
    if not np.isfinite([left, right, v]).all() or not 4.0 < right - left < 2.0 * canvas.width:
        return
    half, size = 0.5 * (right - left), max(0.25 * (right - left), 4.0)
    width = max(2.0, canvas.width / 500)
    for u, sign in ((left, 1.0), (right, -1.0)):
        for corner_v, down in ((v - half, 1.0), (v + half, -1.0)):
            corner = np.array(
                [[u, corner_v + down * size], [u, corner_v], [u + sign * size, corner_v]]
            )
            canvas.line(corner, width, AMBER, 0.95)
    scale = _scale(canvas)
    text = f"{lead.x_m:.0f} m  {lead.speed_mps:.0f} m/s"
    text_width, text_height = text_size(text, scale)
    u, v_text = int((left + right - text_width) / 2), int(v + half + 2 * scale)
    canvas.box(
        u - 2 * scale,
        v_text - 2 * scale,
        text_width + 4 * scale,
        text_height + 4 * scale,
        (INK, 0.6),
    )
    canvas.text(u, v_text, text, scale, AMBER)


def _draw_bar(canvas: Canvas, facts: FrameFacts) -> None:
    """Write the numbers into a dark bar at the bottom, with a name above each value."""
    scale = _scale(canvas)
    cells = _cells(facts)
    line = 9 * scale
    height = 2 * line + 5 * scale
    top = canvas.height - height
    canvas.box(0, top, canvas.width, height, (INK, 0.72))
    # Columns have fixed positions, so that values do not move from frame to frame.
    step = canvas.width / sum(CELL_CHARACTERS[name] for name, _, _ in cells)
    u = 0.0
    for name, value, color in cells:
        canvas.text(int(u) + 4 * scale, top + 3 * scale, name, max(1, scale - 1), GREY)
        canvas.text(int(u) + 4 * scale, top + 3 * scale + line, value, scale, color)
        u += step * CELL_CHARACTERS[name]


def _cells(facts: FrameFacts) -> list[tuple[str, str, Color]]:
    answer = facts.answer
    time = "-" if facts.execution_ms is None else f"{facts.execution_ms:.1f} ms"
    is_late = facts.execution_ms is not None and facts.execution_ms > BUDGET_MS
    cells = [
        ("frame", f"{facts.frame_id}", WHITE),
        ("time", f"{facts.time_s:.2f} s", WHITE),
        ("model", time, AMBER if is_late else WHITE),
    ]
    if answer is None:
        return [*cells, *((name, "-", GREY) for name in list(CELL_CHARACTERS)[len(cells) :])]
    car = "-" if answer.car_speed_mps is None else f"{answer.car_speed_mps:.1f} m/s"
    return [
        *cells,
        ("car", car, WHITE),
        ("plan", f"{answer.plan_speed_mps:.1f} m/s", GREEN),
        ("curvature", f"{1e3 * answer.curvature_1pm:+.2f} /km", GREEN),
        ("accel", f"{answer.acceleration_mps2:+.2f} m/s²", GREEN),
        ("drops", f"{answer.drop_percent:.1f} %", AMBER if answer.drop_percent > 0.05 else WHITE),
    ]


def _draw_marks(canvas: Canvas, facts: FrameFacts) -> None:
    """Write notable events at the top: dropped frames, no or invalid answer, maneuvers."""
    scale = _scale(canvas)
    marks: list[tuple[str, Color]] = []
    if facts.missing:
        marks.append((f"{facts.missing} dropped before this frame", RED))
    if facts.answer is None:
        marks.append(("no answer for this frame", RED))
    else:
        if not facts.answer.is_valid:
            marks.append(("not valid", AMBER))
        marks += [(text, BLUE) for text in (facts.answer.lane_change, facts.answer.desire) if text]
    v = 6 * scale
    for text, color in marks:
        width, height = text_size(text, scale)
        canvas.box(5 * scale, v - 3 * scale, width + 7 * scale, height + 6 * scale, (INK, 0.72))
        canvas.box(5 * scale, v - 3 * scale, 1.5 * scale, height + 6 * scale, (color, 1.0))
        canvas.text(9 * scale, v, text, scale, color)
        v += height + 8 * scale
    if facts.missing:
        canvas.box(0, 0, canvas.width, 1.5 * scale, (RED, 1.0))


def _scale(canvas: Canvas) -> int:
    """Return the pixels per font cell: 2 for 960 columns, 4 for 1928."""
    return int(max(1, round(canvas.width / 520)))

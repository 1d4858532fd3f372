"""The model's answer as plain values for the page: in metres, and projected into a picture."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tools.live.cameras import View
from tools.messages.camera import project
from tools.views.answer import Answer, Curve, Lead
from tools.views.overlay import (
    HALF_CAR_M,
    HALF_LINE_M,
    LEAD_HEIGHT_M,
    LEAD_WIDTH_M,
    MIN_LEAD_PROBABILITY,
    ribbon,
)

Json = dict[str, Any]

# Narrower than this in a picture, a lead is a dot.
MIN_LEAD_PX: Final = 4.0
# A message may say what it likes; the page draws no more than the model's own 33 points by far.
MAX_POINTS: Final = 200
MAX_CURVES: Final = 8


def describe_answer(answer: Answer) -> Json:
    """Return what the top view and the texts need; lengths in m."""
    return {
        "frameId": answer.frame_id,
        "valid": answer.is_valid,
        "desire": answer.desire,
        "laneChange": answer.lane_change,
        "dropPercent": round(answer.drop_percent, 2),
        "path": _plane(answer.plan_m),
        "lanes": [
            {"probability": _probability(answer, at), "points": _plane(line)}
            for at, line in enumerate(answer.lane_lines_m[:MAX_CURVES])
        ],
        "edges": [_plane(edge) for edge in answer.road_edges_m[:MAX_CURVES]],
        "leads": [_lead(one) for one in _sure(answer)],
    }


def project_answer(answer: Answer, view: View) -> Json:
    """Return outlines in pixels of the camera's frames: columns and rows in turn."""
    camera, rpy_rad = view.camera, view.rpy_rad

    def outline(curve_m: Curve, half_width_m: float) -> list[float]:
        points = ribbon(curve_m[:MAX_POINTS], half_width_m, camera, rpy_rad)
        return _flat(points[np.isfinite(points).all(axis=1)], 1)

    return {
        "path": outline(answer.plan_on_road_m, HALF_CAR_M),
        "lanes": [
            {"probability": _probability(answer, at), "points": outline(line, HALF_LINE_M)}
            for at, line in enumerate(answer.lane_lines_m[:MAX_CURVES])
        ],
        "edges": [outline(edge, HALF_LINE_M) for edge in answer.road_edges_m[:MAX_CURVES]],
        # The three candidates are one vehicle, now and later: only now is in the picture.
        "leads": [box for lead in _sure(answer)[:1] if (box := _box(lead, answer, view))],
    }


def _sure(answer: Answer) -> list[Lead]:
    return [one for one in answer.leads[:MAX_CURVES] if one.probability >= MIN_LEAD_PROBABILITY]


def _box(lead: Lead, answer: Answer, view: View) -> Json | None:
    """Return the corners of the back of the vehicle ahead; None where it is not in the picture."""
    z = answer.height_m - LEAD_HEIGHT_M
    sides = np.array([[lead.x_m, lead.y_m + sign * 0.5 * LEAD_WIDTH_M, z] for sign in (-1, 1)])
    (left, row), (right, _) = project(sides, view.camera, view.rpy_rad)
    if not np.isfinite([left, right, row]).all():
        return None
    half = 0.5 * (right - left)
    if not MIN_LEAD_PX < 2.0 * half < 2.0 * view.camera.width:
        return None
    corners = np.array([left, row - half, right, row + half])
    return {"box": _flat(corners, 1), **_lead(lead)}


def _lead(lead: Lead) -> Json:
    return {
        "x": round(lead.x_m, 1),
        "y": round(lead.y_m, 2),
        "speed": round(lead.speed_mps, 1),
        "probability": round(lead.probability, 2),
    }


def _probability(answer: Answer, at: int) -> float:
    values = answer.lane_line_probs
    value = values[at] if at < len(values) else 0.0
    return round(min(1.0, max(0.0, value)), 2) if np.isfinite(value) else 0.0


def _plane(curve_m: Curve) -> list[float]:
    curve = curve_m[:MAX_POINTS, :2]
    return _flat(curve[np.isfinite(curve).all(axis=1)], 2)


def _flat(values: Any, digits: int) -> list[float]:
    found: list[float] = (np.round(np.asarray(values, np.float64), digits) + 0.0).ravel().tolist()
    return found

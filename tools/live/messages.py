"""Builds the messages to the page: one JSON object and one JPEG picture in a binary message.

The bytes are the length of the JSON text as little-endian uint32, the UTF-8 text, and the picture,
if any. The JSON contains the model's answer as plain values, in metres and projected into the
picture.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modeld.errors import CameraConfigError
from modeld.vehicle.cameras import Camera, DeviceCameras, find_readouts, rot_from_euler
from tools.lib.json_output import json_text
from tools.live.fields import FieldPath, Sample
from tools.live.newest import COLUMNS, Row, Surroundings
from tools.messages.camera import project, stand_in_camera
from tools.views.answer import Answer, Curve, Lead, Rpy
from tools.views.overlay import (
    HALF_CAR_M,
    HALF_LINE_M,
    LEAD_HEIGHT_M,
    LEAD_WIDTH_M,
    MIN_LEAD_PROBABILITY,
    ribbon,
)

Json = dict[str, Any]

ROAD, WIDE = "road", "wideRoad"
_LENGTH: Final = struct.Struct("<I")
# Time span of the plots: of a running daemon, or of a log before its present moment.
WINDOW_S: Final = 30.0


# --- The camera that took a picture: intrinsics by device, sensor and size of the frames ------


@dataclass(frozen=True, slots=True)
class View:
    """A camera model that projects points into a picture."""

    camera: Camera  # the pinhole camera
    # camera_from_calib as roll, pitch, yaw, before the axes are permuted to those of a picture.
    rpy_rad: Rpy


@dataclass(frozen=True, slots=True)
class CameraTable:
    """Finds camera intrinsics by stream, frame size and device."""

    # Cameras of a drive that has its own; they take precedence over the table of devices.
    given: DeviceCameras | None = None
    focal_px: float | None = None  # the user's focal length of the road camera; overrides others

    def view(
        self, stream: str, size: tuple[int, int], around: Surroundings
    ) -> tuple[View | None, str]:
        """Return the camera model of a stream's pictures, or None and the reason.

        `stream`: "road" or "wideRoad". `size`: width and height of the frames in pixels. `around`:
        calibration and device.
        """
        rpy_rad = around.rpy_rad
        if stream == WIDE and any(around.wide_rpy_rad):
            rpy_rad = _euler(rot_from_euler(around.wide_rpy_rad) @ rot_from_euler(rpy_rad))
        if self.focal_px is not None and stream == ROAD:
            aspect = 1.0 if self.given is None else self.given.road.pixel_aspect
            return View(stand_in_camera(*size, self.focal_px, aspect), rpy_rad), ""
        if self.given is not None:
            readouts: tuple[DeviceCameras, ...] = (self.given,)
        elif not around.device_type or not around.sensor:
            return None, "the camera is unknown before deviceState and roadCameraState"
        else:
            try:
                readouts = find_readouts(around.device_type, around.sensor)
            except CameraConfigError:
                return None, _unknown(around)
        for one in readouts:
            camera = one.road if stream == ROAD else one.wide
            if camera is not None and (camera.width, camera.height) == size:
                return View(camera, rpy_rad), ""
        return None, f"{_unknown(around)} and frames of {size[0]}x{size[1]}"


def _unknown(around: Surroundings) -> str:
    return (
        f"no overlay: the focal length is unknown (--focal-px) for device "
        f"{around.device_type} with sensor {around.sensor}"
    )


def _euler(rotation: NDArray[np.float64]) -> Rpy:
    """Return roll, pitch, yaw of a rotation: the inverse of ``rot_from_euler``."""
    pitch = math.asin(max(-1.0, min(1.0, -float(rotation[2, 0]))))
    roll = math.atan2(float(rotation[2, 1]), float(rotation[2, 2]))
    yaw = math.atan2(float(rotation[1, 0]), float(rotation[0, 0]))
    return roll, pitch, yaw


# A lead that is narrower in a picture is not drawn.
MIN_LEAD_PX: Final = 4.0
# Limits for damaged or foreign messages; the model's own curves have 33 points.
MAX_POINTS: Final = 200
MAX_CURVES: Final = 8


def describe_answer(answer: Answer) -> Json:
    """Return the values for the top view and the texts; lengths in m."""
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
    """Return outlines in pixels of the camera's frames, alternating columns and rows."""
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
        # The leads are predictions of one vehicle at different times; the picture shows the first.
        "leads": [box for lead in _sure(answer)[:1] if (box := _box(lead, answer, view))],
    }


def _sure(answer: Answer) -> list[Lead]:
    return [one for one in answer.leads[:MAX_CURVES] if one.probability >= MIN_LEAD_PROBABILITY]


def _box(lead: Lead, answer: Answer, view: View) -> Json | None:
    """Return the corners of the back of the lead vehicle; None if it is outside the picture."""
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


# --- The message ------------------------------------------------------------------------------


def pack(message: Json, jpeg: bytes = b"") -> bytes:
    """Return the bytes of one message; numbers that are not finite become null."""
    text = json_text(message).encode()
    return b"".join((_LENGTH.pack(len(text)), text, jpeg))


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture for the page, or the reason why there is none."""

    camera: str  # the stream
    frame_id: int | None = None
    # Width and height of the frame in pixels; overlays use these coordinates.
    size: tuple[int, int] = (0, 0)
    jpeg: bytes = b""  # the picture, possibly scaled down
    why_not: str = ""  # reason for a missing picture, for the user; "" if there is a picture


@dataclass(frozen=True, slots=True)
class Moment:
    """All data shown for one moment."""

    answer: Answer | None  # the model's answer; None if there is none
    around: Surroundings  # calibration and device
    shown: Shown  # the picture
    health: Json | None  # result of ``describe_health``
    other: Answer | None = None  # another log's answer to the same frame; None if there is none
    more: Json = field(default_factory=dict)  # further keys of the message

    def message(self, table: CameraTable) -> Json:
        """Return the message without its picture."""
        answer, shown, around = self.answer, self.shown, self.around
        view, note = None, ""
        if shown.jpeg and answer is not None:
            view, note = table.view(shown.camera, shown.size, around)
        return {
            "kind": "moment",
            **_answer(answer, view),
            "other": None if self.other is None else _answer(self.other, view),
            "picture": {
                "camera": shown.camera,
                "frameId": shown.frame_id,
                "width": shown.size[0],
                "height": shown.size[1],
                "whyNot": shown.why_not,
                "note": note,
            },
            "calibration": {
                "status": around.calibration,
                "rpy": [round(angle, 5) for angle in around.rpy_rad],
                "height": round(around.height_m, 3),
            },
            "hardware": _hardware(around),
            "health": self.health,
            **self.more,
        }


def _answer(answer: Answer | None, view: View | None) -> Json:
    """Return the drawings of an answer, in metres and in pixels."""
    return {
        "model": None if answer is None else describe_answer(answer),
        "overlay": None if answer is None or view is None else project_answer(answer, view),
    }


def _hardware(around: Surroundings) -> str:
    parts = {"device": around.device_type, "sensor": around.sensor}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)


def hello(mode: str, title: str, more: Json) -> Json:
    """Return the first message of a connection.

    `mode`: "live" or "log". `title`: title of the page. `more`: further keys.
    """
    return {
        "kind": "hello",
        "mode": mode,
        "title": title,
        "columns": list(COLUMNS),
        "digits": list(COLUMNS.values()),
        "window": WINDOW_S,
        **more,
    }


def rows_json(rows: list[Row]) -> list[list[float | None]]:
    """Return rows in a form that JSON supports."""
    return [list(row) for row in rows]


def samples_json(samples: Iterable[Sample], fields: Sequence[FieldPath]) -> Json:
    """Return the samples of a viewer's fields: field -> (times, values)."""
    found: dict[str, tuple[list[float], list[Any]]] = {one.text: ([], []) for one in fields}
    for text, time_s, value in samples:
        if text in found:
            found[text][0].append(time_s)
            found[text][1].append(value)
    return {text: list(pair) for text, pair in found.items() if pair[0]}

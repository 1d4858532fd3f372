"""The model's answer to each frame, with the car and the calibration of that moment.

Reads the Events of a log in their order and keeps only the newest; the overlay, rerun and scenes
for 3D viewers are drawn from it. Calibrated frame: x forward, y right, z down, metres.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.schema import enumerant_name
from tools.messages.drive_messages import Mounting

Curve = NDArray[np.float64]
Rpy = tuple[float, float, float]

# `meta.desireState`: what each of its 8 numbers is the probability of, with `log.Desire`'s names;
# the last one has none.
DESIRES = (
    "none",
    "turn left",
    "turn right",
    "change left",
    "change right",
    "keep left",
    "keep right",
)


@dataclass(frozen=True, slots=True)
class Lead:
    """A candidate for the vehicle ahead, now."""

    x_m: float  # ahead of the camera
    y_m: float  # to the right of it
    speed_mps: float  # absolute
    probability: float  # that it is there


@dataclass(frozen=True, slots=True)
class Answer:
    """One modelV2 message and what belongs to it."""

    frame_id: int  # of the main camera
    mono_time_ns: int  # `logMonoTime`
    is_valid: bool  # of the Event
    rpy_rad: Rpy  # device_from_calib as roll, pitch, yaw; the newest before the message
    height_m: float  # camera over the road
    plan_m: Curve  # (n, 3) float64 planned positions, from the camera on
    lane_lines_m: tuple[Curve, ...]  # (n, 3) float64 each, from the far left to the far right
    lane_line_probs: tuple[float, ...]
    road_edges_m: tuple[Curve, ...]  # (n, 3) float64 each
    leads: tuple[Lead, ...]  # candidates for the vehicle ahead
    lane_change: str  # state, with its direction; empty while there is none
    desire: str  # the likeliest one; empty where it is none
    execution_ms: float  # as published; 0 in logs of a deterministic replay
    drop_percent: float  # `frameDropPerc`
    curvature_1pm: float  # desired
    acceleration_mps2: float  # desired
    plan_speed_mps: float  # planned for now
    car_speed_mps: float | None  # the newest `carState.vEgo`; None before the first

    @property
    def plan_on_road_m(self) -> Curve:
        """The plan one mounting height lower: where the wheels would go."""
        return np.asarray(self.plan_m + np.array([0.0, 0.0, self.height_m]))


@dataclass(slots=True)
class AnswerReader:
    """Makes answers of the Events of one log."""

    rpy_rad: Rpy = (0.0, 0.0, 0.0)  # calibration until the log says another one
    height_m: float = Mounting().height_m  # likewise, over the road
    _car_speed_mps: float | None = field(default=None, init=False)

    def take(self, service: str, event: Any) -> Answer | None:
        """Take the next Event; return an answer if it is one.

        Raises:
            Exception: one of `cereal.schema.DAMAGED`: the content is damaged.
        """
        if service == "liveCalibration":
            self._calibrate(event.liveCalibration)
        elif service == "carState":
            self._car_speed_mps = float(event.carState.vEgo)
        elif service == "modelV2":
            return self._answer(event)
        return None

    def _calibrate(self, message: Any) -> None:
        angles = [float(angle) for angle in message.rpyCalib]
        if len(angles) == 3 and np.isfinite(angles).all():
            self.rpy_rad = (angles[0], angles[1], angles[2])
        if len(message.height) and 0.0 < message.height[0] < np.inf:
            self.height_m = float(message.height[0])

    def _answer(self, event: Any) -> Answer:
        model = event.modelV2
        return Answer(
            frame_id=int(model.frameId),
            mono_time_ns=int(event.logMonoTime),
            is_valid=bool(event.valid),
            rpy_rad=self.rpy_rad,
            height_m=self.height_m,
            plan_m=_xyz(model.position),
            lane_lines_m=tuple(_xyz(line) for line in model.laneLines),
            lane_line_probs=tuple(float(one) for one in model.laneLineProbs),
            road_edges_m=tuple(_xyz(edge) for edge in model.roadEdges),
            leads=tuple(_leads(model)),
            lane_change=_lane_change(model.meta),
            desire=_desire([float(one) for one in model.meta.desireState]),
            execution_ms=1e3 * float(model.modelExecutionTime),
            drop_percent=float(model.frameDropPerc),
            curvature_1pm=float(model.action.desiredCurvature),
            acceleration_mps2=float(model.action.desiredAcceleration),
            plan_speed_mps=float(model.velocity.x[0]) if len(model.velocity.x) else 0.0,
            car_speed_mps=self._car_speed_mps,
        )


def _xyz(curve: Any) -> Curve:
    """Return a curve as (n, 3); a list that is missing or too short counts as zeros."""
    columns = [np.array(list(column), np.float64) for column in (curve.x, curve.y, curve.z)]
    points = np.zeros((columns[0].size, 3))
    for axis, column in enumerate(columns):
        points[: column.size, axis] = column[: len(points)]
    return points


def _leads(model: Any) -> list[Lead]:
    return [
        Lead(float(lead.x[0]), float(lead.y[0]), float(lead.v[0]), float(lead.prob))
        for lead in model.leadsV3
        if len(lead.x) and len(lead.y) and len(lead.v)
    ]


def _lane_change(meta: Any) -> str:
    names = {
        "preLaneChange": "wanted",
        "laneChangeStarting": "starts",
        "laneChangeFinishing": "ends",
    }
    state = names.get(enumerant_name(meta.laneChangeState))
    return f"lane change {enumerant_name(meta.laneChangeDirection)} {state}" if state else ""


def _desire(probabilities: list[float]) -> str:
    if len(probabilities) < len(DESIRES) or not np.isfinite(probabilities).all():
        return ""
    best = int(np.argmax(probabilities))
    if best == 0 or best >= len(DESIRES):
        return ""
    return f"{DESIRES[best]} {probabilities[best]:.0%}"

"""Reads a log and yields the model's answer to each frame, with car state and calibration.

Events are taken in their order, and only the newest of each kind is kept. Overlays, rerun and 3D
scenes are drawn from the answers. Calibrated frame: x forward, y right, z down, metres.
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

# Meaning of the 8 probabilities in `meta.desireState`, with the names of `log.Desire`; the last one
# has no name.
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
    """A candidate for the lead vehicle, at the present time."""

    x_m: float  # distance ahead of the camera
    y_m: float  # distance to the right of the camera
    speed_mps: float  # absolute speed
    probability: float  # probability that the vehicle exists


@dataclass(frozen=True, slots=True)
class Answer:
    """One modelV2 message with its context."""

    frame_id: int  # frame id of the main camera
    mono_time_ns: int  # `logMonoTime`
    is_valid: bool  # `valid` of the Event
    rpy_rad: Rpy  # device_from_calib as roll, pitch, yaw; the newest before the message
    height_m: float  # height of the camera over the road
    plan_m: Curve  # (n, 3) float64 planned positions, starting at the camera
    lane_lines_m: tuple[Curve, ...]  # (n, 3) float64 each, from far left to far right
    lane_line_probs: tuple[float, ...]
    road_edges_m: tuple[Curve, ...]  # (n, 3) float64 each
    leads: tuple[Lead, ...]  # candidates for the lead vehicle
    lane_change: str  # state and direction of a lane change; empty if there is none
    desire: str  # the most likely desire with its probability; empty if it is "none"
    execution_ms: float  # published execution time; 0 in logs of a deterministic replay
    drop_percent: float  # `frameDropPerc`
    curvature_1pm: float  # desired curvature
    acceleration_mps2: float  # desired acceleration
    plan_speed_mps: float  # planned speed at the present time
    car_speed_mps: float | None  # the newest `carState.vEgo`; None before the first

    @property
    def plan_on_road_m(self) -> Curve:
        """The plan lowered by the mounting height: the path of the wheels."""
        return np.asarray(self.plan_m + np.array([0.0, 0.0, self.height_m]))


@dataclass(slots=True)
class AnswerReader:
    """Builds answers from the Events of one log."""

    rpy_rad: Rpy = (0.0, 0.0, 0.0)  # current calibration; until the log has one, this default
    height_m: float = Mounting().height_m  # current height over the road; same default rule
    _car_speed_mps: float | None = field(default=None, init=False)

    def take(self, service: str, event: Any) -> Answer | None:
        """Read the next Event; return an answer if it is a modelV2 message.

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
    """Return a curve as (n, 3); missing values of a shorter list are zero."""
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

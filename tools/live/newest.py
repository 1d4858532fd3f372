"""Keeps the newest messages of daemon, car and device, and builds a row of numbers per answer.

Events are taken in their order, from the bus or from a log. Coordinates are those of
``tools.views.answer``: x forward, y right, z down, curvature positive to the right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final

from cereal.errors import MessageError
from cereal.schema import enumerant_name, member_name, reading
from modeld.health.reporter import HEALTH_SERVICES
from tools.messages.message_values import to_plain
from tools.service.health import Health, problems_of, quantile_ms, stages_since
from tools.views.answer import Answer, AnswerReader, Rpy

HEALTH: Final = HEALTH_SERVICES["driving"]
# All services that are read. roadCameraState names the sensor, which determines the focal length.
SERVICES: Final = (
    "deviceState",
    "roadCameraState",
    "liveCalibration",
    "carState",
    "cameraOdometry",
    "drivingModelData",
    HEALTH,
    "modelV2",
)

# The numbers of a row: name -> decimals. Units: s, ms, m/s, 1/m, m/s2, degrees, m.
COLUMNS: Final = {
    "time": 3,
    "frameId": 0,
    "valid": 0,
    "missing": 0,
    "execution": 2,
    "carSpeed": 2,
    "planSpeed": 2,
    "seenSpeed": 2,
    "curvature": 6,
    "seenCurvature": 6,
    "acceleration": 3,
    "carAcceleration": 3,
    "steering": 1,
    "blinkers": 0,
    "laneLeft": 2,
    "laneRight": 2,
}
LEFT, RIGHT = 1, 2
# At lower speeds, a yaw rate divided by the speed is noise.
MIN_TURNING_MPS: Final = 1.0
# If more frames are missing at once than a minute has, a different camera process is counting.
MAX_MISSING: Final = 1200

Row = tuple[float | None, ...]
"""A rounded value for each of ``COLUMNS``; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The context of an answer, which rarely changes."""

    rpy_rad: Rpy  # device_from_calib as roll, pitch, yaw
    height_m: float  # height of the camera over the road
    calibration: str = ""  # calibration status; "" before the first message
    wide_rpy_rad: Rpy = (0.0, 0.0, 0.0)  # wide_from_device as roll, pitch, yaw
    device_type: str = ""  # from ``deviceState``; "" before the first message
    sensor: str = ""  # sensor of the road camera; "" before the first message


@dataclass(slots=True)
class _Car:
    speed_mps: float = math.nan
    acceleration_mps2: float = math.nan
    steering_deg: float = math.nan
    blinkers: int = 0


@dataclass(slots=True)
class _Estimates:
    """The model's estimates of its own motion and of its lane."""

    speed_mps: float = math.nan
    curvature_1pm: float = math.nan
    lane_left_m: float = math.nan
    lane_right_m: float = math.nan


class Newest:
    """The newest message of each kind."""

    def __init__(self) -> None:
        reader = AnswerReader()
        self._reader = reader
        self._car, self._seen = _Car(), _Estimates()
        self._last_id: int | None = None
        self.answer: Answer | None = None  # the model's answer; None before the first
        self.surroundings = Surroundings(reader.rpy_rad, reader.height_m)  # calibration and device
        self.health: Health | None = None  # the driving daemon's health; None before the first
        self.frame_id = 0
        self.damaged = 0  # messages that could not be read

    def begin_with(self, around: Surroundings) -> None:
        """Start in the middle of a log, with the calibration and the device at that point."""
        self.surroundings = around
        self._reader.rpy_rad, self._reader.height_m = around.rpy_rad, around.height_m

    def take(self, event: Any) -> str | None:
        """Read the next Event; return its member, or None if it is damaged or unknown."""
        member = member_name(event)
        if member is None:
            return None
        try:
            with reading(member):
                self._take(member, event)
        except MessageError:
            self.damaged += 1
            return None
        return member

    def row(self, time_s: float, execution_ms: float | None = None) -> Row:
        """Return the current row of numbers.

        `execution_ms`: replaces the execution time in the answer, which is 0 in a replay's log.
        """
        answer, car, seen = self.answer, self._car, self._seen
        missing = self._missing(answer.frame_id if answer is not None else self.frame_id)
        numbers: tuple[float | None, ...]
        if answer is None:
            numbers = (self.frame_id, None, missing, None, car.speed_mps, None)
            wanted: tuple[float | None, float | None] = (None, None)
        else:
            time_ms = execution_ms if execution_ms is not None else answer.execution_ms or None
            numbers = (answer.frame_id, int(answer.is_valid), missing, time_ms)
            numbers += (car.speed_mps, answer.plan_speed_mps)
            wanted = (answer.curvature_1pm, answer.acceleration_mps2)
        rest = (car.steering_deg, car.blinkers, seen.lane_left_m, seen.lane_right_m)
        numbers = (time_s, *numbers, seen.speed_mps, wanted[0], seen.curvature_1pm)
        numbers += (wanted[1], car.acceleration_mps2, *rest)
        return tuple(map(_rounded, numbers, COLUMNS.values()))

    def _missing(self, frame_id: int) -> int:
        last, self._last_id = self._last_id, frame_id
        missing = 0 if last is None else frame_id - last - 1
        return missing if 0 < missing <= MAX_MISSING else 0

    def _take(self, member: str, event: Any) -> None:
        answer = self._reader.take(member, event)
        if answer is not None:
            self.answer, self.frame_id = answer, answer.frame_id
        elif member == "carState":
            car = event.carState
            blinkers = LEFT * bool(car.leftBlinker) + RIGHT * bool(car.rightBlinker)
            self._car = _Car(
                float(car.vEgo), float(car.aEgo), float(car.steeringAngleDeg), blinkers
            )
        elif member == "cameraOdometry":
            self._take_odometry(event.cameraOdometry)
        elif member == "drivingModelData":
            lane = event.drivingModelData.laneLineMeta
            self._seen.lane_left_m = float(lane.leftY)
            self._seen.lane_right_m = float(lane.rightY)
        elif member == HEALTH:
            self.health = to_plain(getattr(event, HEALTH))
        elif member == "liveCalibration":
            self._take_calibration(event.liveCalibration)
        elif member == "deviceState":
            self._now(device_type=enumerant_name(event.deviceState.deviceType))
        elif member == "roadCameraState":
            state = event.roadCameraState
            self._now(sensor=enumerant_name(state.sensor))
            if self.answer is None:
                self.frame_id = int(state.frameId)

    def _take_odometry(self, message: Any) -> None:
        if len(message.trans) != 3 or len(message.rot) != 3:
            return
        speed = float(message.trans[0])
        self._seen.speed_mps = speed
        turning = float(message.rot[2]) / speed if speed > MIN_TURNING_MPS else math.nan
        self._seen.curvature_1pm = turning

    def _take_calibration(self, message: Any) -> None:
        wide = [float(angle) for angle in message.wideFromDeviceEuler]
        is_sound = len(wide) == 3 and all(map(math.isfinite, wide))
        self._now(
            rpy_rad=self._reader.rpy_rad,
            height_m=self._reader.height_m,
            calibration=enumerant_name(message.calStatus),
            wide_rpy_rad=(wide[0], wide[1], wide[2]) if is_sound else (0.0, 0.0, 0.0),
        )

    def _now(self, **changes: Any) -> None:
        """Change the surroundings; without a change, the object stays the same."""
        changed = replace(self.surroundings, **changes)
        if changed != self.surroundings:
            self.surroundings = changed


def _rounded(value: float | None, digits: int) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    # Adding 0.0 turns -0.0 into 0.0, which is shown without a sign.
    return round(value, digits) + 0.0 if digits else int(value)


# --- The daemon's health as plain values for the page -----------------------------------------

_SHA_DIGITS = 12


def describe_health(health: Health, earlier: Health | None) -> dict[str, Any]:
    """Return the page's view of a daemon's health.

    `earlier`: the health some seconds before, to compute stage times since then; None: since the
    daemon's start.
    """
    bounds = list(health["stageBounds"])
    return {
        "phase": health["phase"],
        "problems": problems_of(health),
        "uptime": health["uptime"],
        "process": health["processId"],
        "model": PurePath(health["model"]).name,
        "digest": health["modelSha256"][:_SHA_DIGITS],
        "isFallback": health["isFallback"],
        "checkpoints": [f"{one['role']} {one['name']}" for one in health["checkpoints"]],
        "device": health["device"],
        "driver": health["driver"],
        "selfTest": health["selfTest"]["result"],
        "frames": {
            name: health[name] for name in ("frames", "published", "publishedValid", "dropped")
        },
        "rate": health["recentPublished"] / health["recentTime"] if health["recentTime"] else 0.0,
        "faults": [
            {"name": one["name"], "count": one["count"], "recent": one["recent"]}
            for one in health["faults"]
            if one["count"]
        ],
        "memory": health["memory"],
        "bounds": bounds,
        "sinceStart": earlier is None,
        "stages": [
            {
                "name": stage["name"],
                "counts": list(stage["counts"]),
                "median": quantile_ms(bounds, stage["counts"], 0.5),
                "p99": quantile_ms(bounds, stage["counts"], 0.99),
            }
            for stage in stages_since(health, earlier)
        ],
    }

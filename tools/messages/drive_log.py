"""Reads the event logs of a drive: the time of each event, and the daemon's messages as arrays.

`DriveTime` converts ``logMonoTime`` to the time of the drive. That is 0 at the first event that is
neither ``initData`` nor ``sentinel``, which begin each segment. ``initData`` has the time at which
the route began, which gives the log's position in the route. If these two are stamped minutes too
early, the time of the events around them is used. If the clock goes back, because the machine was
restarted, the time continues from the latest one.

`summarize` collects a few numbers of each frame, and the curves of selected frames, in arrays.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cereal.log_reader import read_log
from cereal.schema import member_name

logger = logging.getLogger(__name__)

NS_PER_S: Final = 1_000_000_000
ORIGIN: Final = "initData"
MARKS: Final = (ORIGIN, "sentinel")
# A larger step back is a restart of the clock. Logs are written as messages arrive, so events can
# be out of order by a fraction of a second.
BOOT_NS: Final = 5 * NS_PER_S
_LARGEST_NS: Final = 2**64 - 1


OUTPUT_SERVICES = ("modelV2", "drivingModelData", "cameraOdometry")
MONITORING_SERVICE = "driverStateV2"

Floats = NDArray[np.float64]
Curve = NDArray[np.float32]


class Boot(NamedTuple):
    """A moment of the drive at which the clock went back."""

    time_ns: int  # time of the drive
    back_ns: int  # amount by which the clock went back


class DriveTime:
    """Converts the stamps of a log's events to the time of the drive.

    Pass events in the order of the log. For a drive of several logs, use one object for all.

    Attributes:
        route_ns: ``logMonoTime`` of the first initData, at which the route began; None without one.
        start_ns: ``logMonoTime`` at time 0; None before it is known.
        span_ns: The latest time, which is the length of the drive; never negative.
        boots: The moments at which the clock went back.
    """

    def __init__(self) -> None:
        self.route_ns: int | None = None
        self.start_ns: int | None = None
        self.span_ns = 0
        self.boots: list[Boot] = []
        self._zero_ns = 0

    def take(self, service: str | None, mono_time_ns: int) -> int:
        """Return the time of the next event in ns; negative if its stamp is before the start.

        `service` is the name of its Event member, None if unknown.
        """
        if service == ORIGIN and self.route_ns is None:
            self.route_ns = mono_time_ns
        if self.start_ns is None:
            if service in MARKS:
                return 0
            self.start_ns = self._zero_ns = mono_time_ns
        back_ns = self.span_ns - self.of(mono_time_ns)
        if back_ns > BOOT_NS:
            if service in MARKS:
                return self.span_ns
            self.boots.append(Boot(self.span_ns, back_ns))
            self._zero_ns -= back_ns
        time_ns = self.of(mono_time_ns)
        self.span_ns = max(self.span_ns, time_ns)
        return time_ns

    def of(self, mono_time_ns: int) -> int:
        """Return the time of the drive for a stamp since the last restart of the clock, in ns."""
        return mono_time_ns - self._zero_ns

    def place_ns(self, time_ns: int) -> int:
        """Return a time of the drive on the clock of its first event, usually ``logMonoTime``."""
        return min(max(0, time_ns + (self.start_ns or 0)), _LARGEST_NS)

    def follow(self, events: Iterable[Any]) -> Iterator[tuple[str | None, int, Any]]:
        """Yield member, time in ns and reader of each Event.

        Events before the one that determines `start_ns` are held back until that one is read.
        """
        held: list[tuple[str | None, Any]] = []
        for event in events:
            service = member_name(event)
            time_ns = self.take(service, event.logMonoTime)
            if self.start_ns is None:
                held.append((service, event))
                continue
            yield from self._released(held)
            yield service, time_ns, event
        if held:  # no event determined the start
            self.start_ns = self._zero_ns = held[0][1].logMonoTime
            yield from self._released(held)

    def _released(
        self, held: list[tuple[str | None, Any]]
    ) -> Iterator[tuple[str | None, int, Any]]:
        for service, event in held:
            time_ns = self.of(event.logMonoTime)
            yield service, time_ns if abs(time_ns) <= BOOT_NS else 0, event
        held.clear()

    @property
    def route_from_s(self) -> float | None:
        """Time in s from the start of the route to the start of the log; None without initData."""
        if self.route_ns is None or self.start_ns is None:
            return None
        return max(0, self.start_ns - self.route_ns) / NS_PER_S

    def as_json(self) -> dict[str, Any]:
        """Return the drive's time as plain values, in seconds."""
        return {
            "duration_s": self.span_ns / NS_PER_S,
            "route_from_s": self.route_from_s,
            "clock_went_back": [
                {"at_s": boot.time_ns / NS_PER_S, "by_s": boot.back_ns / NS_PER_S}
                for boot in self.boots
            ],
        }

    def text(self) -> str:
        """Return the length of the drive and its position in the route, followed by `notes`.

        An example is ``9.000 s, from 60.000 s of its route on``.
        """
        parts = [f"{self.span_ns / NS_PER_S:.3f} s"]
        if self.route_from_s is not None:
            parts[0] += f", from {self.route_from_s:.3f} s of its route on"
        return "; ".join(parts + self.notes())

    def notes(self) -> list[str]:
        """Return one line for each time that the clock went back."""
        return [
            f"the clock went back by {boot.back_ns / NS_PER_S:.3f} s "
            f"at {boot.time_ns / NS_PER_S:.3f} s"
            for boot in self.boots
        ]


def read_log_events(path: Path) -> Iterator[Any]:
    """Yield the events of a log. A truncated or damaged log only causes a warning.

    Raises:
        LogError: The file cannot be read or is not a log.
    """
    return read_log(path, logger.warning)


# --- The daemon's messages --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curves:
    """The predicted curves of one frame, in the calibrated frame: x forward, y right, z down."""

    plan_m: Curve  # (33, 3) planned positions
    lane_lines_m: Curve  # (4, 33, 3)
    lane_line_probs: Curve  # (4,) probability that each line exists
    road_edges_m: Curve  # (2, 33, 3)


@dataclass(frozen=True, slots=True)
class DriveLog:
    """The daemon's messages in one drive. Arrays (n,) have one element per modelV2 message."""

    counts: Counter[str]  # number of messages by service, and of valid outputs by ``NAME:valid``
    time: DriveTime
    frame_ids: NDArray[np.int64]  # (n,)
    times_s: Floats  # (n,) end of the frame, in time of the drive
    execution_ms: Floats  # (n,) ``modelExecutionTime``
    drop_percent: Floats  # (n,) ``frameDropPerc``
    plan_speed_mps: Floats  # (n,) planned speed at time 0
    curvature_1pm: Floats  # (n,) desired curvature, 1/m
    acceleration_mps2: Floats  # (n,) desired acceleration
    car_times_s: Floats  # (m,) times of carState messages in the drive
    car_speed_mps: Floats  # (m,) their speeds
    curves: Mapping[int, Curves]  # curves of the selected frames, by frame id
    all_finite: bool  # the arrays, and the curves of all frames, have no NaN and no infinity

    @property
    def missing_frames(self) -> int:
        """Number of frame ids between the first and the last modelV2 without a message."""
        if not self.frame_ids.size:
            return 0
        return int(self.frame_ids[-1] - self.frame_ids[0] + 1 - np.unique(self.frame_ids).size)


@dataclass(slots=True)
class _Series:
    """The numbers collected so far, in packed arrays. Lists would take four times the memory."""

    frame_ids: array[int] = field(default_factory=lambda: array("q"))
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    execution_ms: array[float] = field(default_factory=lambda: array("d"))
    drop_percent: array[float] = field(default_factory=lambda: array("d"))
    plan_speed_mps: array[float] = field(default_factory=lambda: array("d"))
    curvature_1pm: array[float] = field(default_factory=lambda: array("d"))
    acceleration_mps2: array[float] = field(default_factory=lambda: array("d"))
    car_ns: array[int] = field(default_factory=lambda: array("q"))
    car_speed_mps: array[float] = field(default_factory=lambda: array("d"))

    def add_model(self, model: Any, time_ns: int) -> None:
        self.frame_ids.append(model.frameId)
        self.times_ns.append(time_ns)
        self.execution_ms.append(1e3 * model.modelExecutionTime)
        self.drop_percent.append(model.frameDropPerc)
        self.plan_speed_mps.append(model.velocity.x[0])
        self.curvature_1pm.append(model.action.desiredCurvature)
        self.acceleration_mps2.append(model.action.desiredAcceleration)

    def add_car(self, event: Any, time_ns: int) -> None:
        self.car_ns.append(time_ns)
        self.car_speed_mps.append(event.carState.vEgo)


def summarize(events: Iterable[Any], curves_of: Container[int] = ()) -> DriveLog:
    """Return the daemon's messages in the events of a drive, which must be in time order.

    `curves_of` are the frame ids whose curves are kept. Without any modelV2, arrays of frames have
    length 0.
    """
    counts: Counter[str] = Counter()
    series = _Series()
    kept: dict[int, Curves] = {}
    finite = True
    time = DriveTime()
    for event in events:
        name = str(event.which())
        time_ns = time.take(name, event.logMonoTime)
        counts[name] += 1
        if name in (*OUTPUT_SERVICES, MONITORING_SERVICE) and event.valid:
            counts[f"{name}:valid"] += 1
        if name == "modelV2":
            model = event.modelV2
            # If the frame's time is missing, use the message's.
            eof_ns = model.timestampEof
            series.add_model(model, time.of(eof_ns) if eof_ns else time_ns)
            curves = _curves(model)
            finite = finite and _is_finite(curves)
            if model.frameId in curves_of:
                kept[model.frameId] = curves
        elif name == "carState":
            series.add_car(event, time_ns)
    arrays: dict[str, Floats] = {
        "times_s": _seconds(series.times_ns),
        "execution_ms": np.array(series.execution_ms, np.float64),
        "drop_percent": np.array(series.drop_percent, np.float64),
        "plan_speed_mps": np.array(series.plan_speed_mps, np.float64),
        "curvature_1pm": np.array(series.curvature_1pm, np.float64),
        "acceleration_mps2": np.array(series.acceleration_mps2, np.float64),
        "car_times_s": _seconds(series.car_ns),
        "car_speed_mps": np.array(series.car_speed_mps, np.float64),
    }
    return DriveLog(
        counts=counts,
        time=time,
        frame_ids=np.array(series.frame_ids, np.int64),
        curves=kept,
        all_finite=finite and all(bool(np.isfinite(one).all()) for one in arrays.values()),
        **arrays,
    )


def with_measured_times(
    drive: DriveLog, frame_ids: NDArray[np.int64], execution_s: Floats
) -> DriveLog:
    """Return the drive with execution times that were measured separately.

    The log of a replay has no such times, because it is the same in every run. `execution_s` has
    the times of `frame_ids`, both (n,). The times of other frames become NaN.
    """
    times = dict(zip(frame_ids.tolist(), execution_s.tolist(), strict=True))
    measured = [1e3 * times.get(frame_id, np.nan) for frame_id in drive.frame_ids.tolist()]
    return replace(drive, execution_ms=np.array(measured, np.float64))


def _seconds(times_ns: array[int]) -> Floats:
    return np.array(times_ns, np.int64).astype(np.float64) * np.float64(1e-9)


def _curves(model: Any) -> Curves:
    return Curves(
        plan_m=_xyz(model.position),
        lane_lines_m=_stacked([_xyz(curve) for curve in model.laneLines]),
        lane_line_probs=np.array(list(model.laneLineProbs), np.float32),
        road_edges_m=_stacked([_xyz(curve) for curve in model.roadEdges]),
    )


def _xyz(curve: Any) -> Curve:
    return np.array([list(curve.x), list(curve.y), list(curve.z)], np.float32).T


def _stacked(curves: list[Curve]) -> Curve:
    return np.stack(curves) if curves else np.zeros((0, 0, 3), np.float32)


def _is_finite(curves: Curves) -> bool:
    return all(
        bool(np.isfinite(one).all())
        for one in (
            curves.plan_m,
            curves.lane_lines_m,
            curves.lane_line_probs,
            curves.road_edges_m,
        )
    )

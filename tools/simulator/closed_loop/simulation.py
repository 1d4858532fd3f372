"""Simulates road, car and traffic at 100 Hz, and records their state 20 times a second.

The simulation does not depend on the daemon or on messages: it executes the `action` that a driver
sets. A drive starts with the *run-up*, which moves the car along the lane's centre to fill the
model's history. In its last metres the car leaves the centre, so that the hand-over to the driver
happens at the trial's offset and heading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from modeld.outputs.verdict import Action
from tools.simulator.closed_loop.trial import RUN_UP_S, Trial
from tools.simulator.world.car import FRONT_M, LENGTH_M, TICK_S, WIDTH_M, Body, Car
from tools.simulator.world.curves import Floats, arctangent, sin_cos
from tools.simulator.world.traffic import Traffic, Vehicle

# Distance over which the run-up leaves the centre; at most half of the run-up.
SWERVE_M = 40.0


class RunUp:
    """The motion of the car up to the hand-over."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._centre_m = trial.world.lanes.centre_m(trial.lane)
        self._swerve_m = min(SWERVE_M, 0.5 * RUN_UP_S * trial.speed_mps)
        bend = trial.world.road.at(trial.hand_over_m).curvature_1pm
        sine, cosine = sin_cos(trial.off_rad)
        along = 1.0 - bend * (self._centre_m + trial.off_m)
        # The quintic from 0 to off_m that ends with the slope of the heading and without curvature.
        end, rise = trial.off_m, float(sine) / float(cosine) * along * self._swerve_m
        self._parts = (10.0 * end - 4.0 * rise, -15.0 * end + 7.0 * rise, 6.0 * end - 3.0 * rise)

    def car(self, time_s: float) -> Car:
        """Return the car at a negative time relative to the hand-over."""
        trial = self._trial
        s = trial.hand_over_m + trial.speed_mps * time_s
        x, y, heading = self._pose(s)
        before_x, before_y, before = self._pose(s - trial.speed_mps * TICK_S)
        distance = math.sqrt((x - before_x) ** 2 + (y - before_y) ** 2)
        # Speed and curvature are those of the last tick, as measured by the car's sensors.
        return Car(
            x_m=x,
            y_m=y,
            heading_rad=heading,
            speed_mps=distance / TICK_S,
            s_m=s,
            curvature_1pm=(heading - before) / distance,
        )

    def _pose(self, s_m: float) -> tuple[float, float, float]:
        """Return x, y and heading of the path at an arc length."""
        road = self._trial.world.road
        t = max(0.0, 1.0 + (s_m - self._trial.hand_over_m) / self._swerve_m)
        third, fourth, fifth = self._parts
        offset = self._centre_m + t * t * t * (third + t * (fourth + t * fifth))
        slope = t * t * (3.0 * third + t * (4.0 * fourth + t * 5.0 * fifth)) / self._swerve_m
        point = road.at(s_m)
        x, y, _ = road.places(np.array(s_m), np.array(offset))
        along = 1.0 - point.curvature_1pm * offset
        return float(x), float(y), point.heading_rad + float(arctangent(np.array(slope / along)))


FRAME_S = 0.05
TICKS_PER_FRAME = round(FRAME_S / TICK_S)
RUN_UP_TICKS = round(RUN_UP_S / TICK_S)
# Gain of cruise control: deceleration per m/s above the set speed.
CRUISE_GAIN_1PS = 0.5
# Acceleration that holds the car with shouldStop.
HOLD_MPS2 = -1.0
STANDING_MPS = 0.1
# Standing this long ends the drive: successfully behind a stopped lead car, otherwise as stalled.
STOOD_S, STALLED_S = 2.0, 20.0
# Distance beyond the asphalt, and heading error, at which a drive ends.
LOST_M = 2.0
LOST_RAD = 1.0
# A lane change: blinker, then torque on the wheel. It ends when the car stays in its new lane.
NUDGE_AFTER_S, NUDGE_S = 1.0, 0.6
ARRIVED_M, ARRIVED_S = 0.3, 1.0
CHANGE_LIMIT_S = 12.0


class End(StrEnum):
    """The reason for the end of a drive."""

    DONE = "done"
    LEFT_ROAD = "left the road"
    COLLISION = "collision"
    STALLED = "stalled"


class Sample(NamedTuple):
    """The state of one frame after the hand-over.

    Attributes:
        time_s: time since the hand-over.
        s_m, x_m, y_m: arc length and world position of the car.
        offset_m: offset of the camera from the centre of its lane, positive to the right.
        heading_rad: heading relative to the road, positive to the right.
        curvature_1pm: curvature of the path.
        gap_m: distance from the car's front to the rear of the vehicle ahead; infinite if none.
        counts: 1 where offset and heading are judged, 0 during a lane change or a recovery.
        out: 1 where a side of the car is beyond its lane; in a lane change, beyond both lanes.
    """

    time_s: float
    s_m: float
    x_m: float
    y_m: float
    offset_m: float
    heading_rad: float
    speed_mps: float
    acceleration_mps2: float
    curvature_1pm: float
    gap_m: float
    counts: float
    out: float


@dataclass(frozen=True, slots=True)
class Track:
    """The record of a drive after the hand-over, (n, len(Sample._fields)) float64."""

    trial: Trial
    samples: Floats
    end: End

    def column(self, name: str) -> Floats:
        """Return one field of all samples, (n,)."""
        return np.asarray(self.samples[:, Sample._fields.index(name)])

    @property
    def driven_m(self) -> float:
        """Distance driven along the road."""
        if not self.samples.size:
            return 0.0
        return max(0.0, float(self.samples[-1, 1]) - self.trial.hand_over_m)


@dataclass(slots=True)
class LaneChange:
    """A lane change in progress.

    Attributes:
        side: direction of the change.
        began_s: time at which the blinker was set.
        near_s: time that the car has been near the centre of its new lane.
        moving: whether the driver has nudged the wheel, so that the new lane is the target.
    """

    side: int
    began_s: float
    near_s: float = 0.0
    moving: bool = False


class Simulation:
    """One drive in progress.

    Attributes:
        ticks: ticks of 10 ms since the beginning of the run-up.
        body: state of the car at the last frame.
        lane: the lane in which the car should be.
        change: the current lane change; None if there is none.
        end: reason for the end of the drive; None while it is running.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.ticks = 0
        self._run_up = RunUp(trial)
        self.car: Car = self._run_up.car(-RUN_UP_S)
        self.body: Body = self.car.body(trial.world.road)
        self._traffic = _traffic_of(trial, self.body)
        self.vehicles: tuple[Vehicle, ...] = self._vehicles()
        self.lane = trial.lane
        self.change: LaneChange | None = None
        self.action = Action()
        self.end: End | None = None
        self._requested_changes = list(trial.requested_changes)
        self._samples: list[Sample] = []
        self._stood_s = 0.0

    @property
    def time_s(self) -> float:
        """Time, 0 at the hand-over."""
        return (self.ticks - RUN_UP_TICKS) * TICK_S

    @property
    def is_engaged(self) -> bool:
        """Whether the driver under test has control."""
        return self.ticks >= RUN_UP_TICKS

    @property
    def frame(self) -> int:
        """Number of the last frame."""
        return self.ticks // TICKS_PER_FRAME

    @property
    def blinker(self) -> int:
        """Direction of the blinker; 0 for off."""
        return 0 if self.change is None else self.change.side

    @property
    def nudge(self) -> int:
        """Direction of the driver's torque on the wheel; 0 for none."""
        if self.change is None:
            return 0
        since_s = self.time_s - self.change.began_s
        return self.change.side if NUDGE_AFTER_S <= since_s < NUDGE_AFTER_S + NUDGE_S else 0

    @property
    def set_speed_mps(self) -> float:
        """The set speed of cruise control, which is the road's limit."""
        return max(self.trial.world.speed_limit_mps, self.trial.speed_mps)

    @property
    def track(self) -> Track:
        """The record of the finished drive."""
        samples = np.array(self._samples, np.float64).reshape(-1, len(Sample._fields))
        return Track(self.trial, samples, self.end or End.DONE)

    def tick(self) -> None:
        """Advance by 10 ms."""
        self.ticks += 1
        if self.ticks <= RUN_UP_TICKS:
            self.car = self._run_up.car(self.time_s)
        else:
            self.car.step(TICK_S, self.action.curvature_1pm, self._acceleration())
        if self.ticks % TICKS_PER_FRAME == 0:
            self._frame()

    def _acceleration(self) -> float:
        """Return the commanded acceleration, limited by cruise control."""
        wanted = self.action.acceleration_mps2
        if self.action.should_stop:
            wanted = min(wanted, HOLD_MPS2)
        return min(wanted, CRUISE_GAIN_1PS * (self.set_speed_mps - self.car.speed_mps))

    def _vehicles(self) -> tuple[Vehicle, ...]:
        return () if self._traffic is None else self._traffic.vehicles

    @property
    def _lead_stands(self) -> bool:
        lead = self.trial.lead
        return lead is not None and lead.at(self.ticks * TICK_S)[0] == 0.0

    def _frame(self) -> None:
        """Update the state at a frame, and record it after the hand-over."""
        self.body = self.car.body(self.trial.world.road)
        if self._traffic is not None:
            self._traffic.step(FRAME_S, self.body)
        self.vehicles = self._vehicles()
        if self.is_engaged:
            self._guide_lane_change()
            self._samples.append(self._sample())
            self.end = self._judge()

    def _guide_lane_change(self) -> None:
        """Start a requested lane change, or advance and end the current one."""
        if self.change is None:
            if self._requested_changes and self.body.s_m >= self._requested_changes[0].s_m:
                self.change = LaneChange(self._requested_changes.pop(0).side, self.time_s)
            return
        change, since_s = self.change, self.time_s - self.change.began_s
        if not change.moving and since_s >= NUDGE_AFTER_S:
            change.moving = True
            self.lane += change.side
        is_near = change.moving and abs(self._offset()) <= ARRIVED_M
        change.near_s = change.near_s + FRAME_S if is_near else 0.0
        if change.near_s >= ARRIVED_S or since_s >= CHANGE_LIMIT_S:
            self.change = None

    def _offset(self) -> float:
        return self.body.offset_m - self.trial.world.lanes.centre_m(self.lane)

    def _sample(self) -> Sample:
        body, trial = self.body, self.trial
        point = trial.world.road.at(body.s_m)
        moving = self.change is not None and self.change.moving
        recovering = body.s_m - trial.hand_over_m < trial.scenario.counts_from_m
        return Sample(
            time_s=self.time_s,
            s_m=body.s_m,
            x_m=body.x_m,
            y_m=body.y_m,
            offset_m=self._offset(),
            heading_rad=body.heading_rad - point.heading_rad,
            speed_mps=body.speed_mps,
            acceleration_mps2=body.acceleration_mps2,
            curvature_1pm=body.curvature_1pm,
            gap_m=gap_ahead(body, self.vehicles),
            counts=float(not moving and not recovering),
            out=float(not recovering and self._is_out()),
        )

    def _is_out(self) -> bool:
        """Return whether a side of the car is beyond its lane, or during a change beyond both."""
        half_m, offset = 0.5 * self.trial.world.lanes.width_m, self._offset()
        left, right = -half_m, half_m
        if self.change is not None and self.change.moving:
            # The previous lane is on the other side.
            left -= 2.0 * half_m * (self.change.side > 0)
            right += 2.0 * half_m * (self.change.side < 0)
        side = 0.5 * WIDTH_M
        return offset - side < left or offset + side > right

    def _judge(self) -> End | None:
        body, lanes = self.body, self.trial.world.lanes
        if any(overlaps(body, vehicle) for vehicle in self.vehicles):
            return End.COLLISION
        outside = max(lanes.left_edge_m - body.offset_m, body.offset_m - lanes.right_edge_m)
        if outside > LOST_M or abs(self._samples[-1].heading_rad) > LOST_RAD:
            return End.LEFT_ROAD
        if body.s_m >= self.trial.end_m:
            return End.DONE
        self._stood_s = self._stood_s + FRAME_S if body.speed_mps < STANDING_MPS else 0.0
        if self._lead_stands and self._stood_s >= STOOD_S:
            return End.DONE
        return End.STALLED if self._stood_s >= STALLED_S else None


def gap_ahead(body: Body, vehicles: tuple[Vehicle, ...]) -> float:
    """Return the distance from the car's front to the rear of the next vehicle in its path, m."""
    front_m = body.s_m + FRONT_M
    gaps = [v.s_m - front_m for v in vehicles if v.s_m > body.s_m and _is_beside(body, v)]
    return min(gaps, default=float("inf"))


def overlaps(body: Body, vehicle: Vehicle) -> bool:
    """Return whether the car and a vehicle overlap, seen along the road."""
    front_m = body.s_m + FRONT_M
    rear_m = front_m - LENGTH_M
    along = rear_m < vehicle.s_m + vehicle.length_m and vehicle.s_m < front_m
    return along and _is_beside(body, vehicle)


def _is_beside(body: Body, vehicle: Vehicle) -> bool:
    reach_m = 0.5 * WIDTH_M + 0.5 * vehicle.width_m
    return abs(vehicle.offset_m - body.offset_m) < reach_m


def _traffic_of(trial: Trial, body: Body) -> Traffic | None:
    """Return the other cars of a drive; None if there are none."""
    if trial.lead is not None:
        return Traffic(trial.world, trial.seed, body, density=0.0, lead=trial.lead)
    return Traffic(trial.world, trial.seed, body) if trial.scenario.traffic else None

"""The expert: a simulated driver that knows the road and plans its next 10 s as the model does.

Its path follows a lane's centre, changes to another lane, or returns to the centre. The lateral
offset is a function of the distance driven, so a car that slows down or stops keeps its path.

    state of the car, other vehicles -> path, speeds -> `Plan` -> curvature and acceleration
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modeld.constants import PLAN_WIDTH, T_IDXS
from modeld.outputs.verdict import acceleration_from_plan, curvature_from_plan
from tools.simulator.world.car import FRONT_M, Body, axes_on
from tools.simulator.world.curves import (
    Floats,
    arctangent,
    ease,
    ease_bend,
    ease_slope,
    sin_cos,
    sine_cosine,
)
from tools.simulator.world.road import Road
from tools.simulator.world.speed import (
    CAREFUL,
    STEPS_S,
    following_acceleration,
    plan_speeds,
    road_acceleration,
    speed_limits,
)
from tools.simulator.world.traffic import Vehicle, foresee
from tools.simulator.world.world import World

# Number of grid cells over the distance driven, used to integrate the arc length of the road.
_CELLS = 120
# Maximum sine of the angle between a planned path and the road.
_STEEPEST = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """The desired lateral offset along the road: constant, or changing from one lane to another.

    Attributes:
        before_m: offset of the present lane.
        after_m: offset of the next lane; equal to `before_m` without a lane change.
        start_m: arc length at which the change starts.
        length_m: length of the change along the road.
    """

    before_m: float
    after_m: float
    start_m: float = 0.0
    length_m: float = 1.0

    def at(self, s_m: Floats) -> tuple[Floats, Floats, Floats]:
        """Return offset, slope and second derivative along the road, each (n,)."""
        step = self.after_m - self.before_m
        if step == 0.0:
            none = np.zeros_like(s_m)
            return none + self.after_m, none, none
        t = (s_m - self.start_m) / self.length_m
        slope, bend = step / self.length_m, step / (self.length_m * self.length_m)
        return self.before_m + step * ease(t), slope * ease_slope(t), bend * ease_bend(t)


class ReturnPath(NamedTuple):
    """The path back to the target: the lateral error as a quintic that vanishes at the end.

    Attributes:
        coefficients: for powers 0 to 5 of distance / length, m.
        length_m: distance after which the error is 0.
    """

    coefficients: tuple[float, ...]
    length_m: float

    def at(self, distance_m: Floats) -> tuple[Floats, Floats, Floats]:
        """Return error, slope and second derivative along the path, each (n,)."""
        t = np.minimum(distance_m / self.length_m, 1.0)
        c0, c1, c2, c3, c4, c5 = self.coefficients
        error = c0 + t * (c1 + t * (c2 + t * (c3 + t * (c4 + t * c5))))
        slope = c1 + t * (2.0 * c2 + t * (3.0 * c3 + t * (4.0 * c4 + t * (5.0 * c5))))
        bend = 2.0 * c2 + t * (6.0 * c3 + t * (12.0 * c4 + t * (20.0 * c5)))
        return error, slope / self.length_m, bend / (self.length_m * self.length_m)


def return_path_from(error_m: float, slope: float, bend_1pm: float, length_m: float) -> ReturnPath:
    """Return the quintic that brings an error and its two derivatives to zero.

    `slope` is the error's change per metre driven, `bend_1pm` the slope's change per metre.
    """
    e, s, b = error_m, slope * length_m, 0.5 * bend_1pm * length_m * length_m
    # The upper coefficients solve the three conditions at the end.
    cubic = -10.0 * e - 6.0 * s - 3.0 * b
    quartic = 15.0 * e + 8.0 * s + 3.0 * b
    quintic = -6.0 * e - 3.0 * s - b
    return ReturnPath((e, s, b, cubic, quartic, quintic), length_m)


class Path(NamedTuple):
    """Points of a path, each (n,).

    Attributes:
        s_m: arc length of the road at each point.
        offset_m: offset from the reference line.
        angle_rad: direction relative to the road, positive to the right.
        sine, cosine: sine and cosine of `angle_rad`.
        turn_1pm: change of that angle per metre driven.
        progress: metres along the reference line per metre driven.
    """

    s_m: Floats
    offset_m: Floats
    angle_rad: Floats
    sine: Floats
    cosine: Floats
    turn_1pm: Floats
    progress: Floats


def path_at(
    road: Road, start_m: float, return_path: ReturnPath, target: Target, distance_m: Floats
) -> Path:
    """Return the points of a path at given distances driven.

    `distance_m` (n,) increases from 0; `start_m` is the present arc length of the car. The path's
    offset is that of `target` plus the error that `return_path` describes.
    """
    reach = max(float(distance_m[-1]), 1e-3)
    grid = np.arange(_CELLS + 1, dtype=np.float64) * (reach / _CELLS)
    error, slope, _ = return_path.at(grid)
    s = start_m + grid
    progress = np.ones_like(grid)
    # The road's curvature depends on the progress along it; two iterations settle it to
    # millimetres.
    for _ in range(2):
        turn = road.curvatures(s)
        offset, drift, _ = target.at(s)
        sine = _limited(slope + drift * progress)
        progress = np.sqrt(1.0 - sine * sine) / np.maximum(1.0 - turn * (offset + error), 0.2)
        steps = 0.5 * (progress[:-1] + progress[1:]) * (reach / _CELLS)
        s = start_m + np.concatenate([[0.0], np.cumsum(steps)])
    s, progress = np.interp(distance_m, grid, s), np.interp(distance_m, grid, progress)
    error, slope, bend = return_path.at(distance_m)
    offset, drift, change = target.at(s)
    sine = _limited(slope + drift * progress)
    cosine = np.sqrt(1.0 - sine * sine)
    # sin(angle) is the slope of the offset along the path.
    return Path(
        s_m=s,
        offset_m=offset + error,
        angle_rad=arctangent(sine / cosine),
        sine=sine,
        cosine=cosine,
        turn_1pm=(bend + change * progress * progress) / cosine,
        progress=progress,
    )


def _limited(slope: Floats) -> Floats:
    return np.minimum(np.maximum(slope, -_STEEPEST), _STEEPEST)


# --- The driver: chooses a path and the speeds along it ------------------------------------------

LEFT, RIGHT = -1, 1
LANE_CHANGE_S = 5.0
# Minimum length of a lane change, which applies at low speed.
_SHORTEST_CHANGE_M = 25.0
# Length of the path back to the lane's centre: the distance driven in _RETURN_S, but at most the
# larger of _RETURN_M and the distance driven in _FAST_RETURN_S. It is longer for errors of more
# than 1 m. Because the plan is recomputed all the time, an error falls by 93 % per length.
_RETURN_S, _FAST_RETURN_S = 2.2, 1.7
_SHORTEST_RETURN_M, _RETURN_M = 15.0, 36.0
_LONGER_PER_M = 0.2
# A speed that no car reaches, so that only curves limit it.
_FASTEST_MPS = 100.0
# A vehicle whose centre is nearer than this to the path blocks it.
_BLOCKING_M = 1.7


class Command(NamedTuple):
    """A control command: curvature (1/m, positive to the right) and acceleration (m/s^2)."""

    curvature_1pm: float
    acceleration_mps2: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned motion at the model's 33 times, in the calibrated frame of the car now.

    Attributes:
        position_m: (33, 3) positions of the camera relative to its present one.
        velocity_mps, acceleration_mps2: (33, 3) velocity and acceleration.
        orientation_rad: (33, 3) roll, pitch, yaw relative to now.
        rate_radps: (33, 3) rates of roll, pitch and yaw.
        offset_m, s_m: (33,) offset and arc length on the road.
        side: direction of the current lane change: -1 left, 1 right; 0 if there is none.
        changes_until_s: time until that change ends.
        for_curves_mps2: acceleration that the curves ahead allow or require, without regard to the
            cruising speed.
    """

    position_m: Floats
    velocity_mps: Floats
    acceleration_mps2: Floats
    orientation_rad: Floats
    rate_radps: Floats
    offset_m: Floats
    s_m: Floats
    side: int = 0
    changes_until_s: float = 0.0
    for_curves_mps2: float = 0.0

    def array(self) -> NDArray[np.float32]:
        """Return the plan in the layout of the model's output head, (33, 15)."""
        columns = (
            self.position_m,
            self.velocity_mps,
            self.acceleration_mps2,
            self.orientation_rad,
            self.rate_radps,
        )
        rows = np.empty((T_IDXS.size, PLAN_WIDTH), np.float32)
        for index, column in enumerate(columns):
            rows[:, 3 * index : 3 * index + 3] = column
        return rows


class Expert:
    """A driver that follows a lane of a world; lanes are numbered from the left."""

    def __init__(self, world: World, lane: int, cruise_mps: float) -> None:
        self._world = world
        self._cruise_mps = cruise_mps
        self._pending: tuple[int, float] | None = None
        self._side = 0
        self._lane = lane
        centre = world.lanes.centre_m(lane)
        self._target = Target(centre, centre)
        self._take_limits(centre)

    @property
    def lane(self) -> int:
        """The lane that it drives in; during a lane change, the new one."""
        return self._lane

    @property
    def changing(self) -> int:
        """The direction of the current lane change: -1 left, 1 right; 0 if there is none."""
        return self._side

    def change_lane(self, side: int, time_s: float = 0.0) -> bool:
        """Request a lane change; return False if the road has no lane on that side.

        The change starts at `time_s`, on the clock of `plan`.
        """
        if not 0 <= self._lane + side < self._world.lanes.count:
            return False
        self._pending = (side, time_s)
        return True

    def plan(self, body: Body, vehicles: Sequence[Vehicle], time_s: float | None = None) -> Plan:
        """Return the plan for now; without a time, a pending lane change starts immediately."""
        self._advance(body, time_s)
        return_path = self._return_path(body)
        ahead = self._ahead(body, vehicles, return_path)
        speeds = plan_speeds(self._limits, body.s_m, body.speed_mps, body.acceleration_mps2, ahead)
        distance, speed, acceleration = speeds.at(T_IDXS)
        path = path_at(self._world.road, body.s_m, return_path, self._target, distance)
        return self._seen(body, path, speed, acceleration)

    def wanted_mps2(self, body: Body, vehicles: Sequence[Vehicle]) -> float:
        """Return the acceleration wanted now, to which a plan converges from the present one."""
        wanted = road_acceleration(self._limits, body.s_m, body.speed_mps)
        ahead = self._ahead(body, vehicles, self._return_path(body))
        if ahead is None:
            return wanted
        gap, speed = (float(part[0]) for part in ahead)
        return min(wanted, following_acceleration(gap, body.speed_mps, speed, CAREFUL))

    def _take_limits(self, centre_m: float) -> None:
        """Compute the speed limits of a lane with its centre at this offset."""
        road = self._world.road
        self._limits = speed_limits(road, centre_m, self._cruise_mps)
        self._curves = speed_limits(road, centre_m, _FASTEST_MPS)

    def _advance(self, body: Body, time_s: float | None) -> None:
        """Start a lane change that is due, and end a completed one."""
        target = self._target
        if self._side and body.s_m > target.start_m + target.length_m:
            self._side = 0
            self._target = target = Target(target.after_m, target.after_m)
        if self._pending is None or (time_s is not None and time_s < self._pending[1]):
            return
        self._side, _ = self._pending
        self._pending = None
        self._lane += self._side
        length = max(LANE_CHANGE_S * body.speed_mps, _SHORTEST_CHANGE_M)
        centre = self._world.lanes.centre_m(self._lane)
        self._target = Target(target.after_m, centre, body.s_m, length)
        self._take_limits(centre)

    def _return_path(self, body: Body) -> ReturnPath:
        """Return the path from the car's present position and direction back to the target."""
        point = self._world.road.at(body.s_m)
        sine, cosine = sine_cosine(body.heading_rad - point.heading_rad)
        # A car that points across the road or backwards is treated as one at 30 degrees to it.
        sine, cosine = min(max(sine, -0.5), 0.5), max(cosine, 0.86)
        progress = cosine / max(1.0 - point.curvature_1pm * body.offset_m, 0.2)
        offset, slope, bend = (part.item() for part in self._target.at(np.array([body.s_m])))
        turn = body.curvature_1pm - point.curvature_1pm * progress
        error = body.offset_m - offset
        speed = body.speed_mps
        length = min(_RETURN_S * speed, max(_RETURN_M, _FAST_RETURN_S * speed))
        length *= 1.0 + _LONGER_PER_M * max(abs(error) - 1.0, 0.0)
        return return_path_from(
            error,
            sine - slope * progress,
            cosine * turn - bend * progress * progress,
            max(length, _SHORTEST_RETURN_M),
        )

    def _ahead(
        self, body: Body, vehicles: Sequence[Vehicle], return_path: ReturnPath
    ) -> tuple[Floats, Floats] | None:
        """Return the blocking car's gap and speed at each of `STEPS_S`, None without such a car."""
        lead = self._blocking_vehicle(body, vehicles, return_path)
        if lead is None:
            return None
        rear, speed, _ = foresee(lead, STEPS_S)
        return rear - body.s_m - FRONT_M, speed

    def _blocking_vehicle(
        self, body: Body, vehicles: Sequence[Vehicle], return_path: ReturnPath
    ) -> Vehicle | None:
        """Return the nearest vehicle ahead that blocks the path."""
        ahead = [v for v in vehicles if v.s_m > body.s_m]
        if not ahead:
            return None
        places = np.array([v.s_m for v in ahead])
        path = self._target.at(places)[0] + return_path.at(places - body.s_m)[0]
        aside = np.abs(np.array([v.offset_m for v in ahead]) - path)
        near = [v for v, gap in zip(ahead, aside.tolist(), strict=True) if gap < _BLOCKING_M]
        return min(near, key=lambda v: v.s_m, default=None)

    def _seen(self, body: Body, path: Path, speed: Floats, acceleration: Floats) -> Plan:
        """Return the plan that follows a path, in the car's present calibrated frame."""
        road = self._world.road
        frames = road.frames(path.s_m)
        first = road.at(body.s_m).heading_rad
        now = math.remainder(body.heading_rad - first, 2.0 * math.pi)
        turned = (frames.heading_rad - first) + (path.angle_rad - now)
        # The car's direction in the plane is the road's, turned by the path's angle.
        ahead, aside = frames.forward[0], frames.forward[1]
        scale = 1.0 / np.sqrt(ahead * ahead + aside * aside)
        sine = (aside * path.cosine + ahead * path.sine) * scale
        cosine = (ahead * path.cosine - aside * path.sine) * scale
        axes = axes_on(frames, path.offset_m, sine, cosine)
        # rows[i, j] is the component of the later axis j along the present axis i.
        rows = np.empty_like(axes)
        for row, (x, y, z) in zip(rows, body.axes(), strict=True):
            row[:] = x * axes[0] + y * axes[1] + z * axes[2]
        along, across, about = frames.roll_1pm, frames.pitch_1pm, frames.yaw_1pm
        pace = speed * path.progress
        roll = pace * (along * path.cosine + across * path.sine)
        pitch = pace * (across * path.cosine - along * path.sine)
        yaw = pace * about + speed * path.turn_1pm
        pushed = (
            rows[:, 0] * acceleration + rows[:, 1] * (speed * yaw) - rows[:, 2] * (speed * pitch)
        )
        orientation, rates = _angles(rows, turned, (roll, pitch, yaw))
        until = self._target.start_m + self._target.length_m
        return Plan(
            position_m=np.array(body.seen(*road.places(path.s_m, path.offset_m))).T,
            velocity_mps=(rows[:, 0] * speed).T,
            acceleration_mps2=pushed.T,
            orientation_rad=orientation.T,
            rate_radps=rates.T,
            offset_m=path.offset_m,
            s_m=path.s_m,
            side=self._side,
            changes_until_s=float(np.interp(until, path.s_m, T_IDXS)) if self._side else 0.0,
            for_curves_mps2=road_acceleration(self._curves, body.s_m, body.speed_mps),
        )


def _angles(
    rows: Floats, turned_rad: Floats, about: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats]:
    """Return roll, pitch, yaw of the rotations Rz Ry Rx (3, 3, n), and their rates, each (3, n).

    `turned_rad` approximates the yaw: hills and banks add at most some degrees.
    """
    (forward_x, forward_y, forward_z), (_, _, right_z), (_, _, down_z) = rows.transpose(1, 0, 2)
    level = np.sqrt(forward_x * forward_x + forward_y * forward_y)
    sine, cosine = sin_cos(turned_rad)
    ahead, aside = forward_x * cosine + forward_y * sine, forward_y * cosine - forward_x * sine
    slopes = np.array([right_z / down_z, -forward_z / level, aside / ahead])
    angles = arctangent(slopes)
    angles[2] += turned_rad
    # Roll's sine and cosine are the third row divided by the cosine of pitch.
    sine_roll, cosine_roll = right_z / level, down_z / level
    roll, pitch, yaw = about
    turn = (pitch * sine_roll + yaw * cosine_roll) / level
    return angles, np.array([roll - turn * forward_z, pitch * cosine_roll - yaw * sine_roll, turn])


def command(plan: Plan, delay_s: float) -> Command:
    """Return the command that the daemon would derive from a plan."""
    rows = plan.array()
    speed = float(rows[0, 3])
    return Command(
        curvature_from_plan(rows, speed, delay_s), acceleration_from_plan(rows, delay_s)[0]
    )

"""A driver who knows the road plans the next 10 s in the model's terms.

Its path leads along a lane's centre, from one to the next, or back to it. Lateral movement is a
function of the distance driven, so a car that slows down or stands drives the same path.
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

# Grid of the distance driven on which the place along the road is integrated.
_CELLS = 120
# Steeper than this to the road, sine of the angle, a path is not planned.
_STEEPEST = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """The offset that a driver wants, along the road.

    Attributes:
        before_m: offset of the lane it comes from.
        after_m: offset of the lane it goes to; the same one if it stays.
        start_m: arc length at which it begins to change.
        length_m: how long the change is.
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


class Return(NamedTuple):
    """The way back to the target: a quintic over a length, zero with two derivatives at its end.

    Attributes:
        coefficients: of powers 0 to 5 of the distance as a share of the length, m.
        length_m: after which the car is where it wants to be.
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


def return_from(error_m: float, slope: float, bend_1pm: float, length_m: float) -> Return:
    """Return the quintic from an error with its two derivatives to none.

    `slope` is the change of the error for each metre, `bend_1pm` the change of that.
    """
    e, s, b = error_m, slope * length_m, 0.5 * bend_1pm * length_m * length_m
    # The three conditions at the end, solved for the upper coefficients.
    cubic = -10.0 * e - 6.0 * s - 3.0 * b
    quartic = 15.0 * e + 8.0 * s + 3.0 * b
    quintic = -6.0 * e - 3.0 * s - b
    return Return((e, s, b, cubic, quartic, quintic), length_m)


class Path(NamedTuple):
    """Points of a path, each (n,).

    Attributes:
        s_m: arc length of the road beside each.
        offset_m: from the reference line.
        angle_rad: direction relative to the road's, positive to the right; `sine` and `cosine` of
            it.
        turn_1pm: change of that angle for each metre driven.
        progress: metres along the reference line for each metre driven.
    """

    s_m: Floats
    offset_m: Floats
    angle_rad: Floats
    sine: Floats
    cosine: Floats
    turn_1pm: Floats
    progress: Floats


def path_at(road: Road, start_m: float, way: Return, target: Target, distance_m: Floats) -> Path:
    """Return a path at distances driven.

    `distance_m` (n,) rises from 0; `start_m` is the arc length next to the car now.
    """
    reach = max(float(distance_m[-1]), 1e-3)
    grid = np.arange(_CELLS + 1, dtype=np.float64) * (reach / _CELLS)
    error, slope, _ = way.at(grid)
    s = start_m + grid
    progress = np.ones_like(grid)
    # Where the road bends depends on how far one gets on it: settled to millimetres in two rounds.
    for _ in range(2):
        turn = road.curvatures(s)
        offset, drift, _ = target.at(s)
        sine = _limited(slope + drift * progress)
        progress = np.sqrt(1.0 - sine * sine) / np.maximum(1.0 - turn * (offset + error), 0.2)
        steps = 0.5 * (progress[:-1] + progress[1:]) * (reach / _CELLS)
        s = start_m + np.concatenate([[0.0], np.cumsum(steps)])
    s, progress = np.interp(distance_m, grid, s), np.interp(distance_m, grid, progress)
    error, slope, bend = way.at(distance_m)
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


# --- The driver, who chooses a path and the speeds on it --------------------------------------

LEFT, RIGHT = -1, 1
LANE_CHANGE_S = 5.0
# A car that stands takes so much road for it.
_SHORTEST_CHANGE_M = 25.0
# The way back to the lane's centre: as long as what is driven in the first time, but no longer
# than the length, or what is driven in the second time; longer from further away. Planned anew
# all the time, an error falls by 93 % on each such length.
_RETURN_S, _FAST_RETURN_S = 2.2, 1.7
_SHORTEST_RETURN_M, _RETURN_M = 15.0, 36.0
_LONGER_PER_M = 0.2
# Beyond what any car drives: only curves limit it.
_FASTEST_MPS = 100.0
# Cars whose middle is nearer than this to the path are in its way.
_IN_WAY_M = 1.7


class Command(NamedTuple):
    """What the car should do: curvature (1/m, positive to the right), acceleration (m/s^2)."""

    curvature_1pm: float
    acceleration_mps2: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Where to go, at the model's 33 times, in the calibrated frame of the car now.

    Attributes:
        position_m: (33, 3) of the camera; from where it is now.
        velocity_mps, acceleration_mps2: (33, 3).
        orientation_rad: (33, 3) roll, pitch, yaw relative to now; `rate_radps` their change.
        offset_m, s_m: (33,) place on the road.
        side: of a lane change that is under way: -1 left, 1 right; 0 without one.
        changes_until_s: when it ends, from now.
        for_curves_mps2: the acceleration that the curves ahead allow or ask for, whatever the
            cruising speed is.
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
        """Return the plan as the model's head has it, (33, 15)."""
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
    """A driver in a lane of a world; lanes are numbered from the left."""

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
        """The lane in which it drives; as soon as it changes, the new one."""
        return self._lane

    @property
    def changing(self) -> int:
        """The side of a change that is under way: -1 left, 1 right; 0 without one."""
        return self._side

    def change_lane(self, side: int, time_s: float = 0.0) -> bool:
        """Ask for a change of lane; False if the road has no lane there.

        It begins at `time_s` on the clock that `plan` is given.
        """
        if not 0 <= self._lane + side < self._world.lanes.count:
            return False
        self._pending = (side, time_s)
        return True

    def plan(self, body: Body, vehicles: Sequence[Vehicle], time_s: float | None = None) -> Plan:
        """Return the plan of one moment; without a time a change of lane begins at once."""
        self._advance(body, time_s)
        way = self._way_back(body)
        ahead = self._ahead(body, vehicles, way)
        speeds = plan_speeds(self._limits, body.s_m, body.speed_mps, body.acceleration_mps2, ahead)
        distance, speed, acceleration = speeds.at(T_IDXS)
        path = path_at(self._world.road, body.s_m, way, self._target, distance)
        return self._seen(body, path, speed, acceleration)

    def wanted_mps2(self, body: Body, vehicles: Sequence[Vehicle]) -> float:
        """Return the acceleration that it wants now; a plan converges from the car's to it."""
        wanted = road_acceleration(self._limits, body.s_m, body.speed_mps)
        ahead = self._ahead(body, vehicles, self._way_back(body))
        if ahead is None:
            return wanted
        gap, speed = (float(part[0]) for part in ahead)
        return min(wanted, following_acceleration(gap, body.speed_mps, speed, CAREFUL))

    def _take_limits(self, centre_m: float) -> None:
        """Learn how fast a lane can be driven."""
        road = self._world.road
        self._limits = speed_limits(road, centre_m, self._cruise_mps)
        self._curves = speed_limits(road, centre_m, _FASTEST_MPS)

    def _advance(self, body: Body, time_s: float | None) -> None:
        """Begin a change of lane that is due, end one that is over."""
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

    def _way_back(self, body: Body) -> Return:
        """Return the way from where the car is, as it moves now, to its target."""
        point = self._world.road.at(body.s_m)
        sine, cosine = sine_cosine(body.heading_rad - point.heading_rad)
        # A car across the road or backwards is planned for as one that drives half along it.
        sine, cosine = min(max(sine, -0.5), 0.5), max(cosine, 0.86)
        progress = cosine / max(1.0 - point.curvature_1pm * body.offset_m, 0.2)
        offset, slope, bend = (part.item() for part in self._target.at(np.array([body.s_m])))
        turn = body.curvature_1pm - point.curvature_1pm * progress
        error = body.offset_m - offset
        speed = body.speed_mps
        length = min(_RETURN_S * speed, max(_RETURN_M, _FAST_RETURN_S * speed))
        length *= 1.0 + _LONGER_PER_M * max(abs(error) - 1.0, 0.0)
        return return_from(
            error,
            sine - slope * progress,
            cosine * turn - bend * progress * progress,
            max(length, _SHORTEST_RETURN_M),
        )

    def _ahead(
        self, body: Body, vehicles: Sequence[Vehicle], way: Return
    ) -> tuple[Floats, Floats] | None:
        """Return gap to and speed of the car in the way at each of `STEPS_S`, None without one."""
        lead = self._in_way(body, vehicles, way)
        if lead is None:
            return None
        rear, speed, _ = foresee(lead, STEPS_S)
        return rear - body.s_m - FRONT_M, speed

    def _in_way(self, body: Body, vehicles: Sequence[Vehicle], way: Return) -> Vehicle | None:
        """Return the nearest car ahead that is in the way of the path."""
        ahead = [v for v in vehicles if v.s_m > body.s_m]
        if not ahead:
            return None
        places = np.array([v.s_m for v in ahead])
        path = self._target.at(places)[0] + way.at(places - body.s_m)[0]
        aside = np.abs(np.array([v.offset_m for v in ahead]) - path)
        near = [v for v, gap in zip(ahead, aside.tolist(), strict=True) if gap < _IN_WAY_M]
        return min(near, key=lambda v: v.s_m, default=None)

    def _seen(self, body: Body, path: Path, speed: Floats, acceleration: Floats) -> Plan:
        """Return a path as it is seen from the car now."""
        road = self._world.road
        frames = road.frames(path.s_m)
        first = road.at(body.s_m).heading_rad
        now = math.remainder(body.heading_rad - first, 2.0 * math.pi)
        turned = (frames.heading_rad - first) + (path.angle_rad - now)
        # The direction of the car: that of the road in the plane, turned by the path's angle.
        ahead, aside = frames.forward[0], frames.forward[1]
        scale = 1.0 / np.sqrt(ahead * ahead + aside * aside)
        sine = (aside * path.cosine + ahead * path.sine) * scale
        cosine = (ahead * path.cosine - aside * path.sine) * scale
        axes = axes_on(frames, path.offset_m, sine, cosine)
        # Row i, column j: axis i of now, axis j of then.
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
    """Return roll, pitch, yaw of rotations Rz Ry Rx (3, 3, n), and their rates, each (3, n).

    `turned_rad` is the yaw but for the degrees that hills and banks add.
    """
    (forward_x, forward_y, forward_z), (_, _, right_z), (_, _, down_z) = rows.transpose(1, 0, 2)
    level = np.sqrt(forward_x * forward_x + forward_y * forward_y)
    sine, cosine = sin_cos(turned_rad)
    ahead, aside = forward_x * cosine + forward_y * sine, forward_y * cosine - forward_x * sine
    slopes = np.array([right_z / down_z, -forward_z / level, aside / ahead])
    angles = arctangent(slopes)
    angles[2] += turned_rad
    # Sine and cosine of roll are those of the third row, but for the cosine of pitch.
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

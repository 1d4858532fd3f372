"""Simulated traffic: other cars that keep their lanes, follow each other, and sometimes brake.

Cars exist around the ego car. One that leaves its surroundings is replaced by a new one. Traffic is
a deterministic function of a seed and of the ego car's motion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.simulator.world.car import FRONT_M, LENGTH_M, WIDTH_M, Body
from tools.simulator.world.curves import Floats
from tools.simulator.world.speed import (
    ACCELERATION_MPS2,
    QUICK,
    SpeedLimits,
    following_acceleration,
    road_acceleration,
    speed_limits,
)
from tools.simulator.world.world import World

# Cars exist in this stretch around the ego car; for each that leaves it, a new one enters.
BEHIND_M, AHEAD_M = 110.0, 300.0
# Minimum distance between an entering car and another car of its lane.
_ROOM_M = 45.0
# Maximum jerk when accelerating (up) and when braking (down), m/s^3.
_JERK_UP_MPS3, _JERK_DOWN_MPS3 = 2.5, 10.0
# Some drivers brake without reason: minimum and maximum time from one braking to the next.
_BRAKING_SPACING_S = (8.0, 60.0)
# A time after the end of every drive.
_NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Vehicle:
    """The state of another car at one time.

    Attributes:
        s_m: arc length of its rear.
        offset_m: offset of its centre from the reference line, positive to the right.
        paint: seed of its appearance.
    """

    s_m: float
    offset_m: float
    speed_mps: float
    acceleration_mps2: float
    width_m: float
    height_m: float
    length_m: float
    paint: int


@dataclass(frozen=True, slots=True)
class ScriptedLead:
    """A scripted car ahead in the ego car's lane.

    `gap_m` is the initial distance from the ego car's front to its rear. `speeds` are pairs of
    time (s, rising) and speed (m/s), interpolated linearly; the last speed is kept.
    """

    gap_m: float
    speeds: tuple[tuple[float, float], ...]

    def at(self, time_s: float) -> tuple[float, float]:
        """Return speed and acceleration at a time."""
        before_s, before = self.speeds[0]
        for after_s, after in self.speeds:
            if time_s < after_s:
                slope = (after - before) / (after_s - before_s) if after_s > before_s else 0.0
                return before + slope * max(time_s - before_s, 0.0), slope
            before_s, before = after_s, after
        return before, 0.0


@dataclass(slots=True)
class _Driver:
    """A car with its driver's habits and present manoeuvre."""

    s_m: float
    lane: int
    offset_m: float
    speed_mps: float
    cruise_mps: float
    size_m: tuple[float, float, float]
    paint: int
    acceleration_mps2: float = 0.0
    brakes: bool = False
    # The current or next braking: start and end time (s), target speed (m/s), deceleration (m/s^2).
    brake: tuple[float, float, float, float] = (_NEVER_S, _NEVER_S, 0.0, 0.0)

    def vehicle(self) -> Vehicle:
        width, height, length = self.size_m
        speed, acceleration = self.speed_mps, self.acceleration_mps2
        return Vehicle(
            self.s_m, self.offset_m, speed, acceleration, width, height, length, self.paint
        )


class Traffic:
    """The other cars around the ego car, in the lanes of its direction.

    Initially no car is too close to the ego car. `density` is 0 (none) to 1 (dense) for each lane;
    None draws it from the seed. With a `lead`, the ego lane has no other car at the start.
    """

    def __init__(
        self,
        world: World,
        seed: int,
        body: Body,
        *,
        density: float | None = None,
        lead: ScriptedLead | None = None,
    ) -> None:
        self._world = world
        self._rng = np.random.default_rng((seed, 6))
        self._time_s = 0.0
        drawn = self._rng.random()
        self._density = max(1.4 * drawn - 0.3, 0.0) if density is None else density
        cruise = 1.15 * world.speed_limit_mps
        lanes = world.lanes
        self._limits: tuple[SpeedLimits, ...] = tuple(
            speed_limits(world.road, lanes.centre_m(lane), cruise) for lane in range(lanes.count)
        )
        self._script = lead
        self._lead: _Driver | None = None
        self._drivers: list[_Driver] = []
        # Cars that left the stretch, until there is room for a new car in their lane.
        self._away: list[_Driver] = []
        own = lanes.lane_at(body.offset_m)
        if lead is not None:
            self._lead = self._new(body.s_m + FRONT_M + lead.gap_m, own)
            self._lead.offset_m = lanes.centre_m(own)
            self._lead.speed_mps, self._lead.acceleration_mps2 = lead.at(0.0)
        for lane in range(lanes.count):
            if self._lead is None or lane != own:
                self._fill(lane, body)

    @property
    def vehicles(self) -> tuple[Vehicle, ...]:
        """The cars now, in no particular order."""
        lead = () if self._lead is None else (self._lead.vehicle(),)
        return (*lead, *(driver.vehicle() for driver in self._drivers))

    def step(self, dt_s: float, body: Body) -> None:
        """Advance by at most 0.1 s; cars behind the ego car brake for it."""
        obstacles = self._obstacles(body)
        for driver in self._drivers:
            self._drive(driver, obstacles[driver.lane], dt_s)
        self._time_s += dt_s
        if self._lead is not None and self._script is not None:
            before = self._lead.speed_mps
            speed, acceleration = self._script.at(self._time_s)
            self._lead.s_m += 0.5 * (before + speed) * dt_s
            self._lead.speed_mps, self._lead.acceleration_mps2 = speed, acceleration
        here: list[_Driver] = []
        for driver in self._drivers:
            is_here = -BEHIND_M < driver.s_m - body.s_m < AHEAD_M + 20.0
            (here if is_here else self._away).append(driver)
        self._drivers = here
        self._away = [driver for driver in self._away if not self._comes_in(driver, body)]

    def _obstacles(self, body: Body) -> list[list[tuple[float, float]]]:
        """Return the rear and speed of every car in each lane, sorted by arc length."""
        lanes = self._world.lanes
        found: list[list[tuple[float, float]]] = [[] for _ in range(lanes.count)]
        every = (*self._drivers, self._lead) if self._lead is not None else self._drivers
        for driver in every:
            found[driver.lane].append((driver.s_m, driver.speed_mps))
        reach = 0.5 * (lanes.width_m + WIDTH_M)
        for lane in range(lanes.count):
            if abs(body.offset_m - lanes.centre_m(lane)) < reach:
                found[lane].append((body.s_m + FRONT_M - LENGTH_M, body.speed_mps))
            found[lane].sort()
        return found

    def _drive(self, driver: _Driver, lane: list[tuple[float, float]], dt_s: float) -> None:
        speed = driver.speed_mps
        front = driver.s_m + driver.size_m[2]
        wanted = road_acceleration(self._limits[driver.lane], driver.s_m, speed)
        wanted = min(wanted, ACCELERATION_MPS2 * (1.0 - speed / driver.cruise_mps) * 2.0)
        for rear, lead_speed in lane:
            if rear > driver.s_m:
                highest = following_acceleration(rear - front, speed, lead_speed, QUICK)
                wanted = min(wanted, highest)
                break
        begin, end, target, strength = driver.brake
        if self._time_s >= begin:
            if self._time_s >= end:
                driver.brake = self._next_braking(driver)
            elif speed > target:
                wanted = min(wanted, max(-strength, (target - speed) / 0.5))
            else:
                wanted = min(wanted, 0.0)
        change = wanted - driver.acceleration_mps2
        change = min(max(change, -_JERK_DOWN_MPS3 * dt_s), _JERK_UP_MPS3 * dt_s)
        acceleration = driver.acceleration_mps2 + change
        later = speed + acceleration * dt_s
        if later <= 0.0:
            later, acceleration = 0.0, min(max(wanted, 0.0), _JERK_UP_MPS3 * dt_s)
        driver.s_m += 0.5 * (speed + later) * dt_s
        driver.speed_mps, driver.acceleration_mps2 = later, acceleration

    def _next_braking(self, driver: _Driver) -> tuple[float, float, float, float]:
        """Draw a car's next braking; half of them are to a stop."""
        if not driver.brakes:
            return _NEVER_S, _NEVER_S, 0.0, 0.0
        wait, hold, target, strength = self._rng.random(4).tolist()
        first, last = _BRAKING_SPACING_S
        begin = self._time_s + first + (last - first) * wait
        speed = 0.0 if target < 0.5 else (target - 0.4) * driver.cruise_mps
        return begin, begin + 5.0 + 12.0 * hold, speed, 1.5 + 3.5 * strength * strength

    def _new(self, s_m: float, lane: int) -> _Driver:
        """Draw a car and its driver."""
        rng, lanes = self._rng, self._world.lanes
        kind, width, height, length, aside, pace, brakes = rng.random(7).tolist()
        # The sizes of cars, lorries and vans.
        size = (1.7 + 0.25 * width, 1.4 + 0.35 * height, 3.9 + 1.0 * length)
        if kind > 0.92:
            size = (2.4 + 0.15 * width, 3.2 + 0.7 * height, 8.0 + 6.0 * length)
        elif kind > 0.82:
            size = (1.9 + 0.15 * width, 2.0 + 0.5 * height, 4.9 + 1.2 * length)
        room = max(0.5 * (lanes.width_m - size[0]) - 0.2, 0.0)
        # Lanes further left are faster.
        cruise = self._world.speed_limit_mps * (0.7 + 0.3 * pace + 0.06 * (lanes.count - lane - 1))
        driver = _Driver(
            s_m=s_m,
            lane=lane,
            offset_m=lanes.centre_m(lane) + min(0.35, room) * (2.0 * aside - 1.0),
            speed_mps=0.0,
            cruise_mps=cruise,
            size_m=size,
            paint=int(rng.integers(1 << 30)),
            brakes=brakes < 0.4,
        )
        driver.brake = self._next_braking(driver)
        driver.speed_mps = min(cruise, self._limits[lane].at(s_m))
        return driver

    def _fill(self, lane: int, body: Body) -> None:
        """Put cars into a lane, with a free stretch around the ego car."""
        if self._density <= 0.0:
            return
        lanes, speed = self._world.lanes, self._world.speed_limit_mps
        is_own = abs(body.offset_m - lanes.centre_m(lane)) < lanes.width_m
        s = body.s_m - BEHIND_M + 20.0
        while s < body.s_m + AHEAD_M:
            driver = self._new(s, lane)
            ahead = s - body.s_m
            near = -(driver.size_m[2] + 2.0 * body.speed_mps + 15.0) if is_own else 1.0
            if not (is_own and near < ahead < 15.0 + 1.8 * body.speed_mps):
                self._drivers.append(driver)
            headway = 1.6 + 9.0 * self._rng.random() * (1.05 - self._density)
            s += driver.size_m[2] + 8.0 + headway * speed

    def _comes_in(self, left: _Driver, body: Body) -> bool:
        """Add a car at the other end of the lane of one that left; return False without room."""
        s = body.s_m + (AHEAD_M if left.s_m < body.s_m else 10.0 - BEHIND_M)
        others = (*self._drivers, self._lead) if self._lead is not None else self._drivers
        if any(other.lane == left.lane and abs(other.s_m - s) < _ROOM_M for other in others):
            return False
        self._drivers.append(self._new(s, left.lane))
        return True


def foresee(vehicle: Vehicle, time_s: Floats) -> tuple[Floats, Floats, Floats]:
    """Return a car's expected motion: rear (m), speed and acceleration, (n,) each.

    A braking car is expected to continue until it stops or a time limit passes, which is longer
    for harder braking. An accelerating car is expected to continue for 3 s.
    """
    speed, acceleration = vehicle.speed_mps, vehicle.acceleration_mps2
    lasts = 3.0
    if acceleration < 0.0:
        lasts = min(speed / -acceleration, 3.0 - 3.0 * acceleration)
    t = np.minimum(time_s, lasts)
    gained = acceleration * t
    place = vehicle.s_m + speed * time_s + gained * (time_s - 0.5 * t)
    now = np.where(time_s < lasts, acceleration, 0.0)
    return place, np.maximum(speed + gained, 0.0), now


def nearest_ahead(
    vehicles: Sequence[Vehicle], s_m: float, offset_m: float, reach_m: float
) -> Vehicle | None:
    """Return the nearest car ahead of an arc length whose centre is within reach of an offset."""
    found = [v for v in vehicles if v.s_m > s_m and abs(v.offset_m - offset_m) < reach_m]
    return min(found, key=lambda v: v.s_m, default=None)

"""Speeds that cars choose: slower before curves, behind other cars, never faster than asked.

Following is the Intelligent Driver Model (Treiber, Hennecke, Helbing 2000), without its free-road
term: that part is the speed for the road, which is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tools.simulator.world.curves import Floats
from tools.simulator.world.road import GRID_M, Road

# Deceleration after which the speed for the road falls before a curve, m/s^2.
BRAKING_MPS2 = 1.4
# What a driver plans for in curves, m/s^2; small corrections come on top of it.
LATERAL_MPS2 = 1.9
# The distance that is kept standing, m.
STANDSTILL_GAP_M = 6.0
ACCELERATION_MPS2 = 1.4
HARDEST_BRAKING_MPS2 = 7.0
# How soon a wrong speed is put right where nothing presses, s; no harder than this, m/s^2.
_SETTLE_S = 1.2
# A plan of speeds: so many steps, how fast a wrong acceleration is put right, and with which jerk.
_CELLS_PER_M = 1.0 / GRID_M
STEP_S = 0.2
STEPS_S: Floats = STEP_S * np.arange(50, dtype=np.float64)
_RESPONSE_S = 0.5
# Behind another car brakes are put on faster than for the road (ADR 0098).
_JERK_MPS3, _BEHIND_JERK_MPS3, _EMERGENCY_JERK_MPS3 = 2.0, 5.0, 10.0
_ROAD_BRAKING_MPS2 = 3.0


class Following(NamedTuple):
    """How a driver follows: the time that is kept driving, and how hard it likes to brake."""

    time_gap_s: float
    comfortable_mps2: float


# Other drivers, and one whose car brakes by 3.5 m/s^2 at most (`tools/simulator/world/car.py`): it
# begins earlier, as what cameras see late it cannot make up for (ADR 0098).
QUICK, CAREFUL = Following(2.0, 1.5), Following(2.5, 1.0)


@dataclass(frozen=True, slots=True)
class SpeedLimits:
    """The highest speed at which a lane of the road can be driven with comfort.

    Attributes:
        start_m: arc length of the first value.
        speeds_mps: (n,) on the grid of the road.
    """

    start_m: float
    speeds_mps: list[float]

    def at(self, s_m: float) -> float:
        """Return the speed at an arc length; the ends hold outside."""
        index = int((s_m - self.start_m) * _CELLS_PER_M)
        speeds = self.speeds_mps
        return speeds[index] if 0 <= index < len(speeds) else speeds[0 if index < 0 else -1]


class SpeedPlan(NamedTuple):
    """Speeds of the next 10 s: in each cell of ``STEP_S`` the jerk is constant.

    Distance, speed and acceleration are those at the begin of each cell.
    """

    distance_m: Floats
    speed_mps: Floats
    acceleration_mps2: Floats
    jerk_mps3: Floats

    def at(self, time_s: Floats) -> tuple[Floats, Floats, Floats]:
        """Return distance driven (m), speed and acceleration at times from 0 to 10 s, (n,)."""
        cell = np.minimum((time_s / STEP_S).astype(np.int64), self.speed_mps.size - 1)
        t = time_s - cell * STEP_S
        speed, acceleration, jerk = (table[cell] for table in self[1:])
        return (
            self.distance_m[cell] + t * (speed + t * (0.5 * acceleration + t * (jerk / 6.0))),
            np.maximum(speed + t * (acceleration + t * (0.5 * jerk)), 0.0),
            acceleration + t * jerk,
        )


def plan_speeds(
    limits: SpeedLimits,
    s_m: float,
    speed_mps: float,
    acceleration_mps2: float,
    lead: tuple[Floats, Floats] | None = None,
) -> SpeedPlan:
    """Return the speeds that a careful driver plans for the next 10 s.

    `lead` is the gap to the car ahead if our car stood still now, and its speed, at each `STEPS_S`.
    """
    distance, speed, acceleration = 0.0, speed_mps, acceleration_mps2
    gaps, leads = ([], []) if lead is None else (lead[0].tolist(), lead[1].tolist())
    rows = []
    for step in range(STEPS_S.size):
        wanted, limit = road_acceleration(limits, s_m + distance, speed), _JERK_MPS3
        if lead is not None:
            gap = gaps[step] - distance
            highest = following_acceleration(gap, speed, leads[step], CAREFUL)
            if highest < wanted:
                wanted = highest
                limit = _BEHIND_JERK_MPS3 if wanted < acceleration else limit
        if wanted < -_ROAD_BRAKING_MPS2 or acceleration < -_ROAD_BRAKING_MPS2:
            limit = _EMERGENCY_JERK_MPS3
        jerk = (wanted - acceleration) / _RESPONSE_S
        jerk = limit if jerk > limit else -limit if jerk < -limit else jerk
        later = speed + STEP_S * (acceleration + 0.5 * STEP_S * jerk)
        if later <= 0.0:
            # It comes to rest within this step, or stays there.
            acceleration, jerk, later = -speed / STEP_S, 0.0, 0.0
        rows.append((distance, speed, acceleration, jerk))
        distance += STEP_S * (speed + STEP_S * (0.5 * acceleration + STEP_S * (jerk / 6.0)))
        acceleration = acceleration + STEP_S * jerk if later > 0.0 else 0.0
        speed = later
    return SpeedPlan(*np.array(rows).T)


def speed_limits(
    road: Road, offset_m: float, cruise_mps: float, lateral_mps2: float = LATERAL_MPS2
) -> SpeedLimits:
    """Return the speed for a lane: the cruising speed, less in curves, falling before them."""
    turn = road.curvature_1pm
    bend = np.abs(turn) / np.maximum(1.0 - turn * offset_m, 0.2)
    here = np.minimum(lateral_mps2 / np.maximum(bend, 1e-9), cruise_mps * cruise_mps)
    # v^2 falls by 2 a for each metre: the least of what all places ahead allow, in one sweep.
    rise = 2.0 * BRAKING_MPS2 * GRID_M * np.arange(here.size)
    ahead = np.minimum.accumulate((here + rise)[::-1])[::-1]
    return SpeedLimits(road.start_m, np.sqrt(ahead - rise).tolist())


def road_acceleration(limits: SpeedLimits, s_m: float, speed_mps: float) -> float:
    """Return the acceleration that a driver wants for the road, m/s^2."""
    wanted = (limits.at(s_m + speed_mps * _SETTLE_S) - speed_mps) / _SETTLE_S
    if wanted > ACCELERATION_MPS2:
        return ACCELERATION_MPS2
    return wanted if wanted > -_ROAD_BRAKING_MPS2 else -_ROAD_BRAKING_MPS2


def following_acceleration(
    gap_m: float, speed_mps: float, lead_speed_mps: float, following: Following
) -> float:
    """Return the highest acceleration that a driver takes behind another car, m/s^2.

    The gap is from bumper to bumper.
    """
    # 2 sqrt(a b) of the model, with what it takes for accelerating and braking.
    time_gap, comfortable = following
    closing = (speed_mps - lead_speed_mps) / (2.0 * math.sqrt(ACCELERATION_MPS2 * comfortable))
    wanted = speed_mps * (time_gap + closing)
    wanted = STANDSTILL_GAP_M + (wanted if wanted > 0.0 else 0.0)
    ratio = wanted / (gap_m if gap_m > 0.1 else 0.1)
    highest = ACCELERATION_MPS2 * (1.0 - ratio * ratio)
    return highest if highest > -HARDEST_BRAKING_MPS2 else -HARDEST_BRAKING_MPS2

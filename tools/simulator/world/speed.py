"""Speed planning of simulated drivers: slower before curves and behind cars, up to a set speed.

Following uses the Intelligent Driver Model (Treiber, Hennecke, Helbing 2000) without its free-road
term. The speed limits of the known road replace that term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tools.simulator.world.curves import Floats
from tools.simulator.world.road import GRID_M, Road

# Deceleration with which the planned speed falls ahead of a curve, m/s^2.
BRAKING_MPS2 = 1.4
# Planned lateral acceleration in curves, m/s^2; small corrections add to it.
LATERAL_MPS2 = 1.9
# Distance kept to a car ahead at standstill, m.
STANDSTILL_GAP_M = 6.0
ACCELERATION_MPS2 = 1.4
HARDEST_BRAKING_MPS2 = 7.0
# Time constant of speed corrections on a free road, s.
_SETTLE_S = 1.2
_CELLS_PER_M = 1.0 / GRID_M
# Step of a speed plan, s.
STEP_S = 0.2
STEPS_S: Floats = STEP_S * np.arange(50, dtype=np.float64)
# Time in which the acceleration would reach the wanted one without jerk limits, s.
_RESPONSE_S = 0.5
# Jerk limits: usual, braking for a car ahead, braking beyond _ROAD_BRAKING_MPS2 (ADR 0098).
_JERK_MPS3, _BEHIND_JERK_MPS3, _EMERGENCY_JERK_MPS3 = 2.0, 5.0, 10.0
# Maximum deceleration for the road alone, m/s^2.
_ROAD_BRAKING_MPS2 = 3.0


class Following(NamedTuple):
    """A driver's way of following: the time gap kept, and a comfortable deceleration."""

    time_gap_s: float
    comfortable_mps2: float


# QUICK describes the other drivers. CAREFUL describes our driver, whose car brakes with at most
# 3.5 m/s^2 (`tools/simulator/world/car.py`) and sees with cameras, late. It brakes earlier
# because it cannot make up for that delay (ADR 0098).
QUICK, CAREFUL = Following(2.0, 1.5), Following(2.5, 1.0)


@dataclass(frozen=True, slots=True)
class SpeedLimits:
    """The highest comfortable speed along a lane.

    Attributes:
        start_m: arc length of the first value.
        speeds_mps: speeds at the n points of the road's grid.
    """

    start_m: float
    speeds_mps: list[float]

    def at(self, s_m: float) -> float:
        """Return the speed at an arc length; outside the grid, the nearest end value."""
        index = int((s_m - self.start_m) * _CELLS_PER_M)
        speeds = self.speeds_mps
        return speeds[index] if 0 <= index < len(speeds) else speeds[0 if index < 0 else -1]


class SpeedPlan(NamedTuple):
    """Speeds of the next 10 s, in cells of ``STEP_S`` with constant jerk.

    Distance, speed and acceleration are the values at the beginning of each cell.
    """

    distance_m: Floats
    speed_mps: Floats
    acceleration_mps2: Floats
    jerk_mps3: Floats

    def at(self, time_s: Floats) -> tuple[Floats, Floats, Floats]:
        """Return distance driven (m), speed and acceleration at times from 0 to 10 s, (n,) each."""
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

    `lead` describes the car ahead at each of `STEPS_S`: its gap to our present position, and its
    speed.
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
            # The car stops within this step, or stays at rest.
            acceleration, jerk, later = -speed / STEP_S, 0.0, 0.0
        rows.append((distance, speed, acceleration, jerk))
        distance += STEP_S * (speed + STEP_S * (0.5 * acceleration + STEP_S * (jerk / 6.0)))
        acceleration = acceleration + STEP_S * jerk if later > 0.0 else 0.0
        speed = later
    return SpeedPlan(*np.array(rows).T)


def speed_limits(
    road: Road, offset_m: float, cruise_mps: float, lateral_mps2: float = LATERAL_MPS2
) -> SpeedLimits:
    """Return the speeds for a lane: the cruising speed, reduced in and ahead of curves."""
    turn = road.curvature_1pm
    bend = np.abs(turn) / np.maximum(1.0 - turn * offset_m, 0.2)
    here = np.minimum(lateral_mps2 / np.maximum(bend, 1e-9), cruise_mps * cruise_mps)
    # Under braking, v^2 falls by 2 a per metre. One sweep finds the minimum over all places ahead.
    rise = 2.0 * BRAKING_MPS2 * GRID_M * np.arange(here.size)
    ahead = np.minimum.accumulate((here + rise)[::-1])[::-1]
    return SpeedLimits(road.start_m, np.sqrt(ahead - rise).tolist())


def road_acceleration(limits: SpeedLimits, s_m: float, speed_mps: float) -> float:
    """Return the acceleration that a driver wants on a free road, m/s^2."""
    wanted = (limits.at(s_m + speed_mps * _SETTLE_S) - speed_mps) / _SETTLE_S
    if wanted > ACCELERATION_MPS2:
        return ACCELERATION_MPS2
    return wanted if wanted > -_ROAD_BRAKING_MPS2 else -_ROAD_BRAKING_MPS2


def following_acceleration(
    gap_m: float, speed_mps: float, lead_speed_mps: float, following: Following
) -> float:
    """Return the highest acceleration that a driver chooses behind another car, m/s^2.

    `gap_m` is the distance between the bumpers.
    """
    # The divisor is 2 sqrt(a b) of the model: a and b are the comfortable acceleration and braking.
    time_gap, comfortable = following
    closing = (speed_mps - lead_speed_mps) / (2.0 * math.sqrt(ACCELERATION_MPS2 * comfortable))
    wanted = speed_mps * (time_gap + closing)
    wanted = STANDSTILL_GAP_M + (wanted if wanted > 0.0 else 0.0)
    ratio = wanted / (gap_m if gap_m > 0.1 else 0.1)
    highest = ACCELERATION_MPS2 * (1.0 - ratio * ratio)
    return highest if highest > -HARDEST_BRAKING_MPS2 else -HARDEST_BRAKING_MPS2

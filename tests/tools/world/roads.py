"""Roads whose geometry is known by heart, and drives of a car that does at once what it is told."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.simulator.world.car import Body, Car, CarModel
from tools.simulator.world.curves import Floats
from tools.simulator.world.expert import Command
from tools.simulator.world.road import GRID_M, Road, integrated
from tools.simulator.world.scenery import PLAIN
from tools.simulator.world.traffic import Vehicle
from tools.simulator.world.world import Lanes, Marking, MarkingKind, World


def uniform_road(
    curvature_1pm: float = 0.0,
    grade_rad: float = 0.0,
    bank_rad: float = 0.0,
    length_m: float = 800.0,
) -> Road:
    """Return a road that is everywhere the same, from 60 m behind the origin."""
    ones = np.ones(round((length_m + 60.0) / GRID_M) + 1)
    return integrated(curvature_1pm * ones, grade_rad * ones, bank_rad * ones)


def changing_road(length_m: float = 500.0, **angles: Callable[[Floats], Any]) -> Road:
    """Return a road whose `curvature`, `grade` or `bank` is a function of the way along it."""
    s = np.arange(round(length_m / GRID_M)) * GRID_M - 60.0
    curvature, grade, bank = (
        angles.get(name, np.zeros_like)(s) for name in ("curvature", "grade", "bank")
    )
    return integrated(curvature, grade, bank)


def lanes_of(count: int, width_m: float = 3.5, *, is_yellow: bool = False) -> Lanes:
    """Return lanes between solid lines, half a metre from the ends of the asphalt."""
    border = 0.5 * count * width_m
    markings = tuple(
        Marking(index * width_m - border, MarkingKind.SOLID, is_yellow=is_yellow)
        for index in range(count + 1)
    )
    return Lanes(width_m, count, markings, -border - 0.5, border + 0.5)


def world_of(road: Road, lanes: Lanes, speed_limit_mps: float = 20.0) -> World:
    return World(0, road, lanes, PLAIN, speed_limit_mps)


def straight(lanes: int = 1, length_m: float = 800.0) -> World:
    return world_of(uniform_road(length_m=length_m), lanes_of(lanes))


def car(s_m: float, offset_m: float, speed_mps: float = 0.0, braking_mps2: float = 0.0) -> Vehicle:
    """Return another car, 1.8 m wide, 1.5 m high and 4.5 m long."""
    return Vehicle(s_m, offset_m, speed_mps, -braking_mps2, 1.8, 1.5, 4.5, 0)


def body_on(
    world: World, s_m: float, offset_m: float, speed_mps: float, angle_rad: float = 0.0
) -> Body:
    """Return a car on a road, at an angle to it, steered along it."""
    return Car.on_road(world.road, s_m, offset_m, speed_mps, angle_rad).body(world.road)


@dataclass(frozen=True)
class Driven:
    """What a car did: one value for each step."""

    s_m: Floats
    offset_m: Floats
    speed_mps: Floats
    acceleration_mps2: Floats
    lateral_mps2: Floats


# Does at once what it is told: no delays, no limits.
INF = math.inf
IDEAL = CarModel(0.0, 0.0, 0.0, 0.0, INF, INF, INF, INF, (-INF, INF))


def drive(
    world: World, body: Body, seconds: float, commands: Callable[[Body, float], Command]
) -> Driven:
    """Drive an ideal car at 20 Hz, which begins where the body is."""
    place = (body.x_m, body.y_m, body.heading_rad, body.speed_mps, body.s_m)
    car = Car(*place, curvature_1pm=body.curvature_1pm, model=IDEAL)
    rows: list[tuple[float, ...]] = []
    for step in range(round(seconds * 20.0)):
        body = car.body(world.road)
        lateral = body.speed_mps * body.speed_mps * body.curvature_1pm
        rows.append((body.s_m, body.offset_m, body.speed_mps, body.acceleration_mps2, lateral))
        wanted = commands(body, 0.05 * step)
        car.step(0.05, wanted.curvature_1pm, wanted.acceleration_mps2)
    return Driven(*np.array(rows).T)

"""Roads whose geometry is known by heart, and a car that does at once what it is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.world.body import Body, body_at
from tools.world.curves import Floats
from tools.world.expert import Command
from tools.world.lanes import Lanes, Marking, MarkingKind
from tools.world.road import GRID_M, Road, integrated
from tools.world.scenery import PLAIN
from tools.world.traffic import Vehicle
from tools.world.world import World


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


def car(s_m: float, offset_m: float, speed_mps: float = 0.0, braking_mps2: float = 0.0) -> Vehicle:
    """Return another car, 1.8 m wide, 1.5 m high and 4.5 m long."""
    return Vehicle(s_m, offset_m, speed_mps, -braking_mps2, 1.8, 1.5, 4.5, 0)


def body_on(
    world: World, s_m: float, offset_m: float, speed_mps: float, angle_rad: float = 0.0
) -> Body:
    """Return a car on a road, at an angle to it, steered along it."""
    point = world.road.at(s_m)
    x, y, _ = world.road.places(s_m, offset_m)
    bend = point.curvature_1pm / (1.0 - point.curvature_1pm * offset_m)
    heading = point.heading_rad + angle_rad
    return body_at(world.road, float(x), float(y), heading, speed_mps, 0.0, bend, near_s_m=s_m)


@dataclass
class IdealCar:
    """Takes each command over 20 ms, and moves on the road's surface."""

    world: World
    body: Body

    def step(self, command: Command, dt_s: float = 0.05, parts: int = 5) -> None:
        body, dt = self.body, dt_s / parts
        x, y, heading, speed = body.x_m, body.y_m, body.heading_rad, body.speed_mps
        acceleration, curvature = command.acceleration_mps2, command.curvature_1pm
        for _ in range(parts):
            way = (speed + 0.5 * acceleration * dt) * dt * math.cos(body.pitch_rad)
            middle = heading + 0.5 * speed * curvature * dt
            x, y = x + way * math.cos(middle), y + way * math.sin(middle)
            heading += speed * curvature * dt
            speed = max(speed + acceleration * dt, 0.0)
        felt = acceleration if speed > 0.0 else 0.0
        place = (x, y, heading, speed, felt, curvature)
        self.body = body_at(self.world.road, *place, near_s_m=body.s_m)


@dataclass(frozen=True)
class Driven:
    """What a car did: one value for each step."""

    s_m: Floats
    offset_m: Floats
    speed_mps: Floats
    acceleration_mps2: Floats
    lateral_mps2: Floats


def drive(car: IdealCar, seconds: float, commands: Callable[[Body, float], Command]) -> Driven:
    """Drive at 20 Hz."""
    rows: list[tuple[float, ...]] = []
    for step in range(round(seconds * 20.0)):
        body = car.body
        lateral = body.speed_mps * body.speed_mps * body.curvature_1pm
        rows.append((body.s_m, body.offset_m, body.speed_mps, body.acceleration_mps2, lateral))
        car.step(commands(body, 0.05 * step))
    return Driven(*np.array(rows).T)

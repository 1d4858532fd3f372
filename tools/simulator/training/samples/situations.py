"""Draws random situations of driving, and renders them as training samples for vision.

A situation is the car's state, the other cars, and the ground truth. In most, the car is near the
centre of a lane, as in a good drive. In the others it is up to 1.5 m and some degrees off, and the
target plan is the expert's path back. Both views are rendered and packed into the model's channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tools.simulator.training.heads import ROW_S, VISION_TARGETS, Bytes, target_of
from tools.simulator.training.options import Seeds
from tools.simulator.training.samples.replay import Sample
from tools.simulator.world.car import FAMILY_CAR, FRONT_M, Body, body_at
from tools.simulator.world.curves import sin_cos
from tools.simulator.world.expert import Expert
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.painting.painter import Painter
from tools.simulator.world.road import straights_and_arcs
from tools.simulator.world.speed import speed_limits
from tools.simulator.world.traffic import Vehicle
from tools.simulator.world.truth import LEAD_SIGHT_M, truth_of
from tools.simulator.world.view import MED_LENS, WIDE_LENS, Mount
from tools.simulator.world.world import World, random_world

# --- The views -----------------------------------------------------------------------------------

# Lowest and highest camera above the road, m.
HEIGHTS_M = (1.12, 1.32)
# Largest calibration error, rad, and share of cars without an error.
_ERROR_RAD = 0.008
_EXACT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class CameraPlan:
    """The mounting of both cameras of a car.

    `rpy_rad` is the calibration error, `height_m` the height above the road.
    """

    rpy_rad: tuple[float, float, float]
    height_m: float


def random_cameras(rng: np.random.Generator) -> CameraPlan:
    """Return a random mounting."""
    low, high = HEIGHTS_M
    height = low + (high - low) * rng.random()
    roll, pitch, yaw = (_ERROR_RAD * rng.uniform(-1.0, 1.0, 3)).tolist()
    if rng.random() < _EXACT_SHARE:
        roll = pitch = yaw = 0.0
    return CameraPlan((roll, pitch, yaw), height)


class ViewRenderer:
    """The two views of a car, rendered from the same position."""

    def __init__(self, world: World, cameras: CameraPlan) -> None:
        self._painters = tuple(
            Painter(world, Mount(lens, cameras.rpy_rad, cameras.height_m))
            for lens in (MED_LENS, WIDE_LENS)
        )

    def see(self, body: Body, vehicles: Sequence[Vehicle], number: int) -> Bytes:
        """Return one frame of both views, (2, 6, 128, 256) uint8; `number` seeds the noise."""
        return np.stack([pack(painter.paint(body, vehicles, number)) for painter in self._painters])


def pack(picture: Picture) -> Bytes:
    """Return a picture of 512x256 as the model's six channels, (6, 128, 256) uint8."""
    y = picture.luma
    return np.stack(
        [y[0::2, 0::2], y[1::2, 0::2], y[0::2, 1::2], y[1::2, 1::2], picture.u, picture.v]
    )


def as_pair(older: Bytes, newer: Bytes) -> Bytes:
    """Join two frames of (2, 6, 128, 256) to the model's input, (2, 12, 128, 256)."""
    return np.concatenate([older, newer], axis=1)


# Share of worlds with sharper curves, built for a share of their speed limit. In other worlds,
# braking for a curve is needed only in a few samples of a hundred.
SHARP_SHARE, _FOR_SPEED = 0.35, (0.5, 0.9)
# Speed of a driver who has slowed down for curves, as a share of the curves' speed.
_SLOWED = (0.85, 1.3)


def training_world(seed: int, length_m: float, rng: np.random.Generator) -> World:
    """Return the world of a seed, with sharper curves in some cases."""
    world = random_world(seed, length_m)
    if rng.random() >= SHARP_SHARE:
        return world
    speed = world.speed_limit_mps * rng.uniform(*_FOR_SPEED)
    return replace(world, road=straights_and_arcs(rng, length_m, speed))


def slowed_mps(world: World, lane: int, s_m: float, rng: np.random.Generator) -> float:
    """Draw the speed of a driver who has slowed down, more or less, for the curves here, m/s."""
    curves = speed_limits(world.road, world.lanes.centre_m(lane), 1.15 * world.speed_limit_mps)
    return curves.at(s_m) * rng.uniform(*_SLOWED)


# --- Situations ----------------------------------------------------------------------------------

# Length of a world, situations per world, and consecutive samples per situation.
WORLD_M = 1200.0
MOMENTS = 10
CHAIN = 3
KINDS = ("day", "dusk", "night", "rain")
# Minimum distance from the start, so that there is a road behind the car.
_FIRST_M = 30.0
# Share of situations off the lane's centre, and largest displacement, m and rad.
_OFF_SHARE = 0.45
_OFF_M, _OFF_RAD = 1.5, math.radians(4.0)
_NEAR_M, _NEAR_RAD = 0.2, math.radians(0.6)
_LEAD_SHARE = 0.7
_NEIGHBOUR_SHARE = 0.45
_STANDING_SHARE = 0.125
# A crawling car stops only if it judges the near car ahead to be standing. Share of situations
# with a crawling car; shares of these with a lead, with a standing lead, and with a near lead; and
# distance of a near lead, m.
CRAWLING_MPS = 3.0
_CRAWLING_SHARE = 0.07
_QUEUE_LEAD_SHARE = 0.85
_QUEUE_STANDING_SHARE = 0.5
_QUEUE_NEAR_SHARE = 0.6
_QUEUE_M = (1.5, 15.0)
# Distances of leads, m, are drawn from three ranges: evenly per octave; evenly where most following
# happens; and far away, where only the distance shows an approach. The last two have a share each.
# With half of them drawn evenly from 10 to 120 m, errors at 30 to 60 m were a third larger
# (2026-11-26, ADR 0098).
_LEAD_M = (2.0, 140.0)
_FOLLOWING_M, _FOLLOWING_SHARE = (10.0, 90.0), 0.45
_FAR_M, _FAR_SHARE = (90.0, LEAD_SIGHT_M), 0.1
# Share of situations in which the driver has slowed down for curves.
_SLOWED_SHARE = 0.75
# Standard deviation of a car's acceleration from the wanted one.
_UNSTEADY_MPS2 = 0.3
# A car approaches its lead no faster than this braking can stop it, m/s^2.
_MENDED_MPS2 = 6.0


@dataclass(frozen=True, slots=True)
class Situations:
    """A source of samples for painters.

    Each world provides `moments` situations, and each situation a `chain` of samples 0.2 s apart.
    A frame inside a chain is part of two samples.
    """

    seed: int
    worlds: Seeds
    moments: int = MOMENTS
    chain: int = CHAIN

    def __call__(self, number: int) -> Iterator[Sample]:
        """Yield the samples of the world with a number."""
        rng = np.random.default_rng((self.seed, 2, self.worlds.first, number))
        world = training_world(self.worlds.at(number), WORLD_M, rng)
        cameras = random_cameras(rng)
        renderer = ViewRenderer(world, cameras)
        for _ in range(self.moments):
            yield from _chain(world, renderer, cameras, rng, self.chain)


def kind_of(world: World) -> int:
    """Return the class of a world's scenery as an index into `KINDS`."""
    scenery = world.scenery
    if scenery.light < 0.4:
        return 2
    if scenery.rain > 0.1:
        return 3
    return 1 if scenery.light < 0.75 else 0


def _chain(
    world: World, renderer: ViewRenderer, cameras: CameraPlan, rng: np.random.Generator, count: int
) -> Iterator[Sample]:
    """Yield successive samples of a car that continues its motion from a random situation."""
    body, lane = random_body(world, rng)
    vehicles = random_vehicles(world, body, lane, rng)
    expert = Expert(world, lane, world.speed_limit_mps)
    body = _driven(body, expert.wanted_mps2(body, vehicles), rng)
    before = tuple(moved_vehicle(vehicle, -ROW_S) for vehicle in vehicles)
    number = int(rng.integers(1 << 30))
    older = renderer.see(moved(world, body, -ROW_S), before, number)
    for index in range(count):
        if index:
            body = moved(world, body, ROW_S)
            vehicles = tuple(moved_vehicle(vehicle, ROW_S) for vehicle in vehicles)
        newer = renderer.see(body, vehicles, number + 4 * index + 4)
        if index and abs(body.offset_m - world.lanes.centre_m(lane)) > 0.5 * world.lanes.width_m:
            # The car has drifted into another lane, which is now its own.
            lane = world.lanes.lane_at(body.offset_m)
            expert = Expert(world, lane, world.speed_limit_mps)
        plan = expert.plan(body, vehicles)
        truth = truth_of(world, body, vehicles, plan, height_m=cameras.height_m)
        target = target_of(VISION_TARGETS, truth)
        yield Sample(as_pair(older, newer), target, kind_of(world))
        older = newer


def random_body(world: World, rng: np.random.Generator) -> tuple[Body, int]:
    """Return a car at a random place, without acceleration, and its lane."""
    lane = int(rng.integers(world.lanes.count))
    s = rng.uniform(_FIRST_M, WORLD_M)
    if rng.random() < _OFF_SHARE:
        side, angle = rng.uniform(-_OFF_M, _OFF_M), rng.uniform(-_OFF_RAD, _OFF_RAD)
    else:
        side, angle = rng.normal(0.0, _NEAR_M), rng.normal(0.0, _NEAR_RAD)
    offset = world.lanes.centre_m(lane) + side
    speed = _random_speed(world.speed_limit_mps, rng)
    if rng.random() < _SLOWED_SHARE:
        speed = min(speed, slowed_mps(world, lane, s, rng))
    point = world.road.at(s)
    x, y, _ = world.road.places(np.array([s]), offset)
    # The curvature is the road's with some noise, limited by the tyres' grip.
    most = 3.0 / max(speed, 4.0) ** 2
    curvature = point.curvature_1pm + rng.normal(0.0, 0.2) * most
    body = body_at(
        world.road,
        float(x[0]),
        float(y[0]),
        point.heading_rad + angle,
        speed,
        0.0,
        min(max(curvature, -1.2 * most), 1.2 * most),
        near_s_m=s,
    )
    return body, world.lanes.lane_at(body.offset_m)


def _random_speed(limit_mps: float, rng: np.random.Generator) -> float:
    """Return a random speed, m/s: standing, crawling, slow or normal."""
    drawn = rng.random()
    if drawn < 0.04:
        return 0.0
    if drawn < 0.04 + _CRAWLING_SHARE:
        return rng.uniform(0.0, CRAWLING_MPS)
    if drawn < 0.35:
        return limit_mps * rng.uniform(0.0, 0.6)
    return limit_mps * rng.uniform(0.6, 1.15)


def _driven(body: Body, wanted_mps2: float, rng: np.random.Generator) -> Body:
    """Return a car with nearly the wanted acceleration."""
    if body.speed_mps <= 1.0:
        return body
    least, most = FAMILY_CAR.acceleration_limits_mps2
    acceleration = float(np.clip(wanted_mps2 + rng.normal(0.0, _UNSTEADY_MPS2), least, most))
    return replace(body, acceleration_mps2=acceleration)


def moved(world: World, body: Body, time_s: float) -> Body:
    """Return a car's state at a relative time, with constant steering and acceleration."""
    speed = max(body.speed_mps + body.acceleration_mps2 * time_s, 0.0)
    distance = 0.5 * (speed + body.speed_mps) * time_s
    turn = body.curvature_1pm * distance
    sine, cosine = sin_cos(body.heading_rad + 0.5 * turn)
    return body_at(
        world.road,
        body.x_m + float(cosine) * distance,
        body.y_m + float(sine) * distance,
        body.heading_rad + turn,
        speed,
        body.acceleration_mps2,
        body.curvature_1pm,
        near_s_m=body.s_m + distance,
    )


def random_vehicles(
    world: World, body: Body, lane: int, rng: np.random.Generator
) -> tuple[Vehicle, ...]:
    """Return random cars ahead: possibly a lead, and possibly cars in other lanes."""
    found = []
    for other in range(world.lanes.count):
        is_queue = other == lane and body.speed_mps < CRAWLING_MPS
        share = _LEAD_SHARE if other == lane else _NEIGHBOUR_SHARE
        if rng.random() >= (_QUEUE_LEAD_SHARE if is_queue else share):
            continue
        is_near = is_queue and rng.random() < _QUEUE_NEAR_SHARE
        gap = rng.uniform(*_QUEUE_M) if is_near else _random_gap(rng)
        s = body.s_m + FRONT_M + gap - (8.0 if other != lane else 0.0)
        # A car ahead stands, or drives with 0.1 to 1.3 times our speed.
        standing = _QUEUE_STANDING_SHARE if is_queue else _STANDING_SHARE
        ratio = 0.0 if rng.random() < standing else rng.uniform(0.1, 1.3)
        speed = max(body.speed_mps, 0.3 * world.speed_limit_mps) * ratio
        if other == lane:
            speed = max(speed, body.speed_mps - math.sqrt(2.0 * _MENDED_MPS2 * gap))
        offset = world.lanes.centre_m(other) + rng.normal(0.0, 0.2)
        found.append(_vehicle(s, offset, speed, rng))
        if rng.random() < 0.3:
            found.append(_vehicle(s + rng.uniform(12.0, 60.0), offset, speed, rng))
    return tuple(found)


def _random_gap(rng: np.random.Generator) -> float:
    drawn = rng.random()
    if drawn < _FOLLOWING_SHARE:
        return rng.uniform(*_FOLLOWING_M)
    if drawn < _FOLLOWING_SHARE + _FAR_SHARE:
        return rng.uniform(*_FAR_M)
    low, high = _LEAD_M
    return low * math.exp(rng.uniform(0.0, math.log(high / low)))


def _vehicle(s_m: float, offset_m: float, speed_mps: float, rng: np.random.Generator) -> Vehicle:
    is_lorry = rng.random() < 0.15
    width, height, length = (2.5, 3.6, 10.0) if is_lorry else (1.85, 1.5, 4.5)
    scale = rng.uniform(0.92, 1.08)
    return Vehicle(
        s_m=s_m,
        offset_m=offset_m,
        speed_mps=speed_mps,
        acceleration_mps2=float(np.clip(rng.normal(0.0, 1.0), -4.0, 2.0)) if speed_mps > 1 else 0.0,
        width_m=width * scale,
        height_m=height * scale,
        length_m=length * scale,
        paint=int(rng.integers(1 << 30)),
    )


def moved_vehicle(vehicle: Vehicle, time_s: float) -> Vehicle:
    """Return another car's state at a relative time, with constant acceleration."""
    speed = max(vehicle.speed_mps + vehicle.acceleration_mps2 * time_s, 0.0)
    distance = 0.5 * (speed + vehicle.speed_mps) * time_s
    return replace(vehicle, s_m=vehicle.s_m + distance, speed_mps=speed)

"""Draws single moments of driving, and paints what the model sees of them.

A moment is the car's place and motion, the others, and the truth. Most are near the middle of a
lane, as in a good drive. The others are up to 1.5 m and some degrees off, and the expert's way back
is their plan. Both views of a moment are painted and packed into the model's channels.
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

# --- What the model sees ----------------------------------------------------------------------

# Lowest and highest camera, m: from a low car to a high one.
HEIGHTS_M = (1.12, 1.32)
# What is left of errors after calibration, rad; a share of the cars has none.
_ERROR_RAD = 0.008
_EXACT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class CameraPlan:
    """How both cameras of a car are mounted.

    `rpy_rad` is the error of the calibration, `height_m` that over the road.
    """

    rpy_rad: tuple[float, float, float]
    height_m: float


def random_cameras(rng: np.random.Generator) -> CameraPlan:
    """Return how the cameras of some car are mounted."""
    low, high = HEIGHTS_M
    height = low + (high - low) * rng.random()
    roll, pitch, yaw = (_ERROR_RAD * rng.uniform(-1.0, 1.0, 3)).tolist()
    if rng.random() < _EXACT_SHARE:
        roll = pitch = yaw = 0.0
    return CameraPlan((roll, pitch, yaw), height)


class Eyes:
    """The two views of a car, both from the same place."""

    def __init__(self, world: World, cameras: CameraPlan) -> None:
        self._painters = tuple(
            Painter(world, Mount(lens, cameras.rpy_rad, cameras.height_m))
            for lens in (MED_LENS, WIDE_LENS)
        )

    def see(self, body: Body, vehicles: Sequence[Vehicle], number: int) -> Bytes:
        """Return one frame of both views, (2, 6, 128, 256) uint8; `number` seeds its noise."""
        return np.stack([pack(painter.paint(body, vehicles, number)) for painter in self._painters])


def pack(picture: Picture) -> Bytes:
    """Return a picture of 512x256 as the model's six channels, (6, 128, 256) uint8."""
    y = picture.luma
    return np.stack(
        [y[0::2, 0::2], y[1::2, 0::2], y[0::2, 1::2], y[1::2, 1::2], picture.u, picture.v]
    )


def as_pair(older: Bytes, newer: Bytes) -> Bytes:
    """Return two frames, (2, 6, 128, 256) each, as the two inputs, (2, 12, 128, 256)."""
    return np.concatenate([older, newer], axis=1)


# Share of worlds whose curves are those of a road for this share of their speed. In worlds as they
# are, a driver at the limit brakes for a curve in a few moments of a hundred.
SHARP_SHARE, _FOR_SPEED = 0.35, (0.5, 0.9)
# A driver who has slowed for curves drives at such a share of what they allow.
_SLOWED = (0.85, 1.3)


def training_world(seed: int, length_m: float, rng: np.random.Generator) -> World:
    """Return the world of a seed, or one like it on a road with sharper curves."""
    world = random_world(seed, length_m)
    if rng.random() >= SHARP_SHARE:
        return world
    speed = world.speed_limit_mps * rng.uniform(*_FOR_SPEED)
    return replace(world, road=straights_and_arcs(rng, length_m, speed))


def slowed_mps(world: World, lane: int, s_m: float, rng: np.random.Generator) -> float:
    """Draw the speed of a driver who has, or nearly has, slowed for the curves here, m/s."""
    curves = speed_limits(world.road, world.lanes.centre_m(lane), 1.15 * world.speed_limit_mps)
    return curves.at(s_m) * rng.uniform(*_SLOWED)


# --- Moments ----------------------------------------------------------------------------------

# Of each world: how long, how many moments, and samples in a row from each.
WORLD_M = 1200.0
MOMENTS = 10
CHAIN = 3
KINDS = ("day", "dusk", "night", "rain")
# The shortest distance of a moment from the start, so that there is a road behind it.
_FIRST_M = 30.0
# Shares of moments far from the middle of the lane, and how far, m and rad.
_OFF_SHARE = 0.45
_OFF_M, _OFF_RAD = 1.5, math.radians(4.0)
_NEAR_M, _NEAR_RAD = 0.2, math.radians(0.6)
_LEAD_SHARE = 0.7
_NEIGHBOUR_SHARE = 0.45
_STANDING_SHARE = 0.125
# A crawling car stops only if it judges the near car ahead to be standing. Shares of moments in
# which it crawls, and, of these, in which there is a lead, the lead stands, and the lead is near;
# and how near, m.
CRAWLING_MPS = 3.0
_CRAWLING_SHARE = 0.07
_QUEUE_LEAD_SHARE = 0.85
_QUEUE_STANDING_SHARE = 0.5
_QUEUE_NEAR_SHARE = 0.6
_QUEUE_M = (1.5, 15.0)
# Distances to the rear of a lead, m, in three ways: equally often in each octave, evenly where most
# driving behind others happens, and far away, where only the distance shows an approach; and shares
# of the last two. With half of them even from 10 to 120 m, errors at 30 to 60 m were a third larger
# (2026-11-26, ADR 0098).
_LEAD_M = (2.0, 140.0)
_FOLLOWING_M, _FOLLOWING_SHARE = (10.0, 90.0), 0.45
_FAR_M, _FAR_SHARE = (90.0, LEAD_SIGHT_M), 0.1
# Share of moments at which a driver has slowed for curves.
_SLOWED_SHARE = 0.75
# The deviation of a car's acceleration from its driver's wish.
_UNSTEADY_MPS2 = 0.3
# Nobody approaches another car faster than this braking can stop, m/s^2.
_MENDED_MPS2 = 6.0


@dataclass(frozen=True, slots=True)
class Situations:
    """Where samples come from: a source for the painters.

    Each world gives `moments`, and each of these a `chain` of samples 0.2 s apart: each frame but
    the ends is painted for two of them.
    """

    seed: int
    worlds: Seeds
    moments: int = MOMENTS
    chain: int = CHAIN

    def __call__(self, number: int) -> Iterator[Sample]:
        """Yield the samples of a world by its number."""
        rng = np.random.default_rng((self.seed, 2, self.worlds.first, number))
        world = training_world(self.worlds.at(number), WORLD_M, rng)
        cameras = random_cameras(rng)
        eyes = Eyes(world, cameras)
        for _ in range(self.moments):
            yield from _chain(world, eyes, cameras, rng, self.chain)


def kind_of(world: World) -> int:
    """Return the class of a world's scenery, index into `KINDS`."""
    scenery = world.scenery
    if scenery.light < 0.4:
        return 2
    if scenery.rain > 0.1:
        return 3
    return 1 if scenery.light < 0.75 else 0


def _chain(
    world: World, eyes: Eyes, cameras: CameraPlan, rng: np.random.Generator, count: int
) -> Iterator[Sample]:
    """Yield samples of a car that drives on as it does, from a random moment on."""
    body, lane = random_body(world, rng)
    vehicles = random_vehicles(world, body, lane, rng)
    expert = Expert(world, lane, world.speed_limit_mps)
    body = _driven(body, expert.wanted_mps2(body, vehicles), rng)
    before = tuple(moved_vehicle(vehicle, -ROW_S) for vehicle in vehicles)
    number = int(rng.integers(1 << 30))
    older = eyes.see(moved(world, body, -ROW_S), before, number)
    for index in range(count):
        if index:
            body = moved(world, body, ROW_S)
            vehicles = tuple(moved_vehicle(vehicle, ROW_S) for vehicle in vehicles)
        newer = eyes.see(body, vehicles, number + 4 * index + 4)
        if index and abs(body.offset_m - world.lanes.centre_m(lane)) > 0.5 * world.lanes.width_m:
            # It has drifted into another lane, and that is its own now.
            lane = world.lanes.lane_at(body.offset_m)
            expert = Expert(world, lane, world.speed_limit_mps)
        plan = expert.plan(body, vehicles)
        truth = truth_of(world, body, vehicles, plan, height_m=cameras.height_m)
        target = target_of(VISION_TARGETS, truth)
        yield Sample(as_pair(older, newer), target, kind_of(world))
        older = newer


def random_body(world: World, rng: np.random.Generator) -> tuple[Body, int]:
    """Return a car somewhere on the road, at a steady speed, and the lane it drives in."""
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
    # As the road bends, and a little otherwise; at most what tyres hold.
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
    """Return a speed, m/s: standing, crawling, slow, or as fast as roads are driven."""
    drawn = rng.random()
    if drawn < 0.04:
        return 0.0
    if drawn < 0.04 + _CRAWLING_SHARE:
        return rng.uniform(0.0, CRAWLING_MPS)
    if drawn < 0.35:
        return limit_mps * rng.uniform(0.0, 0.6)
    return limit_mps * rng.uniform(0.6, 1.15)


def _driven(body: Body, wanted_mps2: float, rng: np.random.Generator) -> Body:
    """Return a car that has begun to do what its driver wants, or nearly."""
    if body.speed_mps <= 1.0:
        return body
    least, most = FAMILY_CAR.acceleration_limits_mps2
    acceleration = float(np.clip(wanted_mps2 + rng.normal(0.0, _UNSTEADY_MPS2), least, most))
    return replace(body, acceleration_mps2=acceleration)


def moved(world: World, body: Body, time_s: float) -> Body:
    """Return where a car is after some time, or was before, if it steers and drives on as now."""
    speed = max(body.speed_mps + body.acceleration_mps2 * time_s, 0.0)
    way = 0.5 * (speed + body.speed_mps) * time_s
    turn = body.curvature_1pm * way
    sine, cosine = sin_cos(body.heading_rad + 0.5 * turn)
    return body_at(
        world.road,
        body.x_m + float(cosine) * way,
        body.y_m + float(sine) * way,
        body.heading_rad + turn,
        speed,
        body.acceleration_mps2,
        body.curvature_1pm,
        near_s_m=body.s_m + way,
    )


def random_vehicles(
    world: World, body: Body, lane: int, rng: np.random.Generator
) -> tuple[Vehicle, ...]:
    """Return the cars ahead: maybe a lead, maybe others in other lanes."""
    found = []
    for other in range(world.lanes.count):
        is_queue = other == lane and body.speed_mps < CRAWLING_MPS
        share = _LEAD_SHARE if other == lane else _NEIGHBOUR_SHARE
        if rng.random() >= (_QUEUE_LEAD_SHARE if is_queue else share):
            continue
        is_near = is_queue and rng.random() < _QUEUE_NEAR_SHARE
        gap = rng.uniform(*_QUEUE_M) if is_near else _random_gap(rng)
        s = body.s_m + FRONT_M + gap - (8.0 if other != lane else 0.0)
        # Nobody follows the one ahead at any speed.
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
    """Return where another car is after some time, or was before."""
    speed = max(vehicle.speed_mps + vehicle.acceleration_mps2 * time_s, 0.0)
    way = 0.5 * (speed + vehicle.speed_mps) * time_s
    return replace(vehicle, s_m=vehicle.s_m + way, speed_mps=speed)

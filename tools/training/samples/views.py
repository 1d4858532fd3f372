"""Paints what the model sees: both views at one moment, packed into its channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tools.world.car import Body
from tools.world.painting.backdrop import Picture
from tools.world.painting.painter import Painter
from tools.world.road import straights_and_arcs
from tools.world.speed import speed_limits
from tools.world.traffic import Vehicle
from tools.world.view import MED_LENS, WIDE_LENS, Mount
from tools.world.world import World, random_world

Bytes = NDArray[np.uint8]

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

"""Makes the worlds that are learnt from: more curves ask for less speed, and cars have slowed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tools.world.road import straights_and_arcs
from tools.world.speed import speed_limits
from tools.world.world import World, random_world

# Share of worlds whose curves are those of a road for this share of their speed. In worlds as they
# are, a driver at the limit brakes for a curve in a few moments of a hundred.
SHARP_SHARE, _FOR_SPEED = 0.35, (0.5, 0.9)
# A driver who has slowed for curves drives at such a share of what they allow.
_SLOWED = (0.85, 1.3)


def training_world(seed: int, length_m: float, rng: np.random.Generator) -> World:
    """Return the world of a seed, or one like it on a road with sharper curves.

    Args:
        seed: of the world.
        length_m: what can be driven.
        rng: says which, and draws the other road.
    """
    world = random_world(seed, length_m)
    if rng.random() >= SHARP_SHARE:
        return world
    speed = world.speed_limit_mps * rng.uniform(*_FOR_SPEED)
    return replace(world, road=straights_and_arcs(rng, length_m, speed))


def slowed_mps(world: World, lane: int, s_m: float, rng: np.random.Generator) -> float:
    """Draw the speed of a driver who has slowed for the curves here, or nearly, m/s.

    Args:
        world: the world.
        lane: that is driven in.
        s_m: arc length of the road.
        rng: source.
    """
    curves = speed_limits(world.road, world.lanes.centre_m(lane), 1.15 * world.speed_limit_mps)
    return curves.at(s_m) * rng.uniform(*_SLOWED)

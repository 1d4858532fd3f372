"""Makes the worlds that are learnt from: more of them have curves that ask for less speed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tools.world.road import straights_and_arcs
from tools.world.world import World, random_world

# Share of worlds whose curves are those of a road for this share of their speed. In worlds as they
# are, a driver at the limit brakes for a curve in a few moments of a hundred.
_SHARP_SHARE, _FOR_SPEED = 0.35, (0.5, 0.9)


def training_world(seed: int, length_m: float, rng: np.random.Generator) -> World:
    """Return the world of a seed, or one like it on a road with sharper curves.

    Args:
        seed: of the world.
        length_m: what can be driven.
        rng: says which, and draws the other road.
    """
    world = random_world(seed, length_m)
    if rng.random() >= _SHARP_SHARE:
        return world
    speed = world.speed_limit_mps * rng.uniform(*_FOR_SPEED)
    return replace(world, road=straights_and_arcs(rng, length_m, speed))

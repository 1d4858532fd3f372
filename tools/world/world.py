"""A simulated world: a road with its lanes, and what it looks like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tools.world.lanes import Lanes, random_lanes
from tools.world.road import SIGHT_M, Road, straights_and_arcs
from tools.world.scenery import Scenery, random_scenery

# Speed limits of the kinds of roads, m/s: in towns, between them, and for cars only; and how many
# roads of a hundred are of each kind.
_LIMITS_MPS = ((12.0, 17.0), (17.0, 27.0), (27.0, 36.0))
_SHARES = (0.2, 0.65)


@dataclass(frozen=True, slots=True)
class World:
    """A world of a seed.

    Attributes:
        seed: what it was made from.
        road: its reference line in space.
        lanes: across the road, the same everywhere.
        scenery: what it looks like.
        speed_limit_mps: for cruising; sharp curves ask for less.
    """

    seed: int
    road: Road
    lanes: Lanes
    scenery: Scenery
    speed_limit_mps: float


def random_world(seed: int, length_m: float) -> World:
    """Return the world of a seed; a longer one begins with the shorter one, bit by bit.

    Args:
        seed: not negative.
        length_m: what can be driven, from s = 0; the road goes on beyond it.
    """
    kind, plan, across, look = (np.random.default_rng((seed, part)) for part in range(4))
    drawn = kind.random()
    low, high = _LIMITS_MPS[0 if drawn < _SHARES[0] else 1 if drawn < _SHARES[1] else 2]
    limit = low + (high - low) * kind.random()
    return World(
        seed=seed,
        road=straights_and_arcs(plan, length_m, limit),
        lanes=random_lanes(across, length_m + SIGHT_M, limit),
        scenery=random_scenery(look),
        speed_limit_mps=limit,
    )

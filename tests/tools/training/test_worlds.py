"""Of the worlds that are learnt from some have sharper curves; all else is that of their seed."""

from __future__ import annotations

import numpy as np

from tools.training.worlds import training_world
from tools.world.road import SHARPEST_LATERAL_MPS2
from tools.world.world import World, random_world

LENGTH_M = 600.0


def made(count: int) -> list[tuple[World, World]]:
    """Return worlds of seeds, as they are and as they are learnt from."""
    return [
        (
            random_world(seed, LENGTH_M),
            training_world(seed, LENGTH_M, np.random.default_rng((7, seed))),
        )
        for seed in range(count)
    ]


def sharpest_of(world: World) -> float:
    """Return the largest lateral acceleration at the limit, m/s^2."""
    return float(np.abs(world.road.curvature_1pm).max() * world.speed_limit_mps**2)


def test_a_third_of_the_roads_is_another_one_with_sharper_curves() -> None:
    others = [
        (was, now)
        for was, now in made(60)
        if not np.array_equal(was.road.curvature_1pm, now.road.curvature_1pm)
    ]
    assert 10 <= len(others) <= 32
    for was, now in others:
        assert (was.seed, was.lanes, was.scenery) == (now.seed, now.lanes, now.scenery)
        assert was.speed_limit_mps == now.speed_limit_mps
    # A road for half of the speed has up to four times the lateral acceleration.
    assert np.mean([sharpest_of(now) for _, now in others]) > 1.3 * np.mean(
        [sharpest_of(was) for was, _ in others]
    )
    assert max(sharpest_of(now) for _, now in others) <= 4.0 * SHARPEST_LATERAL_MPS2 * 1.001


def test_draws_decide_and_nothing_else() -> None:
    first, second = made(12), made(12)
    for (_, one), (_, other) in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.road.curvature_1pm, other.road.curvature_1pm)

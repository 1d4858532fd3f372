"""Pictures from where no good driver goes: beside the road, across it, at its end, inside a car."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tools.world.roads import body_on
from tools.world.painter import Painter
from tools.world.traffic import Vehicle
from tools.world.view import MED_LENS, WIDE_LENS, Mount
from tools.world.world import random_world

CAR = Vehicle(0.0, 0.0, 10.0, -2.0, 1.8, 1.5, 4.4, 0)


@pytest.mark.parametrize("seed", range(40))
def test_any_place_and_direction_gives_a_picture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(seed, 200.0)
    s = float(rng.uniform(-50.0, 600.0))
    offset = float(rng.uniform(-40.0, 40.0)) if seed % 2 else 0.0
    turn = float(rng.uniform(-3.1, 3.1)) if seed % 3 else 0.0
    body = body_on(world, s, offset, 10.0, turn)
    cars = [
        replace(
            CAR,
            s_m=body.s_m + float(rng.uniform(-8.0, 6.0)),
            offset_m=offset + float(rng.uniform(-4.0, 4.0)),
            height_m=(1.5, 2.2, 3.5)[k],
            paint=k,
        )
        for k in range(3)
    ]
    rpy = tuple(rng.uniform(-0.08, 0.08, 3).tolist())
    mount = Mount((MED_LENS, WIDE_LENS)[seed % 2], rpy, float(rng.uniform(0.8, 2.2)))
    with np.errstate(all="raise"):
        picture = Painter(world, mount).paint(body, cars, seed)
    for plane in picture:
        assert plane.dtype == np.uint8
        assert 16 <= plane.min() <= plane.max() <= 240

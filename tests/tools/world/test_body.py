from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tools.world.roads import body_on, lanes_of, uniform_road, world_of
from tools.world.body import Body, body_at
from tools.world.world import random_world

GRADE, BANK = 0.05, 0.04


def on_slope(angle_rad: float) -> Body:
    road = uniform_road(grade_rad=GRADE, bank_rad=BANK)
    return body_on(world_of(road, lanes_of(1)), 100.0, 0.0, 10.0, angle_rad)


def test_car_along_a_slope_has_its_grade_and_bank() -> None:
    body = on_slope(0.0)
    assert (body.s_m, body.offset_m) == pytest.approx((100.0, 0.0))
    assert (body.pitch_rad, body.roll_rad) == pytest.approx((GRADE, BANK))
    assert body.z_m == pytest.approx(-100.0 * math.sin(GRADE))


def test_car_across_a_slope_trades_pitch_for_roll() -> None:
    # Facing right its nose hangs down the bank, and its right side down the hill.
    body = on_slope(0.5 * math.pi)
    assert (body.pitch_rad, body.roll_rad) == pytest.approx((-BANK, GRADE), abs=2e-4)


def test_axes_are_those_of_the_road() -> None:
    forward, right, down = on_slope(0.0).axes()
    assert forward == pytest.approx((math.cos(GRADE), 0.0, -math.sin(GRADE)))
    assert right[2] == pytest.approx(math.cos(GRADE) * math.sin(BANK))
    assert np.cross(forward, right).tolist() == pytest.approx(list(down))


def test_uniform_slope_is_flat_as_seen_from_the_car() -> None:
    body = on_slope(0.1)
    road = uniform_road(grade_rad=GRADE, bank_rad=BANK)
    ahead, right, down = body.seen(*road.places(np.arange(60.0, 200.0, 10.0), 2.0))
    np.testing.assert_allclose(down, 0.0, atol=1e-9)
    assert np.all(np.diff(ahead) > 9.0)
    assert right[0] > right[-1]


@pytest.mark.parametrize("seed", range(6))
def test_car_lies_on_the_surface_of_any_road(seed: int) -> None:
    world = random_world(seed, 800.0)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        s, offset = rng.uniform(0.0, 800.0), rng.uniform(-8.0, 8.0)
        body = body_on(world, s, offset, 10.0, rng.uniform(-0.2, 0.2))
        # Half a metre around the car the road is where its frame says.
        near = world.road.places(
            s + np.array([0.5, 0.5, -0.5, -0.5]), offset + np.array([0.5, -0.5, 0.5, -0.5])
        )
        assert np.abs(body.seen(*near)[2]).max() < 1.5e-3


def test_place_and_motion_are_kept() -> None:
    body = body_at(uniform_road(), 50.0, 1.5, 0.1, 20.0, -1.0, 0.002, near_s_m=40.0)
    assert (body.x_m, body.y_m, body.heading_rad) == (50.0, 1.5, 0.1)
    assert (body.speed_mps, body.acceleration_mps2, body.curvature_1pm) == (20.0, -1.0, 0.002)
    assert (body.s_m, body.offset_m) == pytest.approx((50.0, 1.5))

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tools.world.roads import uniform_road
from tools.world.road import GRID_M, SIGHT_M, Road, integrated, straights_and_arcs
from tools.world.world import random_world

SEEDS = range(12)


def test_straight_goes_along_x() -> None:
    road = uniform_road()
    x, y, z = road.places(123.25, 2.0)
    assert (float(x), float(y), float(z)) == pytest.approx((123.25, 2.0, 0.0))
    assert road.end_m == 800.0
    assert road.at(0.0)[:4] == (0.0, 0.0, 0.0, 0.0)


def test_quarter_of_a_circle_to_the_right() -> None:
    # Radius 100 m about (0, 100): after a quarter the line is at (100, 100), heading along y.
    road = uniform_road(curvature_1pm=0.01)
    quarter = 50.0 * math.pi
    assert [float(v) for v in road.places(quarter, 0.0)] == pytest.approx(
        [100.0, 100.0, 0.0], abs=1e-3
    )
    assert road.at(quarter).heading_rad == pytest.approx(0.5 * math.pi)
    # 5 m to the right is nearer to the middle of the circle.
    assert [float(v) for v in road.places(quarter, 5.0)] == pytest.approx(
        [95.0, 100.0, 0.0], abs=1e-3
    )


def test_hill_of_known_grade_climbs_by_its_sine() -> None:
    road = uniform_road(grade_rad=math.asin(0.06))
    x, y, z = road.places(100.0, 3.0)
    assert (float(x), float(y), float(z)) == pytest.approx((100.0 * math.sqrt(1 - 0.0036), 3.0, -6))


def test_bank_of_known_angle_lets_the_right_side_hang() -> None:
    road = uniform_road(bank_rad=math.asin(0.05))
    _, y, z = road.places(50.0, np.array([-4.0, 4.0]))
    assert z.tolist() == pytest.approx([-0.2, 0.2])
    assert y.tolist() == pytest.approx([-4.0 * math.cos(math.asin(0.05)), 4.0 * math.sqrt(0.9975)])


def test_road_goes_on_straight_beyond_its_end() -> None:
    road = uniform_road()
    assert [float(v) for v in road.places(900.0, 1.0)] == pytest.approx([900.0, 1.0, 0.0])
    assert road.locate(900.0, 1.0, 780.0) == pytest.approx((900.0, 1.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_locate_inverts_places(seed: int) -> None:
    road = random_world(seed, 1000.0).road
    rng = np.random.default_rng(seed)
    for _ in range(60):
        s, offset = rng.uniform(-50.0, 1000.0), rng.uniform(-10.0, 10.0)
        x, y, _ = (float(v) for v in road.places(s, offset))
        assert road.locate(x, y, s + rng.uniform(-15.0, 15.0)) == pytest.approx(
            (s, offset), abs=1e-6
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_heading_is_the_integral_of_the_curvature_and_the_line_that_of_the_heading(
    seed: int,
) -> None:
    road = random_world(seed, 1000.0).road
    turned = np.concatenate([[0.0], np.cumsum(road.curvature_1pm[:-1] + road.curvature_1pm[1:])])
    np.testing.assert_allclose(
        road.heading_rad - road.heading_rad[0], 0.5 * GRID_M * turned, atol=1e-9
    )
    steps = np.stack([np.diff(road.x_m), np.diff(road.y_m), np.diff(road.z_m)])
    np.testing.assert_allclose(np.sqrt((steps**2).sum(axis=0)), GRID_M, rtol=1e-6)
    middle = 0.5 * (road.heading_rad[:-1] + road.heading_rad[1:])
    np.testing.assert_allclose(np.arctan2(steps[1], steps[0]), middle, atol=1e-9)
    np.testing.assert_allclose(
        np.arcsin(-steps[2] / GRID_M), 0.5 * (road.grade_rad[:-1] + road.grade_rad[1:]), atol=1e-9
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_random_road_is_smooth_and_within_bounds(seed: int) -> None:
    world = random_world(seed, 3000.0)
    road, limit = world.road, world.speed_limit_mps
    assert road.end_m >= 3000.0 + SIGHT_M - GRID_M
    lateral = np.abs(road.curvature_1pm) * limit * limit
    assert lateral.max() <= 3.31
    # Lateral jerk at the speed limit along clothoids; the short ones of slow roads are sharper.
    assert np.abs(np.diff(road.curvature_1pm)).max() * limit**3 / GRID_M < 4.0
    assert np.abs(road.heading_rad).max() < 1.3
    assert np.abs(road.grade_rad).max() <= 0.08
    assert np.abs(road.bank_rad).max() < 0.09
    # A kink of the bank or the grade would jolt the camera.
    for angle in (road.bank_rad, road.grade_rad):
        assert np.abs(np.diff(angle, 2)).max() / GRID_M**2 < 4e-4


def test_all_roads_together_have_what_roads_have() -> None:
    worlds = [random_world(seed, 2000.0) for seed in range(60)]
    assert {world.lanes.count for world in worlds} == {1, 2, 3, 4}
    sharpest = [float(np.abs(world.road.curvature_1pm).max()) for world in worlds]
    assert min(1.0 / bend for bend in sharpest) < 80.0
    assert max(1.0 / bend for bend in sharpest) > 500.0
    assert max(float(world.road.grade_rad.max()) for world in worlds) > 0.04
    assert max(float(np.abs(world.road.bank_rad).max()) for world in worlds) > 0.05
    limits = [world.speed_limit_mps for world in worlds]
    assert np.corrcoef(limits, sharpest)[0, 1] < -0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_longer_world_begins_alike_bit_by_bit(seed: int) -> None:
    short, long = (random_world(seed, length) for length in (700.0, 2500.0))
    assert short.speed_limit_mps == long.speed_limit_mps
    assert short.scenery == long.scenery
    for name in ("x_m", "y_m", "z_m", "heading_rad", "curvature_1pm", "grade_rad", "bank_rad"):
        first, second = getattr(short.road, name), getattr(long.road, name)
        np.testing.assert_array_equal(first, second[: first.size], err_msg=name)
    for mine, theirs in zip(short.lanes.painted, long.lanes.painted, strict=True):
        assert (mine.offset_m, mine.kind, mine.wear) == (theirs.offset_m, theirs.kind, theirs.wear)
        assert theirs.gaps[: len(mine.gaps)] == mine.gaps


def test_curves_are_banked_towards_their_inside() -> None:
    bends, banks = [], []
    for seed in range(20):
        road = random_world(seed, 1500.0).road
        bends.append(road.curvature_1pm / np.abs(road.curvature_1pm).max())
        banks.append(road.bank_rad - np.median(road.bank_rad))
    assert np.corrcoef(np.concatenate(bends), np.concatenate(banks))[0, 1] > 0.7


def test_frames_are_the_axes_of_the_road_and_turn_as_they_say() -> None:
    road = random_world(5, 600.0).road
    s = np.arange(30.0, 600.0, 7.3)
    frames = road.frames(s)
    right = np.array(road.places(s, 1.0)) - np.array(road.places(s, 0.0))
    np.testing.assert_allclose(np.cross(frames.forward.T, right.T), frames.down.T, atol=1e-6)
    later = road.frames(s + 0.5)
    step = 0.5
    yaw = ((later.forward - frames.forward) * right).sum(axis=0) / step
    pitch = -((later.forward - frames.forward) * frames.down).sum(axis=0) / step
    roll = ((np.array(road.places(s + 0.5, 1.0)) - road.places(s + 0.5, 0.0)) - right) * frames.down
    np.testing.assert_allclose(yaw, frames.yaw_1pm, atol=2e-4)
    np.testing.assert_allclose(pitch, frames.pitch_1pm, atol=2e-4)
    np.testing.assert_allclose(roll.sum(axis=0) / step, frames.roll_1pm, atol=2e-4)


def test_road_may_begin_after_the_origin() -> None:
    flat = np.zeros(11)
    road = integrated(flat, flat, flat, start_m=10.0)
    assert isinstance(road, Road)
    assert road.at(12.0).x_m == pytest.approx(2.0)


def test_generator_may_be_used_alone() -> None:
    roads = [straights_and_arcs(np.random.default_rng(3), 500.0) for _ in range(2)]
    np.testing.assert_array_equal(roads[0].x_m, roads[1].x_m)

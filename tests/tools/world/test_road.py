"""Roads: their curves, lanes and patterns against their definitions, and what random ones have."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from modeld.constants import X_IDXS
from tests.tools.world.roads import lanes_of, uniform_road
from tools.simulator.world import curves
from tools.simulator.world.painting.strips import Grain, Stretches, lengths_of, random_stretches
from tools.simulator.world.road import GRID_M, SIGHT_M, Road, integrated, straights_and_arcs
from tools.simulator.world.world import Lanes, Marking, MarkingKind, random_lanes, random_world

each_seed = pytest.mark.parametrize("seed", range(12))


def place(road: Road, s_m: float, offset_m: float) -> tuple[float, float, float]:
    x, y, z = (float(value) for value in road.places(s_m, offset_m))
    return x, y, z


def test_straight_goes_along_x_also_beyond_its_end() -> None:
    road = uniform_road()
    assert place(road, 123.25, 2.0) == pytest.approx((123.25, 2.0, 0.0))
    assert road.end_m == 800.0
    assert road.at(0.0)[:4] == (0.0, 0.0, 0.0, 0.0)
    assert place(road, 900.0, 1.0) == pytest.approx((900.0, 1.0, 0.0))
    assert road.locate(900.0, 1.0, 780.0) == pytest.approx((900.0, 1.0))
    flat = np.zeros(11)
    assert integrated(flat, flat, flat, start_m=10.0).at(12.0).x_m == pytest.approx(2.0)


def test_quarter_of_a_circle_to_the_right() -> None:
    # Radius 100 m about (0, 100): after a quarter the line is at (100, 100), heading along y.
    road, quarter = uniform_road(curvature_1pm=0.01), 50.0 * math.pi
    assert place(road, quarter, 0.0) == pytest.approx((100.0, 100.0, 0.0), abs=1e-3)
    assert road.at(quarter).heading_rad == pytest.approx(0.5 * math.pi)
    # 5 m to the right is nearer to the middle of the circle.
    assert place(road, quarter, 5.0) == pytest.approx((95.0, 100.0, 0.0), abs=1e-3)


def test_hills_climb_by_their_sine_and_banks_let_the_right_side_hang() -> None:
    road = uniform_road(grade_rad=math.asin(0.06))
    assert place(road, 100.0, 3.0) == pytest.approx((100.0 * math.sqrt(1 - 0.0036), 3.0, -6))
    road = uniform_road(bank_rad=math.asin(0.05))
    assert place(road, 50.0, -4.0)[1:] == pytest.approx((-4.0 * math.cos(math.asin(0.05)), -0.2))
    assert place(road, 50.0, 4.0)[1:] == pytest.approx((4.0 * math.sqrt(0.9975), 0.2))


@each_seed
def test_locate_inverts_places(seed: int) -> None:
    road, rng = random_world(seed, 1000.0).road, np.random.default_rng(seed)
    for _ in range(60):
        s, offset = rng.uniform(-50.0, 1000.0), rng.uniform(-10.0, 10.0)
        x, y, _ = place(road, s, offset)
        assert road.locate(x, y, s + rng.uniform(-15.0, 15.0)) == pytest.approx(
            (s, offset), abs=1e-6
        )


@each_seed
def test_heading_is_the_integral_of_curvature_and_the_line_that_of_heading(seed: int) -> None:
    road = random_world(seed, 1000.0).road
    turned = np.append(0.0, np.cumsum(road.curvature_1pm[:-1] + road.curvature_1pm[1:]))
    assert_allclose(road.heading_rad - road.heading_rad[0], 0.5 * GRID_M * turned, atol=1e-9)
    steps = np.stack([np.diff(road.x_m), np.diff(road.y_m), np.diff(road.z_m)])
    assert_allclose(np.sqrt((steps**2).sum(axis=0)), GRID_M, rtol=1e-6)
    for found, angle in (
        (np.arctan2(steps[1], steps[0]), road.heading_rad),
        (np.arcsin(-steps[2] / GRID_M), road.grade_rad),
    ):
        assert_allclose(found, 0.5 * (angle[:-1] + angle[1:]), atol=1e-9)


@each_seed
def test_random_road_is_smooth_and_within_bounds(seed: int) -> None:
    world = random_world(seed, 3000.0)
    road, limit = world.road, world.speed_limit_mps
    assert road.end_m >= 3000.0 + SIGHT_M - GRID_M > 3000.0 + X_IDXS[-1]
    assert np.abs(road.curvature_1pm).max() * limit * limit <= 3.31
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
    sharpest = np.array([np.abs(world.road.curvature_1pm).max() for world in worlds])
    assert (1.0 / sharpest).min() < 80.0
    assert (1.0 / sharpest).max() > 500.0
    assert max(float(world.road.grade_rad.max()) for world in worlds) > 0.04
    assert max(float(np.abs(world.road.bank_rad).max()) for world in worlds) > 0.05
    limits = [world.speed_limit_mps for world in worlds]
    assert np.corrcoef(limits, sharpest)[0, 1] < -0.5
    # Curves are banked towards their inside.
    roads = [world.road for world in worlds[:20]]
    bends = [road.curvature_1pm / np.abs(road.curvature_1pm).max() for road in roads]
    banks = [road.bank_rad - np.median(road.bank_rad) for road in roads]
    assert np.corrcoef(np.concatenate(bends), np.concatenate(banks))[0, 1] > 0.7


@each_seed
def test_longer_world_begins_alike_bit_by_bit(seed: int) -> None:
    short, long = (random_world(seed, length) for length in (700.0, 2500.0))
    assert short.speed_limit_mps == long.speed_limit_mps
    assert short.scenery == long.scenery
    for name in ("x_m", "y_m", "z_m", "heading_rad", "curvature_1pm", "grade_rad", "bank_rad"):
        first, second = getattr(short.road, name), getattr(long.road, name)
        assert_array_equal(first, second[: first.size], err_msg=name)
    for mine, theirs in zip(short.lanes.painted, long.lanes.painted, strict=True):
        assert (mine.offset_m, mine.kind, mine.wear) == (theirs.offset_m, theirs.kind, theirs.wear)
        assert theirs.gaps[: len(mine.gaps)] == mine.gaps
    one, other = (straights_and_arcs(np.random.default_rng(seed), 500.0) for _ in range(2))
    assert_array_equal(one.x_m, other.x_m)


def test_frames_are_the_axes_of_the_road_and_turn_as_they_say() -> None:
    road, step = random_world(5, 600.0).road, 0.5
    s = np.arange(30.0, 600.0, 7.3)
    frames, later = road.frames(s), road.frames(s + step)
    right, next_right = (
        np.array(road.places(at, 1.0)) - np.array(road.places(at, 0.0)) for at in (s, s + step)
    )
    assert_allclose(np.cross(frames.forward.T, right.T), frames.down.T, atol=1e-6)
    turned = later.forward - frames.forward
    for found, wanted in (
        ((turned * right).sum(axis=0), frames.yaw_1pm),
        (-(turned * frames.down).sum(axis=0), frames.pitch_1pm),
        (((next_right - right) * frames.down).sum(axis=0), frames.roll_1pm),
    ):
        assert_allclose(found / step, wanted, atol=2e-4)


def test_one_value_has_the_bits_of_many() -> None:
    angles = np.random.default_rng(1).uniform(-400.0, 400.0, 2000)
    sines, cosines = curves.sin_cos(angles)
    pairs = [curves.sine_cosine(angle) for angle in angles.tolist()]
    assert pairs == list(zip(sines.tolist(), cosines.tolist(), strict=True))
    slopes = np.linspace(-0.25, 0.25, 101)
    ones = [curves.arctangent_of(slope) for slope in slopes.tolist()]
    assert ones == curves.arctangent(slopes).tolist()


def test_derivatives_of_ease_are_those_of_differences() -> None:
    t = np.linspace(-0.2, 1.2, 1401)
    slope, inner = curves.ease_slope(t), slice(205, 1195)
    assert curves.ease(np.array([0.0, 0.5, 1.0])).tolist() == [0.0, 0.5, 1.0]
    assert_allclose(np.gradient(curves.ease(t), t), slope, atol=1e-4)
    assert_allclose(np.gradient(slope, t)[inner], curves.ease_bend(t)[inner], atol=1e-3)


# Dashes are 3 of 12 metres; what has no period is there once.
@pytest.mark.parametrize(
    ("stretches", "edges", "shares"),
    [
        (
            Stretches([0.0], [3.0], 12.0),
            [27.0, 24.0, 15.0, 12.0, 6.0, 1.5, 0.0, -9.0, -12.0],
            [1.0, 0.0, 1.0, 0.0, 1.5 / 4.5, 1.0, 0.0, 1.0],
        ),
        (
            Stretches([10.0, 40.0], [20.0, 45.0]),
            [1000.0, 45.0, 40.0, 30.0, 15.0, 0.0, -50.0],
            [0.0, 1.0, 0.0, 1.0 / 3.0, 1.0 / 3.0, 0.0],
        ),
    ],
)
def test_share_of_stretches(stretches: Stretches, edges: list[float], shares: list[float]) -> None:
    at = np.array(edges)
    assert_allclose(stretches.share(at, lengths_of(at)), shares, atol=1e-12)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.6])
def test_random_stretches_cover_their_share(share: float) -> None:
    stretches = random_stretches(np.random.default_rng(1), share, (0.5, 4.0))
    edges = np.array([15000.0, 0.0])
    assert stretches.share(edges, lengths_of(edges))[0] == pytest.approx(share, rel=0.35)


def test_grain_is_a_mean_that_repeats_without_a_jump() -> None:
    grain, rows = Grain(np.random.default_rng(1), 3), np.array([2, 0])
    fine = np.tile(np.arange(1300.0, 1100.0, -0.05), (2, 1))
    values = grain.mean(rows, fine, lengths_of(fine))
    assert 0.3 < values.std() < 1.2
    assert np.abs(np.diff(values)).max() < 2.5
    coarse = fine[:, ::40]
    means = grain.mean(rows, coarse, lengths_of(coarse))
    whole = values[:, : 40 * means.shape[1]].reshape(2, -1, 40).mean(axis=2)
    assert_allclose(means, whole, atol=1e-6)
    # 4096 cells of 0.3 m.
    again = fine + 4096 * 0.3
    assert_allclose(grain.mean(rows, again, lengths_of(again)), values, atol=1e-6)


def test_centres_lanes_and_four_lines_of_each() -> None:
    lanes = lanes_of(3)
    assert [lanes.centre_m(lane) for lane in range(3)] == [-3.5, 0.0, 3.5]
    offsets = (-20.0, -5.3, -3.5, -1.8, -1.7, 0.0, 1.7, 1.8, 20.0)
    assert [lanes.lane_at(offset) for offset in offsets] == [0, 0, 0, 0, 1, 1, 1, 2, 2]
    lanes = lanes_of(2)
    left, middle, right = lanes.markings
    assert lanes.beside(0) == (None, left, middle, right)
    assert lanes.beside(1) == (left, middle, right, None)
    # The far left line of a two-way road is that of the oncoming lane.
    one, far = lanes_of(1), Marking(-5.25, MarkingKind.SOLID)
    assert Lanes(3.5, 1, one.markings, -6.0, 2.0, (far,)).beside(0) == (far, *one.markings, None)
    assert one.beside(0) == (None, *one.markings, None)


def test_random_lanes_fit_their_road() -> None:
    for seed in range(80):
        lanes = random_lanes(np.random.default_rng(seed), 2000.0, 12.0 + 0.3 * seed)
        assert 2.7 <= lanes.width_m <= 3.9
        assert 1 <= lanes.count <= 4
        assert len(lanes.markings) == lanes.count + 1
        offsets = [lanes.left_edge_m, *(p.offset_m for p in lanes.painted), lanes.right_edge_m]
        assert offsets == sorted(offsets)
        assert offsets[0] < offsets[1]
        assert offsets[-2] < offsets[-1]
        for lane in range(lanes.count):
            _, left, right, _ = lanes.beside(lane)
            assert left is not None
            assert right is not None
            centre = lanes.centre_m(lane)
            sides = (centre - left.offset_m, right.offset_m - centre)
            assert sides == pytest.approx((0.5 * lanes.width_m, 0.5 * lanes.width_m))
        for line in lanes.painted:
            assert 0.0 <= line.wear <= 1.0
            ends = [place for gap in line.gaps for place in gap]
            assert ends == sorted(ends)


def test_all_roads_together_have_all_kinds_of_lines() -> None:
    roads = [random_lanes(np.random.default_rng(s), 3000.0, 12.0 + 0.2 * s) for s in range(120)]
    lines = [line for lanes in roads for line in lanes.painted]
    assert {line.kind for line in lines} == set(MarkingKind)
    assert {line.is_yellow for line in lines} == {True, False}
    assert any(line.gaps for line in lines)
    assert any(line.wear > 0.8 for line in lines)
    assert any(all(line.kind is MarkingKind.NONE for line in lanes.painted) for lanes in roads)
    assert any(lanes.opposite for lanes in roads)

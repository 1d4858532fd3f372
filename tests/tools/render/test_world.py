"""The rendered world: figures against the formulas they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modeld.constants import T_IDXS, X_IDXS
from tools.render.spec import DriveSpec
from tools.render.truth import segment_truth
from tools.render.world import (
    BLINKER_LEAD_S,
    FIRST_LANE_CHANGE_S,
    LANE_CHANGE_S,
    LANE_WIDTH_M,
    LEFT,
    NUDGE_S,
    RIGHT,
    TICKS_PER_S,
    LaneChange,
    Motion,
    World,
    road_grid,
    seeded_motion,
)
from tools.world.curves import (
    ATAN_LIMIT,
    arctangent,
    ease,
    ease_slope,
    random_walk,
    sin_cos,
    through_knots,
)

SECONDS = 12.0


@pytest.fixture(scope="module")
def world() -> World:
    return World(seeded_motion(5, SECONDS))


def plain_world(curvature_1pm: float, speed_mps: float = 20.0) -> World:
    """A road of one curvature, one speed, a car ahead at 40 m, a change to the left at 12 s."""
    ticks = 3200
    grid = road_grid(ticks / TICKS_PER_S * speed_mps)
    return World(
        Motion(
            speed_mps=np.full(ticks, speed_mps),
            curvature_1pm=np.full(grid.size, curvature_1pm),
            gap_m=np.full(ticks, 40.0),
            lane_changes=(LaneChange(12.0, LEFT),),
            wobble_m=np.zeros(grid.size),
        )
    )


# --- curves ------------------------------------------------------------------------------------


def test_sine_and_cosine_are_those_of_the_library() -> None:
    angles = np.concatenate([np.linspace(-40.0, 40.0, 4001), [0.0, math.pi / 2, -math.pi, 1e3]])
    sine, cosine = sin_cos(angles)
    np.testing.assert_allclose(sine, np.sin(angles), atol=2e-15)
    np.testing.assert_allclose(cosine, np.cos(angles), atol=2e-15)


def test_arctangent_is_that_of_the_library() -> None:
    slopes = np.linspace(-ATAN_LIMIT, ATAN_LIMIT, 1001)
    np.testing.assert_allclose(arctangent(slopes), np.arctan(slopes), atol=1e-13)


def test_easing_goes_from_0_to_1_and_its_slope_is_its_derivative() -> None:
    t = np.linspace(-0.2, 1.2, 1401)
    assert ease(np.array([0.0, 0.5, 1.0])).tolist() == [0.0, 0.5, 1.0]
    np.testing.assert_allclose(np.gradient(ease(t), t), ease_slope(t), atol=5e-3)


def test_curve_goes_through_its_knots_and_holds_its_ends() -> None:
    knots = np.array([1.0, 3.0, -2.0])
    at = np.array([-5.0, 0.0, 10.0, 15.0, 20.0, 99.0])
    assert through_knots(knots, 10.0, at).tolist() == [1.0, 1.0, 3.0, 0.5, -2.0, -2.0]


def test_walk_stays_within_its_limits_and_longer_ones_begin_alike() -> None:
    short, long = (random_walk(np.random.default_rng(1), n, 4, (3, 9)) for n in (50, 500))
    assert long.min() >= 3
    assert long.max() <= 9
    assert np.abs(np.diff(long)).max() <= 4
    np.testing.assert_array_equal(short, long[:50])


# --- world -------------------------------------------------------------------------------------


def test_circle_of_constant_curvature() -> None:
    # 200 m at 1 / 500 m: heading 0.4 rad to the right, 500 sin 0.4 ahead, 500 (1 - cos 0.4) aside.
    world = plain_world(1.0 / 500.0)
    start, end = world.state(0), world.state(1000)
    turn = end.heading_rad - start.heading_rad
    assert turn == pytest.approx(0.4, abs=1e-6)
    sine, cosine = math.sin(start.heading_rad), math.cos(start.heading_rad)
    x, y = end.x_m - start.x_m, end.y_m - start.y_m
    assert x * cosine + y * sine == pytest.approx(500.0 * math.sin(0.4), abs=2e-3)
    assert y * cosine - x * sine == pytest.approx(500.0 * (1.0 - math.cos(0.4)), abs=2e-3)
    assert end.curvature_1pm == pytest.approx(1.0 / 500.0, rel=1e-3)
    # Wheels to the right are negative: atan-free single track, 2.7 m and 15 turns per turn.
    assert end.steering_angle_deg == pytest.approx(-math.degrees(2.7 * 15.0 / 500.0), rel=1e-3)


def test_lane_change_goes_one_lane_to_its_side_with_blinker_before_and_hand_at_the_wheel() -> None:
    world = plain_world(0.0)
    assert world.state(1200).offset_m == pytest.approx(0.0, abs=1e-3)
    assert world.state(1450).offset_m == pytest.approx(-LANE_WIDTH_M / 2, abs=0.02)
    assert world.state(1710).offset_m == pytest.approx(-LANE_WIDTH_M, abs=1e-3)
    # Half way a quintic of 5 s is 15 / 8 of its mean slope: 1.875 * 3.6 / 100 m.
    assert world.state(1450).heading_rad == pytest.approx(-math.atan(1.875 * 3.6 / 100), abs=1e-4)
    blinker = [world.state(tick).blinker for tick in range(2000)]
    first, last = round((12 - BLINKER_LEAD_S) * 100), round((12 + LANE_CHANGE_S) * 100)
    assert blinker == [LEFT if first <= tick < last else 0 for tick in range(2000)]
    nudge = [tick for tick in range(2000) if world.state(tick).nudge == LEFT]
    assert nudge == list(range(round((12 + NUDGE_S[0]) * 100), round((12 + NUDGE_S[1]) * 100)))


def test_car_moves_at_its_speed_along_its_heading(world: World) -> None:
    for tick in range(0, 1100, 37):
        one, two = world.state(tick), world.state(tick + 1)
        dx, dy = two.x_m - one.x_m, two.y_m - one.y_m
        assert math.hypot(dx, dy) * TICKS_PER_S == pytest.approx(one.speed_mps, rel=2e-3)
        assert math.atan2(dy, dx) == pytest.approx(one.heading_rad, abs=2e-3)
        turn = (two.heading_rad - one.heading_rad) * TICKS_PER_S
        assert turn == pytest.approx(one.curvature_1pm * one.speed_mps, abs=1e-3)
        gain = (world.state(tick + 10).speed_mps - one.speed_mps) * TICKS_PER_S / 10
        assert gain == pytest.approx(one.acceleration_mps2, abs=0.1)


def test_seeded_drives_differ_and_are_ordinary_driving() -> None:
    worlds = [World(seeded_motion(seed, 60.0)) for seed in range(4)]
    assert len({world.state(3000).x_m for world in worlds}) == 4
    for world in worlds:
        states = [world.state(tick) for tick in range(0, 6000, 25)]
        assert all(10.0 < state.speed_mps < 30.0 for state in states)
        assert all(abs(state.acceleration_mps2) < 2.0 for state in states)
        assert all(abs(s.curvature_1pm) * s.speed_mps**2 < 4.0 for s in states)
        assert all(abs(state.offset_m) < LANE_WIDTH_M + 0.3 for state in states)
        gaps = [state.lead_s_m - state.s_m for state in states]
        assert min(gaps) >= 15.0
        assert max(gaps) <= 57.0
        assert {state.blinker for state in states} == {LEFT, 0, RIGHT}
        assert world.state(round(FIRST_LANE_CHANGE_S * TICKS_PER_S)).blinker != 0


def test_longer_drive_begins_like_a_shorter_one() -> None:
    short, long = World(seeded_motion(7, 8.0)), World(seeded_motion(7, 30.0))
    for tick in (0, 333, 799):
        assert short.state(tick) == long.state(tick)


# --- truth -------------------------------------------------------------------------------------


def test_truth_is_what_the_poses_say() -> None:
    spec = DriveSpec(seed=5, frames=240, dropped={"wide": frozenset({3})})
    world = World(seeded_motion(5, SECONDS))
    truth = segment_truth(spec, world, 0)
    pose, speed = truth["pose_m_rad"], truth["speed_mps"]
    assert truth["frame_id"].tolist() == list(range(240))
    assert truth["road_delivered"].all()
    assert np.flatnonzero(~truth["wide_delivered"]).tolist() == [3]
    # The path 2.5 s ahead (T_IDXS[16]) is where the camera is 50 frames later.
    assert T_IDXS[16] == 2.5
    for frame in (0, 100, 189):
        x, y, heading = pose[frame]
        dx, dy = pose[frame + 50, :2] - (x, y)
        ahead = dx * math.cos(heading) + dy * math.sin(heading)
        aside = dy * math.cos(heading) - dx * math.sin(heading)
        np.testing.assert_allclose(truth["path_xy_m"][frame, 16], [ahead, aside], atol=1e-4)
        assert truth["path_speed_mps"][frame, 16] == pytest.approx(speed[frame + 50], abs=1e-4)
        turn = pose[frame + 50, 2] - heading
        assert truth["path_yaw_rad"][frame, 16] == pytest.approx(turn, abs=1e-5)


def test_lines_beside_the_lane_in_which_the_camera_is() -> None:
    # A straight road: before the change lines are at -5.4 .. 5.4, after it 3.6 m further right
    # and the left lane has no second line on its left.
    world = plain_world(0.0)
    truth = segment_truth(DriveSpec(frames=380), world, 0)
    lines, edges = truth["lane_line_y_m"], truth["road_edge_y_m"]
    assert lines.shape == (380, 4, 33)
    for distance in range(33):
        before = lines[10, :, distance]
        np.testing.assert_allclose(before, [-5.4, -1.8, 1.8, 5.4], atol=1e-3)
        after = lines[350, :, distance]
        np.testing.assert_allclose(after, [np.nan, -1.8, 1.8, 5.4], atol=2e-3)
    np.testing.assert_allclose(edges[350, :, 0], [-3.0, 10.2], atol=2e-3)
    assert truth["lead_xyv"][10] == pytest.approx([40.0, 0.0, 20.0], abs=1e-2)


def test_lines_of_a_bend_are_circles() -> None:
    # Radius 500 m to the right: a line 1.8 m left is a circle of 501.8 m around (0, 500).
    truth = segment_truth(DriveSpec(frames=4), plain_world(1.0 / 500.0), 0)
    expected = 500.0 - np.sqrt(501.8**2 - X_IDXS**2)
    np.testing.assert_allclose(truth["lane_line_y_m"][1, 1], expected, atol=5e-3)


def test_lines_that_turn_back_end_there() -> None:
    # Radius 100 m: nothing of a line 1.8 m left of it is further ahead than 101.8 m.
    truth = segment_truth(DriveSpec(frames=4), plain_world(1.0 / 100.0), 0)
    line = truth["lane_line_y_m"][1, 1]
    expected = 100.0 - np.sqrt(101.8**2 - X_IDXS[X_IDXS < 95.0] ** 2)
    np.testing.assert_allclose(line[: expected.size], expected, atol=0.02)
    assert np.isnan(line[X_IDXS > 102.0]).all()

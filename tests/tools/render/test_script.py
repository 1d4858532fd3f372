"""Scripted drives and their truth: figures against the formulas they stand for."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from modeld.constants import T_IDXS, X_IDXS
from tests.tools.world.roads import uniform_road
from tools.simulator.render.script import (
    BLINKER_LEAD_S,
    FIRST_LANE_CHANGE_S,
    LANE_WIDTH_M,
    NUDGE_S,
    TICKS_PER_S,
    LaneChange,
    Script,
    ScriptedDrive,
    seeded_script,
)
from tools.simulator.render.spec import DriveSpec
from tools.simulator.render.write_drive import segment_truth
from tools.simulator.world import curves
from tools.simulator.world.car import body_at
from tools.simulator.world.expert import LANE_CHANGE_S, LEFT, RIGHT


def plain_drive(curvature_1pm: float, grade_rad: float = 0.0) -> ScriptedDrive:
    """A road of one curvature, 20 m/s, a car ahead at 40 m, a change to the left at 12 s."""
    speed_mps, gap_m = np.full(3200, 20.0), np.full(3200, 40.0)
    road = uniform_road(curvature_1pm, grade_rad, length_m=1300.0)
    changes = (LaneChange(12.0, LEFT),)
    return ScriptedDrive(Script(0, road, speed_mps, gap_m, changes, np.zeros(road.x_m.size)))


def test_functions_are_those_of_the_library() -> None:
    angles = np.concatenate([np.linspace(-40.0, 40.0, 4001), [0.0, math.pi / 2, -math.pi, 1e3]])
    sine, cosine = curves.sin_cos(angles)
    assert_allclose(sine, np.sin(angles), atol=2e-15)
    assert_allclose(cosine, np.cos(angles), atol=2e-15)
    slopes = np.linspace(-curves.ATAN_LIMIT, curves.ATAN_LIMIT, 1001)
    assert_allclose(curves.arctangent(slopes), np.arctan(slopes), atol=1e-13)


def test_curve_goes_through_its_knots_and_holds_its_ends() -> None:
    at = np.array([-5.0, 0.0, 10.0, 15.0, 20.0, 99.0])
    found = curves.through_knots(np.array([1.0, 3.0, -2.0]), 10.0, at)
    assert found.tolist() == [1.0, 1.0, 3.0, 0.5, -2.0, -2.0]


def test_walk_stays_within_its_limits_and_longer_ones_begin_alike() -> None:
    short, long = (curves.random_walk(np.random.default_rng(1), n, 4, (3, 9)) for n in (50, 500))
    assert 3 <= long.min() <= long.max() <= 9
    assert np.abs(np.diff(long)).max() <= 4
    assert_array_equal(short, long[:50])


def test_circle_of_constant_curvature() -> None:
    # 200 m at 1 / 500 m: heading 0.4 rad to the right, 500 sin 0.4 ahead, 500 (1 - cos 0.4) aside.
    drive = plain_drive(1.0 / 500.0)
    start, end = drive.state_at(0).body, drive.state_at(1000).body
    assert end.heading_rad - start.heading_rad == pytest.approx(0.4, abs=1e-6)
    sine, cosine = math.sin(start.heading_rad), math.cos(start.heading_rad)
    x, y = end.x_m - start.x_m, end.y_m - start.y_m
    assert x * cosine + y * sine == pytest.approx(500.0 * math.sin(0.4), abs=2e-3)
    assert y * cosine - x * sine == pytest.approx(500.0 * (1.0 - math.cos(0.4)), abs=2e-3)
    assert end.curvature_1pm == pytest.approx(1.0 / 500.0, rel=1e-3)


def test_lane_change_goes_one_lane_to_its_side_with_blinker_before_and_hand_at_the_wheel() -> None:
    drive = plain_drive(0.0)
    states = [drive.state_at(tick) for tick in range(2000)]
    bodies = [state.body for state in states]
    assert bodies[1200].offset_m == pytest.approx(0.0, abs=1e-3)
    assert bodies[1450].offset_m == pytest.approx(-LANE_WIDTH_M / 2, abs=0.02)
    assert bodies[1710].offset_m == pytest.approx(-LANE_WIDTH_M, abs=1e-3)
    # Half way a quintic of 5 s is 15 / 8 of its mean slope: 1.875 * 3.6 / 100 m.
    assert bodies[1450].heading_rad == pytest.approx(-math.atan(1.875 * 3.6 / 100), abs=1e-4)
    first, last = (round((12 + s) * 100) for s in (-BLINKER_LEAD_S, LANE_CHANGE_S))
    expected = [LEFT if first <= tick < last else 0 for tick in range(2000)]
    assert [state.blinker for state in states] == expected
    first, last = (round((12 + s) * 100) for s in NUDGE_S)
    assert [t for t, state in enumerate(states) if state.nudge == LEFT] == [*range(first, last)]


def test_car_lies_on_the_road_and_moves_at_its_speed_along_its_heading() -> None:
    drive = ScriptedDrive(seeded_script(10, 12.0))
    for tick in range(0, 1100, 37):
        one, two = drive.state_at(tick).body, drive.state_at(tick + 1).body
        dx, dy, dz = two.x_m - one.x_m, two.y_m - one.y_m, two.z_m - one.z_m
        way = math.sqrt(dx * dx + dy * dy + dz * dz)
        assert way * TICKS_PER_S == pytest.approx(one.speed_mps, rel=2e-3)
        assert math.atan2(dy, dx) == pytest.approx(one.heading_rad, abs=2e-3)
        assert dz / way == pytest.approx(-math.sin(one.pitch_rad), abs=2e-3)
        turn = (two.heading_rad - one.heading_rad) * TICKS_PER_S
        assert turn == pytest.approx(one.curvature_1pm * one.speed_mps, abs=1e-3)
        gain = (drive.state_at(tick + 10).body.speed_mps - one.speed_mps) * TICKS_PER_S / 10
        assert gain == pytest.approx(one.acceleration_mps2, abs=0.1)
        # The simulation finds the same place and attitude from where the car is.
        found = body_at(
            drive.world.road,
            *(one.x_m, one.y_m, one.heading_rad, one.speed_mps),
            near_s_m=one.s_m - 5.0,
        )
        for name in ("s_m", "offset_m", "z_m"):
            assert getattr(one, name) == pytest.approx(getattr(found, name), abs=2e-3), name
        for name in ("pitch_rad", "roll_rad"):
            assert getattr(one, name) == pytest.approx(getattr(found, name), abs=2e-5), name


def test_seeded_drives_differ_and_are_ordinary_driving() -> None:
    drives = [ScriptedDrive(seeded_script(seed, 60.0)) for seed in range(4)]
    assert len({drive.state_at(3000).body.x_m for drive in drives}) == 4
    # A longer drive begins like a shorter one.
    short = ScriptedDrive(seeded_script(3, 8.0))
    for tick in (0, 333, 799):
        assert short.state_at(tick) == drives[3].state_at(tick)
    for drive in drives:
        states = [drive.state_at(tick) for tick in range(0, 6000, 25)]
        for body, lead, *_ in states:
            assert 10.0 < body.speed_mps < 30.0
            assert abs(body.acceleration_mps2) < 2.0
            assert abs(body.curvature_1pm) * body.speed_mps**2 < 4.0
            assert abs(body.offset_m) < LANE_WIDTH_M + 0.3
            assert 15.0 <= lead.s_m - body.s_m <= 57.0
            assert abs(lead.offset_m) < LANE_WIDTH_M + 0.3
        assert {state.blinker for state in states} == {LEFT, 0, RIGHT}
        assert drive.state_at(round(FIRST_LANE_CHANGE_S * TICKS_PER_S)).blinker != 0


def test_truth_is_what_the_poses_say() -> None:
    spec = DriveSpec(seed=5, frames=240, dropped={"wide": frozenset({3})})
    truth = segment_truth(spec, ScriptedDrive(seeded_script(5, 12.0)), 0)
    pose, speed = truth["pose_m_rad"], truth["speed_mps"]
    assert truth["frame_id"].tolist() == list(range(240))
    assert truth["road_delivered"].all()
    assert np.flatnonzero(~truth["wide_delivered"]).tolist() == [3]
    # The path 2.5 s ahead (T_IDXS[16]) is where the camera is 50 frames later.
    assert T_IDXS[16] == 2.5
    for frame in (0, 100, 189):
        (dx, dy, turn), heading = pose[frame + 50] - pose[frame], pose[frame, 2]
        ahead = dx * math.cos(heading) + dy * math.sin(heading)
        aside = dy * math.cos(heading) - dx * math.sin(heading)
        # The calibrated frame is tilted as the road is, by up to 0.03 rad.
        x, y = truth["path_xy_m"][frame, 16].tolist()
        z = float(truth["path_z_m"][frame, 16])
        assert math.hypot(x, z) == pytest.approx(ahead, rel=1e-3)
        assert y == pytest.approx(aside, abs=0.05 + 0.03 * abs(z))
        assert truth["path_speed_mps"][frame, 16] == pytest.approx(speed[frame + 50], abs=1e-4)
        assert truth["path_yaw_rad"][frame, 16] == pytest.approx(turn, abs=1e-5)


def test_a_climb_is_a_plane_for_who_climbs_it() -> None:
    truth = segment_truth(DriveSpec(frames=2), plain_drive(0.0, grade_rad=0.05), 0)
    assert_allclose(truth["path_xy_m"][1, :, 0], 20.0 * T_IDXS, atol=1e-3)
    for name in ("path_z_m", "path_xy_m"):
        assert_allclose(truth[name][1].reshape(33, -1)[:, -1], 0.0, atol=1e-4)
    for name in ("lane_line_z_m", "road_edge_z_m"):
        assert_allclose(truth[name][1], truth["height_m"], atol=1e-4)


def test_lines_beside_the_lane_in_which_the_camera_is() -> None:
    # A straight road: before the change lines are at -5.4 .. 5.4, after it 3.6 m further right
    # and the left lane has no second line on its left.
    truth = segment_truth(DriveSpec(frames=380), plain_drive(0.0), 0)
    lines, edges = truth["lane_line_y_m"], truth["road_edge_y_m"]
    assert lines.shape == (380, 4, 33)
    for distance in range(33):
        assert_allclose(lines[10, :, distance], [-5.4, -1.8, 1.8, 5.4], atol=1e-3)
        assert_allclose(lines[350, :, distance], [np.nan, -1.8, 1.8, 5.4], atol=2e-3)
    assert_allclose(edges[350, :, 0], [-3.0, 10.2], atol=2e-3)
    assert truth["lead_xyv"][10] == pytest.approx([40.0, 0.0, 20.0], abs=1e-2)


# To the right, radius 500 m: a line 1.8 m left is a circle of 501.8 m around (0, 500). Radius
# 100 m: nothing of a line 1.8 m left of it is further ahead than 101.8 m.
@pytest.mark.parametrize(
    ("radius_m", "until_m", "atol"), [(500.0, math.inf, 5e-3), (100.0, 95.0, 0.02)]
)
def test_lines_of_a_bend_are_circles(radius_m: float, until_m: float, atol: float) -> None:
    truth = segment_truth(DriveSpec(frames=4), plain_drive(1.0 / radius_m), 0)
    line, near = truth["lane_line_y_m"][1, 1], X_IDXS[until_m > X_IDXS]
    assert_allclose(
        line[: near.size], radius_m - np.sqrt((radius_m + 1.8) ** 2 - near**2), atol=atol
    )
    assert np.isnan(line[radius_m + 2.0 < X_IDXS]).all()

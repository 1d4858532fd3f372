from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from modeld.constants import T_IDXS, X_IDXS
from modeld.desire import Desire
from modeld.meta_layout import ENGAGED, META_LAYOUTS
from tests.tools.world.roads import body_on, lanes_of, uniform_road, world_of
from tools.world.body import FRONT_M, Body
from tools.world.expert import LEFT, RIGHT, Expert
from tools.world.lanes import Lanes, Marking, MarkingKind
from tools.world.road import GRID_M, integrated
from tools.world.traffic import Traffic, Vehicle
from tools.world.truth import CAMERA_HEIGHT_M, Truth, truth_of
from tools.world.world import World, random_world


def car(s_m: float, offset_m: float, speed_mps: float, acceleration_mps2: float = 0.0) -> Vehicle:
    return Vehicle(s_m, offset_m, speed_mps, acceleration_mps2, 1.8, 1.5, 4.5, 0)


def truth_on(world: World, body: Body, *vehicles: Vehicle) -> Truth:
    lane = world.lanes.lane_at(body.offset_m)
    plan = Expert(world, lane, 20.0).plan(body, vehicles)
    return truth_of(world, body, vehicles, plan)


def test_lines_of_a_straight_are_straight_and_below_the_camera() -> None:
    world = world_of(uniform_road(), lanes_of(2))
    truth = truth_on(world, body_on(world, 100.0, -1.75 + 0.4, 20.0))
    expected = [np.nan, -2.15, 1.35, 4.85]
    for line, y in zip(truth.lane_lines, expected, strict=True):
        np.testing.assert_allclose(line[:, 0], y, atol=1e-9)
        np.testing.assert_allclose(line[:, 1], np.nan if np.isnan(y) else CAMERA_HEIGHT_M)
    np.testing.assert_allclose(truth.road_edges[0, :, 0], -4.0 + 1.35)
    np.testing.assert_allclose(truth.road_edges[1, :, 0], 4.0 + 1.35)
    assert truth.lane_lines_prob.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert truth.road_transform.tolist() == [0.0, 0.0, CAMERA_HEIGHT_M, 0.0, 0.0, 0.0]
    assert truth.pose.tolist() == pytest.approx([20.0, 0.0, 0.0, 0.0, 0.0, 0.0], abs=1e-9)
    assert truth.wide_from_device_euler.tolist() == [0.0, 0.0, 0.0]


def test_lines_of_a_circle_are_circles() -> None:
    # About (0, 250): the line at offset d has the radius 250 - d.
    world = world_of(uniform_road(curvature_1pm=0.004), lanes_of(1))
    truth = truth_on(world, body_on(world, 100.0, 0.0, 15.0))
    for line, offset in zip(truth.lane_lines[1:3], (-1.75, 1.75), strict=True):
        y = 250.0 - np.sqrt((250.0 - offset) ** 2 - X_IDXS**2)
        np.testing.assert_allclose(line[:, 0], y, atol=5e-3)
    assert truth.pose.tolist() == pytest.approx([15.0, 0.0, 0.0, 0.0, 0.0, 0.06], abs=1e-6)
    assert truth.plan[0, 14] == pytest.approx(0.06)


def test_lines_end_where_the_road_turns_back() -> None:
    # Half a circle of radius 60 m reaches 60 m ahead and no further.
    world = world_of(uniform_road(curvature_1pm=1.0 / 60.0), lanes_of(1))
    lines = truth_on(world, body_on(world, 100.0, 0.0, 9.0)).lane_lines
    known = ~np.isnan(lines[1, :, 0])
    np.testing.assert_array_equal(known, X_IDXS < 61.75)
    assert np.isnan(lines[1, ~known]).all()


def test_hill_of_known_grade_lifts_the_lines() -> None:
    length = round(500.0 / GRID_M)
    flat = np.zeros(length)
    grade = np.where(np.arange(length) * GRID_M - 60.0 > 100.0, 0.05, 0.0)
    world = world_of(integrated(flat, grade, flat), lanes_of(1))
    line = truth_on(world, body_on(world, 50.0, 0.0, 20.0)).lane_lines[1]
    climb = np.maximum(X_IDXS - 50.0, 0.0) * np.tan(0.05)
    np.testing.assert_allclose(line[:, 1], CAMERA_HEIGHT_M - climb, atol=0.03)


def test_bank_that_begins_ahead_tilts_the_lines() -> None:
    # Level below the car, then the right side hangs by 0.05 rad: the left line lies higher.
    length = round(500.0 / GRID_M)
    flat = np.zeros(length)
    bank = np.clip((np.arange(length) * GRID_M - 60.0 - 80.0) / 30.0, 0.0, 1.0) * 0.05
    world = world_of(integrated(flat, flat, bank), lanes_of(1))
    lines = truth_on(world, body_on(world, 50.0, 0.0, 20.0)).lane_lines
    far = X_IDXS > 62.0
    fall = 1.75 * np.sin(0.05)
    np.testing.assert_allclose(lines[1, far, 1], CAMERA_HEIGHT_M - fall, atol=1e-6)
    np.testing.assert_allclose(lines[2, far, 1], CAMERA_HEIGHT_M + fall, atol=1e-6)
    np.testing.assert_allclose(lines[2, X_IDXS < 29.0, 1], CAMERA_HEIGHT_M, atol=1e-6)


def test_uniform_slope_is_level_for_its_lines() -> None:
    world = world_of(uniform_road(0.0, 0.05, 0.04), lanes_of(3))
    truth = truth_of(
        world,
        body := body_on(world, 50.0, 0.0, 20.0),
        (),
        Expert(world, 1, 20.0).plan(body, ()),
        height_m=1.5,
    )
    np.testing.assert_allclose(truth.lane_lines[..., 1], 1.5, atol=1e-9)
    np.testing.assert_allclose(
        truth.lane_lines[..., 0], [[y] * 33 for y in (-5.25, -1.75, 1.75, 5.25)]
    )


@pytest.mark.parametrize(
    ("marking", "expected"),
    [
        (Marking(0.0, MarkingKind.DASHED), 1.0),
        (Marking(0.0, MarkingKind.NONE), 0.0),
        (Marking(0.0, MarkingKind.SOLID, wear=0.95), 0.0),
        (Marking(0.0, MarkingKind.SOLID, wear=0.8), 1.0),
        (Marking(0.0, MarkingKind.SOLID, gaps=((95.0, 150.0),)), 0.0),
        (Marking(0.0, MarkingKind.SOLID, gaps=((130.0, 190.0),)), 1.0),
        (Marking(0.0, MarkingKind.SOLID, gaps=((20.0, 60.0), (170.0, 200.0))), 1.0),
    ],
)
def test_line_is_there_if_its_paint_can_be_seen(marking: Marking, expected: float) -> None:
    lines = (
        dataclasses.replace(marking, offset_m=-1.75),
        Marking(1.75, MarkingKind.SOLID),
    )
    world = world_of(uniform_road(), Lanes(3.5, 1, lines, -2.0, 2.0))
    truth = truth_on(world, body_on(world, 100.0, 0.0, 20.0))
    assert truth.lane_lines_prob.tolist() == [0.0, expected, 1.0, 0.0]
    # Where the lane ends is known without paint.
    assert truth.lane_lines[1, 0, 0] == pytest.approx(-1.75)


def test_lead_is_told_with_what_it_will_do() -> None:
    world = world_of(uniform_road(), lanes_of(2))
    body = body_on(world, 100.0, -1.75, 20.0)
    beside = car(120.0, 1.75, 20.0)
    truth = truth_on(world, body, beside, car(150.0, -1.55, 12.0, -3.0), car(190.0, -1.75, 20.0))
    assert truth.lead_prob.tolist() == [1.0, 1.0, 1.0]
    for lead in truth.lead:
        # It stands after 4 s and 24 m.
        np.testing.assert_allclose(lead[:, 0], [50.0, 68.0, 74.0, 74.0, 74.0, 74.0])
        np.testing.assert_allclose(lead[:, 1], 0.2)
        np.testing.assert_allclose(lead[:, 2], [12.0, 6.0, 0.0, 0.0, 0.0, 0.0])
        np.testing.assert_allclose(lead[:, 3], [-3.0, -3.0, 0.0, 0.0, 0.0, 0.0])


def test_nobody_leads_from_beside_behind_or_far_away() -> None:
    world = world_of(uniform_road(), lanes_of(2))
    body = body_on(world, 100.0, -1.75, 20.0)
    truth = truth_on(
        world, body, car(120.0, 1.75, 9.0), car(90.0, -1.75, 9.0), car(240.0, -1.75, 9.0)
    )
    assert truth.lead_prob.tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(truth.lead).all()


def test_car_of_the_next_lane_leads_when_we_are_there() -> None:
    world = world_of(uniform_road(), lanes_of(2))
    body = body_on(world, 100.0, -1.75, 20.0)
    vehicles = (car(140.0, -1.75, 20.0), car(160.0, 1.75, 20.0))
    expert = Expert(world, 0, 20.0)
    expert.change_lane(RIGHT)
    plan = expert.plan(body, vehicles)
    truth = truth_of(world, body, vehicles, plan)
    assert truth.lead[:, 0, 0].tolist() == pytest.approx([40.0, 40.0, 60.0])


def test_desires_tell_a_lane_change_and_its_end() -> None:
    world = world_of(uniform_road(), lanes_of(2))
    body = body_on(world, 100.0, 1.75, 20.0)
    expert = Expert(world, 1, 20.0)
    expert.change_lane(LEFT)
    plan = expert.plan(body, ())
    truth = truth_of(world, body, (), plan)
    assert plan.changes_until_s == pytest.approx(5.0, abs=0.05)
    assert truth.desire_state.argmax() == Desire.LANE_CHANGE_LEFT
    assert truth.desire_pred.argmax(axis=1).tolist() == [3, 3, 0, 0]
    assert truth.desire_pred.sum(axis=1).tolist() == [1.0] * 4
    blinkers = truth.meta[31:].reshape(6, 4)
    assert blinkers[:, 2].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert blinkers[:, 3].tolist() == [0.0] * 6
    other = truth_of(world, body, (), plan, desire=Desire.LANE_CHANGE_RIGHT)
    assert other.desire_state.argmax() == Desire.LANE_CHANGE_RIGHT


def test_meta_tells_engaged_and_hard_braking_within_each_horizon() -> None:
    world = world_of(uniform_road(), lanes_of(1))
    body = body_on(world, 100.0, 0.0, 20.0)
    layout = META_LAYOUTS[55]
    assert layout.brake_press is not None
    calm = truth_on(world, body).meta
    assert calm[ENGAGED] == 1.0
    assert calm.sum() == 1.0
    hard = truth_on(world, body, car(100.0 + FRONT_M + 32.0, 0.0, 0.0)).meta
    assert hard[layout.hard_brake_3].tolist() == [1.0] * 5
    assert hard[layout.brake_press][1] == 1.0
    assert hard[layout.gas_disengage].sum() == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_truth_of_any_moment_is_whole(seed: int) -> None:
    world = random_world(seed, 1200.0)
    rng = np.random.default_rng(seed)
    lane = int(rng.integers(world.lanes.count))
    for s in (0.0, 500.0, 1200.0):
        offset = world.lanes.centre_m(lane) + rng.uniform(-1.0, 1.0)
        body = body_on(world, s, offset, 15.0, rng.uniform(-0.06, 0.06))
        vehicles = Traffic(world, seed, body, density=0.7).vehicles
        plan = Expert(world, lane, world.speed_limit_mps).plan(body, vehicles)
        truth = truth_of(world, body, vehicles, plan)
        shapes = {
            "plan": (33, 15),
            "lane_lines": (4, 33, 2),
            "lane_lines_prob": (4,),
            "road_edges": (2, 33, 2),
            "lead": (3, 6, 4),
            "lead_prob": (3,),
            "pose": (6,),
            "road_transform": (6,),
            "wide_from_device_euler": (3,),
            "desire_state": (8,),
            "desire_pred": (4, 8),
            "meta": (55,),
            "for_curves": (1,),
        }
        assert {f.name: getattr(truth, f.name).shape for f in dataclasses.fields(truth)} == shapes
        assert np.isfinite(truth.plan).all()
        assert np.isfinite(truth.lane_lines[1:3, :12]).all()
        # The lines lie to both sides of the car, on the road.
        ahead = X_IDXS < 5.0
        assert (truth.lane_lines[1, ahead, 0] < 0.7).all()
        assert (truth.lane_lines[2, ahead, 0] > -0.7).all()
        np.testing.assert_allclose(truth.lane_lines[1:3, 0, 1], CAMERA_HEIGHT_M, atol=0.02)
        # The car drives between its lines where the way back to the lane's centre has ended.
        x, y = plan.position_m[:, 0], plan.position_m[:, 1]
        back = (T_IDXS > 4.0) & (np.abs(plan.orientation_rad[:, 2]) < 0.5)
        left, right = (np.interp(x[back], X_IDXS, line[:, 0]) for line in truth.lane_lines[1:3])
        aside = y[back] - 0.5 * (left + right)
        assert np.abs(aside[~np.isnan(aside) & (x[back] < 150.0)]).max(initial=0.0) < 0.25

"""What is true of a moment, by hand: lines, leads, desires; and the cars that drive around."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from modeld.constants import ENGAGED, META_LAYOUTS, T_IDXS, X_IDXS
from modeld.vehicle.desire import Desire
from tests.support.selection import quick_cases
from tests.tools.world.roads import (
    body_on,
    car,
    changing_road,
    lanes_of,
    straight,
    uniform_road,
    world_of,
)
from tools.simulator.world import traffic
from tools.simulator.world.car import FRONT_M, Body
from tools.simulator.world.expert import LEFT, RIGHT, Expert
from tools.simulator.world.traffic import ScriptedLead, Traffic, Vehicle
from tools.simulator.world.truth import CAMERA_HEIGHT_M, Truth, truth_of
from tools.simulator.world.world import Lanes, Marking, MarkingKind, World, random_world


def truth_on(world: World, body: Body, *vehicles: Vehicle, **options: float) -> Truth:
    lane = world.lanes.lane_at(body.offset_m)
    plan = Expert(world, lane, 20.0).plan(body, vehicles)
    return truth_of(world, body, vehicles, plan, **options)  # type: ignore[arg-type]  # height_m


def test_lines_of_a_straight_are_straight_and_below_the_camera() -> None:
    world = straight(2)
    truth = truth_on(world, body_on(world, 100.0, -1.75 + 0.4, 20.0))
    for line, y in zip(truth.lane_lines, [np.nan, -2.15, 1.35, 4.85], strict=True):
        assert_allclose(line[:, 0], y, atol=1e-9)
        assert_allclose(line[:, 1], np.nan if np.isnan(y) else CAMERA_HEIGHT_M)
    assert_allclose(truth.road_edges[0, :, 0], -4.0 + 1.35)
    assert_allclose(truth.road_edges[1, :, 0], 4.0 + 1.35)
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
        assert_allclose(line[:, 0], y, atol=5e-3)
    assert truth.pose.tolist() == pytest.approx([15.0, 0.0, 0.0, 0.0, 0.0, 0.06], abs=1e-6)
    assert truth.plan[0, 14] == pytest.approx(0.06)


def test_lines_end_where_the_road_turns_back() -> None:
    # Half a circle of radius 60 m reaches 60 m ahead and no further.
    world = world_of(uniform_road(curvature_1pm=1.0 / 60.0), lanes_of(1))
    lines = truth_on(world, body_on(world, 100.0, 0.0, 9.0)).lane_lines
    known = ~np.isnan(lines[1, :, 0])
    assert_array_equal(known, X_IDXS < 61.75)
    assert np.isnan(lines[1, ~known]).all()


def test_hills_and_banks_ahead_lift_and_tilt_the_lines() -> None:
    world = world_of(changing_road(grade=lambda s: 0.05 * (s > 100.0)), lanes_of(1))
    line = truth_on(world, body_on(world, 50.0, 0.0, 20.0)).lane_lines[1]
    climb = np.maximum(X_IDXS - 50.0, 0.0) * np.tan(0.05)
    assert_allclose(line[:, 1], CAMERA_HEIGHT_M - climb, atol=0.03)
    # Level below the car, then the right side hangs by 0.05 rad: the left line lies higher.
    road = changing_road(bank=lambda s: np.clip((s - 80.0) / 30.0, 0.0, 1.0) * 0.05)
    world = world_of(road, lanes_of(1))
    lines = truth_on(world, body_on(world, 50.0, 0.0, 20.0)).lane_lines
    far, fall = X_IDXS > 62.0, 1.75 * np.sin(0.05)
    assert_allclose(lines[1, far, 1], CAMERA_HEIGHT_M - fall, atol=1e-6)
    assert_allclose(lines[2, far, 1], CAMERA_HEIGHT_M + fall, atol=1e-6)
    assert_allclose(lines[2, X_IDXS < 29.0, 1], CAMERA_HEIGHT_M, atol=1e-6)


def test_uniform_slope_is_level_for_its_lines() -> None:
    world = world_of(uniform_road(0.0, 0.05, 0.04), lanes_of(3))
    truth = truth_on(world, body_on(world, 50.0, 0.0, 20.0), height_m=1.5)
    assert_allclose(truth.lane_lines[..., 1], 1.5, atol=1e-9)
    assert_allclose(truth.lane_lines[..., 0], [[y] * 33 for y in (-5.25, -1.75, 1.75, 5.25)])


@pytest.mark.parametrize(
    ("kind", "wear", "expected"),
    [
        (MarkingKind.DASHED, 0.0, 1.0),
        (MarkingKind.NONE, 0.0, 0.0),
        (MarkingKind.SOLID, 0.95, 0.0),
        (MarkingKind.SOLID, 0.8, 1.0),
    ],
)
def test_line_is_there_if_its_paint_can_be_seen(
    kind: MarkingKind, wear: float, expected: float
) -> None:
    lines = (Marking(-1.75, kind, wear=wear), Marking(1.75, MarkingKind.SOLID))
    world = world_of(uniform_road(), Lanes(3.5, 1, lines, -2.0, 2.0))
    truth = truth_on(world, body_on(world, 100.0, 0.0, 20.0))
    assert truth.lane_lines_prob.tolist() == [0.0, expected, 1.0, 0.0]
    # Where the lane ends is known without paint.
    assert truth.lane_lines[1, 0, 0] == pytest.approx(-1.75)


def test_lead_is_told_with_what_it_will_do() -> None:
    world = straight(2)
    body, braking = body_on(world, 100.0, -1.75, 20.0), car(150.0, -1.55, 12.0, 3.0)
    truth = truth_on(world, body, car(120.0, 1.75, 20.0), braking, car(190.0, -1.75, 20.0))
    assert truth.lead_prob.tolist() == [1.0, 1.0, 1.0]
    for lead in truth.lead:
        # It stands after 4 s and 24 m.
        assert_allclose(lead[:, 0], [50.0, 68.0, 74.0, 74.0, 74.0, 74.0])
        assert_allclose(lead[:, 1], 0.2)
        assert_allclose(lead[:, 2], [12.0, 6.0, 0.0, 0.0, 0.0, 0.0])
        assert_allclose(lead[:, 3], [-3.0, -3.0, 0.0, 0.0, 0.0, 0.0])
    # Nobody leads from beside, behind or far away.
    others = (car(120.0, 1.75, 9.0), car(90.0, -1.75, 9.0), car(240.0, -1.75, 9.0))
    truth = truth_on(world, body, *others)
    assert truth.lead_prob.tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(truth.lead).all()


def test_car_of_the_next_lane_leads_when_we_are_there() -> None:
    world = straight(2)
    body, vehicles = body_on(world, 100.0, -1.75, 20.0), (car(140, -1.75, 20), car(160, 1.75, 20))
    expert = Expert(world, 0, 20.0)
    expert.change_lane(RIGHT)
    truth = truth_of(world, body, vehicles, expert.plan(body, vehicles))
    assert truth.lead[:, 0, 0].tolist() == pytest.approx([40.0, 40.0, 60.0])


def test_desires_tell_a_lane_change_and_its_end() -> None:
    world = straight(2)
    body, expert = body_on(world, 100.0, 1.75, 20.0), Expert(world, 1, 20.0)
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
    world = straight(1)
    body, layout = body_on(world, 100.0, 0.0, 20.0), META_LAYOUTS[55]
    assert layout.brake_press is not None
    calm = truth_on(world, body).meta
    assert calm[ENGAGED] == calm.sum() == 1.0
    hard = truth_on(world, body, car(100.0 + FRONT_M + 32.0, 0.0)).meta
    assert hard[layout.hard_brake_3].tolist() == [1.0] * 5
    assert hard[layout.brake_press][1] == 1.0
    assert hard[layout.gas_disengage].sum() == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_truth_of_any_moment_is_whole(seed: int) -> None:
    world, rng = random_world(seed, 1200.0), np.random.default_rng(seed)
    lane = int(rng.integers(world.lanes.count))
    for s in (0.0, 500.0, 1200.0):
        offset = world.lanes.centre_m(lane) + rng.uniform(-1.0, 1.0)
        body = body_on(world, s, offset, 15.0, rng.uniform(-0.06, 0.06))
        vehicles = Traffic(world, seed, body, density=0.7).vehicles
        plan = Expert(world, lane, world.speed_limit_mps).plan(body, vehicles)
        truth = truth_of(world, body, vehicles, plan)
        assert np.isfinite(truth.plan).all()
        assert np.isfinite(truth.lane_lines[1:3, :12]).all()
        # The lines lie to both sides of the car, on the road.
        ahead = X_IDXS < 5.0
        assert (truth.lane_lines[1, ahead, 0] < 0.7).all()
        assert (truth.lane_lines[2, ahead, 0] > -0.7).all()
        assert_allclose(truth.lane_lines[1:3, 0, 1], CAMERA_HEIGHT_M, atol=0.02)
        # The car drives between its lines where the way back to the lane's centre has ended.
        x, y = plan.position_m[:, 0], plan.position_m[:, 1]
        back = (T_IDXS > 4.0) & (np.abs(plan.orientation_rad[:, 2]) < 0.5)
        left, right = (np.interp(x[back], X_IDXS, line[:, 0]) for line in truth.lane_lines[1:3])
        aside = y[back] - 0.5 * (left + right)
        assert np.abs(aside[~np.isnan(aside) & (x[back] < 150.0)]).max(initial=0.0) < 0.25


def step(cars: Traffic, world: World, body: Body) -> Body:
    """Move all cars by 50 ms and return where ours is then."""
    body = body_on(world, body.s_m + body.speed_mps * 0.05, body.offset_m, body.speed_mps)
    cars.step(0.05, body)
    return body


@pytest.mark.parametrize("seed", quick_cases(range(6), 0, 3))
def test_cars_keep_their_lanes_and_their_distance(seed: int) -> None:
    world = random_world(seed, 3000.0)
    lanes = world.lanes
    body = body_on(world, 150.0, lanes.centre_m(lanes.count - 1), 0.7 * world.speed_limit_mps)
    cars = Traffic(world, seed, body, density=1.0)
    for _ in range(1200):
        body = step(cars, world, body)
        rows = sorted((lanes.lane_at(v.offset_m), v.s_m, v.length_m) for v in cars.vehicles)
        for (lane, rear, length), (next_lane, next_rear, _) in pairwise(rows):
            assert lane != next_lane or rear + length < next_rear
        assert all(v.speed_mps >= 0.0 for v in cars.vehicles)
    for vehicle in cars.vehicles:
        centre = lanes.centre_m(lanes.lane_at(vehicle.offset_m))
        assert abs(vehicle.offset_m - centre) <= 0.35
        assert -traffic.BEHIND_M - 5.0 < vehicle.s_m - body.s_m < traffic.AHEAD_M + 25.0


def test_some_cars_brake_to_a_stop_and_go_again() -> None:
    world = straight(2, 4000.0)
    body = body_on(world, 0.0, world.lanes.centre_m(0), 10.0)
    cars = Traffic(world, 2, body, density=1.0)
    stood, went = set(), set()
    for _ in range(2400):
        body = step(cars, world, body)
        stood |= {v.paint for v in cars.vehicles if v.speed_mps < 0.1}
        went |= {v.paint for v in cars.vehicles if v.paint in stood and v.speed_mps > 3.0}
    assert went


def test_nobody_runs_into_an_ego_car_that_stands() -> None:
    world = straight(1, 1000.0)
    body = body_on(world, 200.0, 0.0, 0.0)
    cars = Traffic(world, 1, body, density=1.0)
    assert any(v.s_m < body.s_m for v in cars.vehicles)
    for _ in range(600):
        cars.step(0.05, body)
    for vehicle in cars.vehicles:
        assert vehicle.s_m > body.s_m or vehicle.s_m + vehicle.length_m < body.s_m - 0.9


def test_scripted_lead_drives_as_told() -> None:
    world = straight(2)
    body = body_on(world, 0.0, world.lanes.centre_m(1), 20.0)
    lead = ScriptedLead(30.0, ((0.0, 20.0), (1.0, 20.0), (5.0, 0.0), (8.0, 0.0), (10.0, 4.0)))
    cars = Traffic(world, 1, body, density=0.0, lead=lead)
    (first,) = cars.vehicles
    assert (first.s_m, first.offset_m, first.speed_mps) == pytest.approx((33.7, 1.75, 20.0))
    for _ in range(60):
        cars.step(0.05, body)
    (then,) = cars.vehicles
    # 20 m in the first second, then 2 s of braking from 20 to 10 m/s: 30 m.
    assert (then.s_m, then.speed_mps) == pytest.approx((83.7, 10.0))
    assert then.acceleration_mps2 == pytest.approx(-5.0)
    for _ in range(200):
        cars.step(0.05, body)
    assert (cars.vehicles[0].speed_mps, cars.vehicles[0].acceleration_mps2) == (4.0, 0.0)


def test_braking_car_is_expected_to_stop_and_an_accelerating_one_to_settle() -> None:
    times = np.array([0.0, 2.0, 4.0, 10.0])
    s, speed, acceleration = traffic.foresee(car(100.0, 0.0, 12.0, 3.0), times)
    # 12 m/s at 3 m/s^2: it stands after 4 s and 24 m.
    assert s.tolist() == pytest.approx([100.0, 118.0, 124.0, 124.0])
    assert speed.tolist() == pytest.approx([12.0, 6.0, 0.0, 0.0])
    assert acceleration.tolist() == [-3.0, -3.0, 0.0, 0.0]
    s, speed, _ = traffic.foresee(car(0.0, 0.0, 10.0, -1.0), times)
    assert speed.tolist() == pytest.approx([10.0, 12.0, 13.0, 13.0])
    assert s[-1] == pytest.approx(34.5 + 7.0 * 13.0)

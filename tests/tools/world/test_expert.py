from __future__ import annotations

import math

import numpy as np
import pytest

from modeld.actions import at
from modeld.constants import T_IDXS, X_IDXS
from tests.tools.world.roads import (
    IdealCar,
    body_on,
    drive,
    lanes_of,
    uniform_road,
    world_of,
)
from tools.world.body import FRONT_M, Body
from tools.world.expert import LEFT, RIGHT, Command, Expert, command
from tools.world.road import GRID_M, integrated
from tools.world.speed import ACCELERATION_MPS2, HARDEST_BRAKING_MPS2, LATERAL_MPS2
from tools.world.traffic import ScriptedLead, Traffic, Vehicle
from tools.world.world import World, random_world

DELAY_S = 0.1


def parked(s_m: float, offset_m: float = 0.0) -> Vehicle:
    return Vehicle(s_m, offset_m, 0.0, 0.0, 1.8, 1.5, 4.5, 0)


def test_plan_along_a_straight_is_time_times_speed() -> None:
    world = world_of(uniform_road(), lanes_of(1))
    plan = Expert(world, 0, 20.0).plan(body_on(world, 0.0, 0.0, 20.0), ())
    expected = np.zeros((33, 15))
    expected[:, 0], expected[:, 3] = 20.0 * T_IDXS, 20.0
    np.testing.assert_allclose(plan.array(), expected, atol=1e-4)


def test_plan_around_a_circle_is_the_circle() -> None:
    world = world_of(uniform_road(curvature_1pm=0.005), lanes_of(1))
    plan = Expert(world, 0, 15.0).plan(body_on(world, 50.0, 0.0, 15.0), ())
    angle = 15.0 * T_IDXS / 200.0
    rows = plan.array()
    np.testing.assert_allclose(rows[:, 0], 200.0 * np.sin(angle), atol=2e-3)
    np.testing.assert_allclose(rows[:, 1], 200.0 * (1.0 - np.cos(angle)), atol=2e-3)
    np.testing.assert_allclose(rows[:, 3], 15.0 * np.cos(angle), atol=1e-4)
    np.testing.assert_allclose(rows[:, 4], 15.0 * np.sin(angle), atol=1e-4)
    np.testing.assert_allclose(rows[:, 6], -1.125 * np.sin(angle), atol=1e-4)
    np.testing.assert_allclose(rows[:, 7], 1.125 * np.cos(angle), atol=1e-4)
    np.testing.assert_allclose(rows[:, 11], angle, atol=1e-5)
    np.testing.assert_allclose(rows[:, 14], 0.075, atol=1e-6)
    found = command(plan, 0.3)
    assert found.curvature_1pm == pytest.approx(0.005, abs=1e-5)
    # The forward speed of the frame of now falls as the car turns: -v yaw_rate^2 t.
    assert found.acceleration_mps2 == pytest.approx(-15.0 * 0.075**2 * 0.3, abs=1e-3)


def test_plan_in_the_right_lane_of_a_circle_has_the_smaller_radius() -> None:
    world = world_of(uniform_road(curvature_1pm=0.005), lanes_of(2, 4.0))
    plan = Expert(world, 1, 15.0).plan(body_on(world, 50.0, 2.0, 15.0), ())
    assert command(plan, 0.3).curvature_1pm == pytest.approx(1.0 / 198.0, abs=1e-6)
    assert plan.orientation_rad[-1, 2] == pytest.approx(150.0 / 198.0, abs=1e-4)


def test_uniform_slope_is_flat_in_the_plan() -> None:
    world = world_of(uniform_road(0.0, 0.05, 0.04), lanes_of(1))
    rows = Expert(world, 0, 20.0).plan(body_on(world, 0.0, 0.0, 20.0), ()).array()
    np.testing.assert_allclose(rows[:, 0], 20.0 * T_IDXS, atol=1e-4)
    np.testing.assert_allclose(rows[:, 1:3], 0.0, atol=1e-4)
    np.testing.assert_allclose(rows[:, 9:15], 0.0, atol=1e-6)


def test_hill_of_known_grade_rises_out_of_the_plan() -> None:
    # Level for 100 m, then up by 0.05 rad: at 20 m/s the last 100 of 200 m climb.
    length = round(500.0 / GRID_M)
    flat = np.zeros(length)
    grade = np.where(np.arange(length) * GRID_M - 60.0 > 100.0, 0.05, 0.0)
    world = world_of(integrated(flat, grade, flat), lanes_of(1))
    plan = Expert(world, 0, 20.0).plan(body_on(world, 0.0, 0.0, 20.0), ())
    x, _, z = plan.position_m[-1]
    assert (x, z) == pytest.approx(
        (100.0 + 100.0 * math.cos(0.05), -100.0 * math.sin(0.05)), abs=0.02
    )
    assert plan.orientation_rad[-1].tolist() == pytest.approx([0.0, 0.05, 0.0], abs=1e-9)
    assert plan.velocity_mps[-1, 2] == pytest.approx(-20.0 * math.sin(0.05))


@pytest.mark.parametrize("seed", range(10))
def test_plan_agrees_with_itself_on_any_road(seed: int) -> None:
    """Velocity is the change of position, acceleration that of velocity, rates those of angles."""
    world = random_world(seed, 1500.0)
    rng = np.random.default_rng(seed)
    lane = world.lanes.count - 1
    speed = 0.8 * world.speed_limit_mps
    expert = Expert(world, lane, speed)
    for s in (40.0, 400.0, 900.0):
        offset = world.lanes.centre_m(lane) + rng.uniform(-1.5, 1.5)
        plan = expert.plan(body_on(world, s, offset, speed, rng.uniform(-0.08, 0.08)), ())
        assert np.abs(plan.position_m[0]).max() < 1e-6
        assert np.abs(plan.orientation_rad[0]).max() < 1e-6
        assert plan.velocity_mps[0].tolist() == pytest.approx([speed, 0.0, 0.0], abs=1e-6)
        steps = np.diff(T_IDXS)[:, None]
        for values, rates, near, far in (
            (plan.position_m, plan.velocity_mps, 0.05, 0.15),
            (plan.velocity_mps, plan.acceleration_mps2, 0.1, 0.6),
            (plan.orientation_rad, plan.rate_radps, 4e-3, 0.03),
        ):
            # The rule of trapezes is exact for short steps only.
            middle = 0.5 * (rates[:-1] + rates[1:])
            wrong = np.abs(np.diff(values, axis=0) / steps - middle)
            assert wrong[1:11].max() < near
            assert wrong.max() < far


def test_plan_does_not_depend_on_how_often_the_heading_went_round() -> None:
    world = world_of(uniform_road(curvature_1pm=0.005), lanes_of(1))
    plans = [
        Expert(world, 0, 15.0)
        .plan(body_on(world, 50.0, 0.3, 15.0, turns * 2.0 * math.pi), ())
        .array()
        for turns in (0, 1, -2)
    ]
    np.testing.assert_allclose(plans[1], plans[0], atol=1e-5)
    np.testing.assert_allclose(plans[2], plans[0], atol=1e-5)


def test_car_off_the_road_still_gets_a_plan() -> None:
    world = random_world(3, 500.0)
    for offset, angle in ((60.0, 1.5), (-40.0, -3.0), (5.0, 3.1)):
        plan = Expert(world, 0, 15.0).plan(body_on(world, 100.0, offset, 10.0, angle), ())
        assert np.isfinite(plan.array()).all()


@pytest.mark.parametrize("speed", [10.0, 15.0, 20.0, 25.0])
@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize("turned", [-1.0, 1.0])
def test_expert_is_back_after_50_m(speed: float, side: float, turned: float) -> None:
    seed = {10.0: 3, 15.0: 0, 20.0: 1, 25.0: 5}[speed]
    world = random_world(seed, 800.0)
    centre = world.lanes.centre_m(0)
    car = IdealCar(world, body_on(world, 30.0, centre + side, speed, turned * math.radians(3.0)))
    expert = Expert(world, 0, speed)
    driven = drive(car, 75.0 / speed, lambda body, _: command(expert.plan(body, ()), DELAY_S))
    after = np.interp(80.0, driven.s_m, driven.offset_m) - centre
    assert abs(after) < 0.3


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_expert_returns_from_two_metres_and_six_degrees(side: float) -> None:
    world = world_of(uniform_road(length_m=1000.0), lanes_of(3))
    car = IdealCar(world, body_on(world, 0.0, 2.0 * side, 20.0, math.radians(6.0) * side))
    expert = Expert(world, 1, 20.0)
    driven = drive(car, 8.0, lambda body, _: command(expert.plan(body, ()), DELAY_S))
    assert abs(driven.offset_m[-1]) < 0.03
    assert np.abs(driven.offset_m).max() < 3.6
    # No swinging about the lane's centre.
    assert (driven.offset_m * side).min() > -0.25


@pytest.mark.parametrize("seed", range(4))
def test_expert_holds_its_lane_and_slows_before_curves(seed: int) -> None:
    world = random_world(seed, 900.0)
    lane = seed % world.lanes.count
    centre, limit = world.lanes.centre_m(lane), world.speed_limit_mps
    car = IdealCar(world, body_on(world, 0.0, centre, limit))
    expert = Expert(world, lane, limit)
    driven = drive(car, 30.0, lambda body, _: command(expert.plan(body, ()), DELAY_S))
    assert np.abs(driven.offset_m - centre).mean() < 0.1
    assert np.abs(driven.offset_m - centre).max() < 0.25
    assert np.abs(driven.lateral_mps2).max() < 2.2
    assert driven.acceleration_mps2.min() > -2.0


def test_expert_brakes_before_the_curve_not_in_it() -> None:
    # Straight for 300 m, then a radius of 60 m: 2 m/s^2 allow 10.7 m/s.
    s = np.arange(-60.0, 500.0, GRID_M)
    bend = np.clip((s - 300.0) / 30.0, 0.0, 1.0) / 60.0
    world = world_of(integrated(bend, 0 * s, 0 * s), lanes_of(1))
    car = IdealCar(world, body_on(world, 0.0, 0.0, 25.0))
    expert = Expert(world, 0, 25.0)
    driven = drive(car, 25.0, lambda body, _: command(expert.plan(body, ()), DELAY_S))
    at_entry = np.interp(330.0, driven.s_m, driven.speed_mps)
    assert at_entry == pytest.approx(math.sqrt(LATERAL_MPS2 * 60.0), rel=0.05)
    assert driven.speed_mps[np.searchsorted(driven.s_m, 80.0)] > 24.0
    assert np.abs(driven.lateral_mps2).max() < 2.2
    assert driven.acceleration_mps2.min() > -2.0


@pytest.mark.parametrize("seed", range(6))
def test_expert_stops_behind_a_lead_that_stops_and_goes_on_with_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(seed, 1500.0)
    speed = min(float(rng.uniform(10.0, 30.0)), world.speed_limit_mps)
    centre, stops = world.lanes.centre_m(0), 2.0 + speed / float(rng.uniform(1.5, 6.0))
    script = ((0.0, speed), (2.0, speed), (stops, 0.0), (stops + 12.0, 0.0), (stops + 22.0, speed))
    car = IdealCar(world, body_on(world, 0.0, centre, speed))
    traffic = Traffic(
        world, seed, car.body, density=0.0, lead=ScriptedLead(5.0 + 1.3 * speed, script)
    )
    expert = Expert(world, 0, speed)
    gaps = []

    def commands(body: Body, time_s: float) -> Command:
        gaps.append(traffic.vehicles[0].s_m - body.s_m - FRONT_M)
        plan = expert.plan(body, traffic.vehicles, time_s)
        traffic.step(0.05, body)
        return command(plan, DELAY_S)

    driven = drive(car, stops + 25.0, commands)
    assert min(gaps) > 2.5
    assert driven.speed_mps.min() < 0.1
    assert driven.speed_mps[-1] > 0.3 * speed
    assert driven.acceleration_mps2.min() > -7.0


def test_plan_that_stands_tells_so() -> None:
    world = world_of(uniform_road(), lanes_of(1))
    vehicles = (parked(50.0 + FRONT_M + 4.0),)
    plan = Expert(world, 0, 20.0).plan(body_on(world, 50.0, 0.0, 0.0), vehicles)
    np.testing.assert_allclose(plan.array()[:, :9], 0.0, atol=1e-6)


def test_parked_car_beside_the_lane_does_not_stop_anyone() -> None:
    world = world_of(uniform_road(), lanes_of(2))
    body = body_on(world, 50.0, world.lanes.centre_m(0), 15.0)
    beside = (parked(90.0, world.lanes.centre_m(1)), parked(40.0, world.lanes.centre_m(0)))
    plan = Expert(world, 0, 15.0).plan(body, beside)
    assert plan.velocity_mps[-1, 0] == pytest.approx(15.0)
    in_way = Expert(world, 0, 15.0).plan(body, (parked(90.0, world.lanes.centre_m(0)),))
    assert in_way.velocity_mps[-1, 0] < 1.0


def test_lane_change_takes_its_time_and_ends_in_the_middle() -> None:
    world = world_of(uniform_road(length_m=1000.0), lanes_of(2))
    left, right = (world.lanes.centre_m(lane) for lane in (0, 1))
    car = IdealCar(world, body_on(world, 0.0, left, 20.0))
    expert = Expert(world, 0, 20.0)
    assert not expert.change_lane(LEFT)
    assert expert.change_lane(RIGHT, 2.0)
    seen = []

    def commands(body: Body, time_s: float) -> Command:
        plan = expert.plan(body, (), time_s)
        seen.append((time_s, plan.side, plan.changes_until_s))
        return command(plan, DELAY_S)

    driven = drive(car, 10.0, commands)
    during = [time_s for time_s, side, _ in seen if side == RIGHT]
    assert (during[0], during[-1]) == pytest.approx((2.0, 7.0), abs=0.11)
    assert seen[40][2] == pytest.approx(5.0, abs=0.05)
    assert seen[100][2] == pytest.approx(2.0, abs=0.05)
    assert driven.offset_m[40] == pytest.approx(left, abs=1e-6)
    assert driven.offset_m[90] == pytest.approx(0.0, abs=0.15)
    assert driven.offset_m[-1] == pytest.approx(right, abs=0.02)
    assert expert.lane == 1
    assert np.abs(driven.lateral_mps2).max() < 1.2


def test_command_is_what_the_daemon_derives() -> None:
    world = random_world(7, 900.0)
    lane = world.lanes.count - 1
    plan = Expert(world, lane, 20.0).plan(
        body_on(world, 200.0, world.lanes.centre_m(lane) + 0.8, 16.0, 0.03), ()
    )
    rows = plan.array()
    found = command(plan, 0.4)
    heading = at(0.4, rows[:, 11].tolist())
    expected = 2.0 * heading / (16.0 * 0.4) - rows[0, 14] / 16.0
    assert found.curvature_1pm == pytest.approx(expected, rel=1e-6)
    gained = at(0.4, rows[:, 3].tolist()) - rows[0, 3]
    assert found.acceleration_mps2 == pytest.approx(2.0 * gained / 0.4 - rows[0, 6], rel=1e-5)


def test_wanted_acceleration_is_that_of_the_curve_ahead() -> None:
    """A radius of 200 m is driven with 19.49 m/s, 1.2 m/s too much are put right in 1.2 s."""
    world = world_of(uniform_road(curvature_1pm=0.005), lanes_of(1))
    body = body_on(world, 50.0, 0.0, math.sqrt(LATERAL_MPS2 * 200.0) + 1.2)
    expert = Expert(world, 0, 30.0)
    assert expert.wanted_mps2(body, ()) == pytest.approx(-1.0, abs=1e-3)
    assert expert.plan(body, ()).for_curves_mps2 == pytest.approx(-1.0, abs=1e-3)


def test_curves_allow_more_than_the_cruising_speed() -> None:
    world = world_of(uniform_road(), lanes_of(1))
    expert, body = Expert(world, 0, 20.0), body_on(world, 50.0, 0.0, 21.2)
    assert expert.wanted_mps2(body, ()) == pytest.approx(-1.0, abs=1e-3)
    assert expert.plan(body, ()).for_curves_mps2 == ACCELERATION_MPS2


def test_wanted_acceleration_is_the_least_of_road_and_car_ahead() -> None:
    world = world_of(uniform_road(), lanes_of(1))
    body = body_on(world, 50.0, 0.0, 20.0)
    ahead = (parked(body.s_m + FRONT_M + 40.0),)
    assert Expert(world, 0, 20.0).wanted_mps2(body, ahead) == -HARDEST_BRAKING_MPS2


def test_new_lane_of_a_curve_has_its_own_speed() -> None:
    world = world_of(uniform_road(curvature_1pm=0.005), lanes_of(2, 4.0))
    expert = Expert(world, 0, 30.0)
    body = body_on(world, 50.0, world.lanes.centre_m(0), 20.0)
    left = expert.plan(body, ()).for_curves_mps2
    assert expert.change_lane(RIGHT)
    # The radius of the right lane is 4 m shorter: 1 % less speed in the lane, 1.2 s of it.
    right = expert.plan(body, ()).for_curves_mps2
    less = math.sqrt(LATERAL_MPS2 * 202.0) - math.sqrt(LATERAL_MPS2 * 198.0)
    assert left - right == pytest.approx(less / 1.2, rel=1e-2)


def test_plan_reaches_far_enough_for_the_lines() -> None:
    world = World(0, random_world(1, 400.0).road, lanes_of(1), random_world(1, 400.0).scenery, 20.0)
    assert world.road.end_m - 400.0 > X_IDXS[-1]

"""The expert: plans of known roads by hand, how it drives, and how cars choose their speed."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from modeld.constants import T_IDXS
from modeld.outputs.verdict import at
from tests.support.selection import quick_cases
from tests.tools.world.roads import (
    Driven,
    body_on,
    car,
    changing_road,
    drive,
    lanes_of,
    straight,
    uniform_road,
    world_of,
)
from tools.simulator.world import speed
from tools.simulator.world.car import FRONT_M, Body
from tools.simulator.world.expert import LEFT, RIGHT, Command, Expert, command
from tools.simulator.world.speed import (
    CAREFUL,
    LATERAL_MPS2,
    QUICK,
    following_acceleration,
    plan_speeds,
)
from tools.simulator.world.traffic import ScriptedLead, Traffic
from tools.simulator.world.world import World, random_world

DELAY_S = 0.1


def follow(expert: Expert, world: World, body: Body, seconds: float) -> Driven:
    """Let the expert drive on an empty road."""
    return drive(world, body, seconds, lambda now, _: command(expert.plan(now, ()), DELAY_S))


def circle(lanes: int = 1) -> World:
    """Return a road of 200 m of radius, its lanes 3.5 m wide, or 4 m if there are two."""
    return world_of(uniform_road(curvature_1pm=0.005), lanes_of(lanes, 3.0 + 0.5 * lanes))


@pytest.mark.parametrize("slope", [(0.0, 0.0), (0.05, 0.04)])
def test_plan_along_a_straight_is_time_times_speed(slope: tuple[float, float]) -> None:
    world = world_of(uniform_road(0.0, *slope), lanes_of(1))
    plan = Expert(world, 0, 20.0).plan(body_on(world, 0.0, 0.0, 20.0), ())
    expected = np.zeros((33, 15))
    expected[:, 0], expected[:, 3] = 20.0 * T_IDXS, 20.0
    assert_allclose(plan.array(), expected, atol=1e-4)
    # A uniform slope is flat.
    assert_allclose(plan.array()[:, 9:15], 0.0, atol=1e-6)


def test_plan_around_a_circle_is_the_circle() -> None:
    plan = Expert(circle(), 0, 15.0).plan(body_on(circle(), 50.0, 0.0, 15.0), ())
    angle, rows = 15.0 * T_IDXS / 200.0, plan.array()
    sine, cosine = np.sin(angle), np.cos(angle)
    for column, wanted, atol in (
        (0, 200.0 * sine, 2e-3),
        (1, 200.0 * (1.0 - cosine), 2e-3),
        (3, 15.0 * cosine, 1e-4),
        (4, 15.0 * sine, 1e-4),
        (6, -1.125 * sine, 1e-4),
        (7, 1.125 * cosine, 1e-4),
        (11, angle, 1e-5),
        (14, np.full(33, 0.075), 1e-6),
    ):
        assert_allclose(rows[:, column], wanted, atol=atol, err_msg=str(column))
    found = command(plan, 0.3)
    assert found.curvature_1pm == pytest.approx(0.005, abs=1e-5)
    # The forward speed of the frame of now falls as the car turns: -v yaw_rate^2 t.
    assert found.acceleration_mps2 == pytest.approx(-15.0 * 0.075**2 * 0.3, abs=1e-3)
    # In the right lane the radius is smaller.
    plan = Expert(circle(2), 1, 15.0).plan(body_on(circle(2), 50.0, 2.0, 15.0), ())
    assert command(plan, 0.3).curvature_1pm == pytest.approx(1.0 / 198.0, abs=1e-6)
    assert plan.orientation_rad[-1, 2] == pytest.approx(150.0 / 198.0, abs=1e-4)


def test_hill_of_known_grade_rises_out_of_the_plan() -> None:
    # Level for 100 m, then up by 0.05 rad: at 20 m/s the last 100 of 200 m climb.
    world = world_of(changing_road(grade=lambda s: 0.05 * (s > 100.0)), lanes_of(1))
    plan = Expert(world, 0, 20.0).plan(body_on(world, 0.0, 0.0, 20.0), ())
    x, _, z = plan.position_m[-1]
    climbed = (100.0 + 100.0 * math.cos(0.05), -100.0 * math.sin(0.05))
    assert (x, z) == pytest.approx(climbed, abs=0.02)
    assert plan.orientation_rad[-1].tolist() == pytest.approx([0.0, 0.05, 0.0], abs=1e-9)
    assert plan.velocity_mps[-1, 2] == pytest.approx(-20.0 * math.sin(0.05))


@pytest.mark.parametrize("seed", range(10))
def test_plan_agrees_with_itself_on_any_road(seed: int) -> None:
    """Velocity is the change of position, acceleration that of velocity, rates those of angles."""
    world, rng = random_world(seed, 1500.0), np.random.default_rng(seed)
    lane, mps = world.lanes.count - 1, 0.8 * world.speed_limit_mps
    expert = Expert(world, lane, mps)
    for s in (40.0, 400.0, 900.0):
        offset = world.lanes.centre_m(lane) + rng.uniform(-1.5, 1.5)
        plan = expert.plan(body_on(world, s, offset, mps, rng.uniform(-0.08, 0.08)), ())
        assert np.abs(plan.position_m[0]).max() < 1e-6
        assert np.abs(plan.orientation_rad[0]).max() < 1e-6
        assert plan.velocity_mps[0].tolist() == pytest.approx([mps, 0.0, 0.0], abs=1e-6)
        steps = np.diff(T_IDXS)[:, None]
        for values, rates, near, far in (
            (plan.position_m, plan.velocity_mps, 0.05, 0.15),
            (plan.velocity_mps, plan.acceleration_mps2, 0.1, 0.6),
            (plan.orientation_rad, plan.rate_radps, 4e-3, 0.03),
        ):
            # The rule of trapezes is exact for short steps only.
            wrong = np.abs(np.diff(values, axis=0) / steps - 0.5 * (rates[:-1] + rates[1:]))
            assert wrong[1:11].max() < near
            assert wrong.max() < far


def test_plan_does_not_depend_on_how_often_the_heading_went_round() -> None:
    world = circle()
    plans = [
        Expert(world, 0, 15.0).plan(body_on(world, 50.0, 0.3, 15.0, turns * 2.0 * math.pi), ())
        for turns in (0, 1, -2)
    ]
    assert_allclose(plans[1].array(), plans[0].array(), atol=1e-5)
    assert_allclose(plans[2].array(), plans[0].array(), atol=1e-5)


@pytest.mark.parametrize(("offset", "angle"), [(60.0, 1.5), (-40.0, -3.0), (5.0, 3.1)])
def test_car_off_the_road_still_gets_a_plan(offset: float, angle: float) -> None:
    world = random_world(3, 500.0)
    plan = Expert(world, 0, 15.0).plan(body_on(world, 100.0, offset, 10.0, angle), ())
    assert np.isfinite(plan.array()).all()


# Speed in m/s, and the seed of a world.
DRIVES = [(10.0, 3), (15.0, 0), (20.0, 1), (25.0, 5)]


@pytest.mark.parametrize("drive", quick_cases(DRIVES, (15.0, 0), (25.0, 5)))
@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize("turned", [-1.0, 1.0])
def test_expert_is_back_after_50_m(drive: tuple[float, int], side: float, turned: float) -> None:
    mps, seed = drive
    world = random_world(seed, 800.0)
    centre = world.lanes.centre_m(0)
    body = body_on(world, 30.0, centre + side, mps, turned * math.radians(3.0))
    driven = follow(Expert(world, 0, mps), world, body, 75.0 / mps)
    assert abs(np.interp(80.0, driven.s_m, driven.offset_m) - centre) < 0.3


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_expert_returns_from_two_metres_and_six_degrees(side: float) -> None:
    world = straight(3, 1000.0)
    body = body_on(world, 0.0, 2.0 * side, 20.0, math.radians(6.0) * side)
    driven = follow(Expert(world, 1, 20.0), world, body, 8.0)
    assert abs(driven.offset_m[-1]) < 0.03
    assert np.abs(driven.offset_m).max() < 3.6
    # No swinging about the lane's centre.
    assert (driven.offset_m * side).min() > -0.25


def test_expert_brakes_before_the_curve_not_in_it() -> None:
    # Straight for 300 m, then a radius of 60 m: 2 m/s^2 allow 10.7 m/s.
    road = changing_road(560.0, curvature=lambda s: np.clip((s - 300.0) / 30.0, 0.0, 1.0) / 60.0)
    world = world_of(road, lanes_of(1))
    driven = follow(Expert(world, 0, 25.0), world, body_on(world, 0.0, 0.0, 25.0), 25.0)
    at_entry = np.interp(330.0, driven.s_m, driven.speed_mps)
    assert at_entry == pytest.approx(math.sqrt(LATERAL_MPS2 * 60.0), rel=0.05)
    assert driven.speed_mps[np.searchsorted(driven.s_m, 80.0)] > 24.0
    assert np.abs(driven.lateral_mps2).max() < 2.2
    assert driven.acceleration_mps2.min() > -2.0


@pytest.mark.parametrize("seed", quick_cases(range(6), 0))
def test_expert_stops_behind_a_lead_that_stops_and_goes_on_with_it(seed: int) -> None:
    rng, world = np.random.default_rng(seed), random_world(seed, 1500.0)
    mps = min(float(rng.uniform(10.0, 30.0)), world.speed_limit_mps)
    stops = 2.0 + mps / float(rng.uniform(1.5, 6.0))
    script = ((0.0, mps), (2.0, mps), (stops, 0.0), (stops + 12.0, 0.0), (stops + 22.0, mps))
    own = body_on(world, 0.0, world.lanes.centre_m(0), mps)
    lead = ScriptedLead(5.0 + 1.3 * mps, script)
    traffic = Traffic(world, seed, own, density=0.0, lead=lead)
    expert, gaps = Expert(world, 0, mps), []

    def commands(body: Body, time_s: float) -> Command:
        gaps.append(traffic.vehicles[0].s_m - body.s_m - FRONT_M)
        plan = expert.plan(body, traffic.vehicles, time_s)
        traffic.step(0.05, body)
        return command(plan, DELAY_S)

    driven = drive(world, own, stops + 25.0, commands)
    assert min(gaps) > 2.5
    assert driven.speed_mps.min() < 0.1
    assert driven.speed_mps[-1] > 0.3 * mps
    assert driven.acceleration_mps2.min() > -7.0


def test_plan_that_stands_tells_so() -> None:
    world = straight()
    body, ahead = body_on(world, 50.0, 0.0, 0.0), (car(50.0 + FRONT_M + 4.0, 0.0),)
    plan = Expert(world, 0, 20.0).plan(body, ahead)
    assert_allclose(plan.array()[:, :9], 0.0, atol=1e-6)


def test_parked_car_beside_the_lane_does_not_stop_anyone() -> None:
    world = straight(2)
    here, other = (world.lanes.centre_m(lane) for lane in (0, 1))
    body, expert = body_on(world, 50.0, here, 15.0), Expert(world, 0, 15.0)
    beside = expert.plan(body, (car(90.0, other), car(40.0, here)))
    assert beside.velocity_mps[-1, 0] == pytest.approx(15.0)
    assert Expert(world, 0, 15.0).plan(body, (car(90.0, here),)).velocity_mps[-1, 0] < 1.0


def test_lane_change_takes_its_time_and_ends_in_the_middle() -> None:
    world = straight(2, 1000.0)
    left, right = (world.lanes.centre_m(lane) for lane in (0, 1))
    expert, seen = Expert(world, 0, 20.0), []
    assert not expert.change_lane(LEFT)
    assert expert.change_lane(RIGHT, 2.0)

    def commands(body: Body, time_s: float) -> Command:
        plan = expert.plan(body, (), time_s)
        seen.append((time_s, plan.side, plan.changes_until_s))
        return command(plan, DELAY_S)

    driven = drive(world, body_on(world, 0.0, left, 20.0), 10.0, commands)
    during = [time_s for time_s, side, _ in seen if side == RIGHT]
    assert (during[0], during[-1]) == pytest.approx((2.0, 7.0), abs=0.11)
    assert (seen[40][2], seen[100][2]) == pytest.approx((5.0, 2.0), abs=0.05)
    assert driven.offset_m[40] == pytest.approx(left, abs=1e-6)
    assert driven.offset_m[90] == pytest.approx(0.0, abs=0.15)
    assert driven.offset_m[-1] == pytest.approx(right, abs=0.02)
    assert expert.lane == 1
    assert np.abs(driven.lateral_mps2).max() < 1.2


def test_command_is_what_the_daemon_derives() -> None:
    world = random_world(7, 900.0)
    lane = world.lanes.count - 1
    body = body_on(world, 200.0, world.lanes.centre_m(lane) + 0.8, 16.0, 0.03)
    plan = Expert(world, lane, 20.0).plan(body, ())
    rows, found = plan.array(), command(plan, 0.4)
    heading = at(0.4, rows[:, 11].tolist())
    expected = 2.0 * heading / (16.0 * 0.4) - rows[0, 14] / 16.0
    assert found.curvature_1pm == pytest.approx(expected, rel=1e-6)
    gained = at(0.4, rows[:, 3].tolist()) - rows[0, 3]
    assert found.acceleration_mps2 == pytest.approx(2.0 * gained / 0.4 - rows[0, 6], rel=1e-5)


def test_wanted_acceleration_is_the_least_of_curve_cruising_speed_and_car_ahead() -> None:
    # A radius of 200 m is driven with 19.49 m/s, 1.2 m/s too much are put right in 1.2 s.
    body = body_on(circle(), 50.0, 0.0, math.sqrt(LATERAL_MPS2 * 200.0) + 1.2)
    expert = Expert(circle(), 0, 30.0)
    assert expert.wanted_mps2(body, ()) == pytest.approx(-1.0, abs=1e-3)
    assert expert.plan(body, ()).for_curves_mps2 == pytest.approx(-1.0, abs=1e-3)
    # Curves allow more than the cruising speed.
    world = straight()
    expert, body = Expert(world, 0, 20.0), body_on(world, 50.0, 0.0, 21.2)
    assert expert.wanted_mps2(body, ()) == pytest.approx(-1.0, abs=1e-3)
    assert expert.plan(body, ()).for_curves_mps2 == speed.ACCELERATION_MPS2
    body = body_on(world, 50.0, 0.0, 20.0)
    ahead = (car(body.s_m + FRONT_M + 40.0, 0.0),)
    assert Expert(world, 0, 20.0).wanted_mps2(body, ahead) == -speed.HARDEST_BRAKING_MPS2


def test_new_lane_of_a_curve_has_its_own_speed() -> None:
    world = circle(2)
    expert, body = Expert(world, 0, 30.0), body_on(world, 50.0, world.lanes.centre_m(0), 20.0)
    left = expert.plan(body, ()).for_curves_mps2
    assert expert.change_lane(RIGHT)
    # The radius of the right lane is 4 m shorter: 1 % less speed in the lane, 1.2 s of it.
    right = expert.plan(body, ()).for_curves_mps2
    less = math.sqrt(LATERAL_MPS2 * 202.0) - math.sqrt(LATERAL_MPS2 * 198.0)
    assert left - right == pytest.approx(less / 1.2, rel=1e-2)


# At 20 m/s, 5 faster than the car ahead, with T = 2 s and b = 1.4: 2 sqrt(a b) is 2.8, the gap
# wanted 6 + 20 (2 + 5 / 2.8) = 81.714 m, and 1.4 (1 - (81.714 / 60)^2) = -1.1967 m/s^2. At the
# wanted gap of equal speeds, 6 + 40 m, nothing is to be done. A car that goes away does not draw:
# 1.4 (1 - (6 / 30)^2).
@pytest.mark.parametrize(
    ("gap_m", "lead_mps", "wanted"),
    [
        (60.0, 15.0, pytest.approx(-1.1967, abs=1e-4)),
        (46.0, 20.0, pytest.approx(0.0)),
        (30.0, 60.0, pytest.approx(1.4 * 0.96)),
        (0.0, 0.0, -speed.HARDEST_BRAKING_MPS2),
    ],
)
def test_following_is_the_intelligent_driver_model(
    gap_m: float, lead_mps: float, wanted: float
) -> None:
    assert following_acceleration(gap_m, 20.0, lead_mps, speed.Following(2.0, 1.4)) == wanted


@pytest.mark.parametrize(("gap_m", "lead_mps"), [(70.0, 20.0), (90.0, 15.0), (50.0, 24.0)])
def test_the_careful_brake_earlier(gap_m: float, lead_mps: float) -> None:
    quick, careful = (
        following_acceleration(gap_m, 25.0, lead_mps, style) for style in (QUICK, CAREFUL)
    )
    assert careful < quick - 0.4


def test_brakes_are_put_on_faster_behind_a_car_than_for_the_road() -> None:
    limits, steps_s = speed.speed_limits(uniform_road(), 0.0, 20.0), speed.STEPS_S
    # From 23 m/s down to 20 the road asks for 3 / 1.2 = 2.5 m/s^2 at once.
    assert plan_speeds(limits, 0.0, 23.0, 0.0).jerk_mps3[0] == pytest.approx(-2.0)
    # Behind a car as fast as this one, sqrt(1 + 2.5 / 1.4) too near, the same.
    gap = (6.0 + 20.0 * CAREFUL.time_gap_s) / math.sqrt(1.0 + 2.5 / 1.4)
    ahead = (gap + 20.0 * steps_s, np.full(steps_s.size, 20.0))
    assert plan_speeds(limits, 0.0, 20.0, 0.0, ahead).jerk_mps3[0] == pytest.approx(-5.0)
    # Brakes come off as gently as before.
    free = (np.full(steps_s.size, 500.0), np.full(steps_s.size, 20.0))
    assert plan_speeds(limits, 0.0, 15.0, -2.0, free).jerk_mps3[0] == pytest.approx(2.0)

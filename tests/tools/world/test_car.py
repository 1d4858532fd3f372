"""The simulated car: its place on the road, delays and limits, by hand."""

import math

import numpy as np
import pytest

from tests.tools.world.roads import body_on, lanes_of, uniform_road, world_of
from tools.simulator.world.car import FAMILY_CAR, TICK_S, Body, Car, body_at
from tools.simulator.world.world import random_world

GRADE, BANK = 0.05, 0.04


def on_slope(angle_rad: float) -> Body:
    road = uniform_road(grade_rad=GRADE, bank_rad=BANK)
    return body_on(world_of(road, lanes_of(1)), 100.0, 0.0, 10.0, angle_rad)


def test_car_on_a_slope_has_its_grade_and_bank() -> None:
    body = on_slope(0.0)
    assert (body.s_m, body.offset_m) == pytest.approx((100.0, 0.0))
    assert (body.pitch_rad, body.roll_rad) == pytest.approx((GRADE, BANK))
    assert body.z_m == pytest.approx(-100.0 * math.sin(GRADE))
    # Its axes are those of the road.
    forward, right, down = body.axes()
    assert forward == pytest.approx((math.cos(GRADE), 0.0, -math.sin(GRADE)))
    assert right[2] == pytest.approx(math.cos(GRADE) * math.sin(BANK))
    assert np.cross(forward, right).tolist() == pytest.approx(list(down))
    # Facing right its nose hangs down the bank, and its right side down the hill.
    across = on_slope(0.5 * math.pi)
    assert (across.pitch_rad, across.roll_rad) == pytest.approx((-BANK, GRADE), abs=2e-4)


@pytest.mark.parametrize("seed", range(6))
def test_car_lies_on_the_surface_of_any_road(seed: int) -> None:
    world, rng = random_world(seed, 800.0), np.random.default_rng(seed)
    # Half a metre around the car the road is where its frame says.
    ahead, aside = np.array([0.5, 0.5, -0.5, -0.5]), np.array([0.5, -0.5, 0.5, -0.5])
    for _ in range(20):
        s, offset = rng.uniform(0.0, 800.0), rng.uniform(-8.0, 8.0)
        body = body_on(world, s, offset, 10.0, rng.uniform(-0.2, 0.2))
        near = world.road.places(s + ahead, offset + aside)
        assert np.abs(body.seen(*near)[2]).max() < 1.5e-3


def test_place_and_motion_are_kept() -> None:
    body = body_at(uniform_road(), 50.0, 1.5, 0.1, 20.0, -1.0, 0.002, near_s_m=40.0)
    assert (body.x_m, body.y_m, body.heading_rad) == (50.0, 1.5, 0.1)
    assert (body.speed_mps, body.acceleration_mps2, body.curvature_1pm) == (20.0, -1.0, 0.002)
    assert (body.s_m, body.offset_m) == pytest.approx((50.0, 1.5))
    road = random_world(3, 300.0).road
    body = Car.on_road(road, 150.0, 1.2, 15.0, heading_error_rad=0.05).body(road)
    assert (body.s_m, body.offset_m) == pytest.approx((150.0, 1.2), abs=1e-6)
    assert body.heading_rad - road.at(150.0).heading_rad == pytest.approx(0.05)
    assert body.speed_mps == 15.0


def stepped(car: Car, steps: int, curvature: float, acceleration: float, ramp: float = 0.0) -> Car:
    """Step a car by ticks; commands are factors of `ramp` times the time, or constant without."""
    for tick in range(steps):
        share = ramp * tick * TICK_S if ramp else 1.0
        car.step(TICK_S, curvature * share, acceleration * share)
    return car


def test_a_steered_curve_is_a_circle_of_its_curvature() -> None:
    turning = stepped(Car(0.0, 0.0, 0.0, 10.0, curvature_1pm=0.02), 500, 0.02, 0.0)
    # 50 m on a circle of 50 m of radius, to the right.
    assert turning.heading_rad == pytest.approx(1.0)
    assert turning.x_m == pytest.approx(50.0 * np.sin(1.0), abs=1e-3)
    assert turning.y_m == pytest.approx(50.0 * (1.0 - np.cos(1.0)), abs=1e-3)


def test_steering_and_drive_are_as_late_as_the_car_says() -> None:
    # 1/m and m/s^2 each second, below every limit.
    steered = stepped(Car(0.0, 0.0, 0.0, 10.0), 400, 0.002, 0.0, ramp=1.0)
    late_s = 399 * TICK_S - steered.curvature_1pm / 0.002
    assert late_s == pytest.approx(FAMILY_CAR.lateral_delay_s, abs=TICK_S)
    driven = stepped(Car(0.0, 0.0, 0.0, 20.0), 200, 0.0, 0.5, ramp=1.0)
    late_s = 199 * TICK_S - driven.acceleration_mps2 / 0.5
    assert late_s == pytest.approx(FAMILY_CAR.longitudinal_delay_s, abs=TICK_S)


def test_no_command_exceeds_the_limits() -> None:
    wild, before = Car(0.0, 0.0, 0.0, 25.0), 0.0
    for _ in range(600):
        stepped(wild, 1, 1.0, 9.0)
        lateral = wild.curvature_1pm * wild.speed_mps**2
        assert lateral <= FAMILY_CAR.max_lateral_acceleration_mps2 * 1.05
        assert wild.acceleration_mps2 <= FAMILY_CAR.acceleration_limits_mps2[1]
        rate = (wild.curvature_1pm - before) / TICK_S
        assert rate * wild.speed_mps**2 <= FAMILY_CAR.max_lateral_jerk_mps3 * 1.2
        before = wild.curvature_1pm


def test_a_braked_car_stands_and_pulls_away_again() -> None:
    braked = stepped(Car(0.0, 0.0, 0.0, 5.0), 400, 0.0, -3.0)
    assert (braked.speed_mps, braked.acceleration_mps2) == (0.0, 0.0)
    place = braked.x_m
    assert stepped(braked, 100, 0.0, 1.0).x_m > place


def test_steps_of_any_length_are_whole_ticks() -> None:
    one, other = Car(0.0, 0.0, 0.0, 10.0), stepped(Car(0.0, 0.0, 0.0, 10.0), 100, 0.01, 1.0)
    for _ in range(20):
        one.step(0.05, 0.01, 1.0)
    assert (one.x_m, one.y_m, one.heading_rad) == (other.x_m, other.y_m, other.heading_rad)

"""The simulated car: delays, limits, and that it drives the curve it steers."""

from __future__ import annotations

import numpy as np
import pytest

from tools.world.car import FAMILY_CAR, TICK_S, Car
from tools.world.world import random_world


def car(speed_mps: float = 10.0) -> Car:
    return Car(0.0, 0.0, 0.0, speed_mps)


def test_a_steered_curve_is_a_circle_of_its_curvature() -> None:
    turning = Car(0.0, 0.0, 0.0, 10.0, curvature_1pm=0.02)
    for _ in range(500):
        turning.step(TICK_S, 0.02, 0.0)
    # 50 m on a circle of 50 m of radius, to the right.
    assert turning.heading_rad == pytest.approx(1.0)
    assert turning.x_m == pytest.approx(50.0 * np.sin(1.0), abs=1e-3)
    assert turning.y_m == pytest.approx(50.0 * (1.0 - np.cos(1.0)), abs=1e-3)


def test_the_steering_is_as_late_as_the_car_says() -> None:
    steered = car()
    ramp = 0.002  # 1/m each second, below every limit
    for tick in range(400):
        steered.step(TICK_S, ramp * tick * TICK_S, 0.0)
    late_s = 399 * TICK_S - steered.curvature_1pm / ramp
    assert late_s == pytest.approx(FAMILY_CAR.lateral_delay_s, abs=TICK_S)


def test_the_drive_is_as_late_as_the_car_says() -> None:
    driven = car(20.0)
    for tick in range(200):
        driven.step(TICK_S, 0.0, 0.5 * tick * TICK_S)
    late_s = 199 * TICK_S - driven.acceleration_mps2 / 0.5
    assert late_s == pytest.approx(FAMILY_CAR.longitudinal_delay_s, abs=TICK_S)


def test_no_command_exceeds_the_limits() -> None:
    wild = car(25.0)
    before = 0.0
    for _ in range(600):
        wild.step(TICK_S, 1.0, 9.0)
        lateral = wild.curvature_1pm * wild.speed_mps**2
        assert lateral <= FAMILY_CAR.max_lateral_acceleration_mps2 * 1.05
        assert wild.acceleration_mps2 <= FAMILY_CAR.acceleration_limits_mps2[1]
        rate = (wild.curvature_1pm - before) / TICK_S
        assert rate * wild.speed_mps**2 <= FAMILY_CAR.max_lateral_jerk_mps3 * 1.2
        before = wild.curvature_1pm


def test_a_braked_car_stands_and_pulls_away_again() -> None:
    braked = car(5.0)
    for _ in range(400):
        braked.step(TICK_S, 0.0, -3.0)
    assert (braked.speed_mps, braked.acceleration_mps2) == (0.0, 0.0)
    place = braked.x_m
    for _ in range(100):
        braked.step(TICK_S, 0.0, 1.0)
    assert braked.x_m > place


def test_steps_of_any_length_are_whole_ticks() -> None:
    one, other = car(), car()
    for _ in range(20):
        one.step(0.05, 0.01, 1.0)
    for _ in range(100):
        other.step(TICK_S, 0.01, 1.0)
    assert (one.x_m, one.y_m, one.heading_rad) == (other.x_m, other.y_m, other.heading_rad)


def test_a_car_on_the_road_is_where_it_was_put() -> None:
    road = random_world(3, 300.0).road
    placed = Car.on_road(road, 150.0, 1.2, 15.0, heading_error_rad=0.05)
    body = placed.body(road)
    assert (body.s_m, body.offset_m) == pytest.approx((150.0, 1.2), abs=1e-6)
    assert body.heading_rad - road.at(150.0).heading_rad == pytest.approx(0.05)
    assert body.speed_mps == 15.0

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.tools.world.roads import body_on, lanes_of, uniform_road, world_of
from tools.world.body import Body
from tools.world.traffic import (
    AHEAD_M,
    BEHIND_M,
    ScriptedLead,
    Traffic,
    Vehicle,
    foresee,
    nearest_ahead,
)
from tools.world.world import World, random_world


def moving_on(world: World, body: Body, seconds: float) -> Body:
    return body_on(world, body.s_m + body.speed_mps * seconds, body.offset_m, body.speed_mps)


def test_traffic_of_a_seed_is_always_the_same() -> None:
    world = random_world(4, 2000.0)
    seen = []
    for _ in range(2):
        body = body_on(world, 100.0, world.lanes.centre_m(0), 20.0)
        traffic = Traffic(world, 9, body, density=0.8)
        for _ in range(200):
            body = moving_on(world, body, 0.05)
            traffic.step(0.05, body)
        seen.append(traffic.vehicles)
    assert seen[0] == seen[1]
    assert len(seen[0]) > 3


@pytest.mark.parametrize("seed", range(6))
def test_cars_keep_their_lanes_and_their_distance(seed: int) -> None:
    world = random_world(seed, 3000.0)
    lanes = world.lanes
    body = body_on(world, 150.0, lanes.centre_m(lanes.count - 1), 0.7 * world.speed_limit_mps)
    traffic = Traffic(world, seed, body, density=1.0)
    slowest = 99.0
    for _ in range(1200):
        body = moving_on(world, body, 0.05)
        traffic.step(0.05, body)
        rows = sorted(
            (lanes.lane_at(v.offset_m), v.s_m, v.length_m, v.speed_mps) for v in traffic.vehicles
        )
        for (lane, rear, length, _), (next_lane, next_rear, _, _) in pairwise(rows):
            assert lane != next_lane or rear + length < next_rear
        slowest = min([slowest, *(row[3] for row in rows)])
    for vehicle in traffic.vehicles:
        centre = lanes.centre_m(lanes.lane_at(vehicle.offset_m))
        assert abs(vehicle.offset_m - centre) <= 0.35
        assert -BEHIND_M - 5.0 < vehicle.s_m - body.s_m < AHEAD_M + 25.0
    assert slowest >= 0.0


def test_some_cars_brake_to_a_stop_and_go_again() -> None:
    world = world_of(uniform_road(length_m=4000.0), lanes_of(2))
    body = body_on(world, 0.0, world.lanes.centre_m(0), 10.0)
    traffic = Traffic(world, 2, body, density=1.0)
    stood, went = set(), set()
    for _ in range(2400):
        body = moving_on(world, body, 0.05)
        traffic.step(0.05, body)
        for vehicle in traffic.vehicles:
            if vehicle.speed_mps < 0.1:
                stood.add(vehicle.paint)
            elif vehicle.paint in stood and vehicle.speed_mps > 3.0:
                went.add(vehicle.paint)
    assert went


def test_nobody_runs_into_an_ego_car_that_stands() -> None:
    world = world_of(uniform_road(length_m=1000.0), lanes_of(1))
    body = body_on(world, 200.0, 0.0, 0.0)
    traffic = Traffic(world, 1, body, density=1.0)
    behind = [v for v in traffic.vehicles if v.s_m < body.s_m]
    assert behind
    for _ in range(600):
        traffic.step(0.05, body)
    for vehicle in traffic.vehicles:
        assert vehicle.s_m > body.s_m or vehicle.s_m + vehicle.length_m < body.s_m - 0.9


def test_no_traffic_without_density() -> None:
    world = random_world(4, 500.0)
    body = body_on(world, 100.0, 0.0, 20.0)
    assert Traffic(world, 1, body, density=0.0).vehicles == ()


def test_scripted_lead_drives_as_told() -> None:
    world = world_of(uniform_road(), lanes_of(2))
    body = body_on(world, 0.0, world.lanes.centre_m(1), 20.0)
    lead = ScriptedLead(30.0, ((0.0, 20.0), (1.0, 20.0), (5.0, 0.0), (8.0, 0.0), (10.0, 4.0)))
    traffic = Traffic(world, 1, body, density=0.0, lead=lead)
    (vehicle,) = traffic.vehicles
    assert (vehicle.s_m, vehicle.offset_m, vehicle.speed_mps) == pytest.approx((33.7, 1.75, 20.0))
    for _ in range(60):
        traffic.step(0.05, body)
    (vehicle,) = traffic.vehicles
    # 20 m in the first second, then 2 s of braking from 20 to 10 m/s: 30 m.
    assert (vehicle.s_m, vehicle.speed_mps) == pytest.approx((83.7, 10.0))
    assert vehicle.acceleration_mps2 == pytest.approx(-5.0)
    for _ in range(200):
        traffic.step(0.05, body)
    assert traffic.vehicles[0].speed_mps == 4.0
    assert traffic.vehicles[0].acceleration_mps2 == 0.0


def test_braking_car_is_expected_to_stop_and_an_accelerating_one_to_settle() -> None:
    times = np.array([0.0, 2.0, 4.0, 10.0])
    braking = Vehicle(100.0, 0.0, 12.0, -3.0, 1.8, 1.5, 4.5, 0)
    s, speed, acceleration = foresee(braking, times)
    # 12 m/s at 3 m/s^2: it stands after 4 s and 24 m.
    assert s.tolist() == pytest.approx([100.0, 118.0, 124.0, 124.0])
    assert speed.tolist() == pytest.approx([12.0, 6.0, 0.0, 0.0])
    assert acceleration.tolist() == [-3.0, -3.0, 0.0, 0.0]
    starting = Vehicle(0.0, 0.0, 10.0, 1.0, 1.8, 1.5, 4.5, 0)
    s, speed, _ = foresee(starting, times)
    assert speed.tolist() == pytest.approx([10.0, 12.0, 13.0, 13.0])
    assert s[-1] == pytest.approx(34.5 + 7.0 * 13.0)


def test_nearest_ahead_is_in_reach() -> None:
    cars = [
        Vehicle(s, offset, 0.0, 0.0, 1.8, 1.5, 4.5, 0)
        for s, offset in ((90.0, 0.0), (50.0, 3.5), (70.0, 0.3), (10.0, 0.0))
    ]
    assert nearest_ahead(cars, 20.0, 0.0, 1.75) == cars[2]
    assert nearest_ahead(cars, 95.0, 0.0, 1.75) is None

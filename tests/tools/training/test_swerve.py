"""A car that swerves goes aside by as much as the swerve says, and is straight at its end."""

from __future__ import annotations

import numpy as np
import pytest

from tools.training.drives import Drive, Swerve
from tools.training.heads import HIDDEN_WIDTH, ROW_S
from tools.training.options import Seeds
from tools.training.situations import random_vehicles
from tools.training.views import Eyes
from tools.world.body import FRONT_M
from tools.world.car import Car
from tools.world.world import random_world


def test_lateral_acceleration_leads_aside() -> None:
    swerve = Swerve(begin_s=3.0, whole_s=2.0, end_s=5.0, aside_m=-1.2)
    step_s = 1e-3
    times = 3.0 + step_s * (np.arange(2000) + 0.5)
    acceleration = np.array([swerve.lateral_mps2(time) for time in times.tolist()])
    speed = np.cumsum(acceleration) * step_s
    assert speed[-1] == pytest.approx(0.0, abs=1e-5)
    assert np.sum(speed) * step_s == pytest.approx(-1.2, abs=1e-3)
    # The largest second derivative of the quintic is 10 / sqrt(3).
    assert np.abs(acceleration).max() == pytest.approx(1.2 / 4.0 * 10.0 / 3.0**0.5, rel=1e-4)


def test_drives_swerve_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eyes, "see", lambda *_: np.zeros((2, 6, 128, 256), np.uint8))
    monkeypatch.setattr("tools.training.drives._PUSH_ROWS", (1000, 1001))
    drive = Drive(0, Seeds(0, 1000), 0, is_student=False)
    drive._change_row = 1000
    offsets, nothing = [], np.zeros(HIDDEN_WIDTH, np.float32)
    for row in range(45):
        if row == 15:
            drive._swerve = Swerve(15 * ROW_S, 2.0, 17 * ROW_S + 1.6, 1.2)
        drive.look()
        drive.judge(nothing, nothing)
        drive.step(None)
        offsets.append(drive._off[-1])
    assert max(offsets[13:15]) < 0.1
    assert 0.6 < max(offsets[15:]) < 2.0
    assert offsets[-1] < 0.2


def test_nobody_is_nearer_to_the_car_ahead_than_braking_could_mend() -> None:
    rng, world = np.random.default_rng(3), random_world(5, 1200.0)
    centre = world.lanes.centre_m(0)
    found = 0
    for speed in (5.0, 15.0, 30.0) * 40:
        body = Car.on_road(world.road, 100.0, centre, speed).body(world.road)
        for vehicle in random_vehicles(world, body, 0, rng):
            gap = vehicle.s_m - body.s_m - FRONT_M
            if abs(vehicle.offset_m - centre) > 1.0 or gap > 90.0:
                continue
            found += 1
            # v^2 / 2 a of the difference fits into the gap.
            closing = max(speed - vehicle.speed_mps, 0.0)
            assert closing**2 / (2.0 * 6.0) <= gap + 1e-6
    assert found > 30


def test_half_of_those_ahead_of_a_crawling_car_stand_and_most_are_near() -> None:
    rng, world = np.random.default_rng(4), random_world(5, 1200.0)
    centre = world.lanes.centre_m(0)
    body = Car.on_road(world.road, 100.0, centre, 0.4).body(world.road)
    leads = []
    for _ in range(200):
        beside = (v for v in random_vehicles(world, body, 0, rng) if abs(v.offset_m - centre) < 1.0)
        leads += [min(found, key=lambda v: v.s_m)] if (found := list(beside)) else []
    standing = np.array([lead.speed_mps == 0.0 for lead in leads])
    near = np.array([lead.s_m - body.s_m - FRONT_M < 15.0 for lead in leads])
    assert 140 < len(leads) < 195
    assert 0.38 < standing.mean() < 0.62
    assert (standing & near).mean() > 0.25

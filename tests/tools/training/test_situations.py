"""Painted moments and drives: worlds, cars, what is true of a moment, and how cars swerve."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from modeld.constants import X_IDXS
from tests.tools.training.straight_road import PLACES
from tests.tools.world.roads import body_on
from tools.simulator.training.heads import (
    HIDDEN_WIDTH,
    ROW_S,
    VISION_TARGETS,
    Bytes,
    Singles,
    size_of,
)
from tools.simulator.training.options import Seeds
from tools.simulator.training.samples import situations
from tools.simulator.training.samples.drives import Drive, Swerve, later_plan, random_lead
from tools.simulator.training.samples.replay import IMAGES_SHAPE, Sample
from tools.simulator.training.samples.situations import (
    CRAWLING_MPS,
    KINDS,
    WORLD_M,
    Situations,
    ViewRenderer,
    random_body,
    training_world,
)
from tools.simulator.world.car import FRONT_M
from tools.simulator.world.road import SHARPEST_LATERAL_MPS2, straights_and_arcs
from tools.simulator.world.speed import speed_limits
from tools.simulator.world.view import MED_LENS
from tools.simulator.world.world import World, random_world


def moments(number: int, count: int) -> list[Sample]:
    return list(Situations(3, Seeds(0, 1000), moments=count, chain=1)(number))


def test_moments_of_a_number_are_the_same_every_time() -> None:
    for first, second in zip(moments(7, 2), moments(7, 2), strict=True):
        assert_array_equal(first.images, second.images)
        assert_array_equal(first.target, second.target)
        assert first.kind == second.kind
        assert first.images.shape == IMAGES_SHAPE
        assert first.target.shape == (size_of(VISION_TARGETS),)
        assert 0 <= first.kind < len(KINDS)


def test_samples_in_a_row_share_their_frames() -> None:
    first, second, third = Situations(3, Seeds(0, 1000), moments=1, chain=3)(5)
    assert_array_equal(first.images[:, 6:], second.images[:, :6])
    assert_array_equal(second.images[:, 6:], third.images[:, :6])
    assert not np.array_equal(first.target, second.target, equal_nan=True)


def step_across(picture: Bytes, line: Singles, at_m: float) -> float | None:
    """Return by how much a line's middle is brighter than 0.6 m beside it, None out of sight."""
    y, z = (float(np.interp(at_m, X_IDXS, line[:, axis])) for axis in range(2))
    scale = MED_LENS.focal_px / at_m
    row, column = round(MED_LENS.cy_px + scale * z), round(MED_LENS.cx_px + scale * y)
    far = round(0.6 * scale)
    if not (0 <= row < 256 and far <= column < 512 - far):
        return None
    wide = max(round(0.12 * scale), 1)
    middle = picture[row, column - wide : column + wide + 1].max()
    return float(middle) - float(picture[row, [column - far, column + far]].mean())


@pytest.mark.slow
def test_lines_that_are_there_are_brighter_than_the_road_where_truth_says() -> None:
    steps = []
    for sample in (sample for number in range(12) for sample in moments(number, 2)):
        chances = sample.target[PLACES["lane_lines_prob"]].reshape(4, 2)
        lines = sample.target[PLACES["lane_lines"]].reshape(4, 33, 2)
        # The newer frame of the road view, (256, 512).
        quarters = sample.images[0, 6:10].reshape(2, 2, 128, 256)
        picture = quarters.transpose(2, 1, 3, 0).reshape(256, 512)
        for line in (1, 2):
            if chances[line, 1] == 1.0:
                steps += [step_across(picture, lines[line], at) for at in (12.0, 14.0, 16.0)]
    found = np.array([step for step in steps if step is not None])
    # Dashes have gaps, paint is worn, cameras are up to half a degree off: not every place is lit.
    assert found.size > 30
    assert np.mean(found > 6.0) > 0.5
    assert np.median(found) > 6.0


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is painted; what is true stays as it is."""
    monkeypatch.setattr(ViewRenderer, "__init__", lambda *_: None)
    monkeypatch.setattr(ViewRenderer, "see", lambda *_: np.zeros((2, 6, 128, 256), np.uint8))


@pytest.mark.usefixtures("blind")
def test_cars_brake_for_curves_as_their_drivers_want() -> None:
    """A moment's car has begun to do what its plan goes on with, or nearly."""
    samples = [sample for number in range(40) for sample in moments(number, 4)]
    plans = np.array([sample.target[PLACES["plan"]].reshape(33, 15)[0] for sample in samples])
    asked = np.array([sample.target[PLACES["for_curves"]][0] for sample in samples])
    drives = plans[:, 3] > 1.0
    begun, hard = plans[drives, 6], asked[drives] < -1.0
    assert hard.sum() > 5
    assert begun[hard].max() < 0.2
    assert begun.mean() > begun[hard].mean() + 1.0


@pytest.mark.parametrize("number", [1, 2, 3])
def test_older_frame_is_from_where_the_car_was(number: int) -> None:
    world = random_world(number, 1300.0)
    body, _ = random_body(world, np.random.default_rng(number))
    body = replace(body, acceleration_mps2=-2.0)
    before = situations.moved(world, body, -ROW_S)
    distance = body.speed_mps * ROW_S - 0.5 * body.acceleration_mps2 * ROW_S**2
    assert np.hypot(body.x_m - before.x_m, body.y_m - before.y_m) == pytest.approx(
        distance, abs=0.02
    )
    turned = body.heading_rad - before.heading_rad
    assert turned == pytest.approx(body.curvature_1pm * distance, abs=1e-6)


def test_one_car_of_six_stands_or_crawls() -> None:
    speeds = []
    for number in range(12):
        world, rng = random_world(number, WORLD_M), np.random.default_rng(number)
        speeds += [random_body(world, rng)[0].speed_mps for _ in range(50)]
    assert 0.11 < np.mean(np.array(speeds) < CRAWLING_MPS) < 0.21


def test_three_of_four_cars_have_slowed_for_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """They drive at 0.85 to 1.3 of what the curves allow, where they would be faster by more."""
    ratios = []
    for number in range(8):
        world, rng = random_world(number, WORLD_M), np.random.default_rng(number)
        # A road that was built for half of its limit.
        sharp = straights_and_arcs(rng, WORLD_M, 0.5 * world.speed_limit_mps)
        world = replace(world, road=sharp)
        for index in range(60):
            body, lane = random_body(world, np.random.default_rng((number, index)))
            with monkeypatch.context() as patch:
                patch.setattr(situations, "_SLOWED_SHARE", 0.0)
                # The same car, but for the speed that it would have.
                faster, _ = random_body(world, np.random.default_rng((number, index)))
            fastest = 1.15 * world.speed_limit_mps
            allowed = speed_limits(world.road, world.lanes.centre_m(lane), fastest).at(body.s_m)
            if faster.speed_mps > 1.35 * allowed:
                ratios.append(body.speed_mps / allowed)
    # In an arc another lane, into which a car may have been put, allows a little more or less.
    near = np.array([0.8 < ratio < 1.35 for ratio in ratios])
    assert near.size > 80
    assert 0.62 < near.mean() < 0.88
    assert min(ratios) > 0.8


def test_plan_that_was_driven_for_a_while_begins_where_the_car_is() -> None:
    plan = np.zeros((33, 15), np.float32)
    times = 10.0 * (np.arange(33) / 32) ** 2
    plan[:, 3], plan[:, 11], plan[:, 14] = 20.0 - times, 0.1 * times, 0.1
    later = later_plan(plan, 0.5)
    assert later[0, 3] == pytest.approx(19.5, abs=1e-3)
    assert later[0, 11] == pytest.approx(0.0, abs=1e-8)
    assert later[16, 11] == pytest.approx(0.1 * times[16], rel=1e-3)
    assert_allclose(later[:30, 14], 0.1, rtol=1e-5)
    assert later_plan(plan, 0.0) is plan


def test_cars_ahead_brake_gently_and_hard_several_times_in_a_drive() -> None:
    rng, limit_mps, duration_s = np.random.default_rng(0), 25.0, 35.0
    leads = [random_lead(limit_mps, rng, duration_s) for _ in range(400)]
    drawn = [lead for lead in leads if lead is not None]
    # Seven drives in ten have one; four standard deviations are 9 %.
    assert abs(len(drawn) / len(leads) - 0.7) < 0.09
    strengths, stops, times = [], 0, []
    for lead in drawn:
        assert 8.0 <= lead.gap_m <= 150.0
        assert lead.speeds[0][0] == 0.0
        assert lead.speeds[-1][0] >= duration_s
        steps = [
            (end - begin, before - after) for (begin, before), (end, after) in pairwise(lead.speeds)
        ]
        assert all(lasts > 0 for lasts, _ in steps)
        speeds = [speed for _, speed in lead.speeds]
        assert 0.0 <= min(speeds) <= max(speeds) <= limit_mps
        falls = [fall / lasts for lasts, fall in steps if fall > 0]
        strengths += falls
        stops += 0.0 in speeds
        times.append(len(falls))
    assert 0.0 < min(strengths) < 1.0
    assert 4.5 < max(strengths) <= 6.0
    assert stops > 0.6 * len(drawn)
    assert np.mean(times) > 1.3
    # Without time to brake a car drives.
    leads = [random_lead(limit_mps, np.random.default_rng(seed), 0.0) for seed in range(20)]
    assert {len(lead.speeds) for lead in leads if lead is not None} == {1}


def made(count: int) -> list[tuple[World, World]]:
    """Return worlds of seeds, as they are and as they are learnt from."""
    pairs = []
    for seed in range(count):
        rng = np.random.default_rng((7, seed))
        pairs.append((random_world(seed, 600.0), training_world(seed, 600.0, rng)))
    return pairs


def test_a_third_of_the_roads_is_another_one_with_sharper_curves() -> None:
    pairs = made(60)
    others = [
        (was, now)
        for was, now in pairs
        if not np.array_equal(was.road.curvature_1pm, now.road.curvature_1pm)
    ]
    assert 10 <= len(others) <= 32
    sharpest = []
    for was, now in others:
        assert (was.seed, was.lanes, was.scenery) == (now.seed, now.lanes, now.scenery)
        assert was.speed_limit_mps == now.speed_limit_mps
        # The largest lateral acceleration at the limit.
        curvatures = [np.abs(one.road.curvature_1pm).max() for one in (was, now)]
        sharpest.append(np.array(curvatures) * was.speed_limit_mps**2)
    before, after = np.transpose(sharpest)
    # A road for half of the speed has up to four times the lateral acceleration.
    assert after.mean() > 1.3 * before.mean()
    assert after.max() <= 4.0 * SHARPEST_LATERAL_MPS2 * 1.001
    # Draws decide and nothing else.
    for (_, again), (_, now) in zip(made(12), pairs, strict=False):
        assert_array_equal(again.road.curvature_1pm, now.road.curvature_1pm)


def test_swerve_is_a_lateral_acceleration_that_leads_aside() -> None:
    swerve, step_s = Swerve(begin_s=3.0, whole_s=2.0, end_s=5.0, aside_m=-1.2), 1e-3
    times = 3.0 + step_s * (np.arange(2000) + 0.5)
    acceleration = np.array([swerve.lateral_mps2(time) for time in times.tolist()])
    speed = np.cumsum(acceleration) * step_s
    assert speed[-1] == pytest.approx(0.0, abs=1e-5)
    assert np.sum(speed) * step_s == pytest.approx(-1.2, abs=1e-3)
    # The largest second derivative of the quintic is 10 / sqrt(3).
    assert np.abs(acceleration).max() == pytest.approx(1.2 / 4.0 * 10.0 / 3.0**0.5, rel=1e-4)


@pytest.mark.usefixtures("blind")
def test_drives_swerve_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.simulator.training.samples.drives._PUSH_ROWS", (1000, 1001))
    drive = Drive(0, Seeds(0, 1000), 0, is_student=False)
    drive._change_row = 1000
    offsets, nothing = [], np.zeros(HIDDEN_WIDTH, np.float32)
    for row in range(45):
        if row == 15:
            drive._swerve = Swerve(15 * ROW_S, 2.0, 17 * ROW_S + 1.6, 1.2)
        drive.look()
        drive.record_row(nothing, nothing)
        drive.step(None)
        offsets.append(drive._off[-1])
    assert max(offsets[13:15]) < 0.1
    assert 0.6 < max(offsets[15:]) < 2.0
    assert offsets[-1] < 0.2


def gaps_to(world: World, speed_mps: float, rng: np.random.Generator) -> list[tuple[float, float]]:
    """Return the distance and the speed of each random car in our lane, nearest first."""
    centre_m = world.lanes.centre_m(0)
    body = body_on(world, 100.0, centre_m, speed_mps)
    cars = situations.random_vehicles(world, body, 0, rng)
    beside = (car for car in cars if abs(car.offset_m - centre_m) <= 1.0)
    return sorted((car.s_m - body.s_m - FRONT_M, car.speed_mps) for car in beside)


def test_nobody_is_nearer_to_the_car_ahead_than_braking_could_mend() -> None:
    rng, world = np.random.default_rng(3), random_world(5, 1200.0)
    found = 0
    for speed in (5.0, 15.0, 30.0) * 40:
        for gap, lead_mps in gaps_to(world, speed, rng):
            if gap <= 90.0:
                found += 1
                # v^2 / 2 a of the difference fits into the gap.
                assert max(speed - lead_mps, 0.0) ** 2 / (2.0 * 6.0) <= gap + 1e-6
    assert found > 30


def test_half_of_those_ahead_of_a_crawling_car_stand_and_most_are_near() -> None:
    rng, world = np.random.default_rng(4), random_world(5, 1200.0)
    found = [gaps_to(world, 0.4, rng)[:1] for _ in range(200)]
    leads = np.array([lead for leads in found for lead in leads])
    standing, near = leads[:, 1] == 0.0, leads[:, 0] < 15.0
    assert 140 < len(leads) < 195
    assert 0.38 < standing.mean() < 0.62
    assert (standing & near).mean() > 0.25

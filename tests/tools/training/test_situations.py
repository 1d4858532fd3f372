"""Painted moments: equal for equal seeds, what is true lies on what is painted, motion is real."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modeld.constants import X_IDXS
from tools.training import situations
from tools.training.drives import later_plan
from tools.training.heads import ROW_S, VISION_TARGETS, Singles, places_in_target, size_of
from tools.training.options import Seeds
from tools.training.replay import IMAGES_SHAPE, Bytes, Sample
from tools.training.situations import (
    CRAWLING_MPS,
    KINDS,
    WORLD_M,
    Situations,
    moved,
    random_body,
)
from tools.world.road import straights_and_arcs
from tools.world.speed import speed_limits
from tools.world.view import MED_LENS
from tools.world.world import World, random_world

PLACES = places_in_target(VISION_TARGETS)


def moments(number: int, count: int) -> list[Sample]:
    return list(Situations(3, Seeds(0, 1000), moments=count, chain=1)(number))


def luma_of(sample: Sample) -> Bytes:
    """Return the newer frame of the road view, (256, 512)."""
    picture = np.zeros((256, 512), np.uint8)
    quarters = sample.images[0, 6:10]
    picture[0::2, 0::2], picture[1::2, 0::2] = quarters[0], quarters[1]
    picture[0::2, 1::2], picture[1::2, 1::2] = quarters[2], quarters[3]
    return picture


def test_moments_of_a_number_are_the_same_every_time() -> None:
    for first, second in zip(moments(7, 2), moments(7, 2), strict=True):
        np.testing.assert_array_equal(first.images, second.images)
        np.testing.assert_array_equal(first.target, second.target)
        assert first.kind == second.kind
        assert first.images.shape == IMAGES_SHAPE
        assert first.target.shape == (size_of(VISION_TARGETS),)
        assert 0 <= first.kind < len(KINDS)


def test_samples_in_a_row_share_their_frames() -> None:
    first, second, third = Situations(3, Seeds(0, 1000), moments=1, chain=3)(5)
    np.testing.assert_array_equal(first.images[:, 6:], second.images[:, :6])
    np.testing.assert_array_equal(second.images[:, 6:], third.images[:, :6])
    assert not np.array_equal(first.target, second.target, equal_nan=True)


def step_across(picture: Bytes, line: Singles, at_m: float) -> float | None:
    """Return by how much a line's middle is brighter than 0.6 m beside it, None out of sight."""
    y, z = (float(np.interp(at_m, X_IDXS, line[:, axis])) for axis in range(2))
    scale = MED_LENS.focal_px / at_m
    row = round(MED_LENS.cy_px + scale * z)
    column = round(MED_LENS.cx_px + scale * y)
    far = round(0.6 * scale)
    if not (0 <= row < 256 and far <= column < 512 - far):
        return None
    wide = max(round(0.12 * scale), 1)
    middle = picture[row, column - wide : column + wide + 1].max()
    beside = picture[row, [column - far, column + far]].mean()
    return float(middle) - float(beside)


def test_lines_that_are_there_are_brighter_than_the_road_where_truth_says() -> None:
    steps = []
    for number in range(12):
        for sample in moments(number, 2):
            chances = sample.target[PLACES["lane_lines_prob"]].reshape(4, 2)
            lines = sample.target[PLACES["lane_lines"]].reshape(4, 33, 2)
            picture = luma_of(sample)
            for line in (1, 2):
                if chances[line, 1] == 1.0:
                    found = [step_across(picture, lines[line], at) for at in (12.0, 14.0, 16.0)]
                    steps += [value for value in found if value is not None]
    # Dashes have gaps, paint is worn, cameras are up to half a degree off: not every place is lit.
    assert len(steps) > 30
    assert np.mean(np.array(steps) > 6.0) > 0.5
    assert np.median(steps) > 6.0


@pytest.mark.parametrize("number", [1, 2, 3])
def test_older_frame_is_from_where_the_car_was(number: int) -> None:
    rng = np.random.default_rng(number)
    world = random_world(number, 1300.0)
    body, _ = random_body(world, rng)
    body = replace(body, acceleration_mps2=-2.0)
    before = moved(world, body, -ROW_S)
    way = body.speed_mps * ROW_S - 0.5 * body.acceleration_mps2 * ROW_S**2
    assert np.hypot(body.x_m - before.x_m, body.y_m - before.y_m) == pytest.approx(way, abs=0.02)
    turned = body.heading_rad - before.heading_rad
    assert turned == pytest.approx(body.curvature_1pm * way, abs=1e-6)


def test_one_car_of_six_stands_or_crawls() -> None:
    speeds = []
    for number in range(12):
        world, rng = random_world(number, WORLD_M), np.random.default_rng(number)
        speeds += [random_body(world, rng)[0].speed_mps for _ in range(50)]
    assert 0.11 < np.mean(np.array(speeds) < CRAWLING_MPS) < 0.21


def sharp_world(number: int) -> World:
    """Return a world on a road that was built for half of its limit."""
    world = random_world(number, WORLD_M)
    rng = np.random.default_rng(number)
    return replace(world, road=straights_and_arcs(rng, WORLD_M, 0.5 * world.speed_limit_mps))


def test_three_of_four_cars_have_slowed_for_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """They drive at 0.85 to 1.3 of what the curves allow, where they would be faster by more."""
    ratios = []
    for number in range(8):
        world = sharp_world(number)
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


def test_cars_brake_for_curves_as_their_drivers_want() -> None:
    """A moment's car has begun to do what its plan goes on with, or nearly."""
    begun, asked = [], []
    for number in range(40):
        for sample in moments(number, 4):
            plan = sample.target[PLACES["plan"]].reshape(33, 15)
            if plan[0, 3] > 1.0:
                begun.append(plan[0, 6])
                asked.append(sample.target[PLACES["for_curves"]][0])
    hard = np.array(asked) < -1.0
    assert hard.sum() > 5
    assert np.array(begun)[hard].max() < 0.2
    assert np.mean(begun) > np.mean(np.array(begun)[hard]) + 1.0


def test_plan_that_was_driven_for_a_while_begins_where_the_car_is() -> None:
    plan = np.zeros((33, 15), np.float32)
    times = 10.0 * (np.arange(33) / 32) ** 2
    plan[:, 3] = 20.0 - times
    plan[:, 11], plan[:, 14] = 0.1 * times, 0.1
    later = later_plan(plan, 0.5)
    assert later[0, 3] == pytest.approx(19.5, abs=1e-3)
    assert later[0, 11] == pytest.approx(0.0, abs=1e-8)
    assert later[16, 11] == pytest.approx(0.1 * times[16], rel=1e-3)
    np.testing.assert_allclose(later[:30, 14], 0.1, rtol=1e-5)
    assert later_plan(plan, 0.0) is plan

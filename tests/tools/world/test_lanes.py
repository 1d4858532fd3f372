from __future__ import annotations

import numpy as np
import pytest

from tests.tools.world.roads import lanes_of
from tools.world.lanes import Lanes, Marking, MarkingKind, random_lanes


def test_centres_and_lanes_of_three() -> None:
    lanes = lanes_of(3)
    assert [lanes.centre_m(lane) for lane in range(3)] == [-3.5, 0.0, 3.5]
    offsets = (-20.0, -5.3, -3.5, -1.8, -1.7, 0.0, 1.7, 1.8, 20.0)
    assert [lanes.lane_at(offset) for offset in offsets] == [0, 0, 0, 0, 1, 1, 1, 2, 2]


def test_four_lines_of_each_lane() -> None:
    lanes = lanes_of(2)
    left, middle, right = lanes.markings
    assert lanes.beside(0) == (None, left, middle, right)
    assert lanes.beside(1) == (left, middle, right, None)


def test_far_left_line_of_a_two_way_road_is_that_of_the_oncoming_lane() -> None:
    one = lanes_of(1)
    far = Marking(-5.25, MarkingKind.SOLID)
    two_way = Lanes(3.5, 1, one.markings, -6.0, 2.0, (far,))
    assert two_way.beside(0) == (far, *one.markings, None)
    assert one.beside(0) == (None, *one.markings, None)


@pytest.mark.parametrize("seed", range(80))
def test_random_lanes_fit_their_road(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lanes = random_lanes(rng, 2000.0, 12.0 + 0.3 * seed)
    assert 2.7 <= lanes.width_m <= 3.9
    assert 1 <= lanes.count <= 4
    assert len(lanes.markings) == lanes.count + 1
    offsets = [line.offset_m for line in lanes.painted]
    assert offsets == sorted(offsets)
    assert lanes.left_edge_m < offsets[0]
    assert offsets[-1] < lanes.right_edge_m
    for lane in range(lanes.count):
        _, left, right, _ = lanes.beside(lane)
        assert left is not None
        assert right is not None
        centre = lanes.centre_m(lane)
        assert centre - left.offset_m == pytest.approx(0.5 * lanes.width_m)
        assert right.offset_m - centre == pytest.approx(0.5 * lanes.width_m)
    for line in lanes.painted:
        assert 0.0 <= line.wear <= 1.0
        ends = [place for gap in line.gaps for place in gap]
        assert ends == sorted(ends)


def test_all_roads_together_have_all_kinds_of_lines() -> None:
    roads = [random_lanes(np.random.default_rng(s), 3000.0, 12.0 + 0.2 * s) for s in range(120)]
    lines = [line for lanes in roads for line in lanes.painted]
    assert {line.kind for line in lines} == set(MarkingKind)
    assert {line.is_yellow for line in lines} == {True, False}
    assert any(line.gaps for line in lines)
    assert any(line.wear > 0.8 for line in lines)
    assert any(all(line.kind is MarkingKind.NONE for line in lanes.painted) for lanes in roads)
    assert any(lanes.opposite for lanes in roads)

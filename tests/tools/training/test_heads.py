"""Targets and outputs have the widths and the order that the published interface has."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tools.example_models.interface import POLICY_OUTPUTS, VISION_OUTPUTS
from tools.training.architecture import HEAD_GROUPS
from tools.training.heads import (
    DESIRE_STATE,
    PLAN,
    POLICY_HEADS,
    VISION_HEADS,
    places_in_output,
    places_in_target,
    size_of,
    target_of,
    width_of,
)


def test_heads_have_the_order_and_widths_of_the_interface() -> None:
    assert [(head.name, head.width) for head in VISION_HEADS] == list(VISION_OUTPUTS[:-1])
    assert [(head.name, head.width) for head in POLICY_HEADS] == list(POLICY_OUTPUTS)


def test_every_vision_head_stands_in_one_group() -> None:
    grouped = [head.name for heads in HEAD_GROUPS.values() for head in heads]
    assert sorted(grouped) == sorted(head.name for head in VISION_HEADS)


def test_places_follow_each_other() -> None:
    places = places_in_output(POLICY_HEADS)
    assert places == {"plan": slice(0, 990), "desire_state": slice(990, 998)}
    assert places_in_target(POLICY_HEADS)["desire_state"] == slice(495, 503)
    assert size_of(VISION_HEADS) == 581
    assert width_of(VISION_HEADS) == 1576 - 512


def test_target_keeps_values_where_the_places_say() -> None:
    truth = SimpleNamespace(plan=np.arange(495.0).reshape(33, 15), desire_state=np.eye(8)[3])
    target = target_of((PLAN, DESIRE_STATE), truth)
    assert target.dtype == np.float32
    assert target[places_in_target(POLICY_HEADS)["plan"]].tolist() == list(range(495))
    assert target[-8:].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


def test_chances_of_lines_are_spread_over_both_columns() -> None:
    head = next(head for head in VISION_HEADS if head.name == "lane_lines_prob")
    truth = SimpleNamespace(lane_lines_prob=np.array([0.0, 1.0, 0.25, np.nan]))
    values = target_of((head,), truth).reshape(4, 2)
    # The second column is the one that the daemon reads: that the line is there.
    np.testing.assert_array_equal(values[:, 1], np.array([0.0, 1.0, 0.25, np.nan], np.float32))
    np.testing.assert_array_equal(values[:3, 0], np.array([1.0, 0.0, 0.75], np.float32))

"""Knows where each head lies in the networks' outputs and in the vector of targets they learn from.

A *target* is one flat float32 vector per sample: of each head what is true, in the head's own
units, NaN where there is no truth. An *output* has twice as many values for heads with deviations:
means, then logarithms of standard deviations, as `modeld.outputs.parse_outputs` reads them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from modeld.constants import (
    DESIRE_LENGTH,
    DESIRE_PREDICTION_STEPS,
    EULER_WIDTH,
    IDX_COUNT,
    LANE_LINE_COUNT,
    LEAD_COUNT,
    LEAD_STEPS,
    LEAD_WIDTH,
    PLAN_WIDTH,
    POSE_WIDTH,
    ROAD_EDGE_COUNT,
)

Singles = NDArray[np.float32]
Kind = Literal["gaussian", "binary", "categorical"]

META_WIDTH = 55
HIDDEN_WIDTH = 512
HISTORY_ROWS = 25
# From one row of the histories to the next: four frames of the camera.
ROW_S = 0.2


@dataclass(frozen=True, slots=True)
class Head:
    """One head.

    `kind` is ``gaussian`` (means, then logarithms of deviations), ``binary`` (a logit each) or
    ``categorical`` (logits, softmax over the last axis); `shape` is that of what is true.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    weight: float = 1.0

    @property
    def size(self) -> int:
        """Values of a target."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Values of an output."""
        return self.size * (2 if self.kind == "gaussian" else 1)


PLAN = Head("plan", "gaussian", (IDX_COUNT, PLAN_WIDTH), 3.0)
DESIRE_STATE = Head("desire_state", "categorical", (DESIRE_LENGTH,))

# In the order of the output; `hidden_state` follows them. Weights: what the drive depends on most
# is what the small network shall spend itself on; speed, one value of `pose`, is hardest to see.
VISION_HEADS = (
    Head("meta", "binary", (META_WIDTH,), 0.1),
    Head("desire_pred", "categorical", (DESIRE_PREDICTION_STEPS, DESIRE_LENGTH), 0.05),
    Head("pose", "gaussian", (POSE_WIDTH,), 4.0),
    Head("wide_from_device_euler", "gaussian", (EULER_WIDTH,), 0.05),
    Head("road_transform", "gaussian", (POSE_WIDTH,), 0.3),
    Head("lane_lines", "gaussian", (LANE_LINE_COUNT, IDX_COUNT, 2), 2.0),
    Head("lane_lines_prob", "binary", (LANE_LINE_COUNT, 2), 0.5),
    Head("road_edges", "gaussian", (ROAD_EDGE_COUNT, IDX_COUNT, 2), 1.0),
    Head("lead", "gaussian", (LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH), 2.0),
    Head("lead_prob", "binary", (LEAD_COUNT,), 1.0),
)
# What the curves ahead ask for: read before `hidden_state`, which holds it, and not a head of the
# model.
FOR_CURVES = Head("for_curves", "gaussian", (1,), 2.0)
# The plan is learnt with the vision, too: so `hidden_state` holds what the policy needs.
VISION_TARGETS = (*VISION_HEADS, FOR_CURVES, PLAN)
POLICY_HEADS = (PLAN, DESIRE_STATE)


def size_of(heads: tuple[Head, ...]) -> int:
    """Return the length of a target of these heads."""
    return sum(head.size for head in heads)


def width_of(heads: tuple[Head, ...]) -> int:
    """Return the length of an output of these heads."""
    return sum(head.width for head in heads)


def places_in_target(heads: tuple[Head, ...]) -> dict[str, slice]:
    """Return where each head lies in a target."""
    return _places(heads, [head.size for head in heads])


def places_in_output(heads: tuple[Head, ...]) -> dict[str, slice]:
    """Return where each head lies in an output."""
    return _places(heads, [head.width for head in heads])


def _places(heads: tuple[Head, ...], lengths: list[int]) -> dict[str, slice]:
    places, start = {}, 0
    for head, length in zip(heads, lengths, strict=True):
        places[head.name] = slice(start, start + length)
        start += length
    return places


def target_of(heads: tuple[Head, ...], truth: object) -> Singles:
    """Return the target of one sample.

    `truth` is a `tools.world.truth.Truth` or has arrays of the same names and shapes. Of
    `lane_lines_prob` (4,), the chances that lines are there, both columns are made.
    """
    parts = []
    for head in heads:
        values = np.asarray(getattr(truth, head.name), np.float32)
        if head.name == "lane_lines_prob" and values.shape == (LANE_LINE_COUNT,):
            values = np.stack([1.0 - values, values], axis=-1)
        assert values.shape == head.shape, f"{head.name}: {values.shape}"
        parts.append(values.reshape(-1))
    return np.concatenate(parts, dtype=np.float32)

"""The heads of both networks: their layout, their units, and their mirror images.

A *target* is a flat float32 vector per sample with the ground truth of each head, in the head's own
units; NaN marks values without ground truth. An *output* has twice as many values for heads with
deviations: means, then logarithms of standard deviations, as `modeld.outputs.parse_outputs` reads
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from modeld.vehicle.desire import Desire

Singles = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Kind = Literal["gaussian", "binary", "categorical"]

META_WIDTH = 55
HIDDEN_WIDTH = 512
HISTORY_ROWS = 25
# Time between two rows of a history: four camera frames.
ROW_S = 0.2


@dataclass(frozen=True, slots=True)
class Head:
    """One output head.

    Attributes:
        name: name of the head.
        kind: ``gaussian`` (means, then logarithms of deviations), ``binary`` (one logit each) or
            ``categorical`` (logits, softmax over the last axis).
        shape: shape of the ground truth.
        weight: weight of its loss.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    weight: float = 1.0

    @property
    def size(self) -> int:
        """The number of values in a target."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """The number of values in an output."""
        return self.size * (2 if self.kind == "gaussian" else 1)


PLAN = Head("plan", "gaussian", (IDX_COUNT, PLAN_WIDTH), 3.0)
DESIRE_STATE = Head("desire_state", "categorical", (DESIRE_LENGTH,))

# The heads in output order. `hidden_state` comes after them in the model's output. The network is
# small, so the heads that matter most for driving have the largest weights. Speed, a part of
# `pose`, is the hardest.
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
# An auxiliary head: the acceleration that the curves ahead require. It is part of `hidden_state`,
# but not an output of the exported model.
FOR_CURVES = Head("for_curves", "gaussian", (1,), 2.0)
# The plan is also trained with vision, so that `hidden_state` contains what the policy needs.
VISION_TARGETS = (*VISION_HEADS, FOR_CURVES, PLAN)
POLICY_HEADS = (PLAN, DESIRE_STATE)


def size_of(heads: tuple[Head, ...]) -> int:
    """Return the length of a target of these heads."""
    return sum(head.size for head in heads)


def width_of(heads: tuple[Head, ...]) -> int:
    """Return the length of an output of these heads."""
    return sum(head.width for head in heads)


def places_in_target(heads: tuple[Head, ...]) -> dict[str, slice]:
    """Return the slice of each head in a target."""
    return _places(heads, [head.size for head in heads])


def places_in_output(heads: tuple[Head, ...]) -> dict[str, slice]:
    """Return the slice of each head in an output."""
    return _places(heads, [head.width for head in heads])


def _places(heads: tuple[Head, ...], lengths: list[int]) -> dict[str, slice]:
    places, start = {}, 0
    for head, length in zip(heads, lengths, strict=True):
        places[head.name] = slice(start, start + length)
        start += length
    return places


def target_of(heads: tuple[Head, ...], truth: object) -> Singles:
    """Return the target of one sample.

    `truth` is a `tools.simulator.world.truth.Truth`, or has arrays of the same names and shapes.
    Both columns of `lane_lines_prob` are made from its probabilities (4,).
    """
    parts = []
    for head in heads:
        values = np.asarray(getattr(truth, head.name), np.float32)
        if head.name == "lane_lines_prob" and values.shape == (LANE_LINE_COUNT,):
            values = np.stack([1.0 - values, values], axis=-1)
        assert values.shape == head.shape, f"{head.name}: {values.shape}"
        parts.append(values.reshape(-1))
    return np.concatenate(parts, dtype=np.float32)


# --- Scaling: units in which each value of a target is about one ---------------------------------
#
# The networks learn in these units, because an output contains both positions of 192 m and rates of
# 0.001 rad/s. `fold` moves the units into the last layers of the exported model, whose outputs
# are then in metres and radians.

# Minimum deviations, for values that are nearly constant, such as the yaw of a camera mounted
# straight. They are below any accuracy that matters, and well within the range of float16.
LEAST_DEVIATION: Mapping[str, float] = {
    "pose": 3e-3,
    "wide_from_device_euler": 1e-3,
    "road_transform": 1e-3,
    "lane_lines": 2e-2,
    "road_edges": 2e-2,
    "lead": 1e-1,
    "plan": 1e-3,
    "for_curves": 1e-1,
}


@dataclass(frozen=True, slots=True)
class Scaling:
    """Mean and deviation of each value of a target, (size,) float32 each.

    Deviations are positive. Probabilities have the mean 0 and the deviation 1.
    """

    mean: Singles
    deviation: Singles


def measure(heads: tuple[Head, ...], targets: Singles) -> Scaling:
    """Return the scaling of a set of targets.

    `targets` are (n, size) float32, NaN without ground truth.
    """
    means, deviations = [], []
    for head, place in zip(heads, places_in_target(heads).values(), strict=True):
        part = targets[:, place].astype(np.float64)
        if head.kind != "gaussian":
            means.append(np.zeros(head.size))
            deviations.append(np.ones(head.size))
            continue
        known = np.isfinite(part)
        count = np.maximum(known.sum(axis=0), 1)
        values = np.where(known, part, 0.0)
        mean = values.sum(axis=0) / count
        square = np.where(known, (part - mean) ** 2, 0.0).sum(axis=0) / count
        means.append(mean)
        deviations.append(np.maximum(np.sqrt(square), LEAST_DEVIATION[head.name]))
    return Scaling(
        np.concatenate(means).astype(np.float32), np.concatenate(deviations).astype(np.float32)
    )


def fold(
    heads: tuple[Head, ...],
    scaling: Scaling,
    weight: NDArray[np.floating],
    bias: NDArray[np.floating],
) -> tuple[Singles, Singles]:
    """Return a last layer whose outputs are in the units of its heads.

    `weight` (width, inputs) and `bias` (width,) give outputs in units of the scaling. The results
    are float32 of the same shapes.
    """
    factor, shift = [], []
    for head, place in zip(heads, places_in_target(heads).values(), strict=True):
        deviation = scaling.deviation[place]
        factor.append(deviation)
        shift.append(scaling.mean[place])
        if head.kind == "gaussian":  # logarithms of deviations are shifted, not scaled
            factor.append(np.ones_like(deviation))
            shift.append(np.log(deviation))
    stretch = np.concatenate(factor).astype(np.float64)
    return (
        (weight * stretch[:, None]).astype(np.float32),
        (bias * stretch + np.concatenate(shift)).astype(np.float32),
    )


def part_of(heads: tuple[Head, ...], scaling: Scaling, wanted: tuple[Head, ...]) -> Scaling:
    """Return the scaling of the `wanted` heads, in their order."""
    places = places_in_target(heads)
    index = np.concatenate([np.r_[places[head.name]] for head in wanted])
    return Scaling(scaling.mean[index], scaling.deviation[index])


# --- Mirrored samples: twice the data, and no preference for a side -------------------------------
#
# A view has luma columns 0 to 511, and its optical centre is the centre of column 256. So column c
# becomes column 512 - c. Column 0 has no partner and copies column 1.

# The mirror image of each desire.
_DESIRES = np.array(
    [
        Desire.NONE,
        Desire.TURN_RIGHT,
        Desire.TURN_LEFT,
        Desire.LANE_CHANGE_RIGHT,
        Desire.LANE_CHANGE_LEFT,
        Desire.KEEP_RIGHT,
        Desire.KEEP_LEFT,
        7,  # unused
    ]
)
# Signs of mirrored x, y, z and of mirrored roll, pitch, yaw.
_PLACE = (1.0, -1.0, 1.0)
_ANGLE = (-1.0, 1.0, -1.0)


def mirror_images(images: Bytes) -> Bytes:
    """Return mirrored views.

    `images` are (..., 12 or 6, 128, 256) uint8. Every six channels are the luma at (even, even),
    (odd, even), (even, odd), (odd, odd) rows and columns, then U and V.
    """
    mirrored = images[..., ::-1].copy()
    # Channel column i holds luma column 2 i or 2 i + 1. An even column 2 i becomes 2 (256 - i), a
    # reversal shifted by one. An odd column 2 i + 1 becomes 2 (255 - i) + 1, a plain reversal.
    for channel in range(0, images.shape[-3], 6):
        even = mirrored[..., channel : channel + 2, :, :]
        even[..., 1:] = even[..., :-1].copy()
        # Mirrored chroma is halfway between two samples, so it is their mean.
        chroma = mirrored[..., channel + 4 : channel + 6, :, :]
        chroma[..., 1:] = ((chroma[..., 1:].astype(np.uint16) + chroma[..., :-1] + 1) // 2).astype(
            np.uint8
        )
    return mirrored


def mirror_target(heads: tuple[Head, ...], target: Singles) -> Singles:
    """Return mirrored targets (..., size) float32 with the given heads."""
    parts = []
    for head, place in zip(heads, places_in_target(heads).values(), strict=True):
        values = target[..., place]
        shaped = values.reshape(*values.shape[:-1], *head.shape)
        parts.append(_mirror(head, shaped).reshape(values.shape))
    return np.concatenate(parts, axis=-1, dtype=np.float32)


def mirror_desires(desires: Singles) -> Singles:
    """Return mirrored desires (..., 8)."""
    return np.asarray(desires[..., _DESIRES], np.float32)


def _mirror(head: Head, values: Singles) -> Singles:
    if head.name in ("desire_pred", "desire_state"):
        return mirror_desires(values)
    if head.name == "plan":
        return np.asarray(values * np.array(_PLACE * 3 + _ANGLE * 2), np.float32)
    if head.name in ("pose", "road_transform"):
        return np.asarray(values * np.array(_PLACE + _ANGLE), np.float32)
    if head.name == "wide_from_device_euler":
        return np.asarray(values * np.array(_ANGLE), np.float32)
    if head.name in ("lane_lines", "road_edges"):
        return np.asarray(values[..., ::-1, :, :] * np.array((-1.0, 1.0)), np.float32)
    if head.name == "lane_lines_prob":
        return values[..., ::-1, :]
    if head.name == "lead":
        return np.asarray(values * np.array((1.0, -1.0, 1.0, 1.0)), np.float32)
    return values if head.name != "meta" else _mirror_meta(values)


def _mirror_meta(values: Singles) -> Singles:
    """Swap the left and right blinkers, the last two of every four columns from 31 on."""
    mirrored = values.copy()
    mirrored[..., 33:55:4], mirrored[..., 34:55:4] = values[..., 34:55:4], values[..., 33:55:4]
    return mirrored

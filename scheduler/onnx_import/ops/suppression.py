"""NonMaxSuppression of known boxes, in numpy. Definition: ONNX NonMaxSuppression-11."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.onnx_import.context import Array


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a selection.

    Attributes:
        most: boxes of each class of each image.
        overlap: intersection over union above which the box with the smaller score is dropped.
        score: only what is above it.
    """

    most: int
    overlap: float
    score: float


def select(boxes: Array, scores: Array, limits: Limits, *, centred: bool) -> Array:
    """Return int64 (kept, 3): image, class, box, by falling score; equal scores by place.

    Boxes are float32 (N, B, 4): y1, x1, y2, x2 of two opposite corners; if `centred` the centre x,
    y, then width and height. Scores are float32 (N, C, B).
    """
    found = [np.zeros((0, 3), np.int64)]
    for image, corners in enumerate(_corners(boxes, centred=centred)):
        for kind, row in enumerate(scores[image]):
            kept = _kept(corners, row, limits)
            found += [np.array([[image, kind, box] for box in kept], np.int64).reshape((-1, 3))]
    return np.concatenate(found)


def _corners(boxes: Array, *, centred: bool) -> Array:
    """Return (N, B, 4): the lower ends of both axes, then the upper ones."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        half = second / np.float32(2)
        first, second = first - half, first + half
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _kept(corners: Array, scores: Array, limits: Limits) -> list[int]:
    """Return the boxes of one class: the best one that overlaps none before it, and so on."""
    candidates = np.flatnonzero(scores > limits.score)
    candidates = candidates[np.argsort(-scores[candidates], kind="stable")]
    kept: list[int] = []
    while candidates.size and len(kept) < limits.most:
        best, candidates = int(candidates[0]), candidates[1:]
        kept.append(best)
        overlaps = _overlaps(corners[best], corners[candidates])
        candidates = candidates[~(overlaps > np.float32(limits.overlap))]
    return kept


def _overlaps(one: Array, others: Array) -> Array:
    """Return intersection over union of a box with each of others, 0 where one has no area."""
    low, high = np.maximum(one[:2], others[:, :2]), np.minimum(one[2:], others[:, 2:])
    common = np.maximum(high - low, 0).prod(-1)
    areas = (others[:, 2:] - others[:, :2]).prod(-1)
    own = (one[2:] - one[:2]).prod()
    valid = (common > 0) & (areas > 0) & (own > 0)
    return np.where(valid, common / np.where(valid, own + areas - common, 1), 0)

"""Brings targets to about one: means and deviations of each value over a set of samples.

The networks learn in these units, as positions of 192 m and rates of 0.001 rad/s stand in one
output. When the model is written its last layers take the units in (`fold`), so that it answers in
metres and radians.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.training.heads import Head, Singles

# Values that never change, like the yaw of a camera that is mounted straight, have this unit: far
# below what anybody reads from them, far above where float16 ends.
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
    """Mean and deviation of each value of a target, both float32; 0 and 1 for chances.

    Both are (size,); deviations are above 0.
    """

    mean: Singles
    deviation: Singles


def measure(heads: tuple[Head, ...], targets: Singles) -> Scaling:
    """Return the scaling of a set of targets.

    Targets are (n, size) float32, NaN where there is no truth.
    """
    means, deviations, start = [], [], 0
    for head in heads:
        part = targets[:, start : start + head.size].astype(np.float64)
        start += head.size
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
    """Return a last layer that answers in the units of its heads.

    `weight` (width, inputs) and `bias` (width,) answer in units of the scaling; the results are
    float32 of the same shapes.
    """
    factor, shift, start = [], [], 0
    for head in heads:
        mean = scaling.mean[start : start + head.size]
        deviation = scaling.deviation[start : start + head.size]
        start += head.size
        factor.append(deviation)
        shift.append(mean)
        if head.kind == "gaussian":  # the logarithms of deviations move, they do not stretch
            factor.append(np.ones_like(deviation))
            shift.append(np.log(deviation))
    stretch = np.concatenate(factor).astype(np.float64)
    return (
        (weight * stretch[:, None]).astype(np.float32),
        (bias * stretch + np.concatenate(shift)).astype(np.float32),
    )


def part_of(heads: tuple[Head, ...], scaling: Scaling, wanted: tuple[Head, ...]) -> Scaling:
    """Return the scaling of some of the heads, in the order that is wanted."""
    starts, start = {}, 0
    for head in heads:
        starts[head.name] = start
        start += head.size
    index = np.concatenate([np.arange(starts[h.name], starts[h.name] + h.size) for h in wanted])
    return Scaling(scaling.mean[index], scaling.deviation[index])

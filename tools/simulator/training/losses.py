"""Computes the losses of the heads, and auxiliary losses (*hints*) of parts of the vision network.

The loss of a head is the negative log-likelihood of the ground truth under its output; missing
ground truth (NaN) is ignored. Means and deviations describe a Laplace distribution, whose tails fit
roads and traffic better than those of a normal one. The deviation is its standard deviation.

A plan is only a few numbers per picture, so convolutions learn slowly from it. Hints therefore
train the parts that locate lines, the car ahead and motion directly. Their ground truth is derived
from the targets: projected positions, and the distance driven between the frames.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from tools.simulator.training.heads import VISION_TARGETS, Head, Singles, places_in_target
from tools.simulator.training.networks.cells import (
    COLUMNS,
    LINES,
    ROWS,
    lead_places,
    lead_readings,
    line_columns,
)
from tools.simulator.training.networks.sweep import displacement_of

# Range of log-deviations, in units of the scaling; values outside have a small penalty (_OUTSIDE).
LOWEST, HIGHEST = -5.0, 3.0
# Each term is weighted by its deviation to this power, so that certain values do not dominate the
# loss (Seitzer and others, "On the pitfalls of heteroscedastic uncertainty estimation", 2022).
EMPHASIS = 0.5
_OUTSIDE = 0.1
_PLACES = places_in_target(VISION_TARGETS)
# Added to probabilities before the logarithm, which limits the loss of a cell to 14.
_LEAST = 1e-6
# Readings have a double weight, because braking depends on them.
_READING_WEIGHT = 2.0


def head_loss(head: Head, output: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss of one head over a batch, a scalar float32.

    `output` (n, width) and `target` (n, size) are in units of the scaling; NaN is ignored.
    """
    known = torch.isfinite(target)
    truth = torch.where(known, target, torch.zeros_like(target))
    if head.kind == "gaussian":
        terms = _likelihood(output[:, : head.size].float(), output[:, head.size :].float(), truth)
    elif head.kind == "binary":
        terms = functional.binary_cross_entropy_with_logits(
            output.float(), truth.clamp(0.0, 1.0), reduction="none"
        )
    else:
        logits = output.float().reshape(-1, *head.shape).log_softmax(-1)
        terms = -(truth.reshape(logits.shape) * logits).reshape(target.shape)
        # The mean below divides by the number of choices, but cross-entropy is a sum over them.
        terms = terms * head.shape[-1]
    count = known.sum().clamp(min=1)
    return torch.where(known, terms, torch.zeros_like(terms)).sum() / count


def total_loss(
    heads: tuple[Head, ...], outputs: dict[str, Tensor], targets: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted sum of all heads' losses, and the loss of each head.

    `targets` (n, size) are in units of the scaling, with the parts of `heads` in order.
    """
    parts, places = {}, places_in_target(heads)
    total = targets.new_zeros(())
    for head in heads:
        target = targets[:, places[head.name]]
        parts[head.name] = head_loss(head, outputs[head.name], target)
        total = total + head.weight * parts[head.name]
    return total, {name: part.detach() for name, part in parts.items()}


def _likelihood(mean: Tensor, log_deviation: Tensor, truth: Tensor) -> Tensor:
    """Return the negative log-density of the Laplace distribution, weighted with `EMPHASIS`."""
    inside = log_deviation.clamp(LOWEST, HIGHEST)
    terms = inside + math.sqrt(2.0) * (truth - mean).abs() * torch.exp(-inside)
    weight = torch.exp(EMPHASIS * inside.detach())
    return weight * terms + _OUTSIDE * (log_deviation - inside).square()


# --- Hints ---------------------------------------------------------------------------------------


def line_loss(logits: Tensor, targets: Singles) -> Tensor:
    """Return the loss of lines in cells, a scalar, from the cell, the position and the presence.

    `logits` (n, 2, 6, 16, 32) are by view, line and cell; `targets` (n, size) are in their own
    units.
    """
    columns = torch.from_numpy(line_columns(targets))
    there = torch.isfinite(columns)
    presence = functional.binary_cross_entropy_with_logits(logits.amax(-1), there.float())
    share = logits[there].log_softmax(-1)
    wanted = columns[there]
    missed = choice_loss(share, wanted - 0.5)
    at = (share.exp() * (torch.arange(COLUMNS) + 0.5)).sum(-1)
    return presence + missed + (at - wanted).abs().mean() if len(wanted) else presence


def lead_loss(logits: Tensor, targets: Singles) -> Tensor:
    """Return the loss of the car ahead in cells, a scalar, from cell, position and presence.

    `logits` (n, 2, 16, 32) are by view and cell; `targets` (n, size) are in their own units.
    """
    places = torch.from_numpy(lead_places(targets))
    there = torch.isfinite(places[..., 0])
    presence = functional.binary_cross_entropy_with_logits(logits.amax((2, 3)), there.float())
    wanted = places[there]
    if not len(wanted):
        return presence
    share = logits[there].flatten(1).softmax(1).reshape(-1, ROWS, COLUMNS)
    across, down = share.sum(1), share.sum(2)
    missed = choice_loss((across + _LEAST).log(), wanted[:, 0] - 0.5)
    missed = missed + choice_loss((down + _LEAST).log(), wanted[:, 1] - 0.5)
    column = (across * (torch.arange(COLUMNS) + 0.5)).sum(1)
    row = (down * (torch.arange(ROWS) + 0.5)).sum(1)
    off = (torch.stack([column, row], 1) - wanted).abs()
    return presence + missed + off.mean()


def reading_loss(readings: Tensor, targets: Singles) -> Tensor:
    """Return the loss of distance and growth of the car ahead, a scalar.

    `readings` (n, 2, 2) are by view; `targets` (n, size) are in their own units.
    """
    wanted = torch.from_numpy(lead_readings(targets))[:, None].expand_as(readings)
    known = torch.isfinite(wanted)
    return (readings - wanted)[known].abs().mean() if known.any() else readings.sum() * 0.0


def displacement_loss(logits: Tensor, targets: Singles) -> Tensor:
    """Return the loss of the road's displacement between two frames, a scalar.

    `logits` are (n, 32); `targets` (n, size) are in their own units.
    """
    speed = targets[:, _PLACES["pose"]][:, 0]
    height = targets[:, _PLACES["road_transform"]][:, 2]
    return choice_loss(logits.log_softmax(-1), torch.from_numpy(displacement_of(speed, height)))


def choice_loss(logs: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean cross-entropy of choices, a scalar; the truth can be between two choices.

    `logs` (n, choices) are log-probabilities. `wanted` (n,) is the true choice, from 0; values
    outside the range are clamped.
    """
    last = logs.shape[1] - 1
    inside = wanted.clamp(0.0, float(last))
    low = inside.floor().long().clamp(max=last - 1)
    share = inside - low
    below, above = (logs.gather(1, (low + k)[:, None])[:, 0] for k in (0, 1))
    return -((1.0 - share) * below + share * above).mean()


def hint_loss(outputs: Mapping[str, Tensor], targets: Singles) -> dict[str, Tensor]:
    """Return the weighted hints, scalars by name.

    `targets` (n, size) are in their own units.
    """
    return {
        "line_cells": line_loss(outputs["cells"][:, :, :LINES], targets),
        "lead_cells": lead_loss(outputs["cells"][:, :, LINES], targets),
        "lead_readings": _READING_WEIGHT * reading_loss(outputs["lead_readings"], targets),
        "displacement": displacement_loss(outputs["displacements"], targets),
    }

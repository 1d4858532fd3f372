"""Computes the losses of the heads, and auxiliary losses (hints) of parts of the networks.

The loss of a head is the negative log-likelihood of the truth under its output; NaN (no truth) is
ignored. Means and deviations describe a Laplace distribution: its tails fit roads and other drivers
better than those of a normal one. The daemon reads its standard deviation.

A plan is a few numbers for a whole picture, so convolutions learn slowly from it what to look for.
Hints therefore train the parts for lines, the car ahead and motion directly. Their truth comes
from the targets: projected places, and the distance driven between the frames.
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
from tools.simulator.training.networks.sweep import way_of

# Range of log-deviations, in units of the scaling; a small penalty (`_OUTSIDE`) pulls others back.
LOWEST, HIGHEST = -5.0, 3.0
# Seitzer and others, "On the pitfalls of heteroscedastic uncertainty estimation", 2022: each term
# is weighted by its deviation to this power, so that well-known values do not dominate the loss.
EMPHASIS = 0.5
_OUTSIDE = 0.1
_PLACES = places_in_target(VISION_TARGETS)
# Added to shares before the logarithm: a cell with share 0 costs at most 14.
_LEAST = 1e-6
# Readings count double, because braking depends on them.
_READING_WEIGHT = 2.0


def head_loss(head: Head, output: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss of one head over a batch, a scalar float32.

    `output` (n, width) and `target` (n, size) are in units of the scaling; NaN is no truth.
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
        # Cross-entropy is a sum over the choices, but the mean below divides by their number.
        terms = terms * head.shape[-1]
    count = known.sum().clamp(min=1)
    return torch.where(known, terms, torch.zeros_like(terms)).sum() / count


def total_loss(
    heads: tuple[Head, ...], outputs: dict[str, Tensor], targets: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted sum of all heads' losses, and each of them.

    `heads` are the parts of a target in order; targets are (n, size) in units of the scaling.
    """
    parts, places = {}, places_in_target(heads)
    total = targets.new_zeros(())
    for head in heads:
        target = targets[:, places[head.name]]
        parts[head.name] = head_loss(head, outputs[head.name], target)
        total = total + head.weight * parts[head.name]
    return total, {name: part.detach() for name, part in parts.items()}


def _likelihood(mean: Tensor, log_deviation: Tensor, truth: Tensor) -> Tensor:
    """Return the negative logarithm of Laplace's density, weighted by `EMPHASIS`."""
    inside = log_deviation.clamp(LOWEST, HIGHEST)
    terms = inside + math.sqrt(2.0) * (truth - mean).abs() * torch.exp(-inside)
    weight = torch.exp(EMPHASIS * inside.detach())
    return weight * terms + _OUTSIDE * (log_deviation - inside).square()


# --- Hints ------------------------------------------------------------------------------------


def line_loss(logits: Tensor, targets: Singles) -> Tensor:
    """Return the loss of lines in cells, a scalar: which cell, where in it, and whether at all.

    `logits` are (n, 2, 6, 16, 32) of views, lines and cells; `targets` (n, size) in their own
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
    """Return the loss of the car ahead in cells, a scalar: which cell, where in it, whether at all.

    `logits` are (n, 2, 16, 32) of views and cells; `targets` (n, size) in their own units.
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
    """Return the loss of the readings of the car ahead, a scalar.

    `readings` are (n, 2, 2) of views; `targets` (n, size) in their own units.
    """
    wanted = torch.from_numpy(lead_readings(targets))[:, None].expand_as(readings)
    known = torch.isfinite(wanted)
    return (readings - wanted)[known].abs().mean() if known.any() else readings.sum() * 0.0


def way_loss(logits: Tensor, targets: Singles) -> Tensor:
    """Return the loss of the distance that the road moved between two frames, a scalar.

    `logits` are (n, 32); `targets` (n, size) in their own units.
    """
    speed = targets[:, _PLACES["pose"]][:, 0]
    height = targets[:, _PLACES["road_transform"]][:, 2]
    return choice_loss(logits.log_softmax(-1), torch.from_numpy(way_of(speed, height)))


def choice_loss(logs: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean cross-entropy of choices, where the truth may lie between two, a scalar.

    `logs` (n, choices) are logarithms of probabilities. `wanted` (n,) is 0 for the first choice;
    values outside are clamped.
    """
    last = logs.shape[1] - 1
    inside = wanted.clamp(0.0, float(last))
    low = inside.floor().long().clamp(max=last - 1)
    share = inside - low
    below, above = (logs.gather(1, (low + k)[:, None])[:, 0] for k in (0, 1))
    return -((1.0 - share) * below + share * above).mean()


def hint_loss(outputs: Mapping[str, Tensor], targets: Singles) -> dict[str, Tensor]:
    """Return the weighted hints, scalars by name.

    `targets` are (n, size) in their own units.
    """
    return {
        "line_cells": line_loss(outputs["cells"][:, :, :LINES], targets),
        "lead_cells": lead_loss(outputs["cells"][:, :, LINES], targets),
        "lead_readings": _READING_WEIGHT * reading_loss(outputs["lead_readings"], targets),
        "way": way_loss(outputs["ways"], targets),
    }

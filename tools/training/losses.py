"""Losses of the heads: the likelihood of the truth under their outputs; NaN (no truth) is ignored.

Means and deviations are those of Laplace's distribution, whose tails fit roads and other drivers
better than a normal one's; the deviation is its standard deviation, as the daemon reads it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from tools.training.heads import Head

# Of logarithms of deviations, in units of the scaling: what lies outside is drawn back gently.
LOWEST, HIGHEST = -5.0, 3.0
# Seitzer and others, "On the pitfalls of heteroscedastic uncertainty estimation", 2022: each term
# counts by its deviation to this power, so that what is known well does not drown all else.
EMPHASIS = 0.5
_OUTSIDE = 0.1


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
        # One of them is chosen: the sum over all is the loss of a choice.
        terms = terms * head.shape[-1]
    count = known.sum().clamp(min=1)
    return torch.where(known, terms, torch.zeros_like(terms)).sum() / count


def total_loss(
    heads: tuple[Head, ...], outputs: dict[str, Tensor], targets: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted sum of all heads' losses, and each of them.

    `heads` are the parts of a target in order; targets are (n, size) in units of the scaling.
    """
    parts, start = {}, 0
    total = targets.new_zeros(())
    for head in heads:
        target = targets[:, start : start + head.size]
        start += head.size
        parts[head.name] = head_loss(head, outputs[head.name], target)
        total = total + head.weight * parts[head.name]
    return total, {name: part.detach() for name, part in parts.items()}


def _likelihood(mean: Tensor, log_deviation: Tensor, truth: Tensor) -> Tensor:
    """Return the negative logarithm of Laplace's density, weighted by `EMPHASIS`."""
    inside = log_deviation.clamp(LOWEST, HIGHEST)
    terms = inside + math.sqrt(2.0) * (truth - mean).abs() * torch.exp(-inside)
    weight = torch.exp(EMPHASIS * inside.detach())
    return weight * terms + _OUTSIDE * (log_deviation - inside).square()

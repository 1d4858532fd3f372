"""Networks in torch whose matrices are rounded to 8 bits each time they are used.

What is learnt are the weights before they are rounded; the gradient passes the rounding as if it
were not there (Bengio and others, "Estimating or propagating gradients through stochastic neurons",
2013). Batch normalisation is folded first, so that what is rounded is what is exported.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tools.training.networks.parts import ConvNorm
from tools.training.networks.rounding import LARGEST, LEAST_SCALE


@torch.no_grad()
def fold_norms(network: nn.Module) -> None:
    """Move the batch normalisations of a network into its convolutions, in place.

    It says what it said in evaluation, and keeps the names of its weights: the normalisations stay
    as a bias after a mean of 0 and a deviation of 1, which are no longer learnt.
    """
    for module in network.modules():
        if not isinstance(module, ConvNorm):
            continue
        norm = module.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        weight = module.conv.weight
        weight.copy_(weight * factor[:, None, None, None])
        norm.bias.copy_(norm.bias - norm.running_mean * factor)
        norm.running_mean.zero_()
        norm.running_var.fill_(1.0 - norm.eps)
        norm.weight.fill_(1.0)
        norm.weight.requires_grad_(False)
    network.eval()


def scale_of(weight: Tensor) -> Tensor:
    """Return the scale of each output of a weight (outputs, ...), to be multiplied with it."""
    largest = weight.detach().abs().flatten(1).amax(1).reshape(-1, *[1] * (weight.ndim - 1))
    return (largest / LARGEST).clamp(min=LEAST_SCALE)


def rounded(weight: Tensor) -> Tensor:
    """Return a weight (outputs, ...) rounded as by `rounding`; gradients pass through."""
    fixed, scale = weight.detach(), scale_of(weight)
    value = (fixed / scale).round().clamp(-LARGEST, LARGEST) * scale
    return weight + (value - fixed)


def matrices_of(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return what is rounded of a network by its names: biases and norms are left out."""
    return {
        f"{name}.weight": module.weight
        for name, module in network.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    }


def rounded_weights(network: nn.Module) -> dict[str, Tensor]:
    """Return the rounded matrices of a network by their names."""
    return {name: rounded(weight) for name, weight in matrices_of(network).items()}


def call_rounded(network: nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
    """Return a network's outputs with its matrices rounded."""
    said: dict[str, Tensor] = functional_call(network, rounded_weights(network), inputs)
    return said


@torch.no_grad()
def round_weights(network: nn.Module) -> None:
    """Round the matrices of a network, in place."""
    network.load_state_dict({**network.state_dict(), **rounded_weights(network)})

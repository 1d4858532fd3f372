"""The optimizer Muon, and a running average of weights, steadier than those of any one step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

DECAY = 0.998


class Average:
    """Keeps an exponential average of everything in a network's state."""

    def __init__(self, network: nn.Module, decay: float = DECAY) -> None:
        self._decay = decay
        self._steps = 0
        self.state: dict[str, Tensor] = {
            name: value.detach().clone() for name, value in network.state_dict().items()
        }

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take the weights of one more step; early ones are forgotten sooner."""
        self._steps += 1
        decay = min(self._decay, (1.0 + self._steps) / (10.0 + self._steps))
        for name, value in network.state_dict().items():
            kept = self.state[name]
            if kept.dtype.is_floating_point:
                kept.lerp_(value, 1.0 - decay)
            else:
                kept.copy_(value)

    def saved(self) -> dict[str, Any]:
        """Return all of it for a checkpoint."""
        return {"steps": self._steps, "state": self.state}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._steps = int(saved["steps"])
        self.state = dict(saved["state"])


# --- Muon -------------------------------------------------------------------------------------
# Muon turns all directions of a weight equally far in each step (K. Jordan and others, 2024). The
# size of a step is that of J. Liu and others ("Muon is scalable for LLM training", 2025), which
# uses Adam's learning rates. torch's own rejects kernels of convolutions and multiplies in
# bfloat16, which many processors do not do themselves.
#
#     gradient -> mean of gradients -> nearest matrix with all singular values 1 -> step

MOMENTUM = 0.95
# Jordan's: after five rounds singular values from 0.01 of the largest on are in about 0.7..1.2.
_ROUNDS = 5
_A, _B, _C = 3.4445, -4.775, 2.0315
# Root of the mean square of a step, in units of the rate. Adam's is 0.2 (Liu and others); 0.4 and
# 0.8 learnt alike, and faster (ADR 0098).
_STEP = 0.6
# A weight with fewer rows or columns has no directions to speak of.
_LEAST_WIDTH = 8


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal.

    The first dimension of each weight counts outputs; the rate is comparable to Adam's and the
    weight decay is decoupled from the gradient. Directions are computed in `dtype`: bfloat16, where
    a processor multiplies it, is as good as any (Jordan).
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        rate: float,
        weight_decay: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(parameters, {"lr": rate, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Do one step along the gradients.

        Raises:
            ValueError: `closure` was given; what it would measure is not needed.
        """
        if closure is not None:
            raise ValueError("closure: expected None, as nothing here asks for the loss again")
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                mean = state.setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1.0 - MOMENTUM)
                # Nesterov's: where the mean will be after this gradient once more.
                ahead = weight.grad.lerp(mean, MOMENTUM).flatten(1)
                turned = orthogonal(ahead, self._dtype)
                weight.mul_(1.0 - group["lr"] * group["weight_decay"])
                size = _STEP * math.sqrt(max(turned.shape))
                weight.add_(turned.reshape(weight.shape), alpha=-group["lr"] * size)


def orthogonal(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return about the nearest matrix whose singular values are all 1, by Newton and Schulz.

    The result is (m, n) of `dtype`; singular values are about 0.7 to 1.2, and 0 where `matrix` is
    0.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = (x / (x.norm() + 1e-7)).to(dtype)
    for _ in range(_ROUNDS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=_B, alpha=_C), x, beta=_A)
    return x.T if is_tall else x


def split(network: nn.Module, last: str) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights that turn what is hidden into what is hidden, and all others.

    `last` names the output layers, which learn as Adam does.
    """
    hidden: list[Tensor] = []
    others: list[Tensor] = []
    for name, weight in network.named_parameters():
        is_layer = name.endswith(".weight") and weight.ndim > 1 and f".{last}." not in name
        is_wide = is_layer and min(weight.shape[0], weight[0].numel()) >= _LEAST_WIDTH
        (hidden if is_wide else others).append(weight)
    return hidden, others

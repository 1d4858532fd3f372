"""The optimizer Muon, and a running average of weights, which varies less than single steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

DECAY = 0.998


class Average:
    """An exponential moving average of a network's state."""

    def __init__(self, network: nn.Module, decay: float = DECAY) -> None:
        self._decay = decay
        self._steps = 0
        self.state: dict[str, Tensor] = {
            name: value.detach().clone() for name, value in network.state_dict().items()
        }

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Add the weights of one step; early steps have a shorter memory."""
        self._steps += 1
        decay = min(self._decay, (1.0 + self._steps) / (10.0 + self._steps))
        for name, value in network.state_dict().items():
            kept = self.state[name]
            if kept.dtype.is_floating_point:
                kept.lerp_(value, 1.0 - decay)
            else:
                kept.copy_(value)

    def saved(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"steps": self._steps, "state": self.state}

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._steps = int(saved["steps"])
        self.state = dict(saved["state"])


# --- Muon ----------------------------------------------------------------------------------------
# Muon moves all directions of a weight equally far in each step (K. Jordan and others, 2024). The
# step size follows J. Liu and others ("Muon is scalable for LLM training", 2025), so that Adam's
# learning rates apply. torch's own Muon rejects convolution kernels and multiplies in bfloat16,
# which many processors do not support.
#
#     gradient -> mean of gradients -> nearest matrix with all singular values 1 -> step

MOMENTUM = 0.95
# Jordan's coefficients: five rounds bring singular values above 0.01 of the largest to 0.7..1.2.
_ROUNDS = 5
_A, _B, _C = 3.4445, -4.775, 2.0315
# Root mean square of a step, in units of the rate. Adam's is 0.2 (Liu and others); 0.4 and 0.8
# learnt equally well, and faster than 0.2 (ADR 0098).
_STEP = 0.6
# A weight with fewer rows or columns is left to the other optimizer.
_LEAST_WIDTH = 8


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised steps.

    The first dimension of each weight is its outputs. The rate is comparable to Adam's, and weight
    decay is decoupled from the gradient. Steps are computed in `dtype`; bfloat16 is accurate
    enough (Jordan).
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
            ValueError: `closure` was given, which is not supported.
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
                # Nesterov momentum: the mean as if this gradient were applied once more.
                ahead = weight.grad.lerp(mean, MOMENTUM).flatten(1)
                turned = orthogonal(ahead, self._dtype)
                weight.mul_(1.0 - group["lr"] * group["weight_decay"])
                size = _STEP * math.sqrt(max(turned.shape))
                weight.add_(turned.reshape(weight.shape), alpha=-group["lr"] * size)


def orthogonal(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return an approximation of the nearest matrix with all singular values 1 (Newton-Schulz).

    The result is (m, n) of `dtype`. Its singular values are about 0.7 to 1.2, and 0 where those
    of `matrix` are 0.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = (x / (x.norm() + 1e-7)).to(dtype)
    for _ in range(_ROUNDS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=_B, alpha=_C), x, beta=_A)
    return x.T if is_tall else x


def split(network: nn.Module, last: str) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights of hidden layers, for Muon, and all others, for Adam.

    `last` names the output layers, which belong to the others.
    """
    hidden: list[Tensor] = []
    others: list[Tensor] = []
    for name, weight in network.named_parameters():
        is_layer = name.endswith(".weight") and weight.ndim > 1 and f".{last}." not in name
        is_wide = is_layer and min(weight.shape[0], weight[0].numel()) >= _LEAST_WIDTH
        (hidden if is_wide else others).append(weight)
    return hidden, others

"""A running average of a network's weights: steadier than the weights of any one step."""

from __future__ import annotations

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

"""What tests of the networks share; `make test-train` runs them, as they need torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tools.simulator.training.heads import (
    HIDDEN_WIDTH,
    HISTORY_ROWS,
    VISION_TARGETS,
    Scaling,
    size_of,
)
from tools.simulator.training.model_files import Trained
from tools.simulator.training.networks.networks import Policy, Vision, arrays_of

Networks = tuple[Vision, Policy, Scaling]


@pytest.fixture
def networks() -> Networks:
    """Networks whose every weight and statistic is somewhere, and a scaling of many sizes."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    vision, policy = Vision(), Policy()
    generator = torch.Generator().manual_seed(4)
    for network in (vision, policy):
        for name, value in network.state_dict().items():
            if name.endswith("running_var"):
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
            elif name.endswith(("bias", "running_mean")) or "bend" in name or "last" in name:
                value.copy_(0.1 * torch.randn(value.shape, generator=generator))
    rng, size = np.random.default_rng(5), size_of(VISION_TARGETS)
    mean, deviation = rng.normal(size=size), np.exp(rng.normal(size=size))
    start = 0
    for head in VISION_TARGETS:
        if head.kind != "gaussian":
            mean[start : start + head.size], deviation[start : start + head.size] = 0.0, 1.0
        start += head.size
    scaling = Scaling(mean.astype(np.float32), deviation.astype(np.float32))
    return vision.eval(), policy.eval(), scaling


def as_trained(networks: Networks) -> Trained:
    vision, policy, scaling = networks
    return Trained("test", arrays_of(vision), arrays_of(policy), scaling)


def histories(count: int) -> list[torch.Tensor]:
    """Return random inputs of the policy."""
    generator = torch.Generator().manual_seed(0)
    desires = torch.zeros(count, HISTORY_ROWS, 8)
    features = torch.randn(count, HISTORY_ROWS, HIDDEN_WIDTH, generator=generator)
    return [desires, torch.tensor([[1.0, 0.0]]).repeat(count, 1), features]

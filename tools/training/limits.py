"""Refuses networks that are larger than the model may be, before time is spent on them."""

from __future__ import annotations

import numpy as np
import torch

from tools.training.export.export import Trained, Written, build_models
from tools.training.heads import VISION_TARGETS, size_of
from tools.training.networks.networks import Policy, Vision
from tools.training.networks.scaling import Scaling


def check_sizes() -> Written:
    """Return how large the models of these networks will be; nothing has to be trained for it.

    Raises:
        TrainingError: larger than they may be.
    """
    # Shapes alone: no weight is drawn, so draws that come later are what they were.
    with torch.device("meta"):
        networks = (Vision(), Policy())
    vision, policy = (
        {name: np.zeros(value.shape, np.float32) for name, value in network.state_dict().items()}
        for network in networks
    )
    size = size_of(VISION_TARGETS)
    scaling = Scaling(np.zeros(size, np.float32), np.ones(size, np.float32))
    _, written = build_models(Trained("not-trained", vision, policy, scaling))
    return written

"""Networks as they are exported, and what onnxruntime makes of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from tools.training.export import Trained
from tools.training.heads import Singles
from tools.training.networks import Policy, Vision, arrays_of
from tools.training.scaling import Scaling

Networks = tuple[Vision, Policy, Scaling]


def as_trained(networks: Networks) -> Trained:
    """Return networks as a training leaves them."""
    vision, policy, scaling = networks
    return Trained("test", arrays_of(vision), arrays_of(policy), scaling)


def run(path: Path, feeds: dict[str, Any]) -> Singles:
    """Return the first output of a model."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return np.asarray(ort.InferenceSession(path, options).run(None, feeds)[0])

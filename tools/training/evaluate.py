"""Asks the vision network about samples, in the order and the units of their targets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tools.training.heads import VISION_TARGETS, Head, Singles
from tools.training.networks import Vision, as_input
from tools.training.replay import Sample
from tools.training.scaling import Scaling

_BATCH = 16


@torch.inference_mode()
def answers(vision: Vision, scaling: Scaling, samples: Sequence[Sample]) -> Singles:
    """Return what a network says of samples, laid out as their targets: means, or chances."""
    vision.eval()
    found = []
    for start in range(0, len(samples), _BATCH):
        images = np.stack([sample.images for sample in samples[start : start + _BATCH]])
        outputs = vision(as_input(torch.from_numpy(images)))
        parts = [_means(head, outputs[head.name]) for head in VISION_TARGETS]
        found.append(np.concatenate([part.numpy() for part in parts], axis=1))
    said = np.concatenate(found)
    return np.asarray(said * scaling.deviation + scaling.mean, np.float32)


def _means(head: Head, output: torch.Tensor) -> torch.Tensor:
    if head.kind == "gaussian":
        return output[:, : head.size]
    if head.kind == "binary":
        return output.sigmoid()
    return output.reshape(-1, *head.shape).softmax(-1).reshape(len(output), -1)

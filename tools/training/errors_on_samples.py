"""Errors of what a policy commands on drives that it has not learnt from.

What a policy knows by heart shows in nothing else: its loss goes on falling while, on new drives,
it brakes less and less where braking is right (ADR 0098).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from modeld.constants import IDX_COUNT, PLAN_VELOCITY, PLAN_WIDTH
from tools.training.commanding import accelerations, turns
from tools.training.heads import PLAN, VISION_TARGETS, Head, Singles
from tools.training.networks.networks import Policy, Vision, as_input
from tools.training.networks.scaling import Scaling
from tools.training.samples.histories import Histories
from tools.training.samples.replay import Sample

# Every fifth row is judged, as rows of a drive resemble those beside them, 1024 at once.
_STRIDE, _AT_ONCE = 5, 1024
# Where braking by more than this is right, m/s^2, it is hard.
_HARD_MPS2 = -2.5
_SPEED = PLAN_VELOCITY.start
# Of the times at which commands are read (`tools/training/commanding.py`): 0.63 and 0.24 s.
_LONGITUDINAL, _LATERAL = 2, 0


@torch.inference_mode()
def command_errors(policy: Policy, histories: Histories, scaling: Scaling) -> dict[str, float]:
    """Return mean errors by the names of a report.

    Braking is judged where more than 2.5 m/s^2 of it is right, as a mean (positive where it is too
    little) and as an error; where there is no such row, not at all.

    The policy is left in evaluation mode; the scaling is that of the plan, both parts (495,).
    """
    policy.eval()
    ends = histories.rows.unique()[::_STRIDE]
    parts = [_compare(policy, histories, some, scaling) for some in ends.split(_AT_ONCE)]
    speed, ahead, aside, right = (torch.cat(part) for part in zip(*parts, strict=True))
    hard = ahead[right < _HARD_MPS2]
    figures = {
        "own speed, m/s": speed.abs(),
        "acceleration, m/s2": ahead.abs(),
        "hard braking, mean, m/s2": hard,
        "hard braking, m/s2": hard.abs(),
        "lateral, m/s2": aside.abs(),
    }
    return {name: round(float(of.mean()), 4) for name, of in figures.items() if len(of)}


def _compare(
    policy: Policy, histories: Histories, ends: torch.Tensor, scaling: Scaling
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return errors of speed and of both commands, and the acceleration that is right, (n,)."""
    shape = (-1, IDX_COUNT, PLAN_WIDTH)
    deviation, mean = (torch.from_numpy(part) for part in (scaling.deviation, scaling.mean))
    output = policy(*histories.inputs(histories.until(ends)))[PLAN.name][:, : PLAN.size]
    said = (output * deviation + mean).reshape(shape)
    right = (histories.targets[ends, : PLAN.size].float() * deviation + mean).reshape(shape)
    speed, asked = right[:, 0, _SPEED], accelerations(right)[:, _LONGITUDINAL]
    ahead = accelerations(said)[:, _LONGITUDINAL] - asked
    aside = (turns(said) - turns(right))[:, _LATERAL] * speed
    return said[:, 0, _SPEED] - speed, ahead, aside, asked


_BATCH = 16


@torch.inference_mode()
def answers(vision: Vision, scaling: Scaling, samples: Sequence[Sample]) -> Singles:
    """Return a network's answers to samples, laid out as their targets: means, or chances."""
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

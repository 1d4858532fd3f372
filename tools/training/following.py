"""Lets a network with rounded weights follow the one it was made from (distillation).

Hinton and others, "Distilling the knowledge in a neural network", 2015: no truth is needed, only
what the teacher says of the same inputs, which is more than what is true.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tools.training.heads import Head
from tools.training.losses import HIGHEST, LOWEST
from tools.training.rounded_networks import call_rounded, matrices_of, scale_of
from tools.training.vision_stage import CLIP, learning_rate
from tools.training.watch import Watch

# How far a weight moves in a step at most, in steps of its rounding (the mean of its matrix), and
# what is not rounded.
ROUNDED_RATE = 0.003
OTHER_RATE = 1e-5
# Of deviations of the teacher's deviations, and of `hidden_state`, which the policy reads.
DEVIATION_WEIGHT = 0.1
HIDDEN_WEIGHT = 4.0
HIDDEN = "hidden_state"

Draw = Callable[[], tuple[Tensor, ...]]
"""Gives the inputs of a step."""
Report = Callable[[float, int, float, dict[str, Tensor]], None]
"""Takes the share that is done, the step, the loss and that of each head."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is followed.

    Attributes:
        teacher: it, for evaluation.
        heads: whose outputs count.
        draw: gives inputs.
        seconds: how long.
        stage: name for errors.
    """

    teacher: nn.Module
    heads: tuple[Head, ...]
    draw: Draw
    seconds: float
    stage: str


def follow(student: nn.Module, lesson: Lesson, report: Report) -> int:
    """Train a network whose matrices are rounded until its time is over; return the steps.

    Args:
        student: norms folded; changed in place. Its weights are not rounded when this returns.
        lesson: what it follows.
        report: told of each step.

    Raises:
        TrainingError: it diverged.
    """
    learnt = [p for p in student.parameters() if p.requires_grad]
    groups, rates = _groups(student)
    optimizer = torch.optim.Adam(groups, fused=True)
    begun, step, watch = time.perf_counter(), 0, Watch("begin again")
    while (share := (time.perf_counter() - begun) / max(lesson.seconds, 1e-9)) < 1.0:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = learning_rate(share, rate)
        inputs = lesson.draw()
        with torch.no_grad():
            wanted = lesson.teacher(*inputs)
        loss, parts = following_loss(lesson.heads, call_rounded(student, *inputs), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, CLIP)
        optimizer.step()
        step += 1
        value = float(loss.detach())
        watch.see(lesson.stage, step, value)
        report(share, step, value, parts)
    return step


def _groups(student: nn.Module) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the parameters in groups, and the highest rate of each."""
    matrices = matrices_of(student)
    rounded = {id(weight) for weight in matrices.values()}
    others = [p for p in student.parameters() if p.requires_grad and id(p) not in rounded]
    rates = [ROUNDED_RATE * float(scale_of(weight).mean()) for weight in matrices.values()]
    groups = [{"params": [weight]} for weight in matrices.values()]
    return [*groups, {"params": others}], [*rates, OTHER_RATE]


def following_loss(
    heads: tuple[Head, ...], said: dict[str, Tensor], wanted: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return how far outputs are from those of the teacher, and that of each head.

    Means count by how sure the teacher is of them, as in its own loss.

    Args:
        heads: whose outputs count.
        said: outputs by name, in units of the scaling.
        wanted: those of the teacher.
    """
    parts: dict[str, Tensor] = {}
    for head in heads:
        apart = (said[head.name] - wanted[head.name]).square()
        if head.kind == "gaussian":
            logs = wanted[head.name][:, head.size :].clamp(LOWEST, HIGHEST)
            means = (apart[:, : head.size] * torch.exp(-logs)).mean()
            parts[head.name] = means + DEVIATION_WEIGHT * apart[:, head.size :].mean()
        else:
            parts[head.name] = apart.mean()
    total = torch.stack([head.weight * parts[head.name] for head in heads]).sum()
    if HIDDEN in wanted:
        parts[HIDDEN] = (said[HIDDEN] - wanted[HIDDEN]).square().mean()
        total = total + HIDDEN_WEIGHT * parts[HIDDEN]
    return total, {name: part.detach() for name, part in parts.items()}

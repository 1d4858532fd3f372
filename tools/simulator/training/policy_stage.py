"""Trains the policy on drives, round by round, and judges its commands on drives kept apart.

The student itself drives most of them. What a policy knows by heart shows in nothing but drives
that it has not learnt from: its loss goes on falling while, on new drives, it brakes less and less
where braking is right (ADR 0098).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from modeld.constants import IDX_COUNT, PLAN_VELOCITY, PLAN_WIDTH
from tools.simulator.training.heads import (
    HIDDEN_WIDTH,
    HISTORY_ROWS,
    PLAN,
    POLICY_HEADS,
    VISION_TARGETS,
    Scaling,
    part_of,
)
from tools.simulator.training.losses import total_loss
from tools.simulator.training.networks.networks import Policy, Vision
from tools.simulator.training.networks.optimizers import Average
from tools.simulator.training.records import RESUME, Records, Watch
from tools.simulator.training.samples.histories import CommandLoss, Histories, accelerations, turns
from tools.simulator.training.vision_stage import CLIP, Tick, learning_rate

STAGE = "policy"
BATCH = 192
# On every tenth of 1680 drives, kept for judging, the lateral error at 2.2 s after a minute, far
# from the middle of the lane, was 0.72 m with 5e-4 and 0.63 m with 1.5e-3; 4e-3 is no better than
# 2e-3.
RATE = 2e-3
# A row of a drive is learnt from no more often than this: longer, and braking is known by heart
# (ADR 0098). Learning ends early then, and more drives have the time.
MOST_USES = 4.0
# Ten times that of the vision. On drives kept for judging braking, steering and own speed are more
# right with it, accelerations by a hundredth less (ADR 0098).
WEIGHT_DECAY = 0.2
# Of histories, so many begin anew somewhere: as after a start, or a gap in the frames.
_FORGOTTEN = 0.15
# Noise on features, whose deviation is about 1.
_NOISE = 0.02
_ROW_STEPS = 20
# Every fifth row is judged, as rows of a drive resemble those beside them, 1024 at once.
_STRIDE, _AT_ONCE = 5, 1024
# Where braking by more than this is right, m/s^2, it is hard.
_HARD_MPS2 = -2.5
_SPEED = PLAN_VELOCITY.start
# Of the times at which commands are read (`tools/simulator/training/samples/histories.py`): 0.63
# and 0.24 s.
_LONGITUDINAL, _LATERAL = 2, 0


def begin_policy(vision: Vision) -> Policy:
    """Return a policy whose plan is that of vision's own head, and that hears of its leads."""
    policy = Policy()
    policy.begin_as(vision)
    return policy


def learn(
    policy: Policy,
    histories: Histories,
    command_loss: CommandLoss,
    seconds: float,
    seed: int,
    report: Callable[[float, int, float, dict[str, Tensor]], None],
) -> None:
    """Train a policy until its time, or what there is to learn, is over; it ends averaged.

    The policy is changed in place. Now and then `report` receives the seconds so far, the step, the
    loss and that of each head.

    Raises:
        TrainingError: it diverged.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), RATE, weight_decay=WEIGHT_DECAY, fused=True)
    average, watch = Average(policy), Watch(RESUME)
    begun, step = time.perf_counter(), 0
    steps = max(1.0, MOST_USES * len(histories.rows) / BATCH)
    while (share := max((elapsed := time.perf_counter() - begun) / seconds, step / steps)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(share, RATE)
        inputs, targets = draw(histories, generator)
        outputs = policy(*inputs)
        loss, parts = total_loss(POLICY_HEADS, outputs, targets)
        loss = loss + command_loss(outputs[PLAN.name], targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), CLIP)
        optimizer.step()
        average.update(policy)
        step += 1
        watch.see(STAGE, step, float(loss.detach()))
        if step % _ROW_STEPS == 0:
            report(elapsed, step, float(loss.detach()), parts)
    policy.load_state_dict(average.state)


def draw(
    histories: Histories, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Return a batch: the policy's inputs and its targets."""
    count = len(histories.rows)
    ends = histories.rows[torch.randint(count, (BATCH,), generator=generator)]
    rows = histories.until(ends)
    pulses, conventions, features = histories.inputs(rows)
    first = torch.randint(HISTORY_ROWS, (BATCH, 1), generator=generator)
    forgets = torch.rand((BATCH, 1), generator=generator) < _FORGOTTEN
    # What asks for a lane change is not forgotten by itself: who asked will see it done.
    asked = pulses.abs().amax((1, 2))[:, None] > 0.0
    keep = ~(forgets & ~asked & (torch.arange(HISTORY_ROWS)[None] < first))
    # The same in all rows, as from a camera that differs; rows before a start stay zeros.
    noise = _NOISE * torch.randn((BATCH, 1, HIDDEN_WIDTH), generator=generator)
    features = features.add_(noise).mul_((histories.present[rows] * keep)[..., None])
    return (pulses, conventions, features), histories.targets[ends].float()


@dataclass(frozen=True, slots=True)
class Reporter:
    """Writes rows of the history while a policy is learnt; `minutes` were spent before."""

    records: Records
    tick: Tick
    round: int
    minutes: float
    seconds: float

    def __call__(self, elapsed_s: float, step: int, loss: float, parts: dict[str, Tensor]) -> None:
        """Take figures of a step."""
        row = {name: round(float(part), 4) for name, part in parts.items()}
        minutes = round(self.minutes + elapsed_s / 60.0, 3)
        stage = f"{STAGE}, round {self.round + 1}"
        self.records.add(stage=stage, step=step, minutes=minutes, loss=loss, **row)
        self.tick(elapsed_s / self.seconds, f"round {self.round + 1}, step {step}, loss {loss:.3f}")


def plan_scaling(scaling: Scaling) -> Scaling:
    """Return the part of the vision's scaling that is the plan's."""
    return part_of(VISION_TARGETS, scaling, (PLAN,))


@torch.inference_mode()
def command_errors(policy: Policy, histories: Histories, scaling: Scaling) -> dict[str, float]:
    """Return mean errors of the commands, by the names of a report.

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
    policy: Policy, histories: Histories, ends: Tensor, scaling: Scaling
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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

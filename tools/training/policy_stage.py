"""Trains the policy on drives, round by round: most of them are driven by the student itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.training.averaging import Average
from tools.training.commanding import CommandLoss, times_learnt
from tools.training.drives import CONVENTION, DriveRecord
from tools.training.heads import (
    HIDDEN_WIDTH,
    HISTORY_ROWS,
    PLAN,
    POLICY_HEADS,
    VISION_TARGETS,
    Singles,
)
from tools.training.losses import total_loss
from tools.training.mirror import mirror_desires, mirror_target
from tools.training.networks import Policy, Vision
from tools.training.records import Records
from tools.training.scaling import Scaling, part_of
from tools.training.vision_stage import CLIP, Tick, learning_rate
from tools.training.watch import RESUME, Watch

STAGE = "policy"
BATCH = 192
# On every tenth of 1680 drives, kept for judging, the lateral error at 2.2 s after a minute, far
# from the middle of the lane, was 0.72 m with 5e-4 and 0.63 m with 1.5e-3; 4e-3 is no better than
# 2e-3.
RATE = 2e-3
# A row of a drive is learnt from no more often than this. With 99 drives and 90 uses the loss of
# the plan fell from 0.6 to -0.1: they were learnt by heart. With 1512 drives, 8 uses left a loss of
# 0.52 on those kept for judging, 4 one of 0.56; 12 were not compared.
MOST_USES = 12.0
WEIGHT_DECAY = 0.02
# Of histories, so many begin anew somewhere: as after a start, or a gap in the frames.
_FORGOTTEN = 0.15
# Noise on features, whose deviation is about 1.
_NOISE = 0.02
_ROW_STEPS = 20
_PAD = HISTORY_ROWS - 1


@dataclass(frozen=True, slots=True)
class Histories:
    """All drives one after the other, each behind `_PAD` empty rows.

    Attributes:
        features: (n, 512) float16.
        pulses: (n, 8).
        targets: (n, size) float16.
        conventions: (n, 2).
        present: (n,) float32, 0 in empty rows, else 1.
        rows: (m,) where a history may end, some of them several times.
    """

    features: Tensor
    pulses: Tensor
    targets: Tensor
    conventions: Tensor
    present: Tensor
    rows: Tensor


def join(drives: Sequence[DriveRecord], scaling: Scaling) -> Histories:
    """Return drives and their mirrors as one table; targets in units of the scaling."""
    features, pulses, targets, conventions, present, rows = [], [], [], [], [], []
    end = 0
    size = sum(head.size for head in POLICY_HEADS)
    for seen, asked, wanted, side in (way for drive in drives for way in _ways(drive)):
        count = len(seen)
        features += [np.zeros((_PAD, HIDDEN_WIDTH), np.float16), seen]
        pulses += [np.zeros((_PAD, asked.shape[1]), np.float32), asked]
        plan = wanted.copy()
        plan[:, : PLAN.size] = (plan[:, : PLAN.size] - scaling.mean) / scaling.deviation
        targets += [np.zeros((_PAD, size), np.float16), plan.astype(np.float16)]
        conventions.append(np.tile(side, (_PAD + count, 1)))
        present.append(np.repeat(np.array([0.0, 1.0], np.float32), (_PAD, count)))
        ends = np.arange(end + _PAD, end + _PAD + count)
        rows.append(np.repeat(ends, times_learnt(wanted)))
        end += _PAD + count
    parts = (features, pulses, targets, conventions, present, rows)
    return Histories(*(torch.from_numpy(np.concatenate(part)) for part in parts))


def _ways(drive: DriveRecord) -> Iterator[tuple[NDArray[np.float16], Singles, Singles, Singles]]:
    """Yield features, pulses, targets and side of a drive, and of the same seen in a mirror."""
    yield drive.features, drive.pulses, drive.targets, CONVENTION
    targets = mirror_target(POLICY_HEADS, drive.targets)
    yield drive.mirrored, mirror_desires(drive.pulses), targets, CONVENTION[::-1]


def begin_policy(vision: Vision) -> Policy:
    """Return a policy whose plan is that of vision's own head."""
    policy = Policy()
    policy.plan.load_state_dict(vision.plan.state_dict())
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

    Args:
        policy: changed in place.
        histories: what is learnt from.
        command_loss: of what is commanded.
        seconds: how long at most.
        seed: of draws.
        report: takes the seconds so far, the step, the loss and that of each head, sometimes.

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
    rows = ends[:, None] + torch.arange(-_PAD, 1)
    features, pulses = histories.features[rows].float(), histories.pulses[rows]
    first = torch.randint(HISTORY_ROWS, (BATCH, 1), generator=generator)
    forgets = torch.rand((BATCH, 1), generator=generator) < _FORGOTTEN
    # What asks for a lane change is not forgotten by itself: who asked will see it done.
    asked = pulses.abs().amax((1, 2))[:, None] > 0.0
    keep = ~(forgets & ~asked & (torch.arange(HISTORY_ROWS)[None] < first))
    # The same in all rows, as from a camera that differs; rows before a start stay zeros.
    noise = _NOISE * torch.randn((BATCH, 1, HIDDEN_WIDTH), generator=generator)
    features = features.add_(noise).mul_((histories.present[rows] * keep)[..., None])
    return (pulses, histories.conventions[ends], features), histories.targets[ends].float()


@dataclass(frozen=True, slots=True)
class Reporter:
    """Writes rows of the history while a policy is learnt.

    Attributes:
        records: where they go.
        tick: told of progress.
        round: number of the round.
        minutes: spent before.
        seconds: this round of learning takes.
    """

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

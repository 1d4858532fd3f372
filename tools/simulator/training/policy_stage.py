"""Trains the policy on drives, round by round, and evaluates its commands on unseen drives.

Most drives are driven by the present model itself, the *student*. Overfitting shows only on unseen
drives: there, a policy brakes too little while its training loss still falls (ADR 0098).
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
# Learning rate. On a held-out tenth of 1680 drives, the lateral error at 2.2 s after one minute of
# learning, far from the lane's centre, was 0.72 m with 5e-4 and 0.63 m with 1.5e-3. 4e-3 was not
# better than 2e-3.
RATE = 2e-3
# Maximum number of uses of each row; more cause overfitting of braking (ADR 0098). Learning then
# ends early, and the time is used for more drives.
MOST_USES = 4.0
# Ten times that of vision. On held-out drives it improved braking, steering and own speed, and made
# accelerations worse by a hundredth (ADR 0098).
WEIGHT_DECAY = 0.2
# Share of histories whose beginning is cleared, as after a start or a gap in the frames.
_FORGOTTEN = 0.15
# Noise on features, which have a deviation of about 1.
_NOISE = 0.02
_ROW_STEPS = 20
# Only every fifth row is evaluated, because neighbouring rows are similar; 1024 rows at a time.
_STRIDE, _AT_ONCE = 5, 1024
# Braking harder than this counts as hard, m/s^2.
_HARD_MPS2 = -2.5
_SPEED = PLAN_VELOCITY.start
# Indices of the evaluated times among those of the commands
# (`tools/simulator/training/samples/histories.py`): 0.63 and 0.24 s.
_LONGITUDINAL, _LATERAL = 2, 0


def begin_policy(vision: Vision) -> Policy:
    """Return a policy initialised with vision's plan head and lead head."""
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
    """Train a policy until its time is over or its rows are used up; it ends averaged.

    The policy is changed in place. Every few steps, `report` receives the seconds so far, the
    step, the loss, and the loss of each head.

    Raises:
        TrainingError: the training diverged.
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
    """Return a random batch: the policy's inputs and its targets."""
    count = len(histories.rows)
    ends = histories.rows[torch.randint(count, (BATCH,), generator=generator)]
    rows = histories.until(ends)
    pulses, conventions, features = histories.inputs(rows)
    first = torch.randint(HISTORY_ROWS, (BATCH, 1), generator=generator)
    forgets = torch.rand((BATCH, 1), generator=generator) < _FORGOTTEN
    # Histories with a requested lane change are kept whole, because the request must be remembered.
    asked = pulses.abs().amax((1, 2))[:, None] > 0.0
    keep = ~(forgets & ~asked & (torch.arange(HISTORY_ROWS)[None] < first))
    # The noise is equal in all rows, like a camera's offset. Rows before the start remain zero.
    noise = _NOISE * torch.randn((BATCH, 1, HIDDEN_WIDTH), generator=generator)
    features = features.add_(noise).mul_((histories.present[rows] * keep)[..., None])
    return (pulses, conventions, features), histories.targets[ends].float()


@dataclass(frozen=True, slots=True)
class Reporter:
    """Records the progress of policy learning; `minutes` were spent before this round."""

    records: Records
    tick: Tick
    round: int
    minutes: float
    seconds: float

    def __call__(self, elapsed_s: float, step: int, loss: float, parts: dict[str, Tensor]) -> None:
        """Record one step."""
        row = {name: round(float(part), 4) for name, part in parts.items()}
        minutes = round(self.minutes + elapsed_s / 60.0, 3)
        stage = f"{STAGE}, round {self.round + 1}"
        self.records.add(stage=stage, step=step, minutes=minutes, loss=loss, **row)
        self.tick(elapsed_s / self.seconds, f"round {self.round + 1}, step {step}, loss {loss:.3f}")


def plan_scaling(scaling: Scaling) -> Scaling:
    """Return the plan's part of the vision scaling."""
    return part_of(VISION_TARGETS, scaling, (PLAN,))


@torch.inference_mode()
def command_errors(policy: Policy, histories: Histories, scaling: Scaling) -> dict[str, float]:
    """Return mean errors of the commands, by the names used in reports.

    Hard braking has a signed mean (positive for too little braking) and a mean absolute error,
    over rows where the right braking exceeds 2.5 m/s^2. Without such rows, both are left out.

    `scaling` is that of the plan, both parts (495,). The policy is left in evaluation mode.
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
    """Return errors of speed, acceleration and lateral acceleration, and the right acceleration."""
    shape = (-1, IDX_COUNT, PLAN_WIDTH)
    deviation, mean = (torch.from_numpy(part) for part in (scaling.deviation, scaling.mean))
    output = policy(*histories.inputs(histories.until(ends)))[PLAN.name][:, : PLAN.size]
    planned = (output * deviation + mean).reshape(shape)
    right = (histories.targets[ends, : PLAN.size].float() * deviation + mean).reshape(shape)
    speed, asked = right[:, 0, _SPEED], accelerations(right)[:, _LONGITUDINAL]
    ahead = accelerations(planned)[:, _LONGITUDINAL] - asked
    aside = (turns(planned) - turns(right))[:, _LATERAL] * speed
    return planned[:, 0, _SPEED] - speed, ahead, aside, asked

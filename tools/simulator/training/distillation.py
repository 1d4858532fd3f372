"""Distils the model of a finished training into a copy with weights of 8 bits.

The *student* (8 bits) learns the outputs of the *teacher*, the trained model: vision on rendered
samples, the policy on the training's drives. Distillation (Hinton and others, 2015) needs no ground
truth, because the teacher's outputs contain more information. The training is not changed; results
are written to a folder of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from modeld.constants import T_IDXS
from tools.lib.processes import Crew
from tools.simulator.training.checkpoint import Finished, load_finished
from tools.simulator.training.figures import Figures, figures_of, judge
from tools.simulator.training.heads import (
    PLAN,
    POLICY_HEADS,
    VISION_TARGETS,
    Head,
    places_in_target,
    size_of,
)
from tools.simulator.training.losses import HIGHEST, LOWEST
from tools.simulator.training.machine import Turns, keep_freed_memory
from tools.simulator.training.model_files import Trained
from tools.simulator.training.networks.networks import Policy, Vision, arrays_of
from tools.simulator.training.networks.parts import (
    call_rounded,
    fold_norms,
    matrices_of,
    round_weights,
    scale_of,
)
from tools.simulator.training.options import TrainingOptions
from tools.simulator.training.policy_stage import draw, plan_scaling
from tools.simulator.training.records import Records, TrainingProgress, Watch
from tools.simulator.training.samples.drives import read_drives
from tools.simulator.training.samples.histories import Histories, join
from tools.simulator.training.samples.replay import (
    PaintingPlan,
    Replay,
    Sample,
    fill,
    open_crew,
    open_replay,
)
from tools.simulator.training.samples.situations import Situations
from tools.simulator.training.training import held_out
from tools.simulator.training.vision_stage import (
    CLIP,
    answers,
    disturbed,
    learning_rate,
    mirror_some,
)

# Largest change of a weight in one step: for rounded matrices in units of their rounding step (the
# mean over the matrix), for other weights absolute.
ROUNDED_RATE = 0.003
OTHER_RATE = 1e-5
# Loss weights of the teacher's log-deviations, and of `hidden_state`, which the policy reads.
DEVIATION_WEIGHT = 0.1
HIDDEN_WEIGHT = 4.0
HIDDEN = "hidden_state"

Draw = Callable[[], tuple[Tensor, ...]]
"""Returns the inputs of a step."""
Report = Callable[[float, int, float, dict[str, Tensor]], None]
"""Receives the completed share, the step, the loss, and the loss of each head."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A distillation task: the teacher in evaluation mode, and the `heads` to learn.

    `draw` returns the inputs of a step, `seconds` is the duration, and `stage` names the task.
    """

    teacher: nn.Module
    heads: tuple[Head, ...]
    draw: Draw
    seconds: float
    stage: str


def follow(student: nn.Module, lesson: Lesson, report: Report) -> int:
    """Train a student with rounded matrices until the time is over; return the number of steps.

    The student's norms must be folded. It is changed in place, and returned with unrounded weights.

    Raises:
        TrainingError: the training diverged.
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
    """Return the parameters in groups, and the highest learning rate of each group."""
    matrices = matrices_of(student)
    rounded = {id(weight) for weight in matrices.values()}
    others = [p for p in student.parameters() if p.requires_grad and id(p) not in rounded]
    rates = [ROUNDED_RATE * float(scale_of(weight).mean()) for weight in matrices.values()]
    groups = [{"params": [weight]} for weight in matrices.values()]
    return [*groups, {"params": others}], [*rates, OTHER_RATE]


def following_loss(
    heads: tuple[Head, ...], outputs: dict[str, Tensor], wanted: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the distance of outputs from those of the teacher, in total and per head.

    Errors of means are weighted by the teacher's certainty, as in its own loss. Outputs are in
    units of the scaling.
    """
    parts: dict[str, Tensor] = {}
    for head in heads:
        apart = (outputs[head.name] - wanted[head.name]).square()
        if head.kind == "gaussian":
            logs = wanted[head.name][:, head.size :].clamp(LOWEST, HIGHEST)
            means = (apart[:, : head.size] * torch.exp(-logs)).mean()
            parts[head.name] = means + DEVIATION_WEIGHT * apart[:, head.size :].mean()
        else:
            parts[head.name] = apart.mean()
    total = torch.stack([head.weight * parts[head.name] for head in heads]).sum()
    if HIDDEN in wanted:
        parts[HIDDEN] = (outputs[HIDDEN] - wanted[HIDDEN]).square().mean()
        total = total + HIDDEN_WEIGHT * parts[HIDDEN]
    return total, {name: part.detach() for name, part in parts.items()}


FOLDER = "eight-bits"
# Share of the time for vision; the rest is for the policy, which is small.
VISION_SHARE = 0.85
# Number of held-out samples for the comparison.
_MOMENTS = 120
# The maximum number of rendered samples to keep, and the number before the first step.
_SLOTS, _FIRST_SAMPLES = 512, 64
_ROW_STEPS = 5
_PATH_S = (1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Distilled:
    """The result of a distillation.

    Attributes:
        trained: the model with rounded weights.
        steps: number of steps of vision and policy.
        apart: differences from the teacher, after rounding alone (`rounded`) and after the last
            step (`distilled`): mean absolute differences, and shares of equally detected lines and
            leads.
        figures: errors on held-out worlds, by class of scenery.
    """

    trained: Trained
    steps: tuple[int, int]
    apart: Mapping[str, Mapping[str, float]]
    figures: dict[str, Figures]


def distil(options: TrainingOptions, minutes: float, *, show: bool) -> Distilled:
    """Round the weights of a finished training, and distil the teacher into them.

    With 0 minutes, the weights are only rounded.

    Raises:
        TrainingError: the training is not finished, or the distillation diverged.
    """
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    keep_freed_memory()
    finished = load_finished(options.directory)
    drives = read_drives(options.directory, 0, finished.drives)
    histories = join(drives, plan_scaling(finished.scaling))
    folder = options.directory / FOLDER
    folder.mkdir(exist_ok=True)
    progress = TrainingProgress(minutes, show=show)
    try:
        return _distilled(options, finished, histories, _Work(folder, minutes, progress))
    finally:
        progress.close()


class _Work:
    """The time limit, progress display and records of a distillation."""

    def __init__(self, folder: Path, minutes: float, progress: TrainingProgress) -> None:
        self.minutes = minutes
        self.records = Records(folder)
        self._progress = progress

    def update(self, stage: str, text: str) -> None:
        """Show the progress of the preparation, before the time starts."""
        self._progress.update(0.0, stage, text)

    def reporter(
        self, stage: str, first: float, part: float
    ) -> Callable[[float, int, float, dict[str, Tensor]], None]:
        """Return a report function for a stage; `first` and `part` are shares of the time."""

        def report(share: float, step: int, loss: float, parts: dict[str, Tensor]) -> None:
            minutes = self.minutes * (first + part * share)
            self._progress.update(minutes, stage, f"step {step}, loss {loss:.4f}")
            if step % _ROW_STEPS == 0:
                row = {name: round(float(value), 6) for name, value in parts.items()}
                minutes = round(minutes, 3)
                self.records.add(stage=stage, step=step, minutes=minutes, loss=loss, **row)

        return report


def _distilled(
    options: TrainingOptions, finished: Finished, histories: Histories, work: _Work
) -> Distilled:
    vision, policy = deepcopy(finished.vision), deepcopy(finished.policy)
    for network in (vision, policy):
        fold_norms(network)
    samples = held_out(options, _MOMENTS)
    compare = _Comparison(finished, samples, histories, options.seed)
    apart = {"rounded": compare.apart(vision, policy)}
    steps = (0, 0)
    if work.minutes > 0.0:
        seen = _follow_vision(options, finished, vision, work)
        steps = (seen, _follow_policy(options, finished, policy, histories, work))
        apart["distilled"] = compare.apart(vision, policy)
        work.records.write_page("Curves of a distillation")
    for network in (vision, policy):
        round_weights(network)
    name = f"seed-{options.seed}/steps-{finished.steps}/eight-bits-{sum(steps)}"
    trained = Trained(name, arrays_of(vision), arrays_of(policy), finished.scaling)
    return Distilled(
        trained, steps, apart, judge(answers(vision, finished.scaling, samples), samples)
    )


def _follow_vision(
    options: TrainingOptions, finished: Finished, vision: Vision, work: _Work
) -> int:
    source = Situations(options.seed, options.worlds)
    slots = min(options.slots, _SLOTS)
    with open_replay(slots, options.workers, size_of(VISION_TARGETS)) as replay:
        plan = PaintingPlan(replay.plan, source, finished.next_world)
        with open_crew(fill, [(plan, worker) for worker in range(options.workers)]) as crew:
            wanted = min(_FIRST_SAMPLES, slots)
            while replay.held < wanted:
                crew.receive(0.2)
                work.update("vision", f"rendering the first samples, {replay.held} of {wanted}")
            lesson = Lesson(
                finished.vision,
                VISION_TARGETS,
                _moments(options, replay, crew),
                60.0 * work.minutes * VISION_SHARE,
                "vision",
            )
            return follow(vision, lesson, work.reporter("vision", 0.0, VISION_SHARE))


def _moments(
    options: TrainingOptions, replay: Replay, crew: Crew
) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that draws batches of pictures, disturbed as in training."""
    rng, turns = np.random.default_rng((options.seed, 4)), Turns(replay, options.batch)

    def next_batch() -> tuple[Tensor, ...]:
        crew.receive()
        while not turns.take():
            crew.receive(0.05)
        batch = replay.draw(rng, options.batch)
        mirror_some(batch, rng)
        return (disturbed(torch.from_numpy(batch.images), rng, torch.float32),)

    return next_batch


def _follow_policy(
    options: TrainingOptions,
    finished: Finished,
    policy: Policy,
    histories: Histories,
    work: _Work,
) -> int:
    generator = torch.Generator().manual_seed(options.seed)
    lesson = Lesson(
        finished.policy,
        POLICY_HEADS,
        lambda: draw(histories, generator)[0],
        60.0 * work.minutes * (1.0 - VISION_SHARE),
        "policy",
    )
    return follow(policy, lesson, work.reporter("policy", VISION_SHARE, 1.0 - VISION_SHARE))


class _Comparison:
    """Measures the difference between rounded networks and the teacher."""

    def __init__(
        self, finished: Finished, samples: list[Sample], histories: Histories, seed: int
    ) -> None:
        self._scaling, self._samples = finished.scaling, samples
        self._inputs = draw(histories, torch.Generator().manual_seed(seed + 1))[0]
        self._seen = answers(finished.vision, finished.scaling, samples)
        # The teacher's lead outputs mean nothing without a lead, so they are not compared.
        places = places_in_target(VISION_TARGETS)
        sees_none = self._seen[:, places["lead_prob"]][:, 0] <= 0.5
        self._seen[sees_none, places["lead"]] = np.nan
        self._driven = self._paths(finished.policy)

    def apart(self, vision: Vision, policy: Policy) -> dict[str, float]:
        """Return the differences from the teacher by name, with rounded copies of the networks."""
        vision, policy = deepcopy(vision), deepcopy(policy)
        for network in (vision, policy):
            round_weights(network)
        seen = answers(vision, self._scaling, self._samples)
        paths = np.abs(self._paths(policy) - self._driven).mean(0)
        driven = {
            f"driven path at {t:g} s, m": float(p) for t, p in zip(_PATH_S, paths, strict=True)
        }
        return figures_of(seen, self._seen).rows() | driven

    @torch.inference_mode()
    def _paths(self, policy: Policy) -> NDArray[np.float64]:
        """Return the lateral positions of the policy's path at `_PATH_S`, m, (n, 3)."""
        scaling = plan_scaling(self._scaling)
        means = policy(*self._inputs)["plan"][:, : PLAN.size].numpy()
        plan = (means * scaling.deviation + scaling.mean).reshape(-1, *PLAN.shape)
        return np.stack([np.interp(_PATH_S, T_IDXS, row) for row in plan[..., 1]])

"""Gives a finished training's model weights of 8 bits that follow the model as it was.

Vision follows on painted moments, the policy on the drives that it learnt from. Nothing of the
training is changed: what comes of it lies in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from modeld.constants import T_IDXS
from tools.lib.crew import Crew
from tools.training.drive_files import read_drives
from tools.training.evaluate import answers
from tools.training.export import Trained
from tools.training.figures import Figures, figures_of, judge
from tools.training.finished import Finished, load_finished
from tools.training.following import Lesson, follow
from tools.training.heads import (
    PLAN,
    POLICY_HEADS,
    VISION_TARGETS,
    places_in_target,
    size_of,
)
from tools.training.histories import Histories, join
from tools.training.memory import keep_freed_memory
from tools.training.networks import Policy, Vision, arrays_of
from tools.training.options import TrainingOptions
from tools.training.painting import PaintingPlan, fill
from tools.training.policy_stage import draw, plan_scaling
from tools.training.processes import open_crew
from tools.training.progress import TrainingProgress
from tools.training.records import Records
from tools.training.replay import Replay, Sample, open_replay
from tools.training.rounded_networks import fold_norms, round_weights
from tools.training.situations import Situations
from tools.training.training import held_out
from tools.training.turns import Turns
from tools.training.vision_stage import disturbed, mirror_some

FOLDER = "eight-bits"
# The rest of the time is the policy's, which is small.
VISION_SHARE = 0.85
# Held-out moments that are compared.
_MOMENTS = 120
# Painted samples that are kept at most, and before the first step.
_SLOTS, _FIRST_SAMPLES = 512, 64
_ROW_STEPS = 5
_PATH_S = (1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Distilled:
    """What came of it.

    Attributes:
        trained: rounded, to be exported.
        steps: of vision and policy.
        apart: mean absolute differences to what the model said before, and shares of lines and
            leads found alike, of the weights as they were rounded first and after the last step.
        figures: errors on held-out worlds, by class of scenery.
    """

    trained: Trained
    steps: tuple[int, int]
    apart: Mapping[str, Mapping[str, float]]
    figures: dict[str, Figures]


def distil(options: TrainingOptions, minutes: float, *, show: bool) -> Distilled:
    """Round the weights of a finished training, and let them follow what they were.

    Args:
        options: directory, seeds and processes.
        minutes: to follow; 0 only rounds.
        show: whether to tell of progress.

    Raises:
        TrainingError: the training is not finished, or this diverged.
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
    """Time, progress and records of a distillation."""

    def __init__(self, folder: Path, minutes: float, progress: TrainingProgress) -> None:
        self.minutes = minutes
        self.records = Records(folder)
        self._progress = progress

    def tell(self, stage: str, text: str) -> None:
        """Say what happens before the time begins."""
        self._progress.tell(0.0, stage, text)

    def reporter(
        self, stage: str, first: float, part: float
    ) -> Callable[[float, int, float, dict[str, Tensor]], None]:
        """Return what takes figures of the steps of a stage.

        Args:
            stage: name.
            first: share of the time before it.
            part: its share of the time.
        """

        def report(share: float, step: int, loss: float, parts: dict[str, Tensor]) -> None:
            minutes = self.minutes * (first + part * share)
            self._progress.tell(minutes, stage, f"step {step}, loss {loss:.4f}")
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
                work.tell("vision", f"painting the first samples, {replay.held} of {wanted}")
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
    """Return what draws batches of pictures, as they are disturbed in training."""
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
    """Measures how far rounded networks are from those they follow."""

    def __init__(
        self, finished: Finished, samples: list[Sample], histories: Histories, seed: int
    ) -> None:
        self._scaling, self._samples = finished.scaling, samples
        self._inputs = draw(histories, torch.Generator().manual_seed(seed + 1))[0]
        self._seen = answers(finished.vision, finished.scaling, samples)
        # Where it sees no car, what it says of one means nothing.
        places = places_in_target(VISION_TARGETS)
        sees_none = self._seen[:, places["lead_prob"]][:, 0] <= 0.5
        self._seen[sees_none, places["lead"]] = np.nan
        self._driven = self._paths(finished.policy)

    def apart(self, vision: Vision, policy: Policy) -> dict[str, float]:
        """Return mean absolute differences by what is compared; networks are rounded for it.

        Of what is found, the share in which both say the same.
        """
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
        """Return how far aside the policy drives at some times, m, (n, 3)."""
        scaling = plan_scaling(self._scaling)
        means = policy(*self._inputs)["plan"][:, : PLAN.size].numpy()
        plan = (means * scaling.deviation + scaling.mean).reshape(-1, *PLAN.shape)
        return np.stack([np.interp(_PATH_S, T_IDXS, row) for row in plan[..., 1]])

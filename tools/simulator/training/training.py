"""Trains a model from scratch, in stages with checkpoints in between.

    rendered samples -> vision -> [drives -> policy, for each round] -> trained model

Vision is trained first. Then, in each round, simulated cars are driven by the present model (the
*student*) or by the expert, and a new policy learns from the expert's plans in these drives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch

from tools.errors import UsageError
from tools.simulator.training import checkpoint, vision_stage
from tools.simulator.training.figures import Figures, judge
from tools.simulator.training.heads import VISION_TARGETS, Scaling, size_of
from tools.simulator.training.machine import keep_freed_memory
from tools.simulator.training.model_files import Trained, Written, build_models
from tools.simulator.training.networks.networks import Policy, Vision, arrays_of
from tools.simulator.training.options import ROUNDS, TrainingOptions, recipe_of
from tools.simulator.training.policy_stage import (
    Reporter,
    begin_policy,
    command_errors,
    learn,
    plan_scaling,
)
from tools.simulator.training.records import Records, TrainingProgress
from tools.simulator.training.samples.drives import DRIVES, read_drives, write_drive
from tools.simulator.training.samples.driving import DrivesPlan, drive_on, save_student
from tools.simulator.training.samples.histories import CommandLoss, join
from tools.simulator.training.samples.replay import (
    PaintingPlan,
    Sample,
    fill,
    open_crew,
    open_replay,
)
from tools.simulator.training.samples.situations import Situations
from tools.simulator.training.vision_stage import VisionRun, VisionState, answers


def check_sizes() -> Written:
    """Return the size of the models, without training.

    Raises:
        TrainingError: the models exceed a limit.
    """
    # On the meta device no weights are drawn, so later random draws do not change.
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


# Number of samples per held-out world: few, because worlds differ more than samples of one.
_MOMENTS_EACH = 4
# Share of drives by the student in the first round, when it has learnt no history, and later.
_FIRST_SHARE, _SHARE = 0.5, 0.75
# Minimum number of drives, however short the time is.
_LEAST_DRIVES = 2
_STUDENT = "student.pt"


@dataclass(slots=True)
class _Course:
    """The state of a training, which its checkpoints contain.

    Attributes:
        vision: state of the vision stage.
        policy: policy of the last completed round; None before.
        rounds: number of drives at the end of each completed round.
        drives_s: time spent on driving.
        drives: number of completed drives.
        learning_s: time spent on learning policies.
    """

    vision: VisionState
    policy: Policy | None = None
    rounds: list[int] = field(default_factory=list)
    drives_s: float = 0.0
    drives: int = 0
    learning_s: float = 0.0

    @property
    def round(self) -> int:
        """The index of the current round, from 0."""
        return len(self.rounds)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a training; `figures` are errors on held-out worlds by class of scenery."""

    trained: Trained
    figures: dict[str, Figures]
    steps: int
    drives: int


class Training:
    """One training and its directory."""

    def __init__(self, options: TrainingOptions, *, resume: bool, show: bool) -> None:
        """Start a training, or resume it from the last checkpoint.

        Raises:
            UsageError: the options are invalid, or the directory contains a training already.
            TrainingError: there is no checkpoint to resume, or the networks are too large.
        """
        options.check()
        check_sizes()
        self._options = options
        torch.set_num_threads(options.threads)
        keep_freed_memory()
        directory = options.directory
        if not resume and (directory / checkpoint.NAME).exists():
            raise UsageError(
                f"{directory}: expected no training, found one; continue with --resume, or name "
                "another directory"
            )
        state = checkpoint.load(directory) if resume else {}
        try:
            (directory / DRIVES).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{directory}: cannot be created ({error.strerror or error}); name another one"
            ) from error
        self._course = _restored(options, state)
        self._records = Records(directory, state.get("history", ()))
        self._progress = TrainingProgress(options.minutes, show=show)
        self._curve: list[Sample] = []

    def run(self) -> Outcome:
        """Train to the end.

        Raises:
            TrainingError: the training diverged, or a process failed.
        """
        try:
            with self._saved_at_end():
                self._see()
                while self._course.round < ROUNDS:
                    self._drive()
                    with self._records.whole():
                        self._learn()
                    self._mark()
        finally:
            self._progress.close()
        return self._finish()

    @contextmanager
    def _saved_at_end(self) -> Iterator[None]:
        """Write a checkpoint when the block is interrupted, and print how to resume."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            self._stop()
            raise
        except Exception:
            raise
        except BaseException:  # the command line's exception for SIGTERM
            self._stop()
            raise
        self._save()

    def _stop(self) -> None:
        self._progress.close()
        self._save()
        directory = self._options.directory
        print(
            f"modeld train: stopped after {self._minutes():.1f} of {self._options.minutes:g} min; "
            f"resume with: modeld train {directory} --resume",
            file=sys.stderr,
        )

    def _see(self) -> None:
        """Train vision for the rest of its time."""
        options, vision = self._options, self._course.vision
        # Vision stays fixed once cars have been driven with it.
        if vision.spent_s >= options.vision_s or self._course.drives:
            return
        source = Situations(options.seed, options.worlds)
        with open_replay(options.slots, options.workers, size_of(VISION_TARGETS)) as replay:
            plan = PaintingPlan(replay.plan, source, vision.next_world)
            with open_crew(fill, [(plan, w) for w in range(options.workers)]) as crew:
                self._curve = held_out(options, options.curve_moments)
                # This checkpoint allows resuming after a divergence before the next one.
                self._save()
                work = VisionRun(options, replay, crew, self._records, self._mark, self._tick)
                vision_stage.run(vision, work)
        self._mark()

    def _drive(self) -> None:
        """Drive simulated cars for the rest of the round's driving time."""
        options, course = self._options, self._course
        vision, policy, scaling = self._networks()
        student = options.directory / _STUDENT
        save_student(student, vision, policy, scaling)
        share = _FIRST_SHARE if course.round == 0 else _SHARE
        workers = max(options.workers, len(os.sched_getaffinity(0)))
        # Drives get unused numbers, even if drives were lost in an interrupt.
        first = 1_000_000 * course.round + course.drives * 4
        plan = DrivesPlan(student, options.seed, options.worlds, first, workers, share)
        clock, off = vision_stage.Stopwatch(), []
        end_s, saved_s = options.drives_until_s(course.round, course.learning_s), course.drives_s
        with open_crew(drive_on, [(plan, worker) for worker in range(workers)]) as crew:
            while course.drives_s < end_s or course.drives < _LEAST_DRIVES:
                for record in crew.receive(1.0):
                    write_drive(options.directory, course.drives, record)
                    course.drives += 1
                    if record.is_student:
                        off.append(float(record.off_m.mean()))
                course.drives_s += clock.lap()
                if course.drives_s - saved_s > vision_stage.CHECKPOINT_S:
                    self._save()
                    saved_s = course.drives_s
                text = f"round {course.round + 1}, {course.drives} drives"
                self._show_progress("drives", text)
        self._save()
        if off:
            minutes = round(self._minutes(), 3)
            self._records.add(
                stage="drives", step=course.drives, minutes=minutes, off_m=float(np.mean(off))
            )

    def _learn(self) -> None:
        """Learn from the drives of this and the previous round; this completes the round."""
        options, course = self._options, self._course
        vision, _, scaling = self._networks()
        plan, clock = plan_scaling(scaling), vision_stage.Stopwatch()
        self._judge_on_new_drives(plan)
        first = first_learnt(course.rounds, course.drives)
        histories = join(read_drives(options.directory, first, course.drives), plan)
        seconds = options.learn_s(course.round)
        report = Reporter(self._records, self._tick, course.round, self._minutes(), seconds)
        # Start with a new policy, because one that learns round by round overfits the first drives.
        policy = begin_policy(vision)
        learn(policy, histories, CommandLoss(plan), seconds, options.seed + course.round, report)
        course.learning_s += clock.lap()
        course.policy = policy
        course.rounds.append(course.drives)

    def _judge_on_new_drives(self, scaling: Scaling) -> None:
        """Record the errors of the previous policy on this round's drives, unseen by it."""
        course = self._course
        if course.policy is None:
            return
        drives = read_drives(self._options.directory, course.rounds[-1], course.drives)
        if not drives:
            return
        errors = command_errors(course.policy, join(drives, scaling), scaling)
        minutes = round(self._minutes(), 3)
        self._records.add(stage="new drives", step=course.drives, minutes=minutes, **errors)

    def _networks(self) -> tuple[Vision, Policy, Scaling]:
        """Return the averaged vision, the policy, and the scaling."""
        course = self._course
        assert course.vision.scaling is not None
        vision = Vision()
        vision.load_state_dict(course.vision.average.state)
        policy = course.policy or begin_policy(vision)
        return vision, policy, course.vision.scaling

    def _finish(self) -> Outcome:
        options, course = self._options, self._course
        vision, policy, scaling = self._networks()
        samples = held_out(options, options.last_moments)
        figures = judge(answers(vision, scaling, samples), samples)
        steps = course.vision.step
        name = f"seed-{options.seed}/minutes-{options.minutes:g}/steps-{steps}"
        trained = Trained(name, arrays_of(vision), arrays_of(policy), scaling)
        tiles = [(key, f"{value:.3f}", "held out") for key, value in figures["all"].rows().items()]
        self._draw(tiles)
        return Outcome(trained, figures, steps, course.drives)

    def _mark(self) -> None:
        """Evaluate vision on a few samples, and write a checkpoint and the curves."""
        vision, _, scaling = self._networks()
        if self._curve:
            figures = judge(answers(vision, scaling, self._curve), self._curve)["all"]
            step, minutes = self._course.vision.step, round(self._minutes(), 3)
            self._records.add(stage="held out", step=step, minutes=minutes, **figures.rows())
        self._draw()
        self._save()

    def _draw(self, tiles: Sequence[tuple[str, str, str]] = ()) -> None:
        """Rewrite the page of all curves, and the picture of those on held-out worlds."""
        self._records.write_page("Curves of a training", tiles)
        self._records.write_picture("held out", "Errors on held-out worlds during a training")

    def _save(self) -> None:
        course = self._course
        state = {
            "vision": vision_stage.save_state(course.vision),
            "policy": course.policy and course.policy.state_dict(),
            "rounds": course.rounds,
            "drives_s": course.drives_s,
            "drives": course.drives,
            "learning_s": course.learning_s,
            "history": self._records.rows,
            "options": recipe_of(self._options),
        }
        checkpoint.save(self._options.directory, state)

    def _minutes(self) -> float:
        course = self._course
        return (course.vision.spent_s + course.drives_s + course.learning_s) / 60.0

    def _tick(self, share: float, text: str) -> None:
        stage = "vision" if self._course.vision.spent_s < self._options.vision_s else "policy"
        learning_s = share * self._options.learn_s(self._course.round) if stage == "policy" else 0.0
        self._progress.update(self._minutes() + learning_s / 60.0, stage, text)

    def _show_progress(self, stage: str, text: str) -> None:
        self._progress.update(self._minutes(), stage, text)


def first_learnt(rounds: Sequence[int], drives: int) -> int:
    """Return the first drive that a round learns from, the first one of the previous round.

    If both rounds were too short for any drives, it is one of the last existing drives.
    `rounds` contains the number of drives at the end of each previous round.
    """
    return min(rounds[-2], drives - _LEAST_DRIVES) if len(rounds) > 1 else 0


def held_out(options: TrainingOptions, count: int) -> list[Sample]:
    """Return samples of worlds that are never trained on."""
    source = Situations(0, options.held_out, _MOMENTS_EACH, 1)
    samples = (sample for number in range(count) for sample in source(number))
    return list(islice(samples, count))


def _restored(options: TrainingOptions, state: dict[str, Any]) -> _Course:
    if not state:
        return _Course(vision_stage.begin(options))
    course = _Course(vision_stage.restore_state(options, state["vision"]))
    if state["policy"] is not None:
        course.policy = Policy()
        course.policy.load_state_dict(state["policy"])
    course.rounds, course.drives_s = state["rounds"], state["drives_s"]
    course.drives, course.learning_s = state["drives"], state["learning_s"]
    return course

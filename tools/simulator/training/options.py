"""The options of a training, and the checks of their values: time, seeds, worlds, processes.

A training spends most of its time on the vision network. The rest is divided into rounds: simulated
cars are driven, then the policy learns from the drives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.errors import UsageError

# Shares of the time for each round of drives: for driving, and for learning from the drives. In the
# first round the expert drives half of them; in all others the student drives most (Ross and
# others, "A reduction of imitation learning", 2011). Each student is better than the previous one,
# and a good student's situations are the most relevant (ADR 0098), so the last round is the
# longest.
ROUND_SHARES = ((0.03, 0.02), (0.055, 0.03), (0.09, 0.035), (0.145, 0.045))
ROUNDS = len(ROUND_SHARES)
# The rest, which is most of the time, is for vision.
VISION_SHARE = 1.0 - sum(drives + learning for drives, learning in ROUND_SHARES)
# Seeds of worlds below this are for training, seeds from here on for evaluation.
FIRST_HELD_OUT = 1_000_000
DEFAULT_SLOTS = 4096


@dataclass(frozen=True, slots=True)
class Seeds:
    """A range of world seeds: the first one, and one past the last."""

    first: int
    end: int

    def overlaps(self, other: Seeds) -> bool:
        """Return whether the ranges share a seed."""
        return self.first < other.end and other.first < self.end

    def at(self, number: int) -> int:
        """Return the seed with an index, which wraps around at the end."""
        return self.first + number % (self.end - self.first)

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of a training.

    Attributes:
        directory: directory of the training.
        minutes: duration.
        seed: seed of all random draws.
        worlds, held_out: seeds for training, and for evaluation.
        workers: number of rendering processes.
        threads: number of threads that learn.
        batch: number of samples per step.
        learning_rate: highest learning rate, of vision.
        slots: number of samples that are kept.
    """

    directory: Path
    minutes: float = 84.0
    seed: int = 0
    worlds: Seeds = Seeds(0, FIRST_HELD_OUT)
    held_out: Seeds = Seeds(FIRST_HELD_OUT, FIRST_HELD_OUT + 100_000)
    workers: int = 1
    threads: int = 1
    batch: int = 32
    learning_rate: float = 2e-3
    slots: int = DEFAULT_SLOTS

    def check(self) -> None:
        """Check the options that do not depend on files.

        Raises:
            UsageError: a value is out of range, or a seed is in both sets.
        """
        for name, value, least in (
            ("--minutes", self.minutes, 0.1),
            ("--seed", self.seed, 0),
            ("--workers", self.workers, 1),
            ("--threads", self.threads, 1),
            ("--batch", self.batch, 2),
            ("--slots", self.slots, 2 * self.batch),
        ):
            if not value >= least:
                raise UsageError(f"{name}: expected {least} or more, found {value}")
        if not 0.0 < self.learning_rate < 1.0:
            raise UsageError(
                f"--learning-rate: expected more than 0 and less than 1, found {self.learning_rate}"
            )
        for name, seeds in (("--worlds", self.worlds), ("--held-out", self.held_out)):
            if not 0 <= seeds.first < seeds.end:
                raise UsageError(
                    f"{name}: expected FIRST:END with at least one seed, found {seeds}"
                )
        if self.worlds.overlaps(self.held_out):
            first = max(self.worlds.first, self.held_out.first)
            raise UsageError(
                f"--held-out: expected seeds that are not trained on, found {first} in --worlds "
                f"{self.worlds} and in --held-out {self.held_out}; it is judged on unseen roads"
            )

    @property
    def curve_moments(self) -> int:
        """The number of held-out samples for the curves; evaluating them takes a second or two."""
        return min(160, 8 + round(8 * self.minutes))

    @property
    def last_moments(self) -> int:
        """The number of held-out samples for the final metrics."""
        return 3 * self.curve_moments

    @property
    def vision_s(self) -> float:
        """The seconds for vision."""
        return 60.0 * self.minutes * VISION_SHARE

    def learn_s(self, number: int) -> float:
        """Return the seconds for learning from drives in a round, counted from 0."""
        return 60.0 * self.minutes * ROUND_SHARES[number][1]

    def drives_until_s(self, number: int, learnt_s: float) -> float:
        """Return the total seconds of driving at the end of a round, counted from 0.

        Learning can end early, if there is little to learn from; driving then uses the time.
        `learnt_s` are the seconds spent on learning in the previous rounds.
        """
        drives_s = 60.0 * self.minutes * sum(drives for drives, _ in ROUND_SHARES[: number + 1])
        return drives_s + sum(map(self.learn_s, range(number))) - learnt_s


def parse_seeds(name: str, text: str) -> Seeds:
    """Return the seeds of a range FIRST:END.

    Raises:
        UsageError: the text is not a range.
    """
    first, colon, end = text.partition(":")
    if not (colon and first.isascii() and first.isdigit() and end.isascii() and end.isdigit()):
        raise UsageError(f"{name}: expected FIRST:END, two whole numbers, found {text!r}")
    return Seeds(int(first), int(end))


def share_cores() -> tuple[int, int]:
    """Return the numbers of rendering processes and of learning threads: one each per core.

    The two take turns. On two cores of an EPYC without bfloat16 that gave 54 steps a minute, with
    each sample used twice. Separate cores gave 42 steps, and half of the samples were overwritten
    without being used (2026-11-24).
    """
    cores = len(os.sched_getaffinity(0))
    return cores, cores


# Options that must not change when a training is resumed.
_FIXED = ("seed", "worlds", "held_out", "batch")
# Options that may change: the time, and a lower rate after a divergence.
_FREE = ("minutes", "learning_rate")
RECIPE = (*_FIXED, *_FREE)


def recipe_of(options: TrainingOptions) -> dict[str, Any]:
    """Return the options for a checkpoint, with seeds in the users' notation."""
    found = {name: getattr(options, name) for name in RECIPE}
    return found | {name: str(found[name]) for name in ("worlds", "held_out")}


def resumed(given: Mapping[str, Any], saved: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the recipe of a resumed training: given values replace saved ones.

    `given` contains None for options that the user did not set. `saved` is from the checkpoint.

    Raises:
        UsageError: a given value differs from a saved one that must not change.
    """
    for name in _FIXED:
        if given[name] is not None and given[name] != saved[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option}: expected {saved[name]}, with which the training in {directory} began, "
                f"found {given[name]}; leave it out, or train again in another directory"
            )
    return {name: saved[name] if given[name] is None else given[name] for name in RECIPE}

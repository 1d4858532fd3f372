"""What a training is asked to do, checked once: time, seeds, worlds, processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.errors import UsageError

# Shares of the time that rounds have, for drives and for learning: of the first the expert drives
# half, of all others the student drives most (Ross and others, "A reduction of imitation learning",
# 2011). Each student is better than the one before, and what a good one meets is what is to be
# learnt (ADR 0098): so the last round is the longest.
ROUND_SHARES = ((0.03, 0.02), (0.055, 0.03), (0.09, 0.035), (0.145, 0.045))
ROUNDS = len(ROUND_SHARES)
# All else, which is most of it, is seeing.
VISION_SHARE = 1.0 - sum(drives + learning for drives, learning in ROUND_SHARES)
# Seeds of worlds: those below are trained on, those from here on are kept for judging.
FIRST_HELD_OUT = 1_000_000
DEFAULT_SLOTS = 4096


@dataclass(frozen=True, slots=True)
class Seeds:
    """Seeds of worlds, first and one past the last."""

    first: int
    end: int

    def overlaps(self, other: Seeds) -> bool:
        """Whether a seed is in both."""
        return self.first < other.end and other.first < self.end

    def at(self, number: int) -> int:
        """Return the seed of a number; after the last the first one follows."""
        return self.first + number % (self.end - self.first)

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """A training.

    `batch` samples make a step, drawn from `slots` kept ones; `learning_rate` is the highest, of
    the vision. `worlds` are seeds to train on, `held_out` those to judge by. `workers` processes
    paint, `threads` learn.
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
        """Check what does not depend on files.

        Raises:
            UsageError: a figure cannot work, or seeds are in both sets.
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
        """Held-out moments that curves are drawn of; judging them takes a second or two."""
        return min(160, 8 + round(8 * self.minutes))

    @property
    def last_moments(self) -> int:
        """Held-out moments that the last figures are of."""
        return 3 * self.curve_moments

    @property
    def vision_s(self) -> float:
        """Seconds for the vision."""
        return 60.0 * self.minutes * VISION_SHARE

    def learn_s(self, number: int) -> float:
        """Return the seconds to learn from drives in a round, from 0."""
        return 60.0 * self.minutes * ROUND_SHARES[number][1]

    def drives_until_s(self, number: int, learnt_s: float) -> float:
        """Return how many seconds of drives there are when those of a round are over.

        Learning ends early where there is little to learn from; more drives have that time. Rounds
        count from 0; `learnt_s` are the seconds of learning of those before.
        """
        drives_s = 60.0 * self.minutes * sum(drives for drives, _ in ROUND_SHARES[: number + 1])
        return drives_s + sum(map(self.learn_s, range(number))) - learnt_s


def parse_seeds(name: str, text: str) -> Seeds:
    """Return the seeds that FIRST:END names.

    Raises:
        UsageError: it is something else.
    """
    first, colon, end = text.partition(":")
    if not (colon and first.isascii() and first.isdigit() and end.isascii() and end.isdigit()):
        raise UsageError(f"{name}: expected FIRST:END, two whole numbers, found {text!r}")
    return Seeds(int(first), int(end))


def share_cores() -> tuple[int, int]:
    """Return processes that paint and threads that learn: as many of each as there are cores.

    They work by turns, as painters yield to the network's threads. On two cores of an EPYC without
    bfloat16 that gave 54 steps a minute from samples used twice; a core for each gave 42, and half
    of what was painted was overwritten unseen (2026-11-24).
    """
    cores = len(os.sched_getaffinity(0))
    return cores, cores


# What may not change while a training goes on: it would be another one.
_FIXED = ("seed", "worlds", "held_out", "batch")
# What may: more or less time, a lower rate after a loss that diverged.
_FREE = ("minutes", "learning_rate")
RECIPE = (*_FIXED, *_FREE)


def recipe_of(options: TrainingOptions) -> dict[str, Any]:
    """Return what a checkpoint keeps: numbers, and seeds as users write them."""
    found = {name: getattr(options, name) for name in RECIPE}
    return found | {name: str(found[name]) for name in ("worlds", "held_out")}


def resumed(given: Mapping[str, Any], saved: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the recipe of a training that goes on: what is given now, else what was saved.

    `given` by the user is None where nothing was; `saved` is that of the checkpoint.

    Raises:
        UsageError: something was given that differs, and may not.
    """
    for name in _FIXED:
        if given[name] is not None and given[name] != saved[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option}: expected {saved[name]}, with which the training in {directory} began, "
                f"found {given[name]}; leave it out, or train again in another directory"
            )
    return {name: saved[name] if given[name] is None else given[name] for name in RECIPE}

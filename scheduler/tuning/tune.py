"""Tunes the kernels of a compilation: searches for faster loops, stores and reports the results.

    graphs, device, seconds     ->     a tuned table in the cache directory, and a report

A job is one kernel to tune. A choice names loops for it; a variant is a job with a choice, and a
trial measures variants in rounds, one run of each per round.

    all kernels with the heuristic's loops     ->  the time of each, heaviest first
    for each batch of kernels:
        register tiles                         ->  the best tile of each
        loops around that tile                 ->  the best loops; repeated if they were better
        the best and the heuristic, new rounds ->  the best, if both its minimum and its median are
                                                   lower by a margin

The tuned table maps a kernel to its measured loops. Kernels that are in this device's table are not
searched again; remove its file to search them. `Prepare` abstracts how variants are built and
timed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Protocol

from runtime.opencl.device import Device
from scheduler.context import CompileContext
from scheduler.device import tuned_table
from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import HEURISTIC, Choice, Entry, TunedTable
from scheduler.errors import SchedulerError
from scheduler.schedule_cache import EntryGraph
from scheduler.tuning.launches import Launches
from scheduler.tuning.trial import Builders, make_trials
from scheduler.tuning.variants import Job, Timing, Variant, jobs_of

logger = logging.getLogger(__name__)

MAX_WORKERS: Final = (
    8  # maximum number of worker processes, one core each; more would wait for memory
)
LEAST_PARALLEL_S: Final = 4.0  # shortest search, in seconds, for which workers are started


@dataclass(frozen=True, slots=True)
class Line:
    """One kernel in the report."""

    name: str  # the ONNX nodes that it computes
    times: int  # launches per run
    heuristic_ms: float  # milliseconds of one launch with the heuristic's loops, the minimum
    best_ms: float  # milliseconds of one launch with the best loops, the minimum
    choice: str  # the best choice, "" for the heuristic
    state: str  # "searched", "known" (from a table) or "not reached"

    def plain(self) -> dict[str, Any]:
        """Return the line as a dict for JSON."""
        return {
            "kernel": self.name,
            "times": self.times,
            "heuristic_ms": round(self.heuristic_ms, 4),
            "best_ms": round(self.best_ms, 4),
            "choice": self.choice,
            "state": self.state,
        }


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of tuning."""

    table: TunedTable  # all measured loops for the device
    lines: tuple[Line, ...]  # kernels, heaviest first
    seconds: float  # duration of the search

    @property
    def heuristic_ms(self) -> float:
        """Sum over all launches of a run with the heuristic's loops, in milliseconds."""
        return sum(line.times * line.heuristic_ms for line in self.lines)

    @property
    def best_ms(self) -> float:
        """Sum over all launches of a run with the loops of the table, in milliseconds."""
        return sum(line.times * line.best_ms for line in self.lines)

    def plain(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        return {
            "seconds": round(self.seconds, 2),
            "heuristic_ms": round(self.heuristic_ms, 4),
            "best_ms": round(self.best_ms, 4),
            "kernels": [line.plain() for line in self.lines],
        }


def tune(
    graphs: Iterable[EntryGraph],
    context: CompileContext,
    device: Device,
    seconds: float,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Tuned:
    """Search for faster loops for the kernels of a program, and store them in the tuned table.

    Args:
        graphs: the program's graphs.
        context: the compile context, with the target.
        device: the device to measure on.
        seconds: time limit; the search can exceed it by about a second.
        progress: called with the number of finished kernels and the total.

    Raises:
        SchedulerError: the target is a CPU and the device a GPU, or a graph cannot be scheduled.
    """
    spec = context.spec
    if device.info.kind == "gpu" and not spec.is_simt:
        raise SchedulerError(
            f"--tune: target {spec.target}: expected a CPU, found the GPU {device.info.name}; "
            "choose another --target or --device"
        )
    started = time.perf_counter()
    jobs = jobs_of(graphs, context)
    path = tuned_table.table_path(spec.target, device.info.name, device.info.driver)
    table = tuned_table.table_for(spec.target, device.info.name, device.info.driver)
    known = {j: e for j in jobs if (e := _known(table, j, device)) is not None}
    with ExitStack() as stack:
        search = Search(
            _prepare(spec, device, seconds, stack),
            time.perf_counter,
            seconds - (time.perf_counter() - started),
            spec.peak.gflops,
            progress,
        )
        outcomes = search.run(jobs, known)
    found = {o.job.key: _entry(o) for o in outcomes}
    for outcome in outcomes:
        for choice in outcome.wrong:
            logger.warning("%s: choice %s gives different results", outcome.job.name, choice)
    try:
        own = tuned_table.own_table(spec.target, device.info.name, device.info.driver)
        tuned_table.write_table(path, own.with_entries(found))
    except OSError as error:
        logger.warning("%s: cannot save the measurements: %s", path, error)
    lines = _lines(jobs, search.baseline, outcomes, known)
    return Tuned(table.with_entries(found), lines, time.perf_counter() - started)


def _prepare(spec: DeviceSpec, device: Device, seconds: float, stack: ExitStack) -> Prepare:
    """Return the builder of variants for a target; its worker processes end with `stack`."""
    if spec.is_simt:
        return Launches(device, time.perf_counter).prepare
    workers = min(os.cpu_count() or 1, MAX_WORKERS) if seconds >= LEAST_PARALLEL_S else 0
    builders = stack.enter_context(Builders(device, workers if workers > 1 else 0))
    return lambda groups, deadline: make_trials(builders, groups, deadline)


def _known(table: TunedTable, job: Job, device: Device) -> Entry | None:
    """Return a job's entry, if it was measured on this device against the same heuristic loops."""
    entry = table.entries.get(job.key)
    if entry is None or entry.was != job.was:
        return None
    # The table also has entries that are shipped with the package, for one device of this target.
    # They count only if this is that device.
    shipped = tuned_table.shipped_table(table.target)
    elsewhere = (shipped.device, shipped.driver) != (device.info.name, device.info.driver)
    return None if elsewhere and shipped.entries.get(job.key) is entry else entry


def _entry(outcome: Outcome) -> Entry:
    return Entry(
        outcome.job.was,
        outcome.choice,
        outcome.heuristic_ms * 1e3,
        outcome.best_ms * 1e3,
        outcome.tried,
    )


def _lines(
    jobs: Sequence[Job],
    baseline: dict[Job, float],
    outcomes: Sequence[Outcome],
    known: dict[Job, Entry],
) -> tuple[Line, ...]:
    searched = {o.job: o for o in outcomes}
    lines = []
    for job in jobs:
        ms = baseline.get(job, 0.0)
        if job in searched:
            o = searched[job]
            line = Line(job.name, job.times, o.heuristic_ms, o.best_ms, str(o.choice), "searched")
        elif job in known:
            entry = known[job]
            best = ms * entry.us / entry.heuristic_us if entry.heuristic_us else ms
            line = Line(job.name, job.times, ms, best, str(entry.choice), "known")
        else:
            line = Line(job.name, job.times, ms, ms, str(HEURISTIC), "not reached")
        lines.append(line)
    return tuple(sorted(lines, key=lambda line: -line.times * line.heuristic_ms))


# --- The search: measures variants and keeps the fastest correct one --------------------------

MARGIN: Final = 0.025  # a choice must be faster by this share, in the minimum and the median
DROP_FACTOR: Final = 1.12  # after the first rounds, choices slower by this factor are dropped
FIRST_ROUNDS: Final = 3  # rounds for all choices
ROUNDS: Final = 8  # rounds for the choices that remain
CONFIRM_ROUNDS: Final = 24  # rounds to confirm the best choice
PEAK_SHARE: Final = 0.97  # share of the device's arithmetic peak at which a search stops
MIN_SHARE: Final = 0.002  # kernels with a smaller share of the total time are not searched
BATCH: Final = 4  # kernels searched together, so that workers build in parallel
GROUP: Final = 8  # kernels in one program for the first measurement of all
MAX_STEPS: Final = 3  # steps of a search: tiles, loops around the best tile, and those again
CONTINUE_FACTOR: Final = (
    0.98  # the search continues if a step reduces the time to less than this share
)


class Measured(Protocol):
    """Variants on a device, ready to run; see `Turns` in `scheduler/tuning/variants.py`."""

    variants: list[Variant]
    correct: list[bool]

    def run(self, which: Sequence[int], rounds: int) -> list[Timing]:
        """Return the times of some variants (by number) over `rounds` rounds."""
        ...

    def release(self) -> None:
        """Free the device memory."""
        ...


# (groups of variants, deadline) -> the groups ready to run, None for a group that is not.
Prepare = Callable[[Sequence[Sequence[Variant]], float], Sequence[Measured | None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one kernel."""

    job: Job  # the kernel's loop nest
    choice: Choice  # the fastest choice; HEURISTIC if none was faster by the margin
    heuristic_ms: float  # milliseconds of one launch with the heuristic's loops, the minimum
    best_ms: float  # milliseconds of one launch with the chosen loops, measured with the former
    tried: int  # number of measured choices
    wrong: tuple[Choice, ...] = ()  # choices with other results; there should be none


@dataclass(slots=True)
class _State:
    """The state of the search for one job."""

    job: Job
    best: Choice = HEURISTIC
    best_ms: float = 0.0
    heuristic_ms: float = 0.0
    steps: int = 0
    tried: set[Choice] = field(default_factory=set)
    wrong: list[Choice] = field(default_factory=list)
    trial: Measured | None = None  # the last trial, with the heuristic and the best
    active: bool = True

    def keep(self, trial: Measured | None) -> None:
        if self.trial is not None and self.trial is not trial:
            self.trial.release()
        self.trial = trial


class Search:
    """A search within a time limit, in seconds of `clock`.

    `peak_gflops` is 0 if it is unknown. `progress` is called with the number of finished kernels
    and the total. `baseline` has the milliseconds of each job with the heuristic's loops.
    """

    def __init__(
        self,
        prepare: Prepare,
        clock: Callable[[], float],
        seconds: float,
        peak_gflops: float,
        progress: Callable[[int, int], None],
    ) -> None:
        self.prepare, self.clock, self.progress = prepare, clock, progress
        self.deadline = clock() + seconds
        self.peak_gflops = peak_gflops
        self.baseline: dict[Job, float] = {}

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.clock() >= self.deadline

    def run(self, jobs: Sequence[Job], known: Iterable[Job] = ()) -> list[Outcome]:
        """Search jobs (except `known` ones), heaviest first; return results until the deadline."""
        self.baseline = self._measure_all(jobs)
        total = sum(ms * job.times for job, ms in self.baseline.items())
        skipped = set(known)
        heavy = [
            job
            for job, ms in sorted(self.baseline.items(), key=lambda e: -e[1] * e[0].times)
            if ms * job.times >= MIN_SHARE * total and job not in skipped
        ]
        outcomes: list[Outcome] = []
        self.progress(0, len(heavy))
        for batch in _batched(heavy, BATCH):
            if self.is_over:
                break
            outcomes += self._search(batch)
            self.progress(len(outcomes), len(heavy))
        return outcomes

    def _measure_all(self, jobs: Sequence[Job]) -> dict[Job, float]:
        groups = [[Variant(job, HEURISTIC) for job in group] for group in _batched(jobs, GROUP)]
        found: dict[Job, float] = {}
        for trial in self.prepare(groups, self.deadline):
            if trial is None:
                continue
            which = range(len(trial.variants))
            for variant, timing in zip(trial.variants, trial.run(which, ROUNDS), strict=True):
                found[variant.job] = timing.minimum
            trial.release()
        return found

    def _search(self, jobs: Sequence[Job]) -> list[Outcome]:
        states = [_State(job) for job in jobs]
        for _ in range(MAX_STEPS):
            active = [s for s in states if s.active]
            if not active or self.is_over:
                break
            self._step(active)
        outcomes = [self._confirm(s) for s in states if s.trial is not None]
        for state in states:
            state.keep(None)
        return outcomes

    def _step(self, states: Sequence[_State]) -> None:
        """Measure the next choices of some jobs; jobs without further choices become inactive."""
        groups = []
        for state in states:
            job = state.job
            choices = job.variations(state.best) if state.steps else job.tiles()
            # These two are measured again in the same rounds, as references.
            references = (HEURISTIC, state.best)
            new = [c for c in choices if c not in state.tried or c in references]
            groups.append([Variant(job, c) for c in new])
        trials = self.prepare(groups, self.deadline)
        for state, trial in zip(states, trials, strict=True):
            if trial is None:
                state.active = False
            else:
                self._take_best(state, trial)

    def _take_best(self, state: _State, trial: Measured) -> None:
        choices = [v.choice for v in trial.variants]
        state.wrong += [c for c, right in zip(choices, trial.correct, strict=True) if not right]
        which = [i for i, right in enumerate(trial.correct) if right]
        first = dict(zip(which, trial.run(which, FIRST_ROUNDS), strict=True))
        limit = min(t.minimum for t in first.values()) * DROP_FACTOR
        kept = [i for i in which if first[i].minimum <= limit or choices[i].is_heuristic]
        times = dict(zip(kept, trial.run(kept, ROUNDS), strict=True))
        best = min(kept, key=lambda i: times[i].minimum)
        before = state.best_ms
        state.keep(trial)
        state.tried.update(choices)
        state.best, state.best_ms = choices[best], times[best].minimum
        state.heuristic_ms = times[choices.index(HEURISTIC)].minimum
        state.steps += 1
        again = state.steps == 1 or state.best_ms < CONTINUE_FACTOR * before
        state.active = again and not self._at_peak(state)

    def _at_peak(self, state: _State) -> bool:
        bound_ms = state.job.flops / (self.peak_gflops * 1e6) if self.peak_gflops else 0.0
        return bound_ms >= PEAK_SHARE * state.best_ms

    def _confirm(self, state: _State) -> Outcome:
        """Measure the heuristic and the best choice again; return the better one."""
        assert state.trial is not None
        wrong = tuple(dict.fromkeys(state.wrong))
        tried = len(state.tried)
        if state.best.is_heuristic:
            ms = state.heuristic_ms
            return Outcome(state.job, HEURISTIC, ms, ms, tried, wrong)
        choices = [v.choice for v in state.trial.variants]
        pair = [choices.index(HEURISTIC), choices.index(state.best)]
        old, new = state.trial.run(pair, CONFIRM_ROUNDS)
        if is_faster(new, old):
            return Outcome(state.job, state.best, old.minimum, new.minimum, tried, wrong)
        return Outcome(state.job, HEURISTIC, old.minimum, old.minimum, tried, wrong)


def is_faster(new: Timing, old: Timing) -> bool:
    """Return whether `new` is faster than `old` by the margin, in the minimum and the median."""
    by_minimum = new.minimum < (1 - MARGIN) * old.minimum
    return by_minimum and new.median < (1 - MARGIN) * old.median


def _batched(jobs: Iterable[Job], size: int) -> Iterator[list[Job]]:
    rest = iter(jobs)
    while batch := list(islice(rest, size)):
        yield batch

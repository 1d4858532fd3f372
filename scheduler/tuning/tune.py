"""Tune a compilation on a device: search its kernels, keep what was found, say what it gave.

    graphs, device, seconds     ->     a table, in the cache directory and in the report

Kernels in this device's table are not searched again; its file can be removed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from runtime.opencl.device import Device
from scheduler.cache.schedules import EntryGraph
from scheduler.context import CompileContext
from scheduler.device import tuned_table
from scheduler.device.choice import HEURISTIC
from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import Entry, TunedTable
from scheduler.errors import SchedulerError
from scheduler.tuning.build import Builders
from scheduler.tuning.jobs import Job, jobs_of
from scheduler.tuning.launches import Launches
from scheduler.tuning.search import Outcome, Prepare, Search
from scheduler.tuning.trial import make_trials

logger = logging.getLogger(__name__)

# A core each, and not so many that they wait for memory.
MAX_WORKERS: Final = 8
# Fewer seconds than this are not worth starting processes for.
LEAST_PARALLEL_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Line:
    """One kernel in the report; times in milliseconds of one launch."""

    name: str  # ONNX nodes
    times: int  # launches per run
    heuristic_ms: float  # heuristic_ms, best_ms: minima
    best_ms: float
    choice: str  # "" for the heuristic
    state: str  # "searched", "known" (from a table) or "not reached"

    def plain(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
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
    """What a search gave."""

    table: TunedTable  # everything known for the device now
    lines: tuple[Line, ...]  # kernels, heaviest first
    seconds: float  # that it took

    @property
    def heuristic_ms(self) -> float:
        """Milliseconds of all launches with the heuristic's loops, each by itself."""
        return sum(line.times * line.heuristic_ms for line in self.lines)

    @property
    def best_ms(self) -> float:
        """The same with the loops of the table."""
        return sum(line.times * line.best_ms for line in self.lines)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
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
    """Search the kernels of one program's graphs and keep what was found on disk.

    The search ends a second or so after `seconds` at the latest; `progress` gets how many kernels
    are done, of how many. Raises SchedulerError for a CPU's target on a GPU, or a graph that cannot
    be scheduled.
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
            logger.warning("%s: choice %s gives other results", outcome.job.name, choice)
    try:
        own = tuned_table.own_table(spec.target, device.info.name, device.info.driver)
        tuned_table.write_table(path, own.with_entries(found))
    except OSError as error:
        logger.warning("%s: cannot keep what was measured: %s", path, error)
    lines = _lines(jobs, search.baseline, outcomes, known)
    return Tuned(table.with_entries(found), lines, time.perf_counter() - started)


def _prepare(spec: DeviceSpec, device: Device, seconds: float, stack: ExitStack) -> Prepare:
    """Return what builds variants as the target runs them; `stack` ends its processes."""
    if spec.is_simt:
        return Launches(device, time.perf_counter).prepare
    workers = min(os.cpu_count() or 1, MAX_WORKERS) if seconds >= LEAST_PARALLEL_S else 0
    builders = stack.enter_context(Builders(device, workers if workers > 1 else 0))
    return lambda groups, deadline: make_trials(builders, groups, deadline)


def _known(table: TunedTable, job: Job, device: Device) -> Entry | None:
    """Return what was measured of a job before, on this device and against these loops."""
    entry = table.entries.get(job.key)
    if entry is None or entry.was != job.was:
        return None
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

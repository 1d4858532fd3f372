"""Loop nests to tune (`Job`), variants of them, and their measurement in turns.

    12 blocks of one shape     ->     4 jobs, each 12 times

    a round:  a, b, c      the next one:  c, b, a      ...   ->   minimum and median of each

Each turn runs a variant so often that it takes as long as a clock can measure well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.context import CompileContext
from scheduler.device.tuned_table import EMPTY, Choice
from scheduler.emit.schedule import Schedule
from scheduler.errors import LoweringError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.ops import Op
from scheduler.kernelize.kernel import name_of
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.choose import body_key, choose_schedule, is_exact
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.variations import form_of, tile_choices, variations
from scheduler.lower import flops_of
from scheduler.render.kernel_code import KernelCode
from scheduler.render.render import Nest, render
from scheduler.schedule_cache import EntryGraph

Array = NDArray[Any]
# Runs of a variant in one turn at most, and what a turn should take: many times what its start
# costs.
RECORDS: Final = 48
LAUNCH_MS: Final = 1.5
# Weights of one variant, all copies: more than the caches of a core hold.
COLD_BYTES: Final = 6 << 20
# Of all variants of a program.
MAX_DATA_BYTES: Final = 1 << 30
# Results may differ by this much of the largest: sums are added in another order.
TOLERANCE: Final = {2: 2e-2, 4: 1e-4, 8: 1e-9}
_SEED: Final = 1  # any; the same data for all variants
# What results are before a variant writes them.
UNWRITTEN: Final = np.full(1, 0xA5, np.uint8)


@dataclass(eq=False, slots=True)
class Job:
    """One loop nest."""

    key: str  # of its body
    name: str  # ONNX nodes it comes from
    nest: Nest  # with the heuristic's loops
    times: int  # launches per run of an entry, of the entry that has most
    # Whether its result takes over the storage of something it reads, which loops that compute an
    # element twice may not.
    exact: bool
    flops: int  # of one launch
    bytes_moved: int  # read and written, each element once

    @property
    def was(self) -> str:
        """The heuristic's loops."""
        return form_of(self.nest.schedule)

    def loops(self, choice: Choice) -> LoopSchedule:
        """Return the loops of a choice."""
        heuristic = self.nest.schedule
        return choose_schedule(
            self.nest.body,
            heuristic.vector,
            heuristic.lanes,
            self.nest.spec,
            choice,
            exact=self.exact,
        )

    def render(self, choice: Choice) -> KernelCode:
        """Return a choice's code; raise LoweringError if an image would be a buffer."""
        images = None if self.nest.images is None else self.nest.images.anew()
        code = render([replace(self.nest, schedule=self.loops(choice), images=images)])
        if images is not None and images.refused:
            raise LoweringError(f"choice {choice}: an image is not read in whole texels")
        return code

    def tiles(self) -> list[Choice]:
        """Return register tiles to try, the heuristic first."""
        return self._different(tile_choices(self.nest.schedule, self.nest.spec))

    def variations(self, best: Choice) -> list[Choice]:
        """Return the heuristic, the best so far, and loops around the tile of the latter."""
        return self._different(variations(best, self.loops(best), self.nest.spec))

    def _different(self, choices: Iterable[Choice]) -> list[Choice]:
        """Return the first choice of each that gives the same loops."""
        found: dict[str, Choice] = {}
        for choice in choices:
            loops = self.loops(choice)
            if is_exact(loops) or not self.exact or choice.is_heuristic:
                found.setdefault(form_of(loops), choice)
        return list(found.values())


def jobs_of(graphs: Iterable[EntryGraph], context: CompileContext) -> list[Job]:
    """Schedule graphs with the heuristic's loops; return their distinct nests, in running order.

    The context's measured loops are not used. Raises SchedulerError if a graph cannot be scheduled
    or lowered.
    """
    found: dict[str, Job] = {}
    for graph in graphs:
        counts: dict[str, int] = {}
        for job in _nests(graph.schedule(replace(context, tuned=EMPTY))):
            counts[job.key] = counts.get(job.key, 0) + 1
            known = found.setdefault(job.key, job)
            known.times = max(known.times, counts[job.key])
            known.exact |= job.exact
    return list(found.values())


def _nests(plan: Schedule) -> Iterable[Job]:
    for lowered in plan.lowered:
        # Nests that run in turn address memory that none of them has alone.
        for nest in () if lowered.kernel.scratch else lowered.nests:
            loads = [n for n in scalar_nodes(nest.body.value) if n.op is Op.LOAD]
            read = {n.src[0] for n in loads}
            if not read.isdisjoint(nest.outputs):  # it updates a state: its loops are what they are
                continue
            touched = [*read, *(s.target for s in nest.body.stores)]
            schedule = nest.schedule
            yield Job(
                key=body_key(nest.body, schedule.vector, schedule.lanes),
                name=name_of(lowered.kernel),
                nest=nest,
                times=1,
                exact=lowered.in_place_of is not None,
                flops=flops_of(nest.body),
                bytes_moved=sum(prod(n.shape) * n.dtype.itemsize for n in touched),
            )


@dataclass(frozen=True, slots=True)
class Variant:
    """One job with one choice."""

    job: Job
    choice: Choice


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one launch of a kernel, over several rounds."""

    minimum: float
    median: float


class Turns(ABC):
    """Variants that are ready to run; a subclass runs them."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.variants = list(variants)
        self.correct: list[bool] = []  # whether each gives what the first one of its job gives
        self._expected: dict[Job, list[Array]] = {}
        self._ms: dict[int, float] = {}

    def run(self, which: Sequence[int], rounds: int) -> list[Timing]:
        """Return the times of the variants with these numbers, which take `rounds` turns each."""
        counts = [self._count(i) for i in which]
        times: list[list[float]] = [[] for _ in which]
        for turn in range(rounds):
            order = list(enumerate(zip(which, counts, strict=True)))
            # A drift of the clock speed then favours no variant.
            for place, (i, count) in order if turn % 2 == 0 else reversed(order):
                times[place].append(self._spent(i, count) / count)
        for i, spent_ms in zip(which, times, strict=True):
            self._ms[i] = min(spent_ms)
        return [Timing(min(t), float(np.median(t))) for t in times]

    def _count(self, number: int) -> int:
        """Return how many runs of a variant are one turn."""
        spent = self._ms.get(number, 0.0)
        if not spent:
            spent = self._spent(number, 2) / 2
        return max(1, min(RECORDS, round(LAUNCH_MS / max(spent, 1e-6))))

    def check(self, number: int) -> bool:
        """Run a variant once; return whether it gives what the first one of its job gave."""
        found = self._results(number)
        known = self._expected.setdefault(self.variants[number].job, found)
        return all(map(same_results, found, known))

    @abstractmethod
    def _spent(self, number: int, count: int) -> float:
        """Run a variant so many times; return the milliseconds of all of them."""

    @abstractmethod
    def _results(self, number: int) -> list[Array]:
        """Run a variant once; return what it writes."""


def values_of(dtype: DType, count: int) -> Array:
    """Return values that a network may meet; integers may be indices, so they are small."""
    rng = np.random.default_rng(_SEED)
    if dtype.is_float:
        return rng.standard_normal(count).astype(dtype.np)
    most = 2 if dtype is dt.bool_ else 4
    return rng.integers(0, most, count).astype(dtype.np)


def same_results(found: Array, expected: Array) -> bool:
    """Whether two results agree: integers exactly, floats to TOLERANCE of the largest."""
    # Integers have no rounding, whatever the order of sums.
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    # Differences of infinities and NaN say nothing.
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    largest = float(np.abs(b[finite]).max(initial=1e-30))
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return error <= TOLERANCE[found.itemsize] * largest

"""Loop nests to tune (`Job`), variants of them (`Variant`), and their measurement (`Turns`).

    12 blocks of the same shape     ->     4 jobs, each launched 12 times

    a round:  a, b, c      the next round:  c, b, a      ...   ->   minimum and median of each

A choice is a set of parameters that determine the loops of a nest. In each round every variant has
one turn, in which it runs often enough for an accurate measurement.
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
RECORDS: Final = 48  # the maximum number of runs of a variant in one turn
LAUNCH_MS: Final = 1.5  # target duration of a turn, many times the cost of starting it
COLD_BYTES: Final = 6 << 20  # all weight copies of a variant, more than the caches of a core
MAX_DATA_BYTES: Final = 1 << 30  # weights of all variants of a program
# Bytes per element -> allowed difference of results, relative to the largest. Variants can add sums
# in another order.
TOLERANCE: Final = {2: 2e-2, 4: 1e-4, 8: 1e-9}
_SEED: Final = 1  # arbitrary; all variants get the same data
# The byte that fills results before a variant writes them.
UNWRITTEN: Final = np.full(1, 0xA5, np.uint8)


@dataclass(eq=False, slots=True)
class Job:
    """A loop nest to tune."""

    key: str  # key of the nest's body in the tuned table
    name: str  # the ONNX nodes that it computes
    nest: Nest  # the nest with the heuristic's loops
    times: int  # launches per run of an entry; the largest number among entries
    # Whether the result replaces an input in memory, so that no element must be computed twice.
    exact: bool
    flops: int  # arithmetic operations of one launch
    bytes_moved: int  # bytes read and written by one launch, counting each element once

    @property
    def was(self) -> str:
        """A text that describes the heuristic's loops."""
        return form_of(self.nest.schedule)

    def loops(self, choice: Choice) -> LoopSchedule:
        """Return the loops for a choice."""
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
        """Return the code for a choice; raise LoweringError if an image would become a buffer."""
        images = None if self.nest.images is None else self.nest.images.anew()
        code = render([replace(self.nest, schedule=self.loops(choice), images=images)])
        if images is not None and images.refused:
            raise LoweringError(f"choice {choice}: an image is not read in whole texels")
        return code

    def tiles(self) -> list[Choice]:
        """Return choices with other register tiles, after the heuristic's choice.

        A register tile is the results that one step of the kernel keeps in registers.
        """
        return self._different(tile_choices(self.nest.schedule, self.nest.spec))

    def variations(self, best: Choice) -> list[Choice]:
        """Return the heuristic's choice, the best so far, and variations of the best."""
        return self._different(variations(best, self.loops(best), self.nest.spec))

    def _different(self, choices: Iterable[Choice]) -> list[Choice]:
        """Return valid choices with distinct loops; of equal ones the first."""
        found: dict[str, Choice] = {}
        for choice in choices:
            loops = self.loops(choice)
            if is_exact(loops) or not self.exact or choice.is_heuristic:
                found.setdefault(form_of(loops), choice)
        return list(found.values())


def jobs_of(graphs: Iterable[EntryGraph], context: CompileContext) -> list[Job]:
    """Return the distinct loop nests of graphs, in running order, with the heuristic's loops.

    Raises SchedulerError if a graph cannot be scheduled or lowered.
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
        # Skip kernels whose nests share scratch memory, because such a nest cannot run alone.
        for nest in () if lowered.kernel.scratch else lowered.nests:
            loads = [n for n in scalar_nodes(nest.body.value) if n.op is Op.LOAD]
            read = {n.src[0] for n in loads}
            if not read.isdisjoint(nest.outputs):  # it updates a state, so its loops are fixed
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
    """Milliseconds of one launch, as minimum and median over several rounds."""

    minimum: float
    median: float


class Turns(ABC):
    """Variants that are ready to run and take turns; a subclass runs them.

    `correct` has, for each variant, whether its results agree with the first variant of its job.
    """

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.variants = list(variants)
        self.correct: list[bool] = []
        self._expected: dict[Job, list[Array]] = {}
        self._ms: dict[int, float] = {}

    def run(self, which: Sequence[int], rounds: int) -> list[Timing]:
        """Return the times of some variants (by number) over `rounds` rounds."""
        counts = [self._count(i) for i in which]
        times: list[list[float]] = [[] for _ in which]
        for turn in range(rounds):
            order = list(enumerate(zip(which, counts, strict=True)))
            # Alternate the order, so that a drift of the clock speed favors no variant.
            for place, (i, count) in order if turn % 2 == 0 else reversed(order):
                times[place].append(self._spent(i, count) / count)
        for i, spent_ms in zip(which, times, strict=True):
            self._ms[i] = min(spent_ms)
        return [Timing(min(t), float(np.median(t))) for t in times]

    def _count(self, number: int) -> int:
        """Return the number of runs of a variant in one turn."""
        spent = self._ms.get(number, 0.0)
        if not spent:
            spent = self._spent(number, 2) / 2
        return max(1, min(RECORDS, round(LAUNCH_MS / max(spent, 1e-6))))

    def check(self, number: int) -> bool:
        """Run a variant once; return whether it agrees with the first variant of its job."""
        found = self._results(number)
        known = self._expected.setdefault(self.variants[number].job, found)
        return all(map(same_results, found, known))

    @abstractmethod
    def _spent(self, number: int, count: int) -> float:
        """Run a variant `count` times; return the total milliseconds."""

    @abstractmethod
    def _results(self, number: int) -> list[Array]:
        """Run a variant once; return the arrays that it writes."""


def values_of(dtype: DType, count: int) -> Array:
    """Return random values of typical size; integers can be indices, so they are small."""
    rng = np.random.default_rng(_SEED)
    if dtype.is_float:
        return rng.standard_normal(count).astype(dtype.np)
    most = 2 if dtype is dt.bool_ else 4
    return rng.integers(0, most, count).astype(dtype.np)


def same_results(found: Array, expected: Array) -> bool:
    """Return whether results agree: integers exactly, floats within TOLERANCE of the largest."""
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    # Infinities and NaN must be equal, because their difference is NaN.
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    largest = float(np.abs(b[finite]).max(initial=1e-30))
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return error <= TOLERANCE[found.itemsize] * largest

"""A Job is a distinct loop nest of compiled graphs, with how often it runs.

12 blocks of one shape     ->     4 jobs, each 12 times
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from scheduler.cache.schedules import EntryGraph
from scheduler.context import CompileContext
from scheduler.device.choice import Choice
from scheduler.device.tuned_table import EMPTY
from scheduler.emit.schedule import Schedule
from scheduler.errors import LoweringError
from scheduler.ir.ops import Op
from scheduler.kernelize.kernel import name_of
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.choose import body_key, choose_schedule, is_exact
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.variations import form_of, tile_choices, variations
from scheduler.lower import flops_of
from scheduler.render.kernel_code import KernelCode
from scheduler.render.render import Nest, render


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

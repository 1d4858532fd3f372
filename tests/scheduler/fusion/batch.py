"""Rows of a theme, scheduled one by one and built as one program: a compiler's start is slow.

A row that cannot be scheduled is not in the batch, and where the batch does not build it is empty:
then each row is built alone, so that those which are wrong fail by their own names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import numpy as np

from runtime.device import choose_device
from runtime.errors import RuntimeFault
from runtime.executor import Program
from scheduler.device.targets import spec_of_device
from scheduler.emit.artifact import emit
from scheduler.emit.schedule import Schedule
from scheduler.errors import SchedulerError
from scheduler.ir.ops import Op
from scheduler.tensor import realize
from scheduler.tensor.eager_plan import EagerPlan, base_of
from scheduler.tensor.session import SESSION
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Array, Row, program_plan
from tests.scheduler.support.programs import artifact_of, loaded


class Batch:
    """The programs of rows, and what realizing their outputs runs: two artifacts."""

    def __init__(self, rows: Sequence[Row], programs: ExitStack) -> None:
        """Build the rows that are neither eager nor write to their inputs."""
        SESSION.clear()  # what was computed before would be no part of a plan
        plain = [row for row in rows if not row.eager and not row.assigned]
        spec = spec_of_device(choose_device(None))
        self.contexts = {row.name: row.context(spec) for row in rows}
        self.made: dict[str, list[Tensor]] = {}
        self._programs = programs
        self._owned = self._build(plain, lambda row: program_plan(row, measured=False))
        self._realized = self._build(plain, self._plan_of_realized)

    def _plan_of_realized(self, row: Row) -> Schedule:
        made = self.made[row.name] = row.built()
        return made[0].schedule(*made[1:], context=self.contexts[row.name])

    def _build(self, rows: Sequence[Row], plan_of: Callable[[Row], Schedule]) -> dict[str, Program]:
        plans = {}
        for row in rows:
            with suppress(SchedulerError):
                plans[row.name] = plan_of(row)
        plans = {name: plan for name, plan in plans.items() if plan.outputs}
        with suppress(SchedulerError, RuntimeFault):
            made = emit(plans, name="rows", kind="plain")
            program = self._programs.enter_context(loaded(made.manifest, made.data))
            return dict.fromkeys(plans, program)
        return {}

    def check_program(self, row: Row) -> None:
        """Run the program of a row and compare its outputs."""
        plan = program_plan(row, measured=False)
        fed = {f"in{i}": v for i, v in enumerate(row.values())}
        fed |= {b.name: b.data for b in plan.inputs if b.data is not None}
        if row.name in self._owned:
            got = _run(self._owned[row.name], row.name, fed)
        else:
            made = artifact_of(plan)
            with loaded(made.manifest, made.data) as program:
                got = _run(program, "run", fed)
        row.compare([got[f"out{i}"] for i in range(len(got))])

    def check_realized(self, row: Row) -> None:
        """Realize the outputs of a row together and compare; each has a buffer after that."""
        SESSION.clear()
        made = self.made.pop(row.name, None) or row.built()
        context = self.contexts[row.name]
        alone = realize.execute

        def execute(plan: EagerPlan, *rest: Any) -> Any:
            if row.name not in self._realized or not plan.outputs:
                return alone(plan, *rest)
            program = self._realized[row.name]
            names = {spec.name for spec in program.entry_inputs(row.name)}
            return _run(program, row.name, plan.feeds(names)), {}

        with mock.patch.object(realize, "execute", execute):
            made[0].realize(*made[1:], context=context)
        row.compare([t.numpy() for t in made])
        assert all(base_of(t.node).op in (Op.BUFFER, Op.CONST) for t in made)
        assert made[0].schedule(*made[1:], context=context).launches == []


def _run(program: Program, entry: str, given: Mapping[str, Array]) -> dict[str, Array]:
    names = {spec.name for spec in program.entry_inputs(entry)}
    fed = {name: np.ascontiguousarray(given[name]) for name in names}
    return {name: np.array(value) for name, value in program.run(fed, entry).items()}

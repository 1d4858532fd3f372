"""Rows of a theme, scheduled one by one and built as one program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

from runtime.device import choose_device
from scheduler.device.targets import spec_of_device
from scheduler.emit.schedule import Schedule
from scheduler.ir.ops import Op
from scheduler.tensor import realize
from scheduler.tensor.eager_plan import EagerPlan, base_of
from scheduler.tensor.session import SESSION
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Row, program_plan
from tests.scheduler.support.together import UNOPTIMIZED, Together


class Batch:
    """The programs of rows, and what realizing their outputs runs.

    Rows that are eager, or write to their inputs, are realized alone.
    """

    def __init__(self, rows: Sequence[Row], programs: ExitStack) -> None:
        SESSION.clear()  # what was computed before would be no part of a plan
        plain = [row for row in rows if not row.eager and not row.assigned]
        spec = spec_of_device(choose_device(None))
        self._contexts = {row.name: row.context(spec) for row in rows}
        self._made: dict[str, list[Tensor]] = {}
        owned = {row.name: partial(program_plan, row, measured=False) for row in plain}
        realized = {row.name: partial(self._plan_of_realized, row) for row in plain}
        self._owned = programs.enter_context(Together(owned, UNOPTIMIZED))
        self._realized = programs.enter_context(Together(realized, UNOPTIMIZED))

    def _plan_of_realized(self, row: Row) -> Schedule:
        made = self._made[row.name] = row.built()
        return made[0].schedule(*made[1:], context=self._contexts[row.name])

    def check_program(self, row: Row) -> None:
        """Run the program of a row and compare its outputs."""
        buffers = program_plan(row, measured=False).inputs
        fed = {f"in{i}": v for i, v in enumerate(row.values())}
        fed |= {b.name: b.data for b in buffers if b.data is not None}
        got = self._owned.run(row.name, fed)
        row.compare([got[f"out{i}"] for i in range(len(got))])

    def check_realized(self, row: Row) -> None:
        """Realize the outputs of a row together and compare; each has a buffer after that."""
        SESSION.clear()
        made = self._made.pop(row.name, None) or row.built()
        context = self._contexts[row.name]
        alone = realize.execute

        def execute(plan: EagerPlan, *rest: Any) -> Any:
            if row.name not in self._realized.plans or not plan.outputs:
                return alone(plan, *rest)
            return self._realized.run(row.name, plan.feeds(plan.buffers)), {}

        with mock.patch.object(realize, "execute", execute):
            made[0].realize(*made[1:], context=context)
        row.compare([t.numpy() for t in made])
        assert all(base_of(t.node).op in (Op.BUFFER, Op.CONST) for t in made)
        assert made[0].schedule(*made[1:], context=context).launches == []

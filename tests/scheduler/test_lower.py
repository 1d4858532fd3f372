"""Rendered OpenCL against the numpy interpreter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.scheduler.on_device import load
from tests.scheduler.strategies import Program, programs, same

pytestmark = pytest.mark.opencl


@settings(max_examples=int(__import__("os").environ.get("N","40")))
@given(programs())
def test_random_programs_give_what_the_interpreter_gives(program: Program) -> None:
    states = {w.node.src[0].arg.name: None for w in program.writes}
    with load(program.outputs, program.writes) as compiled:
        before: dict[str, object] = {}
        for _ in range(2 if states else 1):
            used = {spec.name for spec in compiled.inputs}
            got = compiled.run({n: v for n, v in program.inputs.items() if n in used})
            expected, scale = program.reference(before)  # type: ignore[arg-type]
            for name in program.outputs:
                assert same(got[name], expected[name], scale), name
            for name in states:
                assert same(compiled.state(name), expected[name], scale), name
            before = {name: expected[name] for name in states}

"""Random stacks of network layers on the device against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.tensor.tensor import evaluate
from tests.scheduler.support.networks import Stack
from tests.scheduler.support.programs import load

pytestmark = pytest.mark.opencl
PROGRAMS = 40


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_stack_of_layers_gives_what_the_interpreter_gives(seed: int) -> None:
    stack = Stack(seed)
    outputs = stack.build()
    expected = dict(zip(outputs, evaluate(list(outputs.values()), stack.inputs), strict=True))
    with load(outputs) as program:
        read = {spec.name for spec in program.inputs}
        got = program.run({n: v for n, v in stack.inputs.items() if n in read})
        for name, want in expected.items():
            scale = max(1.0, float(np.abs(want).max()))
            assert np.abs(got[name] - want).max() <= 1e-4 * scale, f"output {name} of seed {seed}"

"""Launches that the driver at hand records give the same bits as launches one by one."""

from dataclasses import replace

import numpy as np
import pytest

from runtime.format.artifact import from_memory
from runtime.opencl.device import choose_device
from runtime.run.executor import Program, load_program
from scheduler.context import CompileContext
from tests.drivers.cases import CASES, Feed
from tests.drivers.test_programs import row_of
from tests.scheduler.support.programs import make_program

pytestmark = pytest.mark.opencl


@pytest.mark.parametrize("row", ["gpu", "adreno"])
def test_recorded_programs(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_RECORD", "1")
    device = choose_device(None)
    if device.info.recording is None:
        pytest.skip("the driver has no extension to record launches")
    feed = Feed()
    outputs = {f"{case}_{name}": tensor for case in ("five_layers", "convolutions")
               for name, tensor in CASES[case](feed).items()}  # fmt: skip
    made = make_program(outputs, context=CompileContext(row_of(row)))
    artifact = from_memory(made.manifest, made.data)
    single = replace(device, info=replace(device.info, recording=None))

    def run(program: Program) -> dict[str, bytes]:
        return {name: value.tobytes() for name, value in program.run(feed.inputs).items()}

    with load_program(artifact, device) as one, load_program(artifact, single) as many:
        assert (one.submissions(), many.submissions()) == (1, len(made.manifest["kernels"]))
        wanted = run(many)
        for _ in range(3):
            assert run(one) == wanted
        for name, value in feed.inputs.items():
            feed.inputs[name] = np.flip(value).copy()
        assert run(one) == run(many) != wanted

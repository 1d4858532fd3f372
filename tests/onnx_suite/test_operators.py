"""Every operator case of ours, compiled and run on the device, against the interpreter."""

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import run_once
from scheduler.emit.artifact import emit
from scheduler.onnx_import import import_model
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.onnx_cases.case import Case
from tests.scheduler.onnx_import.test_ops import build

pytestmark = pytest.mark.opencl


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_compiled_operator_gives_what_the_interpreter_gives(case: Case) -> None:
    proto, feeds = build(case, folded=False)
    model = import_model(proto)
    outputs = {n: t for n, t in model.outputs.items() if t.size > 0}
    expected = dict(zip(outputs, evaluate(list(outputs.values()), feeds), strict=True))
    plan = schedule(
        {n: t.node for n, t in outputs.items()}, inputs=[t.node for t in model.inputs.values()]
    )
    emitted = emit({"run": plan}, name=case.op, kind="plain")
    given = {n: v for n, v in feeds.items() if n in model.inputs}
    got = run_once(emitted.manifest, emitted.data, given)
    for name, want in expected.items():
        assert_same(got[name], want)


def assert_same(got: NDArray[np.generic], want: NDArray[np.generic]) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if want.dtype.kind != "f":
        assert np.array_equal(got, want)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    assert np.array_equal(np.isfinite(a), finite)
    assert np.array_equal(a[~finite], b[~finite], equal_nan=True)
    tolerance = 2e-3 if want.dtype == np.float16 else 2e-6
    scale = max(1.0, np.abs(b[finite]).max(initial=0.0))
    assert np.abs(a[finite] - b[finite]).max(initial=0.0) <= tolerance * scale

"""Operators that take kernels written by hand where they are large, on a device and interpreted."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.device.spec import SPECS
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.passes.custom_kernels import expand_alternatives
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.onnx_import.onnx_cases.case import Case, case, draw, f, ints, k, one
from tests.scheduler.onnx_import.test_ops import graph_of, imported
from tests.scheduler.support.programs import load
from tests.support.selection import quick_cases

Array = NDArray[Any]


def ties(*shape: int, dtype: type = np.float32) -> Array:
    return ints(-50, 50, *shape, dtype=dtype)


def wild(*shape: int) -> Array:
    """Return floats of all magnitudes, some of them infinite."""
    bits = draw().integers(0, 2**32, shape, np.uint32)
    values = bits.view(np.float32)
    return np.where(np.isnan(values), np.float32(np.inf), values)


def top(values: Array, count: int, **attributes: Any) -> Case:
    return case("TopK", values, k(count), outputs=2, **attributes)


def summed(shape: tuple[int, ...], axis: int, reverse: int, exclusive: int) -> Case:
    how: dict[str, Any] = {"reverse": reverse, "exclusive": exclusive}
    return case("CumSum", f(*shape), one(axis), opset=14, **how)


def scattered(shape: tuple[int, ...], index: tuple[int, ...], how: str) -> Case:
    places = ints(-shape[0], shape[0], *index)
    updates = f(*index[:-1], *shape[index[-1] :])
    return case("ScatterND", f(*shape), places, updates, opset=18, reduction=how)


def elements(shape: tuple[int, ...], index: tuple[int, ...], axis: int, how: str) -> Case:
    places = ints(-shape[axis], shape[axis], *index)
    return case("ScatterElements", f(*shape), places, f(*index), opset=18, axis=axis, reduction=how)


FEW_UPDATES = scattered((2000,), (900, 1), "none")
CASES = [
    top(ties(3000), 9),
    top(ties(3000), 100, largest=0),
    top(wild(2, 2500), 2500),
    top(wild(70_000), 200),
    top(ties(70_000), 5),
    top(f(40, 900, 2), 50, axis=1),
    top(ties(1, 4000, dtype=np.int64), 17, largest=0),
    top(ties(2, 2000, dtype=np.uint8), 300),
    *(
        summed(shape, axis, reverse, exclusive)
        for shape, axis in (((3, 500), 1), ((200, 33), 0), ((2, 100, 16), 1), ((2, 70, 1), -2))
        for reverse in (0, 1)
        for exclusive in (0, 1)
    ),
    case("CumSum", ties(999, dtype=np.int64), one(0)),
    FEW_UPDATES,
    *(scattered((2000,), (900, 1), how) for how in ("add", "mul", "max", "min")),
    *(scattered((900, 7), (500, 1), how) for how in ("none", "add")),
    *(scattered((30, 40), (800, 2), how) for how in ("none", "add")),
    *(
        elements(shape, index, axis, how)
        for how in ("none", "add")
        for shape, index, axis in (
            ((300, 20), (200, 11), 0),
            ((3, 900), (3, 500), 1),
            ((4, 300, 5), (2, 300, 5), 1),
            ((1, 3000), (1, 500), 1),
        )
    ),
]
# One of each kernel; the others differ in shapes and types.
QUICK = (0, 11, 28, 39)


def same(found: list[Array], expected: list[Array]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        if a.dtype.kind == "f":
            largest = np.abs(b[np.isfinite(b)]).max(initial=1.0)
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6 * min(largest, 1e3))
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("made", CASES, ids=lambda c: c.label)
def test_reference_agrees_with_onnxruntime(made: Case) -> None:
    model, feeds, expected = imported(made)
    outputs = list(model.outputs.values())
    assert Op.CUSTOM in {n.op for n in toposort([t.node for t in outputs])}
    same(evaluate(outputs, feeds), expected)


@pytest.mark.opencl
@pytest.mark.parametrize(
    "number", quick_cases(range(len(CASES)), *QUICK), ids=lambda i: CASES[i].label
)
def test_kernel_agrees_with_onnxruntime(number: int) -> None:
    model, feeds, expected = imported(CASES[number])
    with load(model.outputs) as program:
        found = program.run(feeds)
        same([found[name] for name in model.outputs], expected)


@pytest.mark.parametrize("target", ["cpu", "cpu-sse", "gpu", "adreno"])
def test_one_import_has_a_form_for_each_device(target: str) -> None:
    spec = SPECS[target]
    for made in (CASES[0], FEW_UPDATES, case("CumSum", f(500), one(0))):
        model, feeds, expected = imported(made)
        nodes = [t.node for t in model.outputs.values()]
        new = expand_alternatives(nodes, spec)
        kept = [new[node] for node in nodes]
        operations = {n.op for n in toposort(kept)}
        assert Op.ALTERNATIVES not in operations
        assert (Op.CUSTOM in operations) == (not spec.is_simt)
        same(evaluate([Tensor.of(node) for node in kept], feeds), expected)


def test_search_that_is_too_long_everywhere_has_one_form() -> None:
    operations = {n.op for n in graph_of(scattered((20_000,), (9000, 1), "none"))}
    assert Op.CUSTOM in operations
    assert Op.ALTERNATIVES not in operations

"""Operators that take kernels written by hand where they are large, on a device and interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import run_once
from scheduler.device.spec import SPECS
from scheduler.emit.artifact import emit
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import import import_model
from scheduler.onnx_import.importer import ImportedModel
from scheduler.passes.alternatives import expand_alternatives
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, case, draw, f, k
from tests.scheduler.onnx_import.test_ops import build, reference

Array = NDArray[Any]


def ties(*shape: int, dtype: type = np.float32) -> Array:
    return draw().integers(-50, 50, shape).astype(dtype)


def wild(*shape: int) -> Array:
    """Return floats of all magnitudes, some of them infinite."""
    bits = draw().integers(0, 2**32, shape, np.uint32)
    values = bits.view(np.float32)
    return np.where(np.isnan(values), np.float32(np.inf), values)


def rows(high: int, *shape: int) -> Array:
    return draw().integers(-high, high, shape)


CASES = [
    case("TopK", ties(3000), k(9), outputs=2),
    case("TopK", ties(3000), k(100), outputs=2, largest=0),
    case("TopK", wild(2, 2500), k(2500), outputs=2),
    case("TopK", wild(70_000), k(200), outputs=2),
    case("TopK", ties(70_000), k(5), outputs=2),
    case("TopK", f(40, 900, 2), k(50), outputs=2, axis=1),
    case("TopK", ties(1, 4000, dtype=np.int64), k(17), outputs=2, largest=0),
    case("TopK", ties(2, 2000, dtype=np.uint8), k(300), outputs=2),
    *(
        case(
            "CumSum",
            f(*shape),
            Const(np.array(axis)),
            opset=14,
            reverse=reverse,
            exclusive=exclusive,
        )
        for shape, axis in (((3, 500), 1), ((200, 33), 0), ((2, 100, 16), 1), ((2, 70, 1), -2))
        for reverse in (0, 1)
        for exclusive in (0, 1)
    ),
    case("CumSum", ties(999, dtype=np.int64), Const(np.array(0))),
    *(
        case("ScatterND", f(2000), rows(2000, 900, 1), f(900), opset=18, reduction=how)
        for how in ("none", "add", "mul", "max", "min")
    ),
    *(
        made
        for how in ("none", "add")
        for made in (
            case("ScatterND", f(900, 7), rows(900, 500, 1), f(500, 7), opset=18, reduction=how),
            case("ScatterND", f(30, 40), rows(30, 800, 2), f(800), opset=18, reduction=how),
            *(
                case(
                    "ScatterElements",
                    f(*shape),
                    rows(shape[axis], *index),
                    f(*index),
                    opset=18,
                    axis=axis,
                    reduction=how,
                )
                for shape, index, axis in (
                    ((300, 20), (200, 11), 0),
                    ((3, 900), (3, 500), 1),
                    ((4, 300, 5), (2, 300, 5), 1),
                    ((1, 3000), (1, 500), 1),
                )
            ),
        )
    ),
]


def imported(one: Case) -> tuple[ImportedModel, dict[str, Array], list[Array]]:
    proto, feeds = build(one, folded=False)
    return import_model(proto), feeds, reference(one, proto, feeds)


def same(found: list[Array], expected: list[Array]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        if a.dtype.kind == "f":
            largest = np.abs(b[np.isfinite(b)]).max(initial=1.0)
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6 * min(largest, 1e3))
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.label)
def test_reference_agrees_with_onnxruntime(one: Case) -> None:
    model, feeds, expected = imported(one)
    nodes = toposort([t.node for t in model.outputs.values()])
    assert Op.CUSTOM in {n.op for n in nodes}
    same(evaluate(list(model.outputs.values()), feeds), expected)


@pytest.mark.opencl
@pytest.mark.parametrize("one", CASES, ids=lambda c: c.label)
def test_kernel_agrees_with_onnxruntime(one: Case) -> None:
    model, feeds, expected = imported(one)
    plan = schedule(
        {n: t.node for n, t in model.outputs.items()},
        inputs=[t.node for t in model.inputs.values()],
    )
    emitted = emit({"run": plan}, name="hand", kind="plain")
    found = run_once(emitted.manifest, emitted.data, feeds)
    same([found[name] for name in model.outputs], expected)


@pytest.mark.parametrize("target", ["cpu", "cpu-sse", "gpu", "adreno"])
def test_one_import_has_a_form_for_each_device(target: str) -> None:
    spec = SPECS[target]
    few_updates = case("ScatterND", f(2000), rows(2000, 900, 1), f(900), opset=18)
    for one in (CASES[0], few_updates, case("CumSum", f(500), Const(np.array(0)))):
        model, feeds, expected = imported(one)
        nodes = [t.node for t in model.outputs.values()]
        new = expand_alternatives(nodes, spec)
        kept = [new[node] for node in nodes]
        operations = {n.op for n in toposort(kept)}
        assert Op.ALTERNATIVES not in operations
        assert (Op.CUSTOM in operations) == (not spec.is_simt)
        same(evaluate([Tensor.of(node) for node in kept], feeds), expected)


def test_search_that_is_too_long_everywhere_has_one_form() -> None:
    model, _, _ = imported(case("ScatterND", f(20_000), rows(20_000, 9000, 1), f(9000), opset=18))
    operations = {n.op for n in toposort([t.node for t in model.outputs.values()])}
    assert Op.CUSTOM in operations
    assert Op.ALTERNATIVES not in operations

"""Indexing in the ONNX front end: what is refused, what run-time indices do, what graphs become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime import run_once
from scheduler.emit.artifact import emit
from scheduler.errors import ModelError
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import import import_model
from scheduler.onnx_import.importer import ImportedModel
from scheduler.onnx_import.ops.topk import first_places, sort_keys
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, case, f
from tests.scheduler.onnx_import.test_ops import build

Array = NDArray[Any]


def imported(one: Case) -> ImportedModel:
    return import_model(build(one, folded=False)[0])


def ops_of(one: Case) -> list[Op]:
    return [n.op for t in imported(one).outputs.values() for n in toposort([t.node])]


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (case("Compress", f(3), np.array([True, False, True])), "decide the shape"),
        (case("NonZero", f(3)), "decide how many"),
        (case("Unique", f(3)), "decide how many"),
        (case("TopK", f(3), np.array([2]), outputs=2), "decides the shape"),
        (case("Gather", f(3), Const(np.array([3]))), "out of range"),
        (case("GatherElements", f(2, 3), Const(np.array([[0], [2]])), axis=0), "out of range"),
        (case("ScatterND", f(2, 3), Const(np.array([[2]])), f(1, 3)), "out of range"),
        (case("Einsum", f(2, 3), f(2, 3), equation="ij,jk"), "sizes"),
        (case("Det", f(17, 17), opset=22), "at most 16"),
    ],
    ids=lambda v: v.label if isinstance(v, Case) else "",
)
def test_what_cannot_be_imported_is_refused(one: Case, message: str) -> None:
    model = build(one, folded=False)[0]
    with pytest.raises(ModelError, match=message):
        import_model(model)


def test_known_box_of_indices_takes_no_gather() -> None:
    rows = np.stack(np.meshgrid([1, 2], [0, 1, 2], indexing="ij"), -1)
    assert Op.GATHER not in ops_of(case("ScatterND", f(4, 5), Const(rows), f(2, 3)))


def test_known_range_of_indices_takes_no_gather() -> None:
    same = np.repeat([[1], [2]], 4, axis=1)
    assert Op.GATHER not in ops_of(case("GatherElements", f(4, 4), Const(same), axis=0))


def test_einsum_of_two_is_the_graph_of_a_matrix_product() -> None:
    shapes = (2, 3, 4, 5), (2, 3, 5, 6)
    found = case("Einsum", *(f(*s) for s in shapes), equation="bhij,bhjk->bhik")
    assert ops_of(found) == ops_of(case("MatMul", *(f(*s) for s in shapes)))


def test_keys_sort_as_values_do() -> None:
    values = np.array([-np.inf, -1.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, np.inf, np.nan], np.float32)
    keys = sort_keys(Tensor(values)).interp()
    assert (np.diff(keys) >= 0).all()
    assert [i for i in range(8) if keys[i] == keys[i + 1]] == [3]
    negative_nan = np.copysign(np.array([np.nan], np.float32), -1.0)
    assert sort_keys(Tensor(negative_nan)).interp()[0] == keys[-1]


@pytest.mark.parametrize(("size", "k"), [(300, 3), (65, 16), (64, 63)])
def test_blocks_give_what_sorting_gives(size: int, k: int) -> None:
    keys = np.random.default_rng(size).integers(-9, 9, (2, size)).astype(np.int32)
    found = first_places(Tensor(keys), k).interp()
    assert np.array_equal(found, np.argsort(-keys, axis=1, kind="stable")[:, :k])


@pytest.mark.opencl
def test_run_time_indices_out_of_range_stay_inside() -> None:
    data, wild = f(4, 3), np.array([[7, -9, 2**40]])
    picked = compiled(case("GatherElements", data, wild, axis=0), wild)
    assert np.array_equal(picked, [[data[3, 0], data[0, 1], data[3, 2]]])
    written = compiled(case("ScatterElements", data, wild, f(1, 3), axis=0), wild)
    assert np.array_equal(written, data)


def compiled(one: Case, indices: Array) -> Array:
    proto, feeds = build(one, folded=False)
    model = import_model(proto)
    plan = schedule(
        {n: t.node for n, t in model.outputs.items()},
        inputs=[t.node for t in model.inputs.values()],
    )
    emitted = emit({"run": plan}, name="indices", kind="plain")
    return run_once(emitted.manifest, emitted.data, {**feeds, "x1": indices})["y0"]

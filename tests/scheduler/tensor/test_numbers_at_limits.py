"""Numbers at the limits of their type: integers from Python, means, divisors of 0, positions."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper

from scheduler import Tensor
from scheduler.errors import LoweringError, ModelError, VerifyError
from scheduler.ir import dtype as dt
from scheduler.onnx_backend.backend import prepare
from scheduler.pipeline import schedule
from tests.scheduler.support.programs import Array, load

I32 = np.iinfo(np.int32)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**31 - 1, dt.int32),
        (-(2**31), dt.int32),
        (3_000_000_000, dt.int64),
        (2**63, dt.uint64),
        ([3_000_000_000, 1], dt.int64),
        ([2**63], dt.uint64),
    ],
)
def test_an_integer_takes_a_type_that_holds_it(value: Any, kind: dt.DType) -> None:
    tensor = Tensor(value)
    assert tensor.dtype is kind
    assert tensor.interp().tolist() == value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**64, None),
        (-(2**63) - 1, None),
        (-1, dt.uint8),
        (256, dt.uint8),
        ([1, -1], dt.uint64),
        ([300], dt.int8),
        ([2**64], dt.int64),
        (3_000_000_000, dt.int32),
    ],
)
def test_an_integer_that_a_type_does_not_hold_is_refused(value: Any, kind: Any) -> None:
    with pytest.raises(ModelError, match=r"is no u?int"):
        Tensor(value, kind)


def test_by_zero_counts_as_by_one() -> None:
    a = np.array([-5, 5, -7, 0, I32.max, I32.min], np.int32)
    x, zeros = Tensor(a), Tensor(np.zeros(6, np.int32))
    for quotient, rest in ((x // zeros, x % zeros), (x // 0, x % 0)):
        assert quotient.interp().tolist() == a.tolist()
        assert rest.interp().tolist() == [0] * 6
    assert (x // 2).interp().tolist() == (a // 2).tolist()
    assert (x % -3).interp().tolist() == (a % -3).tolist()


def run(op: str, given: dict[str, Array], opset: int, *ways: dict[str, Any]) -> list[Array]:
    """Run a model of one operator with attributes of several ways."""
    nodes = [helper.make_node(op, list(given), [f"y{i}"], **way) for i, way in enumerate(ways)]
    kind = helper.np_dtype_to_tensor_dtype(next(iter(given.values())).dtype)
    inputs = [helper.make_tensor_value_info(n, kind, v.shape) for n, v in given.items()]
    outputs = [helper.make_tensor_value_info(n.output[0], kind, None) for n in nodes]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return list(prepare(model).run(list(given.values())))


@pytest.mark.opencl
def test_the_mean_of_integers_near_the_limit_is_between_them() -> None:
    x = np.array([[I32.max] * 4, [I32.max, I32.max, 5, -7], [I32.min] * 3 + [-3]], np.int32)
    (found,) = run("ReduceMean", {"x": x}, 13, {"axes": [1], "keepdims": 0})
    # onnxruntime's; numpy's, made of sums of int32, are -1, -1 and 536870911
    assert found.tolist() == [2147483647, 1073741823, -1610612736]


@pytest.mark.opencl
def test_infinite_coordinates_are_outside() -> None:
    inf = np.inf
    grid = np.array([[[[inf, 0], [-inf, 0], [0, inf], [inf, -inf]]]], np.float32)
    given = {"x": np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3), "grid": grid}
    wanted = {"zeros": [0, 0, 0, 0], "border": [6, 4, 8, 3]}
    ways = [
        {"mode": mode, "padding_mode": padding}
        for mode, padding in product(["linear", "nearest", "cubic"], wanted)
    ]
    for way, found in zip(ways, run("GridSample", given, 20, *ways), strict=True):
        np.testing.assert_allclose(found.reshape(-1), wanted[way["padding_mode"]], rtol=1e-6)


def wide() -> Tensor:
    """Return 3e9 elements that nobody stores."""
    rows, columns = Tensor.input("x", (50000, 1)), Tensor.input("y", (1, 60000))
    return rows.maximum(columns)


def test_an_index_beyond_an_int_is_refused_by_name() -> None:
    flat, rows = wide().reshape(3_000_000_000), Tensor.input("i", (3,), dt.int64)
    for tensor, message in (
        (flat.gather(rows, 0), "a gather from an axis of 3000000000 elements"),
        (wide()[rows, rows], "gather from an axis of 3000000000 elements"),
        (flat[::7].gather(rows, 0), r"an index of up to \d{10} elements"),
    ):
        with pytest.raises(LoweringError, match=message):
            assert schedule({"z": tensor.node}).lowered
    with pytest.raises(VerifyError, match="positions along 3000000000 elements"):
        flat.argmax()


@pytest.mark.opencl
def test_a_part_of_what_is_too_large_to_store_is_right() -> None:
    part = wide().reshape(3_000_000_000)[2_900_000_000:2_900_000_003]
    feeds = {n: np.arange(s, dtype=np.float32) for n, s in (("x", 50000), ("y", 60000))}
    with load({"z": part}) as program:
        given = {k.name: feeds[k.name].reshape(k.shape) for k in program.inputs}
        assert program.run(given)["z"].tolist() == [48333] * 3

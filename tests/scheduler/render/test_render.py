"""Rendered OpenCL against the numpy interpreter."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.emit.artifact import Emitted
from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.pack import PackedWeight
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.passes.pass_check import same
from tests.scheduler.support.programs import compute, emitted, load
from tests.scheduler.support.values import rng

pytestmark = pytest.mark.opencl
Array = NDArray[Any]


def floats(*shape: int) -> Array:
    return rng().standard_normal(shape).astype(np.float32)


def check(outputs: Mapping[str, Tensor], inputs: Mapping[str, Array], scale: float = 1.0) -> None:
    """Run on the device and compare every output with the interpreter."""
    with load(outputs) as program:
        got = program.run(inputs)
        expected = evaluate(list(outputs.values()), inputs)
        for name, value in zip(outputs, expected, strict=True):
            magnitude = float(np.abs(value).max(initial=scale)) if value.dtype.kind == "f" else 1.0
            assert same(got[name], value, magnitude), name


def test_tails_of_vectors_of_every_size_up_to_forty() -> None:
    outputs, inputs = {}, {}
    for n in range(1, 41):
        x = Tensor.input(f"x{n}", (n,))
        outputs[f"y{n}"] = x * 2.0 + Tensor.weight(floats(n))
        inputs[f"x{n}"] = floats(n)
    check(outputs, inputs)


@pytest.mark.parametrize("n", [1, 3, 5, 16, 17, 31, 40])
def test_tails_of_contractions(n: int) -> None:
    x, w = Tensor.input("x", (7, n)), Tensor.weight(floats(n, n + 2))
    y = Tensor.input("y", (n, 5))
    check({"weight": x @ w, "input": x @ y}, {"x": floats(7, n), "y": floats(n, 5)})


CONVOLUTIONS: list[dict[str, Any]] = [
    {"padding": 1},
    {"padding": 1, "stride": 2},
    {"dilation": 2},
    {"padding": ((0, 2), (1, 0)), "stride": (1, 3)},
    {"padding": 1, "groups": 2},
    {"padding": 1, "groups": 6},
    {"padding": 2, "dilation": (1, 2), "groups": 3, "stride": (2, 1)},
]


@pytest.mark.parametrize("how", CONVOLUTIONS, ids=str)
def test_convolutions(how: dict[str, Any]) -> None:
    groups = how.get("groups", 1)
    image = Tensor.input("image", (2, 6, 9, 11))
    weight, bias = Tensor.weight(floats(12, 6 // groups, 3, 3)), Tensor.weight(floats(12))
    check({"y": image.conv2d(weight, bias, **how).relu()}, {"image": floats(2, 6, 9, 11)})


@pytest.mark.parametrize(
    "how",
    [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "dilation": 2}],
    ids=str,
)
def test_transposed_convolutions(how: dict[str, Any]) -> None:
    image = Tensor.input("image", (1, 4, 5, 6))
    weight = Tensor.weight(floats(4, 6 // how.get("groups", 1), 3, 3))
    check({"y": image.conv_transpose2d(weight, **how)}, {"image": floats(1, 4, 5, 6)})


def test_a_convolution_by_a_weight_given_at_run_time() -> None:
    image, weight = Tensor.input("image", (1, 3, 8, 8)), Tensor.input("weight", (5, 3, 3, 3))
    inputs = {"image": floats(1, 3, 8, 8), "weight": floats(5, 3, 3, 3)}
    check({"y": image.conv2d(weight, padding=1)}, inputs)


def test_pooling() -> None:
    image = Tensor.input("image", (1, 3, 9, 9))
    outputs = {
        "max": image.max_pool2d(3, 2, 1),
        "mean": image.avg_pool2d(2),
        "inside": image.avg_pool2d(3, 1, 1, count_include_pad=False),
    }
    check(outputs, {"image": floats(1, 3, 9, 9)})


def test_reductions_over_every_set_of_axes() -> None:
    x, n = Tensor.input("x", (3, 5, 19)), Tensor.input("n", (3, 5, 19), dt.int32)
    outputs: dict[str, Tensor] = {}
    for count in (1, 2, 3):
        for axes in combinations(range(3), count):
            outputs[f"sum{axes}"] = x.sum(axes)
            outputs[f"max{axes}"] = n.max(axes)
    check(
        outputs,
        {"x": floats(3, 5, 19), "n": rng().integers(-99, 99, (3, 5, 19)).astype(np.int32)},
    )


def test_networks_of_reductions_in_a_row() -> None:
    x = Tensor.input("x", (6, 40))
    outputs = {"softmax": x.softmax(), "norm": x.layernorm(), "first": x.argmax(1), "var": x.var(0)}
    check(outputs, {"x": floats(6, 40)})


def test_weights_are_packed_in_the_order_they_are_read() -> None:
    image, values = Tensor.input("image", (1, 16, 8, 8)), floats(32, 16, 3, 3)
    plan = schedule({"y": image.conv2d(Tensor.weight(values), padding=1).node})
    (kernel,) = plan.lowered
    (packed,) = [a for a in kernel.arguments if isinstance(a, PackedWeight)]
    assert packed.data.size == values.size
    assert np.array_equal(np.sort(packed.data), np.sort(values.reshape(-1)))
    assert not np.array_equal(packed.data, values.reshape(-1))


@pytest.mark.parametrize("row", [0, -1])
def test_one_element_of_a_weight_is_read_without_any_range(row: int) -> None:
    table = Tensor.weight(floats(5))
    assert compute(table[row].contiguous()) == table[row].interp()


def test_halves_are_rounded_to_the_nearest_even() -> None:
    bits = np.arange(0, 2**32, 65_521, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    got = compute(Tensor.input("x", values.shape).half(), x=values)
    with np.errstate(over="ignore"):
        assert np.array_equal(got, values.astype(np.float16))


def test_storage_of_every_type() -> None:
    outputs, inputs = {}, {}
    for kind in (dt.float16, dt.int8, dt.uint16, dt.int64, dt.uint64, dt.float64, dt.bool_):
        values = rng().integers(0, 2 if kind is dt.bool_ else 100, (5, 21)).astype(kind.np)
        x = Tensor.input(kind.name, (5, 21), kind)
        inputs[kind.name] = values
        outputs[f"{kind.name}_flip"] = x.flip(1)
        outputs[f"{kind.name}_max"] = x.cast(dt.int32).max(0).cast(kind)
        outputs[f"{kind.name}_rows"] = x.gather(Tensor.weight(np.array([4, 0])), 0)
        outputs[f"{kind.name}_test"] = x.ne(x.flip(0))
    check(outputs, inputs)


def test_large_integers_keep_every_digit() -> None:
    values = np.array([2**62 + 1, -(2**62) - 3, 2**53 + 1], np.int64)
    got = compute(Tensor.input("n", (3,), dt.int64) - 1, n=values)
    assert np.array_equal(got, values - 1)


def test_bytes_wrap_around() -> None:
    values = np.arange(256, dtype=np.uint8)
    x = Tensor.input("x", (256,), dt.uint8)
    got = compute(x * 3 + 200, x=values)
    assert np.array_equal(got, values * np.uint8(3) + np.uint8(200))


def test_rows_outside_the_table_are_clamped_not_read() -> None:
    rows = np.array([-100, -4, -1, 0, 3, 4, 2**31 - 1, -(2**31)], np.int32)
    table = Tensor.weight(np.arange(4, dtype=np.float32))
    got = compute(table.gather(Tensor.input("i", rows.shape, dt.int32)), i=rows)
    assert got.tolist() == [0, 0, 3, 0, 3, 3, 3, 0]


def network() -> dict[str, Tensor]:
    """A bit of everything, the same in every process."""
    rng = np.random.default_rng(1)

    def w(*shape: int) -> Tensor:
        return Tensor.weight(rng.standard_normal(shape).astype(np.float32))

    image = Tensor.input("image", (1, 8, 12, 12))
    y = image.conv2d(w(16, 8, 3, 3), w(16), padding=1).relu()
    z = y.conv2d(w(16, 1, 3, 3), padding=1, groups=16).gelu() + y
    features = z.mean((2, 3))
    queue = Tensor.state("queue", (4, 16))
    pushed = queue.assign(Tensor.cat([queue[1:], features]))
    return {"a": (pushed @ w(16, 10)).softmax(), "b": z.max_pool2d(2), "c": pushed.layernorm()}


def digest(made: Emitted) -> str:
    return hashlib.sha256(repr(made.manifest).encode() + made.data).hexdigest()


def test_emitting_twice_gives_the_same_sources_and_manifest() -> None:
    assert digest(emitted(network())) == digest(emitted(network()))


@pytest.mark.parametrize("seed", ["0", "12345"])
def test_emitting_in_another_process_gives_the_same_bytes(seed: str) -> None:
    root = Path(__file__).parents[3]
    code = (
        "from tests.scheduler.render.test_render import digest, emitted, network;"
        "print(digest(emitted(network())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.strip() == digest(emitted(network()))


def test_no_scalar_node_is_left_at_tensor_level() -> None:
    plan = schedule({n: t.node for n, t in network().items()})
    for kernel in plan.kernels:
        ops = {n.op for n in scalar_nodes(kernel.bodies[0].value)}
        assert Op.REDUCE not in ops
        assert not any(n.shape for n in scalar_nodes(kernel.bodies[0].value) if n.op is Op.ADD)
    assert any(n.op is Op.REDUCE for t in network().values() for n in toposort([t.node]))

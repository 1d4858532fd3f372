"""Strict numerics: the same bytes on every row and processor, and the order that they say."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from runtime.opencl import pocl
from runtime.opencl.device import choose_device
from scheduler.context import FAST, STRICT, CompileContext, context_for
from scheduler.device.spec import SPECS
from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import PARTS, Op, is_fused, parts_of
from scheduler.passes.strict_numerics import canonical_sums
from scheduler.tensor.tensor import Tensor
from tests.scheduler.strict_digests import PROGRAMS, ROWS, digests
from tests.scheduler.support.programs import Array, load

X = Tensor.input("x", (6, 100))
IMAGE = Tensor.input("x", (1, 24, 9, 11))


def drawn(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def strict(row: str) -> CompileContext:
    return context_for(SPECS[row], numerics=STRICT)


def results(outputs: dict[str, Tensor], given: dict[str, Array], row: str) -> dict[str, Array]:
    with load(outputs, context=strict(row)) as program:
        return {name: value.copy() for name, value in program.run(given).items()}


def elsewhere(processor: str, program: str) -> str:
    """Return the digest of a program on a processor that this one can be taken for."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.scheduler.strict_digests", program, "cpu-avx2"],
        env={**os.environ, pocl.FORCED_NAME: processor},
        capture_output=True,
        text=True,
        check=True,
    )
    return str(json.loads(done.stdout)[program]["cpu-avx2"])


def levels() -> list[str]:
    """Return the processors with multiply-adds that this machine can stand for."""
    known = ["x86-64-v3", "x86-64-v4", pocl.VNNI]
    level = pocl.level_of(pocl.cpu_flags())
    return known[: known.index(level) + 1] if level in known else []


@pytest.mark.opencl
def test_a_network_gives_the_same_bytes_on_every_row() -> None:
    assert len(ROWS) == 3
    (found,) = digests(["network"]).values()
    assert len(set(found.values())) == 1


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_give_the_same_bytes_on_every_processor(program: str) -> None:
    found = [*digests([program])[program].values()]
    found += [elsewhere(processor, program) for processor in levels()]
    assert len(set(found)) == 1


@pytest.mark.opencl
def test_fast_programs_of_two_rows_differ() -> None:
    """Else the tests above would show nothing."""
    outputs, given = {"y": X.mean(1)}, {"x": drawn(6, 100)}
    fast = []
    for row in ("cpu", "cpu-neon"):
        with load(outputs, context=context_for(SPECS[row])) as program:
            fast.append(program.run(given)["y"].tobytes())
    assert fast[0] != fast[1]
    assert results(outputs, given, "cpu")["y"].tobytes() in fast[0]


def in_parts(terms: Array, parts: int) -> Array:
    """Sum along the last axis as `scheduler.ir.ops` says."""
    whole = terms.shape[-1] // parts * parts
    sums = np.zeros((*terms.shape[:-1], parts), np.float32)
    for start in range(0, whole, parts):
        sums = sums + terms[..., start : start + parts]
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    total = sums[..., 0]
    for k in range(whole, terms.shape[-1]):
        total = total + terms[..., k]
    return np.asarray(total)


def fused(a: Array, b: Array) -> Array:
    """Sum products along the last axis one by one, each rounded together with its addition."""
    total = np.zeros(np.broadcast_shapes(a.shape, b.shape)[:-1], np.float32)
    for k in range(a.shape[-1]):
        # The product is exact in float64; the sum is rounded twice, which no value here notices.
        wide = a[..., k].astype(np.float64) * b[..., k] + total
        total = wide.astype(np.float32)
    return np.asarray(total)


@pytest.mark.opencl
@pytest.mark.parametrize("row", ROWS)
def test_sums_are_added_in_the_order_of_their_definition(row: str) -> None:
    x, weight = drawn(6, 100), drawn(100, 20, seed=2)
    outputs = {
        "rows": X.sum(1),
        "columns": X.sum(0),
        "product": X @ Tensor.weight(weight),
        "squares": (X * X).sum(1),
    }
    got = results(outputs, {"x": x}, row)
    assert np.array_equal(got["rows"], in_parts(x, PARTS))
    assert np.array_equal(got["columns"], in_parts(x.T, 1))
    assert np.array_equal(got["product"], fused(x[:, None], weight.T[None]))
    # Sixteen sums of fused products, as of the plain terms.
    parts = np.stack([fused(x[:, p:96:PARTS], x[:, p:96:PARTS]) for p in range(PARTS)], -1)
    tail = in_parts(parts, PARTS)
    for k in range(96, 100):
        tail = (x[:, k].astype(np.float64) ** 2 + tail).astype(np.float32)
    assert np.array_equal(got["squares"], tail)


@pytest.mark.opencl
@pytest.mark.parametrize("row", ROWS)
def test_a_packed_operand_changes_no_bit(row: str) -> None:
    a, b = Tensor.input("a", (192, 64)), Tensor.input("b", (192, 64))
    given = {"a": drawn(192, 64), "b": drawn(192, 64, seed=2)}
    scores = (a * 0.3) @ b.transpose()
    (got,) = results({"y": scores}, given, row).values()
    scaled = given["a"] * np.float32(0.3)
    assert np.array_equal(got, fused(scaled[:, None], given["b"][None]))


@pytest.mark.opencl
def test_a_product_is_fused_also_where_it_is_an_output() -> None:
    other = Tensor.input("y", (6, 100))
    product = X * other
    given = {"x": drawn(6, 100), "y": drawn(6, 100, seed=2)}
    alone = results({"s": product.sum(1)}, given, "cpu")
    beside = results({"s": product.sum(1), "p": product}, given, "cpu")
    assert np.array_equal(alone["s"], beside["s"])
    assert np.array_equal(beside["p"], given["x"] * given["y"])


@pytest.mark.opencl
@pytest.mark.parametrize("row", ROWS)
def test_casts_and_nan_have_one_result(row: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 300.7, -1.5, 3e9, -3e9, 2.5], np.float32)
    x = Tensor.input("x", (8,))
    kinds = {"u": dt.uint8, "b": dt.int8, "i": dt.int32, "l": dt.int64}
    casts = {name: x.cast(kind) for name, kind in kinds.items()}
    got = results({**casts, "n": x - x, "m": -x}, {"x": values}, row)
    assert got["u"].tolist() == [0, 255, 0, 255, 0, 255, 0, 2]
    assert got["b"].tolist() == [0, 127, -128, 127, -1, 127, -128, 2]
    assert got["i"][:3].tolist() == [0, 2147483520, -(2**31)]
    assert got["l"][3:].tolist() == [300, -1, 3000000000, -3000000000, 2]
    assert {*got["n"].view(np.uint32)[:3], got["m"].view(np.uint32)[0]} == {0x7FC00000}


ORDERS: dict[str, tuple[Callable[[], Tensor], tuple[int, ...], int, bool]] = {
    # sizes of the reduced axes, outermost first; parts; whether products are fused
    "mean of a row": (lambda: X.mean(1), (100,), PARTS, False),
    "short row": (lambda: X[:, :15].sum(1), (15,), 1, False),
    "product of a row": (lambda: X.prod(1), (100,), PARTS, False),
    "weights": (lambda: X @ Tensor.weight(drawn(100, 8)), (100,), 1, True),
    "one weight for all": (lambda: X @ Tensor.weight(drawn(100)), (100,), PARTS, True),
    "scores": (lambda: X @ X.transpose(), (100,), PARTS, True),
    "many scores": (
        lambda: Tensor.input("a", (256, 64)) @ Tensor.input("b", (256, 64)).transpose(),
        (64,),
        1,
        True,
    ),
    "values": (lambda: X.transpose() @ X, (6,), 1, True),
    "long values": (
        lambda: Tensor.input("a", (3, 40)) @ Tensor.input("b", (40, 9)),
        (40,),
        1,
        True,
    ),
    "taps before channels": (
        lambda: IMAGE.conv2d(Tensor.weight(drawn(4, 24, 3, 3)), padding=1),
        (3, 3, 24),
        1,
        True,
    ),
    "windows": (lambda: IMAGE.mean((2, 3)), (9, 11), 1, False),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_follows_from_the_graph(name: str) -> None:
    make, sizes, parts, is_product = ORDERS[name]
    root = make().node
    order = toposort([canonical_sums([root])[root]])
    (reduction,) = [n for n in order if n.op is Op.REDUCE]
    source = reduction.src[0]
    assert tuple(source.shape[a] for a in reduction.arg[1]) == sizes
    assert (parts_of(reduction), is_fused(source)) == (parts, is_product)


@pytest.mark.opencl
def test_processors_with_multiply_add() -> None:
    info = replace(choose_device(None).info, platform=pocl.POCL)
    names = ("sse", "avx", "unknown", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "neon")
    assert [replace(info, simd=name).fuses for name in names] == [False] * 3 + [True] * 5
    assert not replace(info, platform="another").fuses


def test_devices_that_cannot_say_so() -> None:
    for row in ("cpu-sse", "gpu", "adreno"):
        with pytest.raises(SchedulerError, match="expected a CPU with fused multiply-add"):
            strict(row)
    plain = replace(SPECS["cpu"], host_clang=False)
    with pytest.raises(SchedulerError, match="strict numerics on cpu"):
        CompileContext(plain, numerics=STRICT)
    with pytest.raises(SchedulerError, match="expected one of fast, strict"):
        context_for(numerics="exact")
    assert context_for().key() != strict("cpu").key()
    assert context_for().numerics == FAST
    wide = Tensor.input("x", (4,), dt.float64).exp()
    with pytest.raises(SchedulerError, match="EXP of float64 is not the same"):
        load({"y": wide}, context=strict("cpu"))

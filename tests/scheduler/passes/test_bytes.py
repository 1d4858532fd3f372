"""Passes on quantised numbers: tables, moves as bytes, floats where there are no dot products."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scheduler.device.spec import SPECS
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.passes.eight_bits.byte_moves import byte_moves, byte_tables
from scheduler.passes.eight_bits.byte_products import byte_floats
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import load

CPU = SPECS["cpu"]
Build = Callable[[Tensor], Tensor]


def real(q: Tensor, scale: float = 0.03, zero: int = 7) -> Tensor:
    """What DequantizeLinear makes of bytes."""
    return (q.cast(dt.int32) - zero).cast(dt.float32) * scale


def byte(x: Tensor, scale: float = 0.03, zero: int = 7, kind: dt.DType = dt.uint8) -> Tensor:
    """What QuantizeLinear makes of numbers."""
    limits = (0.0, 255.0) if kind is dt.uint8 else (-128.0, 127.0)
    return ((x / scale).round() + float(zero)).clip(*limits).cast(kind)


def has(root: Node, op: Op) -> int:
    return sum(n.op is op for n in toposort([root]))


def every(kind: dt.DType, shape: tuple[int, ...] = (16, 16)) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).reshape(shape).view(kind.np)


def gelu(q: Tensor) -> Tensor:
    """As exporters write it, with bytes between all operations."""
    x = real(q)
    inner = real(byte((x / 1.4142135).erf(), 0.008, 128), 0.008, 128)
    return byte(x * real(byte(inner + 1.0, 0.008, 0), 0.008, 0) * 0.5, 0.011, 20)


LONG: dict[str, Build] = {
    "gelu": gelu,
    "signed": lambda q: byte(real(q).exp().log().exp().tanh(), 0.008, -3, dt.int8),
    "steps": lambda q: byte(real(byte(real(q).exp())).tanh().sin().cos(), 0.004),
}


@pytest.mark.parametrize("kind", [dt.uint8, dt.int8], ids=str)
@pytest.mark.parametrize("name", LONG)
def test_a_long_function_of_a_byte_is_a_table(name: str, kind: dt.DType) -> None:
    q = Tensor.input("q", (16, 16), kind)
    y = LONG[name](q)
    new = Tensor.of(byte_tables([y.node], CPU)[y.node])
    assert (has(new.node, Op.GATHER), has(new.node, Op.ROUND)) == (1, 0)
    right = y.interp({"q": every(kind)})
    np.testing.assert_array_equal(new.interp({"q": every(kind)}), right)
    with load({"y": y}) as program:
        np.testing.assert_array_equal(program.run({"q": every(kind)})["y"], right)


KEPT: dict[str, Build] = {
    "short": lambda q: byte(real(q).relu() * 0.3),
    "of two bytes": lambda q: byte((real(q) * real(q.permute((1, 0)))).exp().tanh().sin()),
    "of another shape": lambda q: byte((real(q).exp() * real(q).sum(0).reshape(1, 16)).tanh()),
    "no byte at its end": lambda q: real(q).exp().tanh().sin().cos(),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_table(name: str) -> None:
    y = KEPT[name](Tensor.input("q", (16, 16), dt.uint8))
    assert has(byte_tables([y.node], CPU)[y.node], Op.GATHER) == 0


def test_a_byte_on_the_way_has_a_table_of_its_own_where_it_is_needed() -> None:
    q = Tensor.input("q", (16, 16), dt.uint8)
    first = byte(real(q).exp().tanh().sin().cos(), 0.004)
    y = byte(real(first, 0.004) @ Tensor.weight(np.eye(16, dtype="f4"))).cast(dt.int32)
    z = byte(real(first, 0.004).exp().tanh(), 0.004)
    new = byte_tables([y.node, z.node], CPU)
    assert has(new[y.node], Op.GATHER) == has(new[z.node], Op.GATHER) == 1


def again(x: Tensor, q: Tensor) -> Tensor:
    """The bytes of numbers in the type of other ones, with the scale that `real` gave them."""
    return byte(x, kind=q.dtype)


MOVED: dict[str, Build] = {
    "alone": lambda q: again(real(q), q),
    "twice": lambda q: again(real(again(real(q).permute((1, 0)), q)).reshape(256), q),
    "padded": lambda q: again(real(q).pad(((1, 2), (0, 3)), 0.0)[1:-1], q),
    "largest": lambda q: again(real(q).max(1), q),
    "pooled": lambda q: again(real(q).reshape(1, 1, 16, 16).max_pool2d(3, 2, 1), q),
}


@pytest.mark.parametrize("kind", [dt.uint8, dt.int8], ids=str)
@pytest.mark.parametrize("name", MOVED)
def test_bytes_move_as_bytes(name: str, kind: dt.DType) -> None:
    y = MOVED[name](Tensor.input("q", (16, 16), kind))
    new = byte_moves([y.node])[y.node]
    assert has(new, Op.ROUND) == 0
    given = {"q": every(kind)}
    np.testing.assert_array_equal(Tensor.of(new).interp(given), y.interp(given))


OTHERS: dict[str, Build] = {
    "another scale": lambda q: byte(real(q), 0.031),
    "another zero point": lambda q: byte(real(q), 0.03, 8),
    "another type": lambda q: byte(real(q), kind=dt.int8),
    "an operation between": lambda q: byte(real(q) * 0.5),
    "ones around it": lambda q: byte(real(q).pad(((1, 1), (1, 1)), 1.0)),
    "the least": lambda q: byte(real(q).min(1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_quantised_anew(name: str) -> None:
    y = OTHERS[name](Tensor.input("q", (16, 16), dt.uint8))
    assert has(byte_moves([y.node])[y.node], Op.ROUND) == 1


def test_what_is_the_largest_of_nothing_stays_minus_infinity() -> None:
    """A window that lies in the padding alone has no byte."""
    q = Tensor.input("q", (4, 16), dt.uint8)
    y = real(q).pad(((0, 0), (0, 3)), -np.inf).window(1, 2, 2).max(2)
    new = Tensor.of(byte_moves([y.node])[y.node])
    given = {"q": every(dt.uint8, (4, 64))[:, :16]}
    assert np.isneginf(y.interp(given)[:, -1]).all()
    np.testing.assert_array_equal(new.interp(given), y.interp(given))


def test_the_largest_of_bytes_is_dequantized_where_the_next_scale_is_another() -> None:
    q = Tensor.input("q", (16, 16), dt.uint8)
    y = byte(real(q).max(1), 0.05)
    new = byte_moves([y.node])[y.node]
    assert [n.dtype for n in toposort([new]) if n.op is Op.REDUCE] == [dt.uint8]
    np.testing.assert_array_equal(
        Tensor.of(new).interp({"q": every(dt.uint8)}), y.interp({"q": every(dt.uint8)})
    )


@pytest.mark.parametrize(("dot4", "stored"), [(False, 1), (True, 0)])
def test_sums_without_dot_products_read_floats(*, dot4: bool, stored: int) -> None:
    q = Tensor.input("q", (16, 16), dt.uint8)
    y = real(byte(q.cast(dt.float32).sqrt())) @ Tensor.weight(np.eye(16, 5, dtype="f4") + 0.3)
    new = byte_floats([y.node], replace(CPU, dot4=dot4))[y.node]
    assert has(new, Op.CONTIGUOUS) == stored


@pytest.mark.opencl
def test_a_byte_is_an_index_from_the_end_where_it_becomes_negative() -> None:
    q, rows = Tensor.input("q", (256,), dt.uint8), Tensor.input("rows", (300,))
    outputs = {str(kind): rows.gather(q.cast(kind), 0) for kind in (dt.int32, dt.int8)}
    given = {"q": every(dt.uint8, (256,)), "rows": np.arange(300, dtype=np.float32)}
    with load(outputs) as program:
        found = program.run(given)
    np.testing.assert_array_equal(found["int32"], given["rows"][:256])
    np.testing.assert_array_equal(found["int8"], given["rows"][given["q"].view(np.int8)])

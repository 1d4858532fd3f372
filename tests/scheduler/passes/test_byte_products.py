"""Sums of products of quantised numbers as dot products of bytes: what becomes one, exactly."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import strategies as st

from scheduler.context import CompileContext
from scheduler.device.spec import SPECS
from scheduler.errors import VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.passes.eight_bits.byte_products import byte_products
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.passes.pass_check import EXAMPLES, for_all
from tests.scheduler.support.programs import Array, load
from tests.support.selection import quick_cases

WITH_DOT4 = replace(SPECS["cpu"], dot4=True)
Build = Callable[[Tensor], Tensor]


def numbers(*shape: int, seed: int = 1) -> Array:
    """Whole numbers of which each row along the first axis reaches 127, as quantisers make them."""
    found = np.random.default_rng(seed).integers(-127, 128, shape)
    found.reshape(shape[0], -1)[:, 0] = 127
    return found.astype(np.float32)


def weight(*shape: int, seed: int = 1, shared: bool = False) -> Tensor:
    """A weight with a scale for each index of its first axis, or one for all."""
    scales = np.random.default_rng(seed + 9).uniform(1e-3, 1e-2, shape[0]).astype(np.float32)
    scales = np.full_like(scales, scales[0]) if shared else scales
    return Tensor.weight(numbers(*shape, seed=seed) * scales.reshape(-1, *(1,) * (len(shape) - 1)))


def real(q: Tensor, zero: int | None = None) -> Tensor:
    """What DequantizeLinear makes of bytes; the zero point is 131 or, of signed ones, 3."""
    zero = (131 if q.dtype is dt.uint8 else 3) if zero is None else zero
    return (q.cast(dt.int32) - zero).cast(dt.float32) * 0.02


def whole(*shape: int) -> Tensor:
    """Known integers as QLinearConv has them: the zero point is taken off."""
    found = np.random.default_rng(5).integers(-128, 128, shape).astype(np.int8)
    return Tensor.weight(found).cast(dt.int32) - 0


CONV: dict[str, tuple[tuple[int, ...], Build]] = {
    "dense": ((1, 16, 6, 7), lambda q: real(q).conv2d(weight(24, 16, 3, 3), padding=1)),
    "1x1": ((2, 12, 5, 8), lambda q: real(q).conv2d(weight(20, 12, 1, 1))),
    "channels-that-are-no-fours": (
        (1, 7, 6, 6),
        lambda q: real(q).conv2d(weight(8, 7, 3, 3), padding=((1, 0), (0, 1))),
    ),
    "strides-dilations": (
        (1, 8, 11, 9),
        lambda q: real(q).conv2d(weight(8, 8, 3, 3), stride=2, padding=2, dilation=2),
    ),
    "groups": ((1, 16, 5, 5), lambda q: real(q).conv2d(weight(8, 8, 3, 3), groups=2, padding=1)),
    "groups-of-three": (
        (1, 6, 5, 5),
        lambda q: real(q).conv2d(weight(8, 3, 3, 3), groups=2, padding=1),
    ),
    "depthwise": (
        (1, 6, 9, 9),
        lambda q: real(q).conv2d(weight(6, 1, 3, 3), groups=6, padding=1, stride=2),
    ),
    "depthwise-7": (
        (1, 4, 9, 9),
        lambda q: real(q).conv2d(weight(4, 1, 7, 7), groups=4, padding=3),
    ),
    "depthwise-dilated": (
        (1, 4, 9, 9),
        lambda q: real(q).conv2d(weight(4, 1, 3, 3), groups=4, padding=2, dilation=2),
    ),
    "one-scale": ((1, 8, 4, 4), lambda q: real(q).conv2d(weight(9, 8, 2, 2, shared=True))),
    "zero-point-0": ((1, 8, 4, 4), lambda q: real(q, 0).conv2d(weight(9, 8, 2, 2), padding=1)),
    "matrix": ((5, 12), lambda q: real(q) @ weight(6, 12).transpose()),
    "matrix-of-ten": ((3, 4, 10), lambda q: real(q) @ weight(6, 10).transpose()),
    "heads": (
        (1, 6, 16),
        lambda q: real(q).reshape(6, 4, 4).permute((1, 0, 2)) @ weight(3, 4).transpose(),
    ),
    "two-values": ((3, 6, 8), lambda q: real(q) @ real(q, 100).permute((0, 2, 1))),
    "two-values-of-ten": ((10, 10), lambda q: real(q, 0) @ real(q, 7)),
    "many-rows": ((2, 12, 8), lambda q: real(q) @ real(q, 100).permute((0, 2, 1))),
    "many-rows-of-ten": ((2, 12, 10), lambda q: real(q) @ real(q, 100).permute((0, 2, 1))),
    "two-integers": ((6, 6), lambda q: (q.cast(dt.int32) - 3) @ q.cast(dt.int32)),
    "integers": (
        (1, 8, 5, 5),
        lambda q: (q.cast(dt.int32) - 7).conv2d(whole(4, 8, 3, 3), padding=1),
    ),
    "integers-matrix": ((5, 12), lambda q: q.cast(dt.int32) @ whole(12, 6)),
}

KINDS = {str(kind): kind for kind in (dt.uint8, dt.int8)}
UNSIGNED = ("1x1-uint8", "depthwise-uint8", "zero-point-0-uint8", "two-values-of-ten-uint8")
QUICK = (*UNSIGNED, "groups-of-three-int8", "zero-point-0-int8", "integers-int8")


def around(q: Tensor) -> Tensor:
    """Depthwise, so that the taps of a window would be packed, with ones around the picture."""
    padded = real(q.reshape(1, 3, 4, 5)).pad(((0, 0), (0, 0), (1, 1), (1, 1)), 1.0)
    return padded.conv2d(weight(3, 1, 3, 3), groups=3)


REFUSED: dict[str, Build] = {
    "a weight of other numbers": lambda q: real(q) @ Tensor.weight(np.eye(12, 6, dtype="f4") + 0.3),
    "a zero point that is no byte": lambda q: real(q, 256) @ weight(6, 12).transpose(),
    "sums beside quantised numbers": lambda q: real(q) @ (real(q) + 1.0).transpose(),
    "a scale for each row": lambda q: (
        (real(q) * Tensor.weight(np.arange(5, dtype="f4").reshape(5, 1)))
        @ weight(6, 12).transpose()
    ),
    "floats": lambda q: (q.cast(dt.float32) + 0.5) @ weight(6, 12).transpose(),
    "wider numbers": lambda q: q.cast(dt.int32) @ (whole(12, 6) + 1),
    "other numbers than 0 around it": around,
    "too few terms": lambda q: real(q[:, :2]) @ weight(6, 2).transpose(),
}


def dots(root: Node) -> int:
    return sum(node.op is Op.DOT4 for node in toposort([root]))


@pytest.mark.parametrize("case", quick_cases([f"{n}-{k}" for n in CONV for k in KINDS], *QUICK))
def test_the_sums_are_those_of_the_numbers(case: str) -> None:
    """Before and after the pass, and on the device: integers exactly, floats to the last places."""
    name, _, kind_name = case.rpartition("-")
    kind = KINDS[kind_name]
    shape, build = CONV[name]
    q = np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8).view(kind.np)
    built = build(Tensor.input("q", shape, kind))
    made = Tensor.of(byte_products([built.node], WITH_DOT4)[built.node])
    assert dots(made.node) in ((2, 3) if "two" in name or "many" in name else (1,))
    right, found = built.interp({"q": q}), made.interp({"q": q})
    with load({"y": built}, context=CompileContext(WITH_DOT4)) as program:
        run = program.run({"q": q})["y"]
    for value in (found, run):
        if right.dtype == np.int32:
            np.testing.assert_array_equal(value, right)
        else:
            np.testing.assert_allclose(value, right, atol=2e-6 * np.abs(right).max())


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_alone(name: str) -> None:
    built = REFUSED[name](Tensor.input("q", (5, 12), dt.uint8))
    assert dots(byte_products([built.node], WITH_DOT4)[built.node]) == 0


@pytest.mark.parametrize("row", SPECS)
def test_a_row_without_the_instruction_keeps_its_graph(row: str) -> None:
    _, build = CONV["matrix"]
    built = build(Tensor.input("q", (5, 12), dt.uint8))
    assert byte_products([built.node], SPECS[row])[built.node] is built.node


def test_two_readers_share_their_words() -> None:
    q = Tensor.input("q", (1, 8, 5, 5), dt.uint8)
    y = real(q).conv2d(weight(8, 8, 1, 1)) + real(q).conv2d(weight(8, 8, 1, 1, seed=2))
    made = byte_products([y.node], WITH_DOT4)[y.node]
    assert dots(made) == 2
    assert sum(node.op is Op.CONTIGUOUS for node in toposort([made])) == 1


@EXAMPLES
def test_random_sums_of_bytes_are_exact(examples: int) -> None:
    """Convolutions of any geometry and products of matrices, of integers: every bit stays."""

    def keeps(seed: int) -> None:
        draw = Random(seed)  # noqa: S311  # a test program, not a secret
        groups, kind = draw.choice([1, 1, 2, 6]), draw.choice([dt.uint8, dt.int8])
        channels = groups * draw.choice([1, 3, 4, 5, 8])
        kernel = draw.choice([(1, 1), (3, 3), (2, 5), (7, 1), (3, 4)])
        stride, dilation = draw.choice([1, 2, 3]), draw.choice([1, 1, 2])
        pads = [(draw.randint(0, 3), draw.randint(0, 3)) for _ in kernel]
        q = Tensor.input("q", (draw.choice([1, 2]), channels, 14, 13), kind)
        low = 0 if kind is dt.uint8 else -128
        centred = q.cast(dt.int32) - draw.choice([low, low + 131, low + 255])
        if draw.random() < 0.3:
            other = q.cast(dt.int32) - draw.choice([low, low + 77])
            y = centred @ other.permute((0, 1, 3, 2))
        else:
            w = whole(groups * draw.randint(1, 5), channels // groups, *kernel)
            y = centred.conv2d(w, stride=stride, padding=pads, dilation=dilation, groups=groups)
        new = byte_products([y.node], WITH_DOT4)[y.node]
        found = np.random.default_rng(seed).integers(0, 256, q.shape).astype(np.uint8)
        given = {"q": found.view(kind.np)}
        np.testing.assert_array_equal(Tensor.of(new).interp(given), y.interp(given))
        each = channels // groups
        if max(kernel) >= 3 or each % 4 == 0 or (groups == 1 and each >= 3):
            assert dots(new)

    for_all(examples, st.integers(0, 2**32 - 1), keeps)


def test_the_same_bytes_of_two_zero_points_are_packed_twice() -> None:
    """Ten rows are three words, the rest of which is the zero point of each."""
    q = Tensor.input("q", (10, 10), dt.uint8)
    y = (q.cast(dt.int32) - 3) @ (q.cast(dt.int32) - 9) + (q.cast(dt.int32) - 70) @ q.cast(dt.int32)
    given = {"q": np.random.default_rng(4).integers(0, 256, (10, 10)).astype(np.uint8)}
    made = Tensor.of(byte_products([y.node], WITH_DOT4)[y.node])
    assert dots(made.node) > 2
    np.testing.assert_array_equal(made.interp(given), y.interp(given))


def quantised(x: Tensor, scale: float = 0.03, zero: int = 117) -> Tensor:
    """What QuantizeLinear makes of numbers."""
    return ((x / scale).round() + float(zero)).clip(0.0, 255.0).cast(dt.uint8)


@pytest.mark.parametrize("kind", quick_cases(KINDS.values(), dt.uint8), ids=str)
def test_an_addition_reads_the_bytes_that_are_stored_as_words(kind: dt.DType) -> None:
    """A block of a residual network: three kernels, and none computes or packs bytes again."""
    q = Tensor.input("q", (1, 8, 6, 7), dt.uint8)
    first = quantised(real(q).conv2d(weight(8, 8, 3, 3), padding=1))
    if kind is dt.int8:
        first = (first.cast(dt.int32) - 128).cast(dt.int8)
    inner = quantised(real(first).conv2d(weight(8, 8, 3, 3, seed=2), padding=1))
    y = quantised(real(inner) + real(first), 0.05)
    context = CompileContext(WITH_DOT4)
    plan = schedule({"y": y.node}, context=context)
    assert [k.kind for k in plan.lowered] == ["map", "contract", "contract"]
    given = {"q": np.random.default_rng(6).integers(0, 256, q.shape).astype(np.uint8)}
    with load({"y": y}, context=context) as program:
        run = program.run(given)["y"]
    # Sums of floats are rounded, sums of integers are not: where one is at a tie, a step lies
    # between.
    assert np.abs(run.astype(int) - y.interp(given)).max() <= 1


def test_words_are_read_from_stored_bytes_only() -> None:
    q = Tensor.input("q", (2, 8), dt.uint8).node
    stored = make(Op.CONTIGUOUS, dt.uint8, (q,))
    verify([make(Op.WORDS, dt.uint32, (stored,))])
    for wrong, kind in ((q, dt.uint32), (stored, dt.int32)):
        with pytest.raises(VerifyError, match="WORDS over"):
            verify([make(Op.WORDS, kind, (wrong,))])
    odd = make(Op.CONTIGUOUS, dt.uint8, (Tensor.input("p", (2, 6), dt.uint8).node,))
    with pytest.raises(VerifyError, match="is not a multiple of 4"):
        make(Op.WORDS, dt.uint32, (odd,))

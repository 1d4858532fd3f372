"""Sums over concats: part by part, with the same value."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.passes.split_concat_sums import MAX_SOURCES, split_concat_sums
from scheduler.tensor.tensor import Tensor
from tests.scheduler.passes.pass_check import check, one, ops, text, weight

X = Tensor.input("x", (3, 5))
Y = Tensor.input("y", (3, 2))


@st.composite
def concat_sums(draw: st.DrawFn) -> Node:
    """Draw a product or a sum over a concat of several tensors, behind movement."""
    widths = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    axis = draw(st.integers(0, 2))
    shapes = [[2, 3, 2] for _ in widths]
    for shape, width in zip(shapes, widths, strict=True):
        shape[axis] = width
    x: Tensor = Tensor.cat([Tensor.input(f"x{i}", s) for i, s in enumerate(shapes)], axis)
    for move in draw(
        st.lists(st.sampled_from(["T", "ones", "merge", "exp", "pad", "window"]), max_size=3)
    ):
        if move == "T":
            x = x.permute(draw(st.permutations(range(x.ndim))))
        elif move == "ones":
            x = x.unsqueeze(draw(st.integers(0, x.ndim)))
        elif move == "merge":
            x = x.reshape(*x.shape[:-2], -1)
        elif move == "pad":
            at = draw(st.integers(0, x.ndim - 1))
            x = x.pad([(1, 0) if i == at else (0, 0) for i in range(x.ndim)])
        elif move == "window":
            at = draw(st.integers(0, x.ndim - 1))
            x = x.window(at, draw(st.integers(1, x.shape[at])))
        else:
            x = x.exp()
    kind = draw(st.sampled_from(["sum", "product", "left product", "square"]))
    if kind == "sum":
        return x.sum(draw(st.integers(0, x.ndim - 1))).node
    if kind == "square":
        return (x * x).sum(draw(st.integers(0, x.ndim - 1))).node
    wide: Tensor = x.reshape(-1, x.shape[-1]) if x.ndim == 1 else x
    if kind == "product":
        return (wide @ weight(wide.shape[-1], 4)).node
    return (Tensor.input("w", (4, wide.shape[-2])) @ wide).node


@settings(max_examples=300)
@given(concat_sums())
def test_concat_sums_keep_their_values(node: Node) -> None:
    check(split_concat_sums, [node])


def test_a_product_with_a_concat_needs_no_concat() -> None:
    after = one(split_concat_sums, Tensor.cat([X, Y], 1) @ weight(7, 4))
    assert Op.CAT not in ops(after)
    assert ops(after).count(Op.REDUCE) == 2


@pytest.mark.parametrize("rank", [1, 2])
def test_a_convolution_of_concat_channels_needs_no_concat(rank: int) -> None:
    image = (5, 4)[:rank]
    concat = Tensor.cat([Tensor.input("a", (1, 3, *image)), Tensor.input("b", (1, 2, *image))], 1)
    kernel = (3,) * rank
    padded = concat.conv2d(weight(4, 5, *kernel), padding=1, stride=2)
    after = one(split_concat_sums, padded)
    assert Op.CAT not in ops(after)
    assert ops(after).count(Op.REDUCE) == 2


def test_a_plain_sum() -> None:
    after = one(split_concat_sums, Tensor.cat([X, Y, X], 1).sum(1))
    assert Op.CAT not in ops(after)
    assert ops(after).count(Op.REDUCE) == 2  # x is summed once and added twice


def test_a_concat_of_two_rows_on_the_other_side() -> None:
    concat = Tensor.cat([X.T, Y.T])
    assert Op.CAT not in ops(one(split_concat_sums, weight(4, 7) @ concat))


_MANY = [Tensor.input(f"m{i}", (3, 2)) for i in range(MAX_SOURCES + 1)]
KEPT = [
    ("many sources", Tensor.cat(_MANY, 1) @ weight(10, 4)),
    ("a concat along another axis", Tensor.cat([X, X], 0) @ weight(5, 4)),
    ("padding of the concat axis", Tensor.cat([X, Y], 1).pad([(0, 0), (1, 0)]) @ weight(8, 4)),
    (
        "windows over converted inputs",
        Tensor.cat([X.exp(), Y.exp()], 1).reshape(1, 3, 7).window(1, 2).sum(3),
    ),
    ("windows over the concat axis", Tensor.cat([X, Y], 1).window(1, 3).sum(1)),
    ("a maximum", Tensor.cat([X, Y], 1).max(1)),
    ("arithmetic in between", Tensor.cat([X, Y], 1).exp() @ weight(7, 4)),
    ("a square", Tensor.cat([X, Y], 1).square().sum(1)),
    ("an axis that merges with others", Tensor.cat([X, Y], 1).reshape(21).sum(0)),
]


@pytest.mark.parametrize("tensor", [t for _, t in KEPT], ids=[n for n, _ in KEPT])
def test_left_alone(tensor: Tensor) -> None:
    assert one(split_concat_sums, tensor) is tensor.node


def test_a_concat_that_others_read_is_left_alone() -> None:
    concat = Tensor.cat([X, Y], 1)
    roots = [(concat @ weight(7, 4)).node, concat.exp().node]
    assert check(split_concat_sums, roots) == roots
    roots = [(concat @ weight(7, 4)).node, concat.node]
    assert check(split_concat_sums, roots) == roots


def test_text_before_and_after() -> None:
    y = Tensor.cat([X, Y], 1) @ weight(7, 4)
    assert text(one(split_concat_sums, y)) == (
        "%0 = buffer input x : float32[3, 5]\n"
        "%1 = reshape (3, 1, 5) (%0) : float32[3, 1, 5]\n"
        "%2 = expand (3, 4, 5) (%1) : float32[3, 4, 5]\n"
        "%3 = buffer weight : float32[7, 4]\n"
        "%4 = permute (1, 0) (%3) : float32[4, 7]\n"
        "%5 = reshape (1, 4, 7) (%4) : float32[1, 4, 7]\n"
        "%6 = expand (3, 4, 7) (%5) : float32[3, 4, 7]\n"
        "%7 = shrink ((0, 3, 1), (0, 4, 1), (0, 5, 1)) (%6) : float32[3, 4, 5]\n"
        "%8 = mul (%2, %7) : float32[3, 4, 5]\n"
        "%9 = reduce add axes 2 (%8) : float32[3, 4, 1]\n"
        "%10 = buffer input y : float32[3, 2]\n"
        "%11 = reshape (3, 1, 2) (%10) : float32[3, 1, 2]\n"
        "%12 = expand (3, 4, 2) (%11) : float32[3, 4, 2]\n"
        "%13 = shrink ((0, 3, 1), (0, 4, 1), (5, 7, 1)) (%6) : float32[3, 4, 2]\n"
        "%14 = mul (%12, %13) : float32[3, 4, 2]\n"
        "%15 = reduce add axes 2 (%14) : float32[3, 4, 1]\n"
        "%16 = add (%9, %15) : float32[3, 4, 1]\n"
        "%17 = reshape (3, 4) (%16) : float32[3, 4]\n"
        "return %17"
    )
    assert text(y.node).count("cat") == 1

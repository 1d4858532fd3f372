"""Makes common nodes: constants, weights, conversions, reshapes, repetition."""

from __future__ import annotations

from collections.abc import Container
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.node import Buffer, Node, alu, const, make
from scheduler.ir.ops import Op, Shape


def like(node: Node, op: Op, src: tuple[Node, ...], arg: Any = None) -> Node:
    """Return a node with the type of another one."""
    return make(op, node.dtype, src, arg)


def spread(node: Node, shape: Shape) -> Node:
    """Return a scalar repeated to a shape."""
    return expanded(reshaped(node, (1,) * len(shape)), shape)


def number(value: float | int, like: Node) -> Node:
    """Return a constant with the type and shape of a tensor."""
    return spread(const(value, like.dtype), like.shape)


def new_weight(data: NDArray[Any], dtype: DType) -> Node:
    """Return an unnamed weight that holds an array of the numpy type of `dtype`."""
    return make(Op.BUFFER, dtype, (), Buffer("weight", "", data.shape, dtype, data))


def iota(size: int) -> Node:
    """Return the tensor 0, 1, 2, ... (int32)."""
    return make(Op.IOTA, dt.int32, (), size)


def as_type(node: Node, dtype: DType) -> Node:
    """Return a tensor converted to a type."""
    return node if node.dtype is dtype else make(Op.CAST, dtype, (node,))


def reshaped(node: Node, shape: Shape) -> Node:
    """Return a tensor with the same elements, in row-major order, in another shape."""
    return node if node.shape == shape else like(node, Op.RESHAPE, (node,), shape)


def expanded(node: Node, shape: Shape) -> Node:
    """Return a tensor with axes of size 1 repeated to a shape of the same rank."""
    return node if node.shape == shape else like(node, Op.EXPAND, (node,), shape)


def peel(node: Node, ops: Container[Op]) -> tuple[list[Node], Node]:
    """Return the nodes of given ops on top of a node, outermost first, and the node below them."""
    chain: list[Node] = []
    while node.op in ops:
        chain.append(node)
        node = node.src[0]
    return chain, node


def half_power(x: Node) -> Node:
    """Return x**0.5 for floats as C11 F.10.4.4 defines pow: 0.0 for -0.0, infinity for -infinity.

    `passes.canonicalize` reduces it to the square root where real-number simplifications are
    allowed.
    """
    root = alu(Op.SQRT, alu(Op.ADD, x, number(0.0, x)))
    return alu(Op.WHERE, alu(Op.EQ, x, number(-inf, x)), number(inf, x), root)


# --- Closed forms of reductions over copies of one value, which need no loop ------------------
#
# sum(x, n times)       ->   x * n       if the type of x has the number n
# max(x, n times)       ->   x
# sum(3.0, n times)     ->   3.0 * n     rounded once; product: 3.0 ** n


def repeated(op: Op, value: Node, count: int) -> Node | None:
    """Return the reduction over `count` (at least 1) copies of each element of a value.

    Returns None for a count that the float type cannot represent (from 2^24 on in float32, from
    2^11 on or as infinity in float16). Also returns None for a product of an unknown value, since a
    power would round differently. Infinities, NaN and wrapping integers give the same in a sum and
    in a product with the count.
    """
    kind = value.dtype
    if op in (Op.MAX, Op.MIN) or kind is dt.bool_ or count == 1:
        return value
    if value.op is Op.CONST:
        return const(_closed(op, value, count), kind)
    if op is not Op.ADD:
        return None
    times = const(count, kind)
    if kind.is_float and times.arg != count:
        return None
    return alu(Op.MUL, value, spread(times, value.shape))


def _closed(op: Op, value: Node, count: int) -> float | int:
    """Return a sum or product of copies of a known number."""
    if value.dtype.is_int:
        whole = int(value.arg)
        return whole * count if op is Op.ADD else pow(whole, count, 1 << 64)
    with np.errstate(all="ignore"):
        wide = np.float64(value.arg)
        return float(wide * count if op is Op.ADD else wide**count)

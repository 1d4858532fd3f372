"""Functions that make common nodes: constants, weights, conversions, reshapes, repetition."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.node import Buffer, Node, const, make
from scheduler.ir.ops import Op, Shape


def like(node: Node, op: Op, src: tuple[Node, ...], arg: Any = None) -> Node:
    """Return a node of the type of another one."""
    return make(op, node.dtype, src, arg)


def spread(node: Node, shape: Shape) -> Node:
    """Return a scalar repeated to a shape."""
    return expanded(reshaped(node, (1,) * len(shape)), shape)


def number(value: float | int, like: Node) -> Node:
    """Return a constant of the type and shape of a tensor."""
    return spread(const(value, like.dtype), like.shape)


def new_weight(data: NDArray[Any], dtype: DType) -> Node:
    """Return a weight without a name that holds an array of the numpy type of `dtype`."""
    return make(Op.BUFFER, dtype, (), Buffer("weight", "", data.shape, dtype, data))


def iota(size: int) -> Node:
    """Return 0, 1, 2, ... (int32)."""
    return make(Op.IOTA, dt.int32, (), size)


def as_type(node: Node, dtype: DType) -> Node:
    """Return a tensor converted to a type."""
    return node if node.dtype is dtype else make(Op.CAST, dtype, (node,))


def reshaped(node: Node, shape: Shape) -> Node:
    """Return a tensor with the same elements in row-major order in another shape."""
    return node if node.shape == shape else like(node, Op.RESHAPE, (node,), shape)


def expanded(node: Node, shape: Shape) -> Node:
    """Return a tensor with axes of size 1 repeated to a shape of the same rank."""
    return node if node.shape == shape else like(node, Op.EXPAND, (node,), shape)


def peel(node: Node, ops: Container[Op]) -> tuple[list[Node], Node]:
    """Return the nodes of some ops on top of a node, outermost first, and what is below them."""
    chain: list[Node] = []
    while node.op in ops:
        chain.append(node)
        node = node.src[0]
    return chain, node

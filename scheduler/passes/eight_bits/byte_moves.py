"""The pass moves and compares bytes as bytes, and quantises none again with its own scale.

quantize(move(dequantize(b)))    ->    move(b)              the same scale and zero point
max(move(dequantize(b)))         ->    dequantize(max(move(b)))           a scale above 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, new_weight, number
from scheduler.ir.interp import evaluate
from scheduler.ir.node import Node, alu, make, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.rewrite import unchanged, with_sources
from scheduler.passes.splat import value_of

_BYTES = (dt.uint8, dt.int8)
_MOVES = MOVEMENT - {Op.CAT}


class _Step(NamedTuple):
    """What one step of a byte means; the scale is a normal number above 0."""

    scale: float
    zero: float


def byte_moves(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with bytes moved and compared before they are dequantized."""
    order = toposort(roots)
    new = unchanged(order)
    if not any(n.dtype in _BYTES for n in order):
        return new
    for node in order:
        current = with_sources(node, new)
        found = None
        if current.dtype in _BYTES and current.op is Op.CAST:
            found = _quantised_again(current)
        elif current.op is Op.REDUCE and current.arg[0] is Op.MAX:
            found = _largest(current)
        new[node] = current if found is None else found
    return new


def _quantised_again(node: Node) -> Node | None:
    """Return the bytes that are dequantized, moved, and quantised alike."""
    value, step = node.src[0], _Step(0.0, 0.0)
    limits = {Op.MIN: float(dt.max_value(node.dtype)), Op.MAX: float(dt.min_value(node.dtype))}
    for op in (Op.MIN, Op.MAX):
        if value.op is not op or value_of(value.src[1]) != limits[op]:
            return None
        value = value.src[0]
    if value.op is Op.ADD:
        zero = value_of(value.src[1])
        if zero is None:
            return None
        step, value = step._replace(zero=float(zero)), value.src[0]
    if value.op is not Op.ROUND or value.src[0].op is not Op.DIV:
        return None
    value, scale = value.src[0].src
    moves, found = _below(value, by_largest=False)
    bytes_ = _dequantised(found, node.dtype)
    if bytes_ is None or bytes_[1] != (value_of(scale), step.zero):
        return None
    return _moved(moves, bytes_[0], int(step.zero))


def _largest(node: Node) -> Node | None:
    """Return the largest of dequantized bytes as that of the bytes, dequantized."""
    moves, found = _below(node.src[0], by_largest=True)
    if any(move.op is Op.PAD for move in moves) and not _meets(moves, found.shape, node):
        return None
    bytes_ = next((b for kind in _BYTES if (b := _dequantised(found, kind)) is not None), None)
    if bytes_ is None:
        return None
    moved = _moved(moves, bytes_[0], int(dt.min_value(bytes_[0].dtype)))
    largest = make(Op.REDUCE, moved.dtype, (moved,), node.arg)
    whole = as_type(largest, dt.int32)
    if found.src[0].src[0].op is Op.SUB:
        whole = alu(Op.SUB, whole, number(int(bytes_[1].zero), whole))
    real = as_type(whole, dt.float32)
    return alu(Op.MUL, real, number(bytes_[1].scale, real))


def _meets(moves: Sequence[Node], shape: tuple[int, ...], node: Node) -> bool:
    """Whether each maximum covers an element, not padding alone; moves come outermost first."""
    inside = _moved(moves, new_weight(np.ones(shape, np.uint8), dt.uint8), 0)
    (found,) = evaluate([make(Op.REDUCE, dt.uint8, (inside,), node.arg)])
    return bool(found.all())


def _below(node: Node, *, by_largest: bool) -> tuple[list[Node], Node]:
    """Return the movement on top of a value, outermost first, and the value.

    Padding has to be 0, which is the zero point, or below every element in front of a maximum.
    """
    moves: list[Node] = []
    fill = -float("inf") if by_largest else 0.0
    while node.op in _MOVES and (node.op is not Op.PAD or node.arg[1] == fill):
        moves.append(node)
        node = node.src[0]
    return moves, node


def _moved(moves: Sequence[Node], value: Node, fill: int) -> Node:
    for move in reversed(moves):
        arg = (move.arg[0], fill) if move.op is Op.PAD else move.arg
        value = make(move.op, value.dtype, (value,), arg)
    return value


def _dequantised(node: Node, kind: dt.DType) -> tuple[Node, _Step] | None:
    """Return the bytes that a float32 value is made of, and what a step of them means."""
    if node.op is not Op.MUL or node.dtype is not dt.float32:
        return None
    scale, whole = value_of(node.src[1]), node.src[0]
    if whole.op is not Op.CAST or whole.src[0].dtype is not dt.int32:
        return None
    whole, zero = whole.src[0], 0
    if whole.op is Op.SUB:
        known = value_of(whole.src[1])
        if known is None:
            return None
        whole, zero = whole.src[0], int(known)
    if whole.op is not Op.CAST or whole.src[0].dtype is not kind or scale is None:
        return None
    fits = dt.holds(kind, zero) and 1e-30 < scale < 1e30
    return (whole.src[0], _Step(float(scale), float(zero))) if fits else None

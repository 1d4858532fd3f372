"""Keeps quantized values as bytes while they are moved, compared or looked up in a table.

`byte_moves` removes a dequantization followed by a quantization with the same scale, and takes
maxima of bytes:

    quantize(move(dequantize(b)))    ->    move(b)              the same scale and zero point
    max(move(dequantize(b)))         ->    dequantize(max(move(b)))           a scale above 0

`byte_tables` replaces expensive functions of one byte by a table of 256 entries, which is computed
at compile time:

    q(gelu(q(erf(dq(b)))))    ->    table[b]        q quantizes to bytes, dq dequantizes the byte b

Cheap functions stay as they are, because each lane needs a separate table lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler.device.spec import DeviceSpec
from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, new_weight, number, spread
from scheduler.ir.interp import evaluate
from scheduler.ir.node import Node, alu, const, consumers, make, toposort
from scheduler.ir.ops import COST, ELEMENTWISE, MOVEMENT, Op
from scheduler.ir.rewrite import remake, unchanged, with_sources
from scheduler.passes.splat import value_of

_BYTES = (dt.uint8, dt.int8)
_MOVES = MOVEMENT - {Op.CAT}


class _Step(NamedTuple):
    """The quantization of bytes: the value is (byte - zero) * scale, with a normal scale > 0."""

    scale: float
    zero: float


def byte_moves(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with bytes moved and compared before dequantization."""
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
    """Return the moved bytes if a node dequantizes, moves and requantizes them with one scale."""
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
    """Return a maximum of dequantized bytes as the dequantized maximum of the bytes."""
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
    """Whether each maximum covers an element besides padding; moves come outermost first."""
    inside = _moved(moves, new_weight(np.ones(shape, np.uint8), dt.uint8), 0)
    (found,) = evaluate([make(Op.REDUCE, dt.uint8, (inside,), node.arg)])
    return bool(found.all())


def _below(node: Node, *, by_largest: bool) -> tuple[list[Node], Node]:
    """Return the movement above a value, outermost first, and the value.

    Padding must be 0, which is the zero point. Below a maximum it must be negative infinity.
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
    """Return the bytes that a float32 value is dequantized from, and their quantization."""
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


def byte_tables(roots: Sequence[Node], spec: DeviceSpec) -> dict[Node, Node]:
    """Return old node -> new node with expensive functions of one byte as lookups."""
    order = toposort(roots)
    new = unchanged(order)
    if spec.is_simt or not any(n.dtype in _BYTES for n in order):
        return new
    origin = _origins(order)
    inside = _inside(order, origin, roots)
    for node in order:
        new[node] = with_sources(node, new)
        start = origin.get(node)
        if node.dtype in _BYTES and start is not None and node not in inside:
            chain = _between(start, node)
            # The savings must exceed the cost of the lookup.
            if sum(COST.get(n.op, 1) for n in chain) > 2 * spec.costs.lookup:
                new[node] = _lookup(start, chain, new[start])
    return new


def _origins(order: Sequence[Node]) -> dict[Node, Node]:
    """Return the byte tensor that each node is an elementwise function of, if there is one.

    Bytes that are computed from other bytes do not start a new function.
    """
    found: dict[Node, Node] = {}
    for node in order:
        if node.op not in ELEMENTWISE:
            continue
        starts = {found.get(s, s if s.dtype in _BYTES else None) for s in _varying(node)}
        if len(starts) == 1:
            (start,) = starts
            if start is not None and start.shape == node.shape:
                found[node] = start
    return found


def _inside(order: Sequence[Node], origin: dict[Node, Node], roots: Sequence[Node]) -> set[Node]:
    """Return the nodes that are read only by later bytes of the same function."""
    users = consumers(order)
    ends, inside = {*roots}, set[Node]()
    for node in reversed(order):
        start = origin.get(node)
        if start is not None and node not in ends and users[node]:
            leads = (
                u.dtype in _BYTES or u in inside for u in users[node] if origin.get(u) is start
            )
            if sum(leads) == len(users[node]):
                inside.add(node)
    return inside


def _varying(node: Node) -> list[Node]:
    return [s for s in node.src if value_of(s) is None]


def _between(start: Node, end: Node) -> list[Node]:
    """Return the nodes between `start` and `end`, sources first, including `end`."""
    chain: list[Node] = []
    done = {start}
    stack = [end]
    while stack:
        node = stack[-1]
        missing = [s for s in _varying(node) if s not in done]
        if missing and node not in done:
            stack += missing
            continue
        stack.pop()
        if node not in done:
            done.add(node)
            chain.append(node)
    return chain


def _lookup(start: Node, chain: Sequence[Node], at: Node) -> Node:
    """Return the end of a chain (see `_between`) as a table lookup with `at` as the index.

    The table is the chain evaluated for all 256 bytes.
    """
    every = np.arange(256, dtype=np.uint8).view(start.dtype.np)
    of: dict[Node, Node] = {start: new_weight(every, start.dtype)}
    for node in chain:
        src = tuple(of[s] if s in of else _repeated(s) for s in node.src)
        of[node] = remake(node, src)
    with np.errstate(all="ignore"):
        (table,) = evaluate([of[chain[-1]]])
    index = at if at.dtype is dt.uint8 else make(Op.BITCAST, dt.uint8, (at,))
    rows = new_weight(np.asarray(table), chain[-1].dtype)
    return make(Op.GATHER, chain[-1].dtype, (rows, as_type(index, dt.int32)), 0)


def _repeated(node: Node) -> Node:
    """Return a tensor of one value, repeated for each of the 256 bytes."""
    value = value_of(node)
    assert value is not None  # the caller checked that it does not vary
    return spread(const(value, node.dtype), (256,))

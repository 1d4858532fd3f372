"""Turns writes to a part of a buffer into writes of the whole buffer.

    q[2:5] = y              ->      q = where(inside, pad(y), q)       inside: true on rows 2 to 4
    q[ids] = y              ->      q = where(hit, take(y, which), q)  hit: a row that ids names

Each element depends only on the same element of the buffer, so the write still works in place.
A write stays as it is if a kernel can store the part directly. This requires that nothing else
reads the old buffer. Indexed rows must all receive the same value, because kernels write rows in
no defined order.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, expanded, iota, number, peel, reshaped, spread
from scheduler.ir.node import Node, alu, const, consumers, make, toposort
from scheduler.ir.ops import Op, Shape
from scheduler.ir.rewrite import with_sources

# (start, stop, step) for each axis, or None for the axis whose rows an index tensor names.
Region = tuple[tuple[int, int, int] | None, ...]


def merge_assign(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node without partial writes, except those that kernels can store."""
    new: dict[Node, Node] = {}
    order = toposort(roots)
    users = consumers(order)
    for node in order:
        current = with_sources(node, new)
        if node.op is Op.ASSIGN and node.arg is not None and not _stays(node, users):
            current = make(Op.ASSIGN, node.dtype, (current.src[0], value_after(current)))
        new[node] = current
    return new


def _stays(assign: Node, users: dict[Node, list[Node]]) -> bool:
    """Whether a kernel can store just the part."""
    target, value = assign.src[0], assign.src[1]
    if target.op is not Op.BUFFER or len(users[target]) > 1 or target in (value, *assign.src[2:]):
        return False
    axis = assign.arg.index(None) if None in assign.arg else None
    return axis is None or value.shape[axis] == 1 or _is_repeated(value, axis)


def _is_repeated(value: Node, axis: int) -> bool:
    """Whether all rows along an axis obviously have the same value."""
    _, value = peel(value, (Op.CAST,))
    return value.op is Op.EXPAND and value.src[0].shape[axis] == 1


def value_after(assign: Node) -> Node:
    """Return the value of a buffer after an ASSIGN, without the ASSIGN."""
    if assign.arg is None:
        return assign.src[1]
    return merged(assign.src[0], assign.arg, assign.src[1], assign.src[2:])


def merged(old: Node, region: Region, value: Node, index: Sequence[Node] = ()) -> Node:
    """Return `old` with a region replaced by `value`, which has the region's shape.

    `index` is one node (m,) for the axis whose region is None, or empty.
    """
    shape, inside = old.shape, spread(const(True, dt.bool_), value.shape)
    for axis, part in enumerate(region):
        if part is None:
            inside, value = _scattered(value, index[0], axis, shape[axis])
    if value.shape == shape and all(part is None or part[2] == 1 for part in region) and not index:
        return value
    placed = [p or (0, s, 1) for p, s in zip(region, shape, strict=True)]
    return alu(Op.WHERE, _place(inside, placed, shape), _place(value, placed, shape), old)


def _scattered(value: Node, index: Node, axis: int, size: int) -> tuple[Node, Node]:
    """Return a mask of the rows of an axis that an index names, and the value for each row."""
    (count,) = index.shape

    # clip, so that out-of-range indices stay out of range
    if not dt.holds(dt.int32, int(dt.max_value(index.dtype))):
        index = alu(Op.MIN, index, number(size, index))
        if not index.dtype.is_unsigned:
            index = alu(Op.MAX, index, number(-size - 1, index))
    at = as_type(index, dt.int32)
    negative = alu(Op.LT, at, number(0, at))
    at = alu(Op.WHERE, negative, alu(Op.ADD, at, number(size, at)), at)
    table = (size, count)
    rows = reshaped(iota(size), (size, 1))
    turn = reshaped(iota(count), (1, count))
    named = alu(Op.EQ, expanded(rows, table), expanded(reshaped(at, (1, count)), table))
    turns = alu(Op.WHERE, named, expanded(turn, table), spread(const(-1, dt.int32), table))
    # position of the last index that names each row, -1 if there is none
    last = make(Op.REDUCE, dt.int32, (turns,), (Op.MAX, (1,)))
    last = reshaped(last, (size,))
    lifted = tuple(size if i == axis else 1 for i in range(len(value.shape)))
    shape: Shape = tuple(size if i == axis else s for i, s in enumerate(value.shape))
    # The IR has no >= operation.
    known = alu(Op.OR, alu(Op.LT, number(0, last), last), alu(Op.EQ, last, number(0, last)))
    hit = expanded(reshaped(known, lifted), shape)
    if value.op is Op.EXPAND and value.src[0].shape[axis] == 1:  # all rows receive the same value
        row = tuple(1 if i == axis else s for i, s in enumerate(value.shape))
        return hit, expanded(expanded(value.src[0], row), shape)
    taken = alu(Op.MAX, last, number(0, last))
    return hit, make(Op.GATHER, value.dtype, (value, taken), axis)


def _pad(node: Node, widths: tuple[tuple[int, int], ...]) -> Node:
    if all(w == (0, 0) for w in widths):
        return node
    fill = 0.0 if node.dtype.is_float else 0
    return make(Op.PAD, node.dtype, (node,), (widths, fill))


def _place(node: Node, region: Sequence[tuple[int, int, int]], shape: Shape) -> Node:
    """Return an array of a given shape that holds a node in a region and zeros elsewhere."""
    pairs = []
    for axis, ((start, _, step), size) in enumerate(zip(region, shape, strict=True)):
        node = _with_gaps(node, axis, step)
        pairs.append((start, size - start - node.shape[axis]))
    return _pad(node, tuple(pairs))


def _with_gaps(node: Node, axis: int, step: int) -> Node:
    """Return a node with step - 1 zeros between the elements of an axis."""
    shape = node.shape
    n = shape[axis]
    if step == 1 or n <= 1:
        return node
    wide = reshaped(node, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    behind = tuple((0, step - 1) if i == axis + 1 else (0, 0) for i in range(len(shape) + 1))
    spaced = reshaped(_pad(wide, behind), (*shape[:axis], n * step, *shape[axis + 1 :]))
    end = (n - 1) * step + 1
    cut = tuple((0, end if i == axis else s, 1) for i, s in enumerate(spaced.shape))
    return make(Op.SHRINK, node.dtype, (spaced,), cut)

"""Moves gathers below arithmetic, so that they read stored values directly.

gather(exp(x) * y, i)                ->   exp(gather(x, i)) * gather(y, i)
gather(permute(x + expand(b)), i)    ->   gather(permute(x), i) + expand(b)

Movement (reshape, permute, expand and so on) between the gather and the arithmetic is applied to
each operand.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from math import prod
from typing import Any

from scheduler.ir import dtype as dt
from scheduler.ir.affine import depends, index_of, is_plain, ranges_of, tensor_of, value_at
from scheduler.ir.build import as_type, expanded, iota, like, number, peel, reshaped
from scheduler.ir.index import Ix, add, coefficient, mul, of
from scheduler.ir.node import Node, Readers, alu, toposort
from scheduler.ir.ops import COST, ELEMENTWISE, Op, Shape
from scheduler.ir.rewrite import Rewriter, Rule, remake
from scheduler.ir.rounding import COMMUTING

# Nodes that can be read at any index without computing anything.
_FREE = frozenset({Op.BUFFER, Op.IOTA, Op.CONST, Op.CONTIGUOUS, Op.ASSIGN})
# Arithmetic up to this cost is repeated for the picked elements, even if it has other readers.
CHEAP = 4
# With more operands than this, gathering each operand separately does not pay.
MAX_LEAVES = 8
# Maximum number of nodes visited below one gather, chosen by hand: the search repeats for each
# gather.
MAX_VISITS = 64


def push_gather(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return root -> new root with gathers moved below arithmetic if that pays."""
    order = toposort(roots)
    if not any(n.op is Op.GATHER for n in order):
        return {r: r for r in roots}
    readers = Readers.of(order, roots)

    def apply(node: Node) -> Node | None:
        return _push(node, readers)

    return Rewriter((Rule("gather below arithmetic", (Op.GATHER,), apply),))(roots)


def _push(node: Node, readers: Readers) -> Node | None:
    """Push one gather down, written as a call of `pick` with the same rows everywhere."""
    data, index = node.src
    axis, count = node.arg, len(index.shape)
    if not all(node.shape) or not all(data.shape) or not _is_followed(node, readers):
        return None
    before, after = data.shape[:axis], data.shape[axis + 1 :]
    wide = (*before, *(1,) * count, data.shape[axis], *after)
    # Axes of size 1 give the index and the data the same rank.
    rows = reshaped(index, (*(1,) * axis, *index.shape, *(1,) * (1 + len(after))))
    result = pick(_moved(data, Op.RESHAPE, wide), axis + count, rows, readers)
    return None if result is None else reshaped(result, node.shape)


def _is_followed(node: Node, readers: Readers) -> bool:
    data, axis = node.src[0], node.arg
    if data.shape[axis] > 1 and not _varies(data, axis):
        return True  # all rows are equal, so any row will do
    _, core = peel(data, COMMUTING)
    return core.op in ELEMENTWISE and _pays(data, axis, node.shape, readers)


# --- Picking along an axis --------------------------------------------------------------------


def pick(
    node: Node, axis: int, rows: Node, readers: Readers, *, in_range: bool = False
) -> Node | None:
    """Return the elements of a node (shape S) at one row of an axis.

    The row can differ for each index along the other axes.

    `rows` are integers with the rank of S and size 1 at `axis`. Along every other axis, `rows` and
    S have equal sizes or one of them has size 1. As for GATHER, negative rows count from the end,
    but only if rows and S vary along different axes. With `in_range`, rows must be from 0 to
    S[axis] - 1. Returns None if the gather would force a reduction to be stored that otherwise
    stays inside its reader's kernel.
    """
    shape = tuple(max(a, b) for a, b in zip(_without(node.shape, axis), rows.shape, strict=True))
    # Recursion would exceed Python's limit on deep chains.
    done: dict[Node, Node] = {}
    stack = [node]
    while stack:
        current = stack[-1]
        if current in done:
            stack.pop()
            continue
        if not _varies(current, axis):
            done[stack.pop()] = expanded(first(current, [axis]), shape)
            continue
        affine = _affine(current, axis, rows, shape) if in_range else None
        if affine is not None:
            done[stack.pop()] = affine
            continue
        parts = _parts(current) if _pays(current, axis, shape, readers) else None
        missing = [p for p in parts or () if p not in done]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if parts is None and _is_reduced_inside(current, axis, readers):
            return None
        if parts is None:
            done[current] = expanded(_gather(current, axis, rows), shape)
        else:
            _, core = peel(current, COMMUTING)
            done[current] = remake(core, tuple(done[p] for p in parts))
    return done[node]


def _affine(node: Node, axis: int, rows: Node, shape: Shape) -> Node | None:
    """Return an affine value at the given rows, computed from them instead of read; else None."""
    ranges = ranges_of(node.shape)
    ix = value_at(node, index_of(ranges))
    step = None if ix is None else coefficient(ix, ranges[axis])
    # tensor_of computes with integers; values that integers cannot represent exactly are read.
    if ix is None or step is None or not is_plain(ix, ranges) or _may_be_minus_0(node, ix):
        return None
    rest = add(ix, mul(of(ranges[axis]), -step))
    at = expanded(as_type(rows, dt.int32), shape)
    if step != 1:
        at = alu(Op.MUL, at, number(step, at))
    if rest.terms or rest.const:
        at = alu(Op.ADD, at, tensor_of(rest, ranges, shape))
    return as_type(at, node.dtype)


def _may_be_minus_0(node: Node, ix: Ix) -> bool:
    """Whether an affine value can contain -0.0, whose sign integers would lose."""
    _, core = peel(node, COMMUTING)
    converted = core.op is Op.CAST and not core.src[0].dtype.is_float
    return node.dtype.is_float and ix.lo <= 0 <= ix.hi and not converted


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _moved(node: Node, op: Op, arg: Any) -> Node:
    """Return a movement of a node; a reshape or expand merges with one of the same kind below."""
    if op not in (Op.RESHAPE, Op.EXPAND):
        return like(node, op, (node,), arg)
    if node.op is op:
        node = node.src[0]
    return node if node.shape == arg else like(node, op, (node,), arg)


def first(node: Node, axes: Iterable[int]) -> Node:
    """Return the first row along each of the axes, along which all rows are equal."""
    for axis in axes:
        shape = _without(node.shape, axis)
        if node.op is Op.EXPAND and node.src[0].shape[axis] == 1:
            node = _moved(node.src[0], Op.EXPAND, shape)
        elif node.shape != shape:
            node = like(node, Op.SHRINK, (node,), tuple((0, s, 1) for s in shape))
    return node


def varying_axes(node: Node) -> frozenset[int]:
    """Return the axes along which values can differ."""
    ranges = ranges_of(node.shape)
    moving = depends(node, index_of(ranges))
    return frozenset(a for a, r in enumerate(ranges) if r in moving)


def _varies(node: Node, axis: int) -> bool:
    return axis in varying_axes(node)


def _parts(node: Node) -> list[Node] | None:
    """Return the operands of an arithmetic node below movement, each moved in the same way."""
    chain, core = peel(node, COMMUTING)
    if core.op not in ELEMENTWISE:
        return None
    # Peel the movement off, then apply it to each operand from the innermost outwards.
    parts = list(core.src)
    for move in reversed(chain):
        parts = [_moved(p, move.op, move.arg) for p in parts]
    return parts


def _pays(node: Node, axis: int, shape: Shape, readers: Readers) -> bool:
    """Whether gathering the operands is cheaper than gathering the result.

    It is not if expensive arithmetic has other readers, if there are more picks than elements, or
    if operands would have to be stored.
    """
    _, core = peel(node, COMMUTING)
    if core.op not in ELEMENTWISE or prod(shape) > prod(core.shape):
        return False
    leaves = set[Node]()
    for count, (current, parts) in enumerate(_below(node, axis)):
        chain, core = peel(current, COMMUTING)
        if parts is None:
            leaves.add(core)
            # A private computed leaf fuses into its only reader; gathering it would force a store.
            if core.op not in _FREE and all(readers.is_private(n) for n in (core, *chain)):
                return False
        elif core in readers.roots or not (_is_cheap(core) or readers.is_private(core)):
            return False
        if len(leaves) > MAX_LEAVES or count >= MAX_VISITS:
            return False
    # Each of several computed operands would be stored, instead of one result.
    computed = sum(leaf.op not in _FREE for leaf in leaves)
    # Values that depend only on weights are computed once, before any gather.
    return computed < 2 and (computed > 0 or any(_is_given(leaf) for leaf in leaves))


def _is_cheap(node: Node) -> bool:
    return COST.get(node.op, 1) <= CHEAP


def _is_reduced_inside(node: Node, axis: int, readers: Readers) -> bool:
    """Whether each element of a tensor has a reduction of its own that is not an output.

    Such a reduction is computed in its reader's kernel; a gather would force it to be stored.
    """
    found = islice(_below(node, axis, readers.roots), MAX_VISITS)
    reduced = (n for n, _ in found if peel(n, COMMUTING)[1].op is Op.REDUCE)
    return any(prod(n.shape[a] for a in varying_axes(n)) == prod(node.shape) for n in reduced)


def _below(
    node: Node, axis: int, ends: Container[Node] = ()
) -> Iterator[tuple[Node, list[Node] | None]]:
    """Yield the arithmetic nodes below `node` that vary along an axis, each with its operands.

    The search stops at `ends`, which are not yielded.
    """
    stack, seen = [node], set[Node]()
    while stack:
        current = stack.pop()
        _, core = peel(current, COMMUTING)
        if core in seen or core in ends or not _varies(current, axis):
            continue
        seen.add(core)
        parts = _parts(current)
        yield current, parts
        stack.extend(parts or ())


def _is_given(leaf: Node) -> bool:
    return leaf.op is Op.BUFFER and leaf.arg.kind != "weight"


def _gather(node: Node, axis: int, rows: Node) -> Node:
    """Return the gather of rows along an axis, merged with the other axes that rows depend on.

    data[b, r, c], rows[b]    ->    gather(data as [b * R + r, c], b * R + rows[b])
    """
    # Do not gather repetitions.
    node = first(node, set(range(len(node.shape))) - varying_axes(node) - {axis})
    # The picked axes become one leading axis, because GATHER has a single axis.
    picked = [a for a, s in enumerate(node.shape) if s > 1 and (rows.shape[a] > 1 or a == axis)]
    free = [a for a, s in enumerate(node.shape) if s > 1 and a not in picked]
    order = [*picked, *free, *(a for a, s in enumerate(node.shape) if s == 1)]
    data = _permuted(node, order)
    total = prod(node.shape[a] for a in picked)
    data = _moved(data, Op.RESHAPE, (total, *(node.shape[a] for a in free)))
    at = _flat_rows(node, axis, rows, picked)
    listed = [a for a, s in enumerate(at.shape) if s > 1]
    index = _moved(at, Op.RESHAPE, tuple(at.shape[a] for a in listed))
    found = like(node, Op.GATHER, (data, index), 0)
    now = [*listed, *free]
    found = _permuted(found, [now.index(a) for a in sorted(now)])
    shape = tuple(
        at.shape[a] if a in listed else node.shape[a] if a in free else 1
        for a in range(len(node.shape))
    )
    return _moved(found, Op.RESHAPE, shape)


def _permuted(node: Node, order: list[int]) -> Node:
    if order == list(range(len(order))):
        return node
    return like(node, Op.PERMUTE, (node,), tuple(order))


def _flat_rows(node: Node, axis: int, rows: Node, picked: list[int]) -> Node:
    """Return the row-major position of a row within the picked axes."""
    if picked == [axis]:
        return rows
    # Move one iota instead of adding several: sums of iotas would be folded into a weight.
    sizes = tuple(node.shape[a] for a in picked)
    lines = first(reshaped(iota(prod(sizes)), sizes), [picked.index(axis)])
    ones = tuple(1 if a == axis or a not in picked else s for a, s in enumerate(node.shape))
    base = expanded(_moved(lines, Op.RESHAPE, ones), rows.shape)
    at = as_type(rows, dt.int32)
    stride = prod(sizes[picked.index(axis) + 1 :])
    if stride > 1:
        at = alu(Op.MUL, at, number(stride, at))
    return alu(Op.ADD, base, at)

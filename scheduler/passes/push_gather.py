"""The pass moves gathers below arithmetic, so that they read what is stored.

gather(exp(x) * y, i)                ->   exp(gather(x, i)) * gather(y, i)
gather(permute(x + expand(b)), i)    ->   gather(permute(x), i) + expand(b)
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

# Read where they are, at any index.
_FREE = frozenset({Op.BUFFER, Op.IOTA, Op.CONST, Op.CONTIGUOUS, Op.ASSIGN})
# Arithmetic up to this cost is repeated for the picked elements, even if others need it too.
CHEAP = 4
# More operands than this are not followed: each of them would be gathered by itself.
MAX_LEAVES = 8
# Nodes looked at below one gather, chosen by hand: the search repeats for each gather.
MAX_VISITS = 64


def push_gather(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return root -> new root with gathers moved below arithmetic where that pays."""
    order = toposort(roots)
    if not any(n.op is Op.GATHER for n in order):
        return {r: r for r in roots}
    readers = Readers.of(order, roots)

    def apply(node: Node) -> Node | None:
        return _push(node, readers)

    return Rewriter((Rule("gather below arithmetic", (Op.GATHER,), apply),))(roots)


def _push(node: Node, readers: Readers) -> Node | None:
    """Push one gather, seen as picking along an axis of data that is the same for all rows."""
    data, index = node.src
    axis, count = node.arg, len(index.shape)
    if not all(node.shape) or not all(data.shape) or not _is_followed(node, readers):
        return None
    before, after = data.shape[:axis], data.shape[axis + 1 :]
    wide = (*before, *(1,) * count, data.shape[axis], *after)
    # The index gets axes of size 1 for the data's, and the other way round: both have one rank.
    rows = reshaped(index, (*(1,) * axis, *index.shape, *(1,) * (1 + len(after))))
    result = pick(_moved(data, Op.RESHAPE, wide), axis + count, rows, readers)
    return None if result is None else reshaped(result, node.shape)


def _is_followed(node: Node, readers: Readers) -> bool:
    data, axis = node.src[0], node.arg
    if data.shape[axis] > 1 and not _varies(data, axis):
        return True  # any row will do
    _, core = peel(data, COMMUTING)
    return core.op in ELEMENTWISE and _pays(data, axis, node.shape, readers)


# --- Picking along an axis --------------------------------------------------------------------


def pick(
    node: Node, axis: int, rows: Node, readers: Readers, *, in_range: bool = False
) -> Node | None:
    """Return the elements of a node (shape S) at a row of an axis, which may differ elsewhere.

    Returns None if that would store a reduction made for each element once, which a sum keeps in
    its kernel. `rows` are integers, of the rank of S with size 1 at `axis`; other axes are those of
    S, or 1 on one of the two sides. As for GATHER, negative ones count from the end, but only if
    rows and S vary along different axes; with `in_range` they are from 0 to S[axis] - 1.
    """
    shape = tuple(max(a, b) for a, b in zip(_without(node.shape, axis), rows.shape, strict=True))
    # Recursion would pass Python's limit on deep chains.
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
    """Return an affine value at rows: computed from them, not read."""
    ranges = ranges_of(node.shape)
    ix = value_at(node, index_of(ranges))
    step = None if ix is None else coefficient(ix, ranges[axis])
    # tensor_of computes with integers, so values that it cannot give back exactly are read instead.
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
    """Whether zeros of an affine value may be -0.0: as integers they would lose their sign."""
    _, core = peel(node, COMMUTING)
    converted = core.op is Op.CAST and not core.src[0].dtype.is_float
    return node.dtype.is_float and ix.lo <= 0 <= ix.hi and not converted


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _moved(node: Node, op: Op, arg: Any) -> Node:
    """Return a movement; a reshape or an expand is merged with one of its kind below."""
    if op not in (Op.RESHAPE, Op.EXPAND):
        return like(node, op, (node,), arg)
    if node.op is op:
        node = node.src[0]
    return node if node.shape == arg else like(node, op, (node,), arg)


def first(node: Node, axes: Iterable[int]) -> Node:
    """Return the first row along axes: any of them, where they are all the same."""
    for axis in axes:
        shape = _without(node.shape, axis)
        if node.op is Op.EXPAND and node.src[0].shape[axis] == 1:
            node = _moved(node.src[0], Op.EXPAND, shape)
        elif node.shape != shape:
            node = like(node, Op.SHRINK, (node,), tuple((0, s, 1) for s in shape))
    return node


def varying_axes(node: Node) -> frozenset[int]:
    """Return the axes along which values may differ."""
    ranges = ranges_of(node.shape)
    moving = depends(node, index_of(ranges))
    return frozenset(a for a, r in enumerate(ranges) if r in moving)


def _varies(node: Node, axis: int) -> bool:
    return axis in varying_axes(node)


def _parts(node: Node) -> list[Node] | None:
    """Return the operands of an arithmetic node below movement, each moved the same way."""
    chain, core = peel(node, COMMUTING)
    if core.op not in ELEMENTWISE:
        return None
    # Movement comes off from the outside in and goes on again from the inside out.
    parts = list(core.src)
    for move in reversed(chain):
        parts = [_moved(p, move.op, move.arg) for p in parts]
    return parts


def _pays(node: Node, axis: int, shape: Shape, readers: Readers) -> bool:
    """Whether operands are better gathered than the result of arithmetic on them.

    Expensive arithmetic with other readers, more picks than elements, and operands that would have
    to be stored rule it out.
    """
    _, core = peel(node, COMMUTING)
    if core.op not in ELEMENTWISE or prod(shape) > prod(core.shape):
        return False
    leaves = set[Node]()
    for count, (current, parts) in enumerate(_below(node, axis)):
        chain, core = peel(current, COMMUTING)
        if parts is None:
            leaves.add(core)
            # A private computed leaf is fused into its only reader; gathered, it would be stored.
            if core.op not in _FREE and all(readers.is_private(n) for n in (core, *chain)):
                return False
        elif core in readers.roots or not (_is_cheap(core) or readers.is_private(core)):
            return False
        if len(leaves) > MAX_LEAVES or count >= MAX_VISITS:
            return False
    # Of several computed operands each would be stored, where now one result is.
    computed = sum(leaf.op not in _FREE for leaf in leaves)
    # What depends on weights only is computed once, before any gather.
    return computed < 2 and (computed > 0 or any(_is_given(leaf) for leaf in leaves))


def _is_cheap(node: Node) -> bool:
    return COST.get(node.op, 1) <= CHEAP


def _is_reduced_inside(node: Node, axis: int, readers: Readers) -> bool:
    """Whether a tensor holds a reduction that is made for each of its elements, and only there."""
    found = islice(_below(node, axis, readers.roots), MAX_VISITS)
    reduced = (n for n, _ in found if peel(n, COMMUTING)[1].op is Op.REDUCE)
    return any(prod(n.shape[a] for a in varying_axes(n)) == prod(node.shape) for n in reduced)


def _below(
    node: Node, axis: int, ends: Container[Node] = ()
) -> Iterator[tuple[Node, list[Node] | None]]:
    """Yield what varies along an axis in arithmetic below movement, and its parts, from the root.

    Neither `ends` nor what is below them is yielded.
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
    """Return the gather that picks rows: along the axis, or along all that rows depend on as one.

    data[b, r, c], rows[b]    ->    gather(data as [b * R + r, c], b * R + rows[b])
    """
    # The gather moves no repetitions.
    node = first(node, set(range(len(node.shape))) - varying_axes(node) - {axis})
    # Picked axes become one axis in front, as GATHER knows a single axis of rows.
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
    """Return the row-major position of a row among the picked axes."""
    if picked == [axis]:
        return rows
    # Movement of one iota, not sums of several: those would be folded into a list of weights.
    sizes = tuple(node.shape[a] for a in picked)
    lines = first(reshaped(iota(prod(sizes)), sizes), [picked.index(axis)])
    ones = tuple(1 if a == axis or a not in picked else s for a, s in enumerate(node.shape))
    base = expanded(_moved(lines, Op.RESHAPE, ones), rows.shape)
    at = as_type(rows, dt.int32)
    stride = prod(sizes[picked.index(axis) + 1 :])
    if stride > 1:
        at = alu(Op.MUL, at, number(stride, at))
    return alu(Op.ADD, base, at)

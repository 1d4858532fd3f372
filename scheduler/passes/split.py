"""Splits reductions and concats that one kernel would compute badly.

`split_concat_sums` sums over a concat part by part, so that the concat is never stored:

    sum(cat(a, b) * w)     ->     sum(a * w[:n]) + sum(b * w[n:])      over the axis of the concat
    sum(cat(a, b))         ->     sum(a) + sum(b)                      n: size of a along this axis

`split_reduce` splits long reductions into two stages; the first has work for every core:

    sum(x (n,))                      ->   sum(contiguous(sum(reshape(x, (d, n/d)), 1)))
    max(x (r, c) / sum(x, 1), all)   ->   max(contiguous(max(x / sum(x, 1), 1)), 0)

If the reduced value depends on reductions over rows, the first stage reduces along the same axes
and one kernel does both. Otherwise d is the largest divisor of a reduced axis from MIN_PARTS to
MAX_PARTS.

`split_concat` splits a wide CAT into stages, so that no kernel exceeds a device's buffer limit:

    cat(x0 ... x69)     ->     cat(cat(x0 ... x31), cat(x32 ... x63), cat(x64 ... x69))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from scheduler.device.spec import Limits
from scheduler.ir import dtype as dt
from scheduler.ir.build import like, peel
from scheduler.ir.node import Node, Readers, alu, make, toposort
from scheduler.ir.ops import ELEMENTWISE, MOVEMENT, Op
from scheduler.ir.rewrite import Rewriter, Rule, unchanged, with_sources

# With more sources, one long loop is faster than many short ones.
MAX_SOURCES = 4
# Reductions of at least this many elements per result are split, as in tinygrad.
THRESHOLD = 32768
# Chosen by hand: enough for a CPU's cores or a GPU's groups, and a cheap second stage.
MAX_PARTS = 256
MIN_PARTS = 8
# The maximum number of nodes visited below a long reduction.
MAX_WALK = 64
# A device with at most this many buffers per kernel has few; OpenCL guarantees 8.
FEW_BUFFERS = 32

# These do not mix a concat's sources if padding and windows are along other axes.
_MOVES = (Op.EXPAND, Op.PAD, Op.PERMUTE, Op.RESHAPE, Op.WINDOW, Op.CAST)


@dataclass(frozen=True, slots=True)
class _Concat:
    """A concat below one operand of a sum."""

    operand: int  # position of the operand in the product
    chain: list[Node]  # movement from the operand down to the concat
    axes: list[int]  # the concat axis in the result of each node of the chain
    concat: Node  # the CAT node

    @property
    def axis(self) -> int:
        """The concat axis in the operand."""
        return self.axes[0] if self.axes else int(self.concat.arg)


def split_concat_sums(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with sums over concats split into sums of parts."""
    order = toposort(roots)
    if not any(n.op is Op.CAT for n in order):
        return unchanged(order)
    readers = Readers.of(order, roots)
    new: dict[Node, Node] = {}
    for node in order:
        found = _find(node, readers)
        new[node] = with_sources(node, new) if found is None else _by_parts(node, found, new)
    return new


def _factors(node: Node) -> tuple[Node, ...]:
    """Return the factors of the products that are summed, or the only summed node."""
    inner = node.src[0]
    return inner.src if inner.op is Op.MUL else (inner,)


def _find(node: Node, readers: Readers) -> _Concat | None:
    """Return the concat below a sum that can be split, or None."""
    if node.op is not Op.REDUCE or node.arg[0] is not Op.ADD or node.dtype is dt.bool_:
        return None
    factors = _factors(node)
    product = node.src[0]
    if len(factors) == 2 and (factors[0] is factors[1] or not readers.is_private(product)):
        return None
    for operand, factor in enumerate(factors):
        chain, concat = peel(factor, _MOVES)
        if concat.op is not Op.CAT or len(concat.src) > MAX_SOURCES:
            continue
        axes = _track(chain, concat.arg)
        found = None if axes is None else _Concat(operand, chain, axes, concat)
        alone = all(readers.is_private(n) for n in (*chain, concat))
        if found is None or not alone or found.axis not in node.arg[1]:
            continue
        if all(n.op is not Op.WINDOW for n in chain) or all(_is_stored(s) for s in concat.src):
            return found
    return None


def _is_stored(source: Node) -> bool:
    """Whether a source is in memory anyway: it is a buffer or is computed from sums."""
    stack, seen = [source], {source}
    while stack:
        node = stack.pop()
        if node.op is Op.REDUCE:
            return True
        if node.op in ELEMENTWISE or node.op in MOVEMENT:
            below = [n for n in node.src if n not in seen]
            seen.update(below)
            stack += below
    return source.op is Op.BUFFER


def _track(chain: list[Node], axis: int) -> list[int] | None:
    """Return the concat axis in the result of each movement above, or None if it is not kept."""
    axes: list[int] = []
    for node in reversed(chain):
        if node.op is Op.PERMUTE:
            axis = node.arg.index(axis)
        elif node.op is Op.PAD:
            if node.arg[0][axis] != (0, 0):
                return None
        elif node.op is Op.WINDOW:
            if node.arg[0] == axis:
                return None
            axis += node.arg[0] < axis  # a window turns one axis into two
        elif node.op is Op.RESHAPE:
            old, shape = node.src[0].shape, node.shape
            kept = [a for a, s in enumerate(old) if s != 1]
            moved = [a for a, s in enumerate(shape) if s != 1]
            if [old[a] for a in kept] != [shape[a] for a in moved] or axis not in kept:
                return None
            axis = moved[kept.index(axis)]
        axes.append(axis)
    return axes[::-1]


def _by_parts(node: Node, found: _Concat, new: dict[Node, Node]) -> Node:
    """Return a sum over a concat as the sum of sums over its sources."""
    total: Node | None = None
    at = 0
    for source in found.concat.src:
        size = source.shape[found.concat.arg]
        part = new[source]
        for move, axis in zip(reversed(found.chain), reversed(found.axes), strict=True):
            arg = move.arg
            if move.op in (Op.EXPAND, Op.RESHAPE):
                arg = (*arg[:axis], size, *arg[axis + 1 :])
            part = like(move, move.op, (part,), arg)
        factors = list(_factors(node))
        if len(factors) == 2:
            other = new[factors[1 - found.operand]]
            bounds = [(0, s, 1) for s in other.shape]
            bounds[found.axis] = (at, at + size, 1)
            factors[1 - found.operand] = like(other, Op.SHRINK, (other,), tuple(bounds))
            factors[found.operand] = part
            part = like(node.src[0], Op.MUL, tuple(factors))
        one = like(node, Op.REDUCE, (part,), node.arg)
        total = one if total is None else alu(Op.ADD, total, one)
        at += size
    assert total is not None  # a concat has sources
    return total


def _two_stages(node: Node) -> Node | None:
    """Return a long reduction as two reductions with a stored result between them."""
    op, axes = node.arg
    source = node.src[0]
    if prod(source.shape) < THRESHOLD * max(1, prod(node.shape)):
        return None
    rows = _row_axes(node)
    if rows:
        first = make(Op.REDUCE, node.dtype, (source,), (op, rows))
        stored = make(Op.CONTIGUOUS, node.dtype, (first,))
        return make(Op.REDUCE, node.dtype, (stored,), (op, tuple(a for a in axes if a not in rows)))
    for axis in axes:
        size = source.shape[axis]
        parts = next(
            (d for d in range(min(MAX_PARTS, size // 2), MIN_PARTS - 1, -1) if size % d == 0), None
        )
        if parts is not None:
            break
    else:
        return None
    shape = (*source.shape[:axis], parts, size // parts, *source.shape[axis + 1 :])
    wide = make(Op.RESHAPE, node.dtype, (source,), shape)
    moved = tuple(a if a < axis else a + 1 for a in axes)
    first = make(Op.REDUCE, node.dtype, (wide,), (op, moved))
    stored = make(Op.CONTIGUOUS, node.dtype, (first,))
    second = make(Op.REDUCE, node.dtype, (stored,), (op, (axis,)))
    return make(Op.RESHAPE, node.dtype, (second,), node.shape)


def _row_axes(node: Node) -> tuple[int, ...]:
    """Return the axes that an inner reduction shares with the outer one, if many rows remain."""
    axes: tuple[int, ...] = node.arg[1]
    shape = node.src[0].shape
    stack, seen = [node.src[0]], set[Node]()
    while stack and len(seen) < MAX_WALK:
        inner = stack.pop()
        if inner in seen:
            continue
        seen.add(inner)
        if inner.op is Op.REDUCE and inner.src[0].shape == shape:
            rows = tuple(a for a in inner.arg[1] if shape[a] > 1)
            parts = prod(shape) // max(1, prod(shape[a] for a in rows))
            if set(rows) < set(axes) and MIN_PARTS <= parts <= THRESHOLD:
                return rows
        elif inner.op in ELEMENTWISE or inner.op is Op.EXPAND:
            stack.extend(reversed(inner.src))
    return ()


def split_reduce(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with long reductions split into two stages."""
    return Rewriter((Rule("split reduction", (Op.REDUCE,), _two_stages),))(roots)


def _max_sources(limits: Limits) -> int:
    """Return the maximum number of sources of one concat: half of a kernel's buffers.

    The other half is for sources that read several buffers. On devices with few buffers the maximum
    is all buffers but one, because additional stages cost more than storing such sources.
    """
    buffers = limits.max_buffers
    return buffers // 2 if buffers > FEW_BUFFERS else buffers - 1


def _in_stages(node: Node, most: int) -> Node | None:
    """Return a concat with more than `most` sources as a concat of stored concats."""
    if len(node.src) <= most:
        return None
    groups = [node.src[i : i + most] for i in range(0, len(node.src), most)]
    stages = [
        g[0]
        if len(g) == 1
        else make(Op.CONTIGUOUS, node.dtype, (make(Op.CAT, node.dtype, g, node.arg),))
        for g in groups
    ]
    return make(Op.CAT, node.dtype, tuple(stages), node.arg)


def split_concat(roots: Sequence[Node], limits: Limits) -> dict[Node, Node]:
    """Return old node -> new node with wide concats split into stages."""
    split = partial(_in_stages, most=_max_sources(limits))
    return Rewriter((Rule("split cat", (Op.CAT,), split),))(roots)

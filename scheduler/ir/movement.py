"""Computes which source elements a movement operation reads, for one index or a box of indices.

The index of a result element maps to an index of the source:

    RESHAPE (H*W) -> (H, W)      index (h, w)   ->  (h*W + w,)
    PAD ((b, e),)                index (i,)     ->  (i - b,)  if 0 <= i - b < size, else the fill
    WINDOW (L) -> (count, size)  index (o, k)   ->  (o*stride + k*dilation,)

To compose two movements, one index is substituted into the other; there is no view algebra. A box,
a (start, stop) for each axis, maps to the box of the source that it reads:

    SHRINK ((2, 9, 3),)      box ((1, 2),)      reads  ((5, 6),)
    PAD ((1, 1),)            box ((0, 2),)      reads  ((0, 1),)
    RESHAPE (6,) -> (2, 3)   box ((1, 2), all)  reads  ((3, 6),)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from scheduler.ir import index as ixs
from scheduler.ir.build import like, spread
from scheduler.ir.index import Ix, Predicate
from scheduler.ir.node import Node, const
from scheduler.ir.ops import MOVEMENT, Op, Shape

Index = tuple[Ix, ...]
Box = tuple[tuple[int, int], ...]

# Movement ops with one source.
MOVES = MOVEMENT - {Op.CAT}


@lru_cache(maxsize=4096)
def whole(shape: Shape) -> Box:
    """Return the box of a whole tensor."""
    return tuple((0, size) for size in shape)


def sizes(box: Box) -> Shape:
    """Return the shape of a box."""
    return tuple(stop - start for start, stop in box)


def hull(a: Box | None, b: Box) -> Box:
    """Return the smallest box that contains both."""
    if a is None or a == b:
        return b
    return tuple((min(p[0], q[0]), max(p[1], q[1])) for p, q in zip(a, b, strict=True))


def cut(node: Node, have: Box, want: Box) -> Node:
    """Return box `want` of a tensor, given its box `have` as a node."""
    if have == want:
        return node
    arg = tuple((b - a, e - a, 1) for (a, _), (b, e) in zip(have, want, strict=True))
    return like(node, Op.SHRINK, (node,), arg)


def source_box(node: Node, box: Box) -> Box | None:
    """Return the box of `node.src[0]` that a box of a movement node reads; None if it is empty.

    It can be larger than necessary: RESHAPE rounds up until both sides are boxes.
    """
    op, arg, shape = node.op, node.arg, node.src[0].shape
    if op is Op.RESHAPE:
        if box == whole(node.shape):
            return whole(shape)
        return tuple(part for group in _groups(node.shape, shape, box) for part in group.source)
    if op is Op.PERMUTE:
        return tuple(box[arg.index(i)] for i in range(len(shape)))
    if op is Op.EXPAND:
        return tuple((0, 1) if s == 1 else b for b, s in zip(box, shape, strict=True))
    if op is Op.SHRINK:  # the last element read is (hi - 1) * step further, not hi * step
        return tuple(
            (a + lo * step, a + (hi - 1) * step + 1)
            for (lo, hi), (a, _, step) in zip(box, arg, strict=True)
        )
    if op is Op.FLIP:
        return tuple(
            (s - hi, s - lo) if axis in arg else (lo, hi)
            for axis, ((lo, hi), s) in enumerate(zip(box, shape, strict=True))
        )
    if op is Op.WINDOW:
        axis, _, _, stride, dilation = arg
        (o, o_end), (k, k_end) = box[axis], box[axis + 1]
        read = (o * stride + k * dilation, (o_end - 1) * stride + (k_end - 1) * dilation + 1)
        return (*box[:axis], read, *box[axis + 2 :])
    return _inside_pad(node, box)


def _inside_pad(node: Node, box: Box) -> Box | None:
    read = tuple(
        (max(lo - before, 0), min(hi - before, s))
        for (lo, hi), (before, _), s in zip(box, node.arg[0], node.src[0].shape, strict=True)
    )
    return read if all(lo < hi for lo, hi in read) else None


def rebuild(node: Node, box: Box, source: Node) -> Node:
    """Return a box of a movement node, from box `source_box(node, box)` of its source."""
    op, arg, shape = node.op, node.arg, sizes(box)
    if op is Op.RESHAPE:
        groups = _groups(node.shape, node.src[0].shape, box)
        covered = tuple(part for group in groups for part in group.result)
        return cut(like(node, op, (source,), sizes(covered)), covered, box)
    if op is Op.EXPAND:
        return like(node, op, (source,), shape) if source.shape != shape else source
    if op is Op.SHRINK:
        if all(step == 1 for _, _, step in arg):
            return source
        steps = tuple((0, s, step) for s, (_, _, step) in zip(source.shape, arg, strict=True))
        return like(node, op, (source,), steps)
    if op is Op.WINDOW:
        axis, _, _, stride, dilation = arg
        return like(node, op, (source,), (axis, shape[axis], shape[axis + 1], stride, dilation))
    if op is Op.PAD:
        read = _inside_pad(node, box)
        if read is None:
            return spread(const(arg[1], node.dtype), shape)
        widths = tuple(
            (start + before - lo, hi - stop - before)
            for (lo, hi), (before, _), (start, stop) in zip(box, arg[0], read, strict=True)
        )
        return like(node, op, (source,), (widths, arg[1])) if source.shape != shape else source
    return like(node, op, (source,), arg)


class _Group:
    """Axes that merge or split into each other in a RESHAPE, with the boxes on both sides."""

    __slots__ = ("result", "source")

    def __init__(self, box: Box, result: Shape, source: Shape) -> None:
        low, high = _flat(tuple(lo for lo, _ in box), result), 1
        high += _flat(tuple(hi - 1 for _, hi in box), result)
        # A box of the result need not be a box of the source, and vice versa.
        while True:
            wider = _round_up(*_round_up(low, high, result), source)
            if wider == (low, high):
                break
            low, high = wider
        self.result = _box_of(low, high, result)
        self.source = _box_of(low, high, source)


@lru_cache(maxsize=4096)
def reshape_groups(shape: Shape, target: Shape) -> tuple[tuple[slice, slice], ...]:
    """Return the smallest groups of axes of two shapes that merge or split into each other.

    (6, 4) and (2, 3, 4)     ->     (0:1, 0:2), (1:2, 2:3)
    """
    found: list[tuple[slice, slice]] = []
    i = j = 0
    while i < len(shape) or j < len(target):
        i0, j0, a, b = i, j, 1, 1
        if i < len(shape):
            a, i = shape[i], i + 1
        if j < len(target):
            b, j = target[j], j + 1
        while a != b:  # multiply axes into the smaller product until both sides are equal
            if (a < b or j == len(target)) and i < len(shape):
                a, i = a * shape[i], i + 1
            else:
                b, j = b * target[j], j + 1
        found.append((slice(i0, i), slice(j0, j)))
    return tuple(found)


@lru_cache(maxsize=4096)
def _groups(shape: Shape, target: Shape, box: Box) -> tuple[_Group, ...]:
    """Return the groups of a RESHAPE; in each of them, a box must be a run of flat offsets."""
    return tuple(
        _Group(box[mine], shape[mine], target[other])
        for mine, other in reshape_groups(shape, target)
    )


def _flat(index: Shape, shape: Shape) -> int:
    offset = 0
    for i, size in zip(index, shape, strict=True):
        offset = offset * size + i
    return offset


def _box_of(low: int, high: int, shape: Shape) -> Box:
    """Return the smallest box of `shape` that contains a run of flat offsets."""
    inner, box = prod(shape), []
    for axis, size in enumerate(shape):
        inner //= size
        first, last = low // inner, (high - 1) // inner
        box.append((first, last + 1))
        if first != last:
            return (*box, *whole(shape[axis + 1 :]))
        low, high = low - first * inner, high - first * inner
    return tuple(box)


def _round_up(low: int, high: int, shape: Shape) -> tuple[int, int]:
    """Return the run of flat offsets covered by the smallest box around a run."""
    box = _box_of(low, high, shape)
    return _flat(tuple(a for a, _ in box), shape), _flat(tuple(e - 1 for _, e in box), shape) + 1


def source_index(node: Node, index: Index) -> tuple[Index, Predicate]:
    """Return the source index that element `index` of a one-source movement node reads.

    The predicate tells where the element comes from the source (PAD); () means everywhere.
    """
    op, arg, shape = node.op, node.arg, node.src[0].shape
    if op is Op.RESHAPE:
        return _reshape(index, node.shape, shape), ()
    if op is Op.PERMUTE:
        return tuple(index[arg.index(i)] for i in range(len(shape))), ()
    if op is Op.EXPAND:
        return tuple(ixs.ZERO if s == 1 else i for i, s in zip(index, shape, strict=True)), ()
    if op is Op.SHRINK:
        return tuple(
            ixs.shift(ixs.mul(i, st), a) for i, (a, _, st) in zip(index, arg, strict=True)
        ), ()
    if op is Op.FLIP:
        return tuple(
            ixs.shift(ixs.mul(i, -1), s - 1) if axis in arg else i
            for axis, (i, s) in enumerate(zip(index, shape, strict=True))
        ), ()
    if op is Op.WINDOW:
        axis, _, _, stride, dilation = arg
        source = ixs.add(ixs.mul(index[axis], stride), ixs.mul(index[axis + 1], dilation))
        return (*index[:axis], source, *index[axis + 2 :]), ()
    return _pad(node, index)


def _pad(node: Node, index: Index) -> tuple[Index, Predicate]:
    result: list[Ix] = []
    predicate: Predicate = ()
    for i, (before, _), size in zip(index, node.arg[0], node.src[0].shape, strict=True):
        moved = ixs.shift(i, -before)
        predicate = ixs.conjoin(predicate, moved, 0, size - 1)
        result.append(moved)
    return tuple(result), predicate


def _reshape(index: Index, shape: tuple[int, ...], target: tuple[int, ...]) -> Index:
    """Re-index group by group, so only axes that really merge or split need divisions."""
    result: list[Ix] = []
    for mine, other in reshape_groups(shape, target):
        axes, sizes = index[mine], target[other]
        # Axes of size 1 have index 0; each side may then have a single axis left.
        moving = [i for i in axes if i is not ixs.ZERO]
        long = [s for s in sizes if s != 1]
        if not moving:
            result += [ixs.ZERO] * len(sizes)
        elif _is_one_axis(moving, long, axes, shape[mine]):
            result += [ixs.ZERO if s == 1 else moving[0] for s in sizes]
        else:
            result += ixs.unflatten(ixs.flatten(axes, shape[mine]), sizes)
    return tuple(result)


def _is_one_axis(
    moving: Sequence[Ix], long: Sequence[int], axes: Index, shape: tuple[int, ...]
) -> bool:
    """Whether both sides are one axis, ignoring axes of size 1, and the index stays inside it."""
    if len(moving) != 1 or len(long) != 1 or moving[0].lo < 0 or moving[0].hi >= long[0]:
        return False
    return shape[axes.index(moving[0])] == long[0]


def cat_sources(node: Node, index: Index) -> list[tuple[Node, Index, Predicate]]:
    """Return, for each source of a CAT, its index and the predicate under which it is read."""
    axis, at, result = node.arg, 0, []
    for src in node.src:
        moved = ixs.shift(index[axis], -at)
        inside = ixs.conjoin((), moved, 0, src.shape[axis] - 1)
        result.append((src, (*index[:axis], moved, *index[axis + 1 :]), inside))
        at += src.shape[axis]
    return result

"""Movement operations map the index of a result element to the index of its source element.

    RESHAPE (H*W) -> (H, W)      index (h, w)   ->  (h*W + w,)
    PAD ((b, e),)                index (i,)     ->  (i - b,)  if 0 <= i - b < size, else the fill
    WINDOW (L) -> (count, size)  index (o, k)   ->  (o*stride + k*dilation,)

There is no view algebra: composing two movements substitutes one index into the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.ir import index as ixs
from scheduler.ir.boxes import reshape_groups
from scheduler.ir.index import Ix, Predicate
from scheduler.ir.node import Node
from scheduler.ir.ops import Op

Index = tuple[Ix, ...]


def source_index(node: Node, index: Index) -> tuple[Index, Predicate]:
    """Return the index into `node.src[0]` that element `index` of a one-source movement node reads.

    The predicate says where the element comes from the source at all (PAD); () means everywhere.
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
    """Re-index group by group: only axes that really merge or split meet division."""
    result: list[Ix] = []
    for mine, other in reshape_groups(shape, target):
        axes, sizes = index[mine], target[other]
        # Axes of size 1 have index 0; what is left may be one axis on either side.
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
    """Whether a group is one axis on either side, but for axes of size 1, and stays inside it."""
    if len(moving) != 1 or len(long) != 1 or moving[0].lo < 0 or moving[0].hi >= long[0]:
        return False
    return shape[axes.index(moving[0])] == long[0]


def cat_sources(node: Node, index: Index) -> list[tuple[Node, Index, Predicate]]:
    """Return for each source of a CAT its index and where along the axis it is the one read."""
    axis, at, result = node.arg, 0, []
    for src in node.src:
        moved = ixs.shift(index[axis], -at)
        inside = ixs.conjoin((), moved, 0, src.shape[axis] - 1)
        result.append((src, (*index[:axis], moved, *index[axis + 1 :]), inside))
        at += src.shape[axis]
    return result

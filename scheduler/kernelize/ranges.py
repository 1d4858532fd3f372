"""Movement operations as functions on index ranges: where a result element comes from.

    RESHAPE (H*W) -> (H, W)      index (h, w)   ->  (h*W + w,)
    PAD ((b, e),)                index (i,)     ->  (i - b,)  if 0 <= i - b < size, else the fill
    WINDOW (L) -> (count, size)  index (o, k)   ->  (o*stride + k*dilation,)

There is no view algebra: composing two movements is substituting one index into the other.
"""

from __future__ import annotations

from scheduler import index as ixs
from scheduler.index import Ix, Predicate
from scheduler.node import Node
from scheduler.ops import Op

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
            ixs.add(ixs.mul(i, st), ixs.constant(a))
            for i, (a, _, st) in zip(index, arg, strict=True)
        ), ()
    if op is Op.FLIP:
        return tuple(
            ixs.add(ixs.constant(s - 1), ixs.mul(i, -1)) if axis in arg else i
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
        moved = ixs.add(i, ixs.constant(-before))
        predicate = ixs.conjoin(predicate, moved, 0, size - 1)
        result.append(moved)
    return tuple(result), predicate


def _reshape(index: Index, shape: tuple[int, ...], target: tuple[int, ...]) -> Index:
    """Re-index group by group: only axes that really merge or split meet division."""
    result: list[Ix] = []
    i = j = 0
    while i < len(shape) or j < len(target):
        i0, j0, a, b = i, j, 1, 1
        if i < len(shape):
            a, i = shape[i], i + 1
        if j < len(target):
            b, j = target[j], j + 1
        while a != b:
            if a < b and i < len(shape):
                a, i = a * shape[i], i + 1
            elif j < len(target):
                b, j = b * target[j], j + 1
            else:
                a, i = a * shape[i], i + 1
        offset = ixs.flatten(index[i0:i], shape[i0:i])
        result.extend(ixs.unflatten(offset, target[j0:j]))
    return tuple(result)


def cat_sources(node: Node, index: Index) -> list[tuple[Node, Index, Predicate]]:
    """Return for each source of a CAT its index and where along the axis it is the one read."""
    axis, at, result = node.arg, 0, []
    for src in node.src:
        moved = ixs.add(index[axis], ixs.constant(-at))
        inside = ixs.conjoin((), moved, 0, src.shape[axis] - 1)
        result.append((src, (*index[:axis], moved, *index[axis + 1 :]), inside))
        at += src.shape[axis]
    return result

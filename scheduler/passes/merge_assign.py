"""Turn a write to a part of a buffer into a write of the whole buffer.

    q[2:5] = y              ->      q = where(inside, pad(y), q)       inside: true on rows 2 to 4
    q[ids] = y              ->      q = where(hit, take(y, which), q)  hit: a row that ids names

Every element is computed from the same element of the buffer, so the write still works in place.

Refuses what a kernel can do that stores the part alone: nothing else reads the old buffer, and rows
that an index names all take the same value (of equal indices the last must win, and kernels have no
order among rows). Rows outside the buffer are not written, as in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, const, consumers, make, toposort
from scheduler.ir.ops import Op, Shape
from scheduler.ir.rewrite import remake
from scheduler.tensor.arithmetic import TensorMath

# Per axis (start, stop, step), or None for the axis that an index picks from.
Region = tuple[tuple[int, int, int] | None, ...]


def merge_assign(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node without writes to parts of buffers."""
    new: dict[Node, Node] = {}
    order = toposort(roots)
    users = consumers(order)
    for node in order:
        src = tuple(new[s] for s in node.src)
        current = node if src == node.src else remake(node, src)
        if node.op is Op.ASSIGN and node.arg is not None and not _stays(node, users):
            current = make(Op.ASSIGN, node.dtype, (src[0], value_after(current)))
        new[node] = current
    return new


def _stays(assign: Node, users: dict[Node, list[Node]]) -> bool:
    """Whether a kernel may store the part alone."""
    target, value = assign.src[0], assign.src[1]
    if target.op is not Op.BUFFER or len(users[target]) > 1 or target in (value, *assign.src[2:]):
        return False
    axis = assign.arg.index(None) if None in assign.arg else None
    return axis is None or value.shape[axis] == 1 or _is_repeated(value, axis)


def _is_repeated(value: Node, axis: int) -> bool:
    """Whether all rows of an axis are plainly the same value."""
    while value.op is Op.CAST:
        value = value.src[0]
    return value.op is Op.EXPAND and value.src[0].shape[axis] == 1


def value_after(assign: Node) -> Node:
    """Return the value of a buffer after an ASSIGN, without the ASSIGN."""
    if assign.arg is None:
        return assign.src[1]
    return merged(assign.src[0], assign.arg, assign.src[1], assign.src[2:])


def merged(old: Node, region: Region, value: Node, index: Sequence[Node] = ()) -> Node:
    """Return a whole value in which a region was replaced.

    Args:
        old: value before, any shape.
        region: where the new values go.
        value: of the shape of the region.
        index: rows of the axis whose region is None: one node (m,), or nothing.
    """
    x, new = TensorMath.of(old), TensorMath.of(value)
    inside = TensorMath.of(const(True, dt.bool_)).broadcast_to(new.shape)
    for axis, part in enumerate(region):
        if part is None:
            inside, new = _scattered(new, TensorMath.of(index[0]), axis, x.shape[axis])
    if new.shape == x.shape and all(part is None or part[2] == 1 for part in region) and not index:
        return new.node
    placed = [p or (0, s, 1) for p, s in zip(region, x.shape, strict=True)]
    return _place(inside, placed, x.shape).where(_place(new, placed, x.shape), x).node


def _scattered(
    value: TensorMath, index: TensorMath, axis: int, size: int
) -> tuple[TensorMath, TensorMath]:
    """Return which rows of an axis an index names, and the value that each of them takes."""
    count = index.shape[0]
    rows = TensorMath.of(make(Op.IOTA, dt.int32, (), size)).unsqueeze(1)
    if not dt.holds(dt.int32, int(dt.max_value(index.dtype))):  # what is outside must stay so
        index = index.minimum(size)
        index = index if index.dtype.is_unsigned else index.maximum(-size - 1)
    at = index.cast(dt.int32)
    at = (at < 0).where(at + size, at).unsqueeze(0)
    turn = TensorMath.of(make(Op.IOTA, dt.int32, (), count)).unsqueeze(0)
    last = rows.eq(at).where(turn, -1).max(1)  # (size,): which index names this row last
    lifted = tuple(size if i == axis else 1 for i in range(value.ndim))
    shape: Shape = tuple(size if i == axis else s for i, s in enumerate(value.shape))
    hit = (last >= 0).reshape(lifted).broadcast_to(shape)
    source = value.node
    if source.op is Op.EXPAND and source.src[0].shape[axis] == 1:  # all rows take the same value
        narrow = tuple(1 if i == axis else s for i, s in enumerate(value.shape))
        return hit, TensorMath.of(source.src[0]).broadcast_to(narrow).broadcast_to(shape)
    return hit, value.gather(last.maximum(0), axis)


def _place(x: TensorMath, region: Sequence[tuple[int, int, int]], shape: Shape) -> TensorMath:
    """Return an array of a shape that holds x at a region and zeros elsewhere."""
    pairs = []
    for axis, ((start, _, step), size) in enumerate(zip(region, shape, strict=True)):
        x = _spread(x, axis, step)
        pairs.append((start, size - start - x.shape[axis]))
    return x.pad(pairs)


def _spread(x: Any, axis: int, step: int) -> Any:
    """Put step-1 zeros between the elements of an axis."""
    n = x.shape[axis]
    if step == 1 or n <= 1:
        return x
    wide = x.unsqueeze(axis + 1)
    wide = wide.pad([(0, step - 1) if i == axis + 1 else (0, 0) for i in range(wide.ndim)])
    merged_axis = wide.reshape((*x.shape[:axis], n * step, *x.shape[axis + 1 :]))
    end = (n - 1) * step + 1
    return merged_axis.shrink(
        [(0, end if i == axis else s) for i, s in enumerate(merged_axis.shape)]
    )

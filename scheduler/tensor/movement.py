"""`TensorShape`: reshaping, moving, slicing and concatenating tensors, without copies.

The compiler turns these operations into index arithmetic in the kernels that read the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_index
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import ModelError, TensorIndexError
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, alu, make
from scheduler.ir.ops import Op, Shape
from scheduler.tensor.core import Scalar, TensorCore, axis_of

Axis = int | Sequence[int] | None
Pairs = Sequence[tuple[int, int]]
T = TypeVar("T", bound="TensorShape")


class TensorShape(TensorCore):
    """Reshaping, moving, slicing and concatenating."""

    __slots__ = ()

    def axes(self, axis: Axis) -> tuple[int, ...]:
        """Return axes (None: all) as sorted non-negative ints, without duplicates."""
        if axis is None:
            return tuple(range(self.ndim))
        given = axis if isinstance(axis, Sequence) else (axis,)
        return tuple(sorted({axis_of(a, self.ndim) for a in given}))

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """Return the elements in another shape (-1 is inferred); raise ModelError for a misfit."""
        target = list(shape_of(shape))
        if target.count(-1) == 1:
            rest = prod(s for s in target if s != -1)
            target[target.index(-1)] = self.size // rest if rest else 0
        if prod(target) != self.size or any(s < 0 for s in target):
            raise ModelError(
                f"reshape: {self.shape} ({self.size} elements) does not fit {tuple(target)}"
            )
        if tuple(target) == self.shape:
            return self
        source = self.node
        if source.op is Op.RESHAPE:
            source = source.src[0]
        if source.shape == tuple(target):
            return self.view_as(source)
        return self.view_as(make(Op.RESHAPE, self.dtype, (source,), tuple(target)))

    def permute(self, *order: int | Sequence[int]) -> Self:
        """Return the axes in a new order: result axis i is source axis order[i]."""
        axes = tuple(axis_of(a, self.ndim) for a in shape_of(order))
        if axes == tuple(range(self.ndim)):
            return self
        return self.view_as(make(Op.PERMUTE, self.dtype, (self.node,), axes))

    def transpose(self, first: int = -2, second: int = -1) -> Self:
        """Return the tensor with two axes exchanged."""
        order = list(range(self.ndim))
        first, second = axis_of(first, self.ndim), axis_of(second, self.ndim)
        order[first], order[second] = order[second], order[first]
        return self.permute(order)

    @property
    def T(self) -> Self:  # noqa: N802  # numpy's name
        """All axes reversed."""
        return self.permute(tuple(reversed(range(self.ndim))))

    def expand(self, *shape: int | Sequence[int]) -> Self:
        """Return axes of size 1 repeated to a shape; -1 keeps the size of an axis."""
        target = shape_of(shape)
        if len(target) == self.ndim:
            target = tuple(s if t == -1 else t for s, t in zip(self.shape, target, strict=True))
        return self.broadcast_to(target)

    def broadcast_to(self, shape: Shape) -> Self:
        """Return the tensor broadcast to a shape by numpy's rules, or raise ModelError."""
        if shape == self.shape:
            return self
        missing = len(shape) - self.ndim
        lifted = self.reshape((1,) * missing + self.shape) if missing > 0 else self
        if missing < 0 or any(s not in (1, t) for s, t in zip(lifted.shape, shape, strict=True)):
            raise ModelError(f"broadcast: {self.shape} does not expand to {shape}")
        if lifted.shape == shape:
            return lifted
        return self.of(make(Op.EXPAND, self.dtype, (lifted.node,), tuple(shape)))

    def pad(self, pairs: Pairs, value: Scalar = 0) -> Self:
        """Return the tensor padded with `value` by (before, after) per axis; negative ones crop."""
        cut = [(max(0, -b), s - max(0, -e)) for (b, e), s in zip(pairs, self.shape, strict=True)]
        inner = self.shrink(cut)
        widths = tuple((max(0, b), max(0, e)) for b, e in pairs)
        if all(w == (0, 0) for w in widths):
            return inner
        fill = float(value) if self.dtype.is_float else int(value)
        return self.of(make(Op.PAD, self.dtype, (inner.node,), (widths, fill)))

    def shrink(self, bounds: Pairs) -> Self:
        """Return [begin, end) of each axis; raise TensorIndexError if one is out of range."""
        if len(bounds) != self.ndim or any(
            not 0 <= b <= e <= s for (b, e), s in zip(bounds, self.shape, strict=False)
        ):
            raise TensorIndexError(f"shrink: {list(bounds)} is outside of {self.shape}")
        return self._slice([(b, e, 1) for b, e in bounds])

    def _slice(self, bounds: Sequence[tuple[int, int, int]]) -> Self:
        if all(b == (0, s, 1) for b, s in zip(bounds, self.shape, strict=True)):
            return self
        return self.view_as(make(Op.SHRINK, self.dtype, (self.node,), tuple(bounds)))

    def flip(self, axis: int | Sequence[int]) -> Self:
        """Return the tensor reversed along axes."""
        axes = self.axes(axis)
        return self.view_as(make(Op.FLIP, self.dtype, (self.node,), axes)) if axes else self

    def window(self, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Self:
        """Replace an axis by (position, offset), for index position*stride + offset*dilation.

        Shape (..., L, ...) becomes (..., count, size, ...) with
        count = (L - (size-1)*dilation - 1) // stride + 1.
        """
        axis = axis_of(axis, self.ndim)
        count = (self.shape[axis] - (size - 1) * dilation - 1) // stride + 1
        arg = (axis, count, size, stride, dilation)
        return self.of(make(Op.WINDOW, self.dtype, (self.node,), arg))

    def unsqueeze(self, axis: int) -> Self:
        """Return the tensor with an axis of size 1 inserted."""
        axis = axis_of(axis, self.ndim + 1)
        return self.reshape((*self.shape[:axis], 1, *self.shape[axis:]))

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Self:
        """Return the tensor without axes of size 1 (None: all of them), or raise ModelError."""
        if axis is None:
            axes = {i for i, s in enumerate(self.shape) if s == 1}
        else:
            axes = set(self.axes(axis))
        if any(self.shape[a] != 1 for a in axes):
            raise ModelError(f"squeeze: axes {sorted(axes)} of {self.shape} are not all of size 1")
        return self.reshape(tuple(s for i, s in enumerate(self.shape) if i not in axes))

    def flatten(self, start: int = 0) -> Self:
        """Return the tensor with all axes from `start` on merged."""
        return self.reshape((*self.shape[:start], prod(self.shape[start:])))

    def repeat(self, *counts: int | Sequence[int]) -> Self:
        """Return the tensor repeated as by numpy.tile."""
        repeats = shape_of(counts)
        lead = max(0, len(repeats) - self.ndim)
        reps = (1,) * (self.ndim - len(repeats)) + tuple(repeats)
        shape = (1,) * lead + self.shape
        parts = [n for s in shape for n in (1, s)]
        wide = [n for r, s in zip(reps, shape, strict=True) for n in (r, s)]
        final = tuple(r * s for r, s in zip(reps, shape, strict=True))
        return self.reshape(parts).broadcast_to(tuple(wide)).reshape(final)

    def split(self, sizes: Sequence[int], axis: int = 0) -> list[Self]:
        """Return parts of the given sizes along an axis."""
        axis = axis_of(axis, self.ndim)
        if sum(sizes) != self.shape[axis]:
            raise ModelError(f"split: sizes {list(sizes)} do not sum to {self.shape[axis]}")
        parts, at = [], 0
        for n in sizes:
            bounds = [(0, s) for s in self.shape]
            bounds[axis] = (at, at + n)
            parts.append(self.shrink(bounds))
            at += n
        return parts

    def gather(self, index: Self, axis: int = 0) -> Self:
        """Return numpy.take(self, index, axis); negative indices count from the end."""
        axis = axis_of(axis, self.ndim)
        whole = index if index.dtype.is_int else index.cast(dt.int32)
        return self.of(make(Op.GATHER, self.dtype, (self.node, whole.node), axis))

    def __getitem__(self, key: Any) -> Self:
        """Return a part, selected by ints, slices, None, Ellipsis, and index tensors or int lists.

        Several index tensors are broadcast together as in numpy. Their axes are replaced by the
        axes of the broadcast index, at the first of them if they are adjacent, else in front. The
        values of index tensors are not checked: out of range, they read some element of the axis.

        Raises TensorIndexError if an index is out of range, or there are too many indices. Raises
        ModelError if an index is a mask.
        """
        items = full_key(key, self.ndim)
        result, axis = self, 0
        picked: list[tuple[int, Self]] = []
        for item in items:
            index = result.index_tensor(item)
            if index is not None:
                if not isinstance(item, TensorCore):
                    _check_rows(np.asarray(item), axis, result.shape)
                picked.append((axis, index))
                axis += 1
            else:
                result, axis = _index_axis(result, item, axis)
        if len(picked) < 2:
            return result.gather(picked[0][1], picked[0][0]) if picked else result
        return _gather_several(result, picked)

    def index_tensor(self, item: Any) -> Self | None:
        """Return an index as a tensor of ints, or None for an int, a slice or None.

        Raises TensorIndexError for any other object. Raises ModelError for a mask, because the
        shape of the result would depend on its values.
        """
        if item is None or (
            isinstance(item, int | np.integer | slice) and not isinstance(item, bool)
        ):
            return None
        if not isinstance(item, TensorCore):
            rows = np.asarray(item)
            rows = rows.astype(np.int32) if rows.size == 0 else rows
            if rows.dtype.kind not in "iub":
                raise TensorIndexError(f"index: expected ints, found {item!r}")
            item = self.weight(rows)
        if not item.dtype.is_int:
            raise ModelError(f"index: expected ints, found {item.dtype}; use where() for a mask")
        return self.of(item.node)


def full_key(key: Any, ndim: int) -> list[Any]:
    """Return a key with an index for every axis; raise TensorIndexError if there are too many."""
    items = list(key) if isinstance(key, tuple) else [key]
    used = sum(1 for k in items if k is not None and k is not Ellipsis)
    if used > ndim:
        raise TensorIndexError(f"index: {used} indices for {ndim} axes")
    fill = [slice(None)] * (ndim - used)
    at = next((i for i, k in enumerate(items) if k is Ellipsis), None)
    return [*items, *fill] if at is None else [*items[:at], *fill, *items[at + 1 :]]


def _index_axis(x: Any, item: Any, axis: int) -> tuple[Any, int]:
    """Return x with one index applied to an axis, and the axis for the next index."""
    if item is None:
        return x.unsqueeze(axis), axis + 1
    size = x.shape[axis]
    if isinstance(item, int | np.integer):
        if not -size <= item < size:
            raise TensorIndexError(f"index: {item} is outside axis {axis} of {x.shape}")
        start = int(item) % size
        bounds = [(0, s) for s in x.shape]
        bounds[axis] = (start, start + 1)
        return x.shrink(bounds).squeeze(axis), axis
    start, stop, step = item.indices(size)
    if step < 0:  # SHRINK has positive steps only, so reverse the axis
        count = max(0, -(-(start - stop) // -step))
        x, start, step = x.flip(axis), size - 1 - start, -step
        stop = start + (count - 1) * step + 1 if count else start
    bounds3 = [(0, s, 1) for s in x.shape]
    bounds3[axis] = (start, max(start, stop), step)
    return x._slice(bounds3), axis + 1


def _check_rows(rows: NDArray[Any], axis: int, shape: Shape) -> None:
    """Raise TensorIndexError if a constant index is out of range."""
    size = shape[axis]
    for end in (rows.min(), rows.max()) if rows.size else ():
        if not -size <= end < size:
            raise TensorIndexError(f"index: {end} is outside axis {axis} of {shape}")


def _gather_several(x: T, picked: Sequence[tuple[int, T]]) -> T:
    """Return x indexed by several index tensors, with one gather over their merged axes."""
    axes = [axis for axis, _ in picked]
    rest = [i for i in range(x.ndim) if i not in axes]
    # As in numpy, the new axes stay in place if the indexed axes are adjacent, else come first.
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    at = axes[0] if adjacent else 0
    sizes = [x.shape[a] for a in axes]
    order = [*rest[:at], *axes, *rest[at:]]
    kept = [x.shape[a] for a in rest]
    flat = x.permute(order).reshape((*kept[:at], prod(sizes), *kept[at:]))
    shape = tuple(np.broadcast_shapes(*(index.shape for _, index in picked)))
    total = None
    for (_, index), size in zip(picked, sizes, strict=True):
        row = index.cast(dt.int32).broadcast_to(shape).node
        row = alu(Op.WHERE, _compare(row, 0), alu(Op.ADD, row, _number(size, row)), row)
        row = alu(Op.MIN, alu(Op.MAX, row, _number(0, row)), _number(size - 1, row))
        if total is not None:
            row = alu(Op.ADD, alu(Op.MUL, total, _number(size, row)), row)
        total = row
    assert total is not None
    return flat.gather(x.of(total), at)


def _number(value: int, like: Node) -> Node:
    return TensorShape(value, dt.int32).broadcast_to(like.shape).node


def _compare(row: Node, value: int) -> Node:
    return alu(Op.LT, row, _number(value, row))


def shape_of(shape: tuple[int | Sequence[int], ...]) -> Shape:
    """Return a shape given as one sequence or as several ints."""
    sizes: Any = shape
    if len(shape) == 1 and isinstance(shape[0], Sequence | np.ndarray):
        sizes = shape[0]
    return tuple(as_index(s) for s in sizes)

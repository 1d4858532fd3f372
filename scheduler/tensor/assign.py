"""`TensorAssign`: assignment to tensors or parts of tensors.

    p.assign(p / p.sum(1))        p has the new value; tensors computed from p keep the old one
    p[2:5] = y, p[:, ids] = y     the rest of p stays the same

An assignment gives the tensor (and its owner, if it is a view) a new graph with an ASSIGN node,
which writes the buffer in place when it runs. A write to a program's state is the tensor that
`assign` returns; compile it with the program's outputs.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.ir.build import peel
from scheduler.ir.node import Buffer, Node, make
from scheduler.ir.ops import Op
from scheduler.passes.merge_assign import Region, merged, value_after
from scheduler.tensor.conv_transpose import TensorTransposed
from scheduler.tensor.core import Scalar
from scheduler.tensor.eager import INVERTIBLE, SESSION, base_of, rebuild
from scheduler.tensor.movement import full_key


class TensorAssign(TensorTransposed):
    """Assignment to tensors and parts of tensors."""

    __slots__ = ()

    def assign(self, value: Self | Scalar | NDArray[Any]) -> Self:
        """Assign a value (same shape and type, or a number) to this tensor.

        The value is written to the buffer of which this tensor is a view. The buffer's owner
        changes too, unless it was assigned after the view was taken: then only the view changes. A
        tensor without a buffer is just replaced by the value.

        Returns:
            This tensor. For a state, a new tensor with the state's complete new content; this
            tensor keeps the old content.

        Raises:
            ModelError: shape or type differ, or a view repeats elements of its buffer.
        """
        given = self.fit(value)
        if given.ndim == 0 and not isinstance(value, TensorTransposed):
            given = given.broadcast_to(self.shape)
        if given.shape != self.shape:
            raise ModelError(f"assign: {self!r} cannot take {given!r}")
        inner = self._storage()
        if inner is None:
            self._replace_graph(given.node)
            return self
        region, node = _through_views(self.node, inner, given)
        target = inner.src[0] if inner.op is Op.ASSIGN else inner
        is_state = target.arg.kind == "state"
        if not is_state and (node is inner or not all(self.shape)):
            return self
        new = _next_version(inner, region, (node,))
        if is_state:
            _supersede(inner)
            return self.of(new)
        self._replace_version(inner, new)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assign to a part, selected by ints, slices, Ellipsis, and one index tensor on one axis.

        Indices outside the axis write nothing; the last of equal indices wins. Raises ModelError if
        the value does not fit the part.
        """
        items = full_key(key, self.ndim)
        given = self.fit(value)
        picked = [i for i, item in enumerate(items) if self.index_tensor(item) is not None]
        if picked:
            region, index = self._indexed_region(items, picked)
            shape = tuple(index.size if r is None else len(range(*r)) for r in region)
            if not all(shape):
                return
            lifted = _without_ints(items, shape)
            node = given.broadcast_to(lifted).reshape(shape).node
            self._write_part(region, (node, index.node))
            return
        whole = self.of(
            make(Op.BUFFER, self.dtype, (), Buffer("input", "", self.shape, self.dtype))
        )
        view = whole[key]  # index a placeholder, because views of this tensor could be merged
        if not all(view.shape):
            return
        part, node = _through_views(view.node, whole.node, given.broadcast_to(view.shape))
        self._write_part(part, (rebuild(node, {whole.node: self.node}),))

    def fit(self, value: Any) -> TensorTransposed:
        """Return a value as a tensor; raise ModelError for a tensor of another type."""
        given = self.operand(value)
        if not isinstance(value, TensorTransposed):
            given = given.cast(self.dtype)
        if given.dtype is not self.dtype:
            raise ModelError(f"assign: {self!r} cannot take {given!r}; cast it")
        return given

    def _indexed_region(self, items: list[Any], picked: list[int]) -> tuple[Region, Self]:
        """Return the region of a key with one index tensor, in item `picked[0]`, and the index."""
        index = self.index_tensor(items[picked[0]])
        lifted = any(item is None for item in items)
        if len(picked) > 1 or lifted or index is None or index.ndim > 1:
            raise ModelError(f"index: expected one index of one axis and no None, found {items}")
        region: list[tuple[int, int, int] | None] = []
        for item, size in zip(items, self.shape, strict=True):
            if isinstance(item, slice):
                start, stop, step = item.indices(size)
                if step < 0:
                    raise ModelError(f"index: {item} with an index tensor; use a positive step")
                region.append((start, max(start, stop), step))
            elif isinstance(item, int | np.integer):
                at = range(size)[item]
                region.append((at, at + 1, 1))
            else:
                region.append(None)
        return tuple(region), index.reshape(index.size)

    def _write_part(self, region: Region | None, sources: tuple[Node, ...]) -> None:
        """Give this tensor and its owner a value with `sources` written into a region."""
        inner = self._storage()
        if inner is self.node:
            self._replace_version(inner, _next_version(inner, region, sources))
            return
        whole = sources[0]
        if region is not None:
            whole = merged(self.node, region, whole, sources[1:])
        if inner is None:
            self._replace_graph(whole)
            return
        part, node = _through_views(self.node, inner, TensorTransposed.of(whole))
        self._replace_version(inner, _next_version(inner, part, (node,)))

    def _storage(self) -> Node | None:
        """Return the buffer to write, or its newest ASSIGN; None if this tensor owns no buffer."""
        inner = _target(self.node)
        buffer = None if inner is None else (inner.src or (inner,))[0].arg
        if buffer is None or not buffer.is_realized:
            return inner
        # If another tensor holds the buffer and still reads this version, only that one may write.
        owner, holder = self.owner, SESSION.handles.holder_of(buffer)
        root = self if owner is None else owner
        if holder is not None and holder is not root and base_of(holder.node) is inner:
            return None
        SESSION.handles.hold(buffer, root)
        return inner

    def _replace_graph(self, node: Node) -> None:
        """Replace this tensor's graph; it is then no view of another tensor."""
        self.node, self._owner = node, None

    def _replace_version(self, inner: Node, new: Node) -> None:
        """Replace the version of a buffer in the graphs of this tensor and its owner."""
        if new is inner:  # the value is the same
            return
        memo = {inner: new}
        for holder in (self, self.owner):
            # Skip an owner that was replaced since the view was taken.
            if holder is not None and base_of(holder.node) is inner:
                holder.node = rebuild(holder.node, memo)
        _supersede(inner)


def _supersede(version: Node) -> None:
    """Replace an ASSIGN by its value in all tensors: another one follows, so it is not stored."""
    if version.op is Op.ASSIGN:
        SESSION.handles.substitute({version: value_after(version)})


def _target(node: Node) -> Node | None:
    """Return the buffer of a view, or its newest ASSIGN; None if it cannot be written.

    Raises ModelError if the view repeats elements.
    """
    views, node = peel(node, INVERTIBLE | {Op.EXPAND})
    buffer = node.src[0].arg if node.op is Op.ASSIGN else node.arg
    if not isinstance(buffer, Buffer) or not (buffer.is_realized or buffer.kind == "state"):
        return None
    if buffer.is_realized and SESSION.handles.newest.get(buffer, node) is not node:
        return None  # an old version, which keeps its values
    if any(v.op is Op.EXPAND for v in views):
        raise ModelError(f"assign: a view of {buffer} repeats elements; call contiguous() first")
    return node


def _through_views(view: Node, inner: Node, value: TensorTransposed) -> tuple[Region | None, Node]:
    """Return the region of `inner` that a view covers, and `value` in the layout of the region."""
    while view is not inner:
        source = view.src[0]
        if view.op is Op.SHRINK:
            if source is inner:
                return view.arg, value.node
            value = TensorTransposed.of(merged(source, view.arg, value.node))
        elif view.op is Op.PERMUTE:
            value = value.permute(tuple(int(a) for a in np.argsort(view.arg)))
        elif view.op is Op.FLIP:
            value = value.flip(view.arg)
        else:
            value = value.reshape(source.shape)
        view = source
    return None, value.node


def _next_version(inner: Node, region: Region | None, sources: tuple[Node, ...]) -> Node:
    """Return an ASSIGN that writes new values to a region of a buffer (None: all of it)."""
    if inner.op is Op.ASSIGN:  # merge with the pending write, because a run stores only the last
        plain = value_after(inner)
        memo = {inner: plain}
        sources = tuple(rebuild(s, memo) for s in sources)
        if region is not None:
            sources, region = (merged(plain, region, sources[0], sources[1:]),), None
    target = inner.src[0] if inner.op is Op.ASSIGN else inner
    new = make(Op.ASSIGN, target.dtype, (target, *sources), region)
    if target.arg.is_realized:
        SESSION.handles.record_version(target.arg, new)
    return new


def _without_ints(items: list[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a region's shape without the axes of int items, which a value does not have."""
    return tuple(
        s for s, item in zip(shape, items, strict=True) if not isinstance(item, int | np.integer)
    )

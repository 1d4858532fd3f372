"""TensorAssign adds assignment to tensors, whole or in part.

    p.assign(p / p.sum(1))        p is the new value from here on; what it was made of stays old
    p[2:5] = y, p[:, ids] = y     the rest of p stays

An assignment gives the tensor (and the one it is a view of) a new graph, in which the buffer is
written in place when run. States of a program are written through the handle that `assign` returns.
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
    """Assignment, whole and in part."""

    __slots__ = ()

    def assign(self, value: Self | Scalar | NDArray[Any]) -> Self:
        """Store a value (same shape and type, or a number) in the buffer this tensor is a view of.

        Returns:
            For a state a tensor whose value is the whole new content, while this one stays the old
            content. Otherwise this tensor, which is the new value from now on; so is the tensor
            it is a view of, unless that was assigned after the view was taken (the view keeps the
            old values then). What has no buffer yet just takes the value.

        Raises:
            ModelError: shape or type differ, or several elements of a view are one of the buffer.
        """
        given = self.fit(value)
        if given.ndim == 0 and not isinstance(value, TensorTransposed):
            given = given.broadcast_to(self.shape)
        if given.shape != self.shape:
            raise ModelError(f"assign: {self!r} cannot take {given!r}")
        inner = self._storage()
        if inner is None:
            self._become(given.node)
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
        self._move(inner, new)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        """Replace a part: ints, slices of any step, Ellipsis, and one index tensor on one axis.

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
        view = whole[key]  # of a stand-in: a view of a view may leave out the one between them
        if not all(view.shape):
            return
        part, node = _through_views(view.node, whole.node, given.broadcast_to(view.shape))
        self._write_part(part, (rebuild(node, {whole.node: self.node}),))

    def fit(self, value: Any) -> TensorTransposed:
        """Return a value to be written here; raise ModelError for a tensor of another type."""
        given = self.operand(value)
        if not isinstance(value, TensorTransposed):
            given = given.cast(self.dtype)
        if given.dtype is not self.dtype:
            raise ModelError(f"assign: {self!r} cannot take {given!r}; cast it")
        return given

    def _indexed_region(self, items: list[Any], picked: list[int]) -> tuple[Region, Self]:
        index = self.index_tensor(items[picked[0]])
        lifted = any(item is None for item in items)
        if len(picked) > 1 or lifted or index is None or index.ndim > 1:
            raise ModelError(f"index: expected one index of one axis and no None, found {items}")
        region: list[tuple[int, int, int] | None] = []
        for item, size in zip(items, self.shape, strict=True):
            if isinstance(item, slice):
                start, stop, step = item.indices(size)
                if step < 0:
                    raise ModelError(f"index: {item} beside an index tensor; use a positive step")
                region.append((start, max(start, stop), step))
            elif isinstance(item, int | np.integer):
                at = range(size)[item]
                region.append((at, at + 1, 1))
            else:
                region.append(None)
        return tuple(region), index.reshape(index.size)

    def _write_part(self, region: Region | None, sources: tuple[Node, ...]) -> None:
        """Give this tensor, and the one it is a view of, a value that differs in a region."""
        inner = self._storage()
        if inner is self.node:
            self._move(inner, _next_version(inner, region, sources))
            return
        whole = sources[0]
        if region is not None:
            whole = merged(self.node, region, whole, sources[1:])
        if inner is None:
            self._become(whole)
            return
        part, node = _through_views(self.node, inner, TensorTransposed.of(whole))
        self._move(inner, _next_version(inner, part, (node,)))

    def _storage(self) -> Node | None:
        """Return the buffer, or its newest ASSIGN, that this tensor owns, and a write goes to."""
        inner = _target(self.node)
        buffer = None if inner is None else (inner.src or (inner,))[0].arg
        if buffer is None or not buffer.is_realized:
            return inner
        owner, holder = self.owner, SESSION.handles.holder_of(buffer)
        root = self if owner is None else owner
        if holder is not None and holder is not root and base_of(holder.node) is inner:
            return None
        SESSION.handles.hold(buffer, root)
        return inner

    def _become(self, node: Node) -> None:
        """Take a value that goes to no buffer; this is no view of another tensor any more."""
        self.node, self._owner = node, None

    def _move(self, inner: Node, new: Node) -> None:
        """Let this tensor and its owner mean the new version of a buffer."""
        if new is inner:  # the same value again
            return
        memo = {inner: new}
        for holder in (self, self.owner):
            # An owner that was given another value since is no view of this buffer any more.
            if holder is not None and base_of(holder.node) is inner:
                holder.node = rebuild(holder.node, memo)
        _supersede(inner)


def _supersede(version: Node) -> None:
    """Let all tensors take an ASSIGN for its value: another one follows, so it is never stored."""
    if version.op is Op.ASSIGN:
        SESSION.handles.substitute({version: value_after(version)})


def _target(node: Node) -> Node | None:
    """Return the buffer, or its newest ASSIGN, that a tensor views, without repeated elements."""
    views, node = peel(node, INVERTIBLE | {Op.EXPAND})
    buffer = node.src[0].arg if node.op is Op.ASSIGN else node.arg
    if not isinstance(buffer, Buffer) or not (buffer.is_realized or buffer.kind == "state"):
        return None
    if buffer.is_realized and SESSION.handles.newest.get(buffer, node) is not node:
        return None  # these are old values, and stay old
    if any(v.op is Op.EXPAND for v in views):
        raise ModelError(f"assign: a view of {buffer} repeats elements; call contiguous() first")
    return node


def _through_views(view: Node, inner: Node, value: TensorTransposed) -> tuple[Region | None, Node]:
    """Return where in `inner` a value of a view of it goes, and the value in that order."""
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
    """Return the ASSIGN that leaves a buffer with new values in a region (None: everywhere)."""
    if inner.op is Op.ASSIGN:  # only the last value of a run is stored
        plain = value_after(inner)
        memo = {inner: plain}
        sources = tuple(rebuild(s, memo) for s in sources)
        if region is not None:
            sources, region = (merged(plain, region, sources[0], sources[1:]),), None
    target = inner.src[0] if inner.op is Op.ASSIGN else inner
    new = make(Op.ASSIGN, target.dtype, (target, *sources), region)
    if target.arg.is_realized:
        SESSION.handles.wrote(target.arg, new)
    return new


def _without_ints(items: list[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(
        s for s, item in zip(shape, items, strict=True) if not isinstance(item, int | np.integer)
    )

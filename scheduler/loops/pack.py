"""Pack a weight in the order its kernel reads it, on the host, at compile time.

    W[co, ci] read by a tile of 2x16 outputs, loop over ci   ->   P[co/32][ci][2][16]

Every load of a weight becomes a stride-1 vector load from a stream, whatever the ONNX layout was.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.node import Node
from scheduler.loops.place import Place

# Packing may repeat a weight (overlapping last block); beyond this factor it is read as it is.
# Weights of fewer elements than the second may grow as if they had as many.
MAX_GROWTH = 4
MIN_SIZE = 64


@dataclass(frozen=True, slots=True)
class Axis:
    """How one range is cut: value = min(outer*block, size-block) + unroll*lanes + lane.

    A single block may be larger than the range: then min(unroll*lanes, size-lanes) + lane. So may
    a single vector: lanes beyond the range repeat its last element.

    Attributes:
        atom: the range.
        outer, unroll, lanes: its parts.
        apart: its unrolled steps are packed beside the outer ones, so that what other axes walk
            between them lies together.
    """

    atom: Atom
    outer: int
    unroll: int
    lanes: int
    apart: bool = False

    @property
    def block(self) -> int:
        """Elements per outer step."""
        return self.unroll * self.lanes

    def starts(self) -> NDArray[np.int64]:
        """Return where each vector starts, over (outer, unroll).

        The last block overlaps the one before; where there is one block only, its last vectors do.
        """
        size, inside = self.atom.size, np.arange(self.unroll) * self.lanes
        if self.outer == 1:
            return np.minimum(inside, max(0, size - self.lanes))[None]
        base = np.minimum(np.arange(self.outer) * self.block, size - self.block)
        return np.asarray(base[:, None] + inside, np.int64)

    def values(self) -> NDArray[np.int64]:
        """Return the range's value over (outer, unroll, lane)."""
        return np.asarray(self.starts()[:, :, None] + np.arange(self.lanes), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A packed weight; strides, in elements, of each axis' outer, unroll and lane coordinate."""

    source: Node
    data: NDArray[Any]
    strides: dict[Atom, tuple[int, int, int]]

    def same_as(self, other: PackedWeight) -> bool:
        """Whether another packing holds the same elements in the same order."""
        return (
            self.source is other.source
            and self.strides == other.strides
            and np.array_equal(self.data, other.data)
        )


# What a parameter of a kernel is bound to.
Argument = Node | PackedWeight


def pack(load: Node, axes: list[Axis]) -> PackedWeight | None:
    """Return the packed form of a weight load, None if it should be read as it is.

    Args:
        load: a placed LOAD of a weight.
        axes: ranges of the kernel in loop order, lanes last; those the load does not use are
            skipped. A load over any other range, or over run-time indices, is not packed.
    """
    place: Place = load.arg
    buffer = load.src[0].arg
    leaves = [a for ix in (*place.index, *(p[0] for p in place.valid)) for a in ixs.leaves(ix)]
    if not {axis.atom for axis in axes}.issuperset(leaves):
        # A range of another kernel loop, or an index at run time, has no place in the packed order.
        return None
    used = [axis for axis in axes if axis.atom in leaves]
    order = _order(used)
    at = {part: i for i, part in enumerate(order)}
    sizes = [(used[i].outer, used[i].unroll, used[i].lanes)[part] for i, part in order]
    # Overlapping blocks of several axes multiply, so growth is bounded before anything is
    # allocated.
    if prod(sizes) > MAX_GROWTH * max(MIN_SIZE, buffer.data.size):
        return None
    grids: dict[Atom, NDArray[np.int64]] = {}
    for i, axis in enumerate(used):
        places = [at[i, part] for part in range(3)]
        # Each axis varies along the places of its three parts only, and numpy broadcasts the rest.
        shape = [s if p in places else 1 for p, s in enumerate(sizes)]
        grids[axis.atom] = axis.values().reshape(shape)
    index = tuple(np.broadcast_to(_evaluate(ix, grids), sizes) for ix in place.index)
    inside = np.ones(sizes, bool)
    for ix, low, high in place.valid:
        value = _evaluate(ix, grids)
        inside &= (value >= low) & (value <= high)
    # Indices outside are clipped to read something; `inside` replaces what they found by the fill.
    clipped = tuple(np.clip(i, 0, s - 1) for i, s in zip(index, buffer.shape, strict=True))
    data = np.where(inside, buffer.data[clipped], buffer.data.dtype.type(place.fill))
    # Row-major strides of the packed order, one for each part of an axis.
    steps = [prod(sizes[p + 1 :]) for p in range(len(sizes))]
    strides = {
        a.atom: (steps[at[i, 0]], steps[at[i, 1]], steps[at[i, 2]]) for i, a in enumerate(used)
    }
    return PackedWeight(load.src[0], np.asarray(data, order="C").reshape(-1), strides)


def _order(axes: list[Axis]) -> list[tuple[int, int]]:
    """Return (axis, 0 for its outer steps, 1 for its unrolled ones, 2 for its lanes), outer first.

    The parts of an axis are in this order, so that its values fill their places as they are.
    """
    # Loop order outside, unrolled steps inside of that, lanes last: a register tile reads one run.
    order: list[tuple[int, int]] = []
    for i, axis in enumerate(axes):
        order += [(i, 0), (i, 1)] if axis.apart else [(i, 0)]
    order += [(i, 1) for i, axis in enumerate(axes) if not axis.apart]
    return order + [(i, 2) for i in range(len(axes))]


def _evaluate(ix: Ix, grids: dict[Atom, NDArray[np.int64]]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = np.full((), ix.const, np.int64)
    for atom, factor in ix.terms:
        if atom.inner is None:
            value = grids[atom]
        else:
            inner = _evaluate(atom.inner, grids)
            value = inner // atom.by if atom.kind == "div" else inner % atom.by
        total = total + value * factor
    return total

"""What the realize walk works with: uses of a value, regions (kernels to be), private arrays."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler import index as ixs
from scheduler.index import Atom, Ix
from scheduler.kernelize.ranges import Index
from scheduler.node import Node


@dataclass(slots=True)
class Use:
    """How one kernel needs a node.

    Attributes:
        root: the stored node whose kernel it is.
        index: of the needed element, in the ranges of that kernel.
        times: evaluations per element of the node, if nothing is hoisted.
        reduced: it is needed inside a reduction, whose register tile shares it between results.
    """

    root: Node
    index: Index
    times: float
    reduced: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """A kernel to be: the stored node and the ranges over its shape."""

    root: Node
    ranges: tuple[Atom | None, ...]  # None for axes of size 1

    @property
    def index(self) -> Index:
        """The element this kernel's iteration stores."""
        return tuple(ixs.ZERO if r is None else ixs.of(r) for r in self.ranges)


def open_region(root: Node) -> Region:
    """Return a region with fresh ranges over the shape of a node."""
    ranges = tuple(None if s == 1 else ixs.new_range(s, f"r{i}") for i, s in enumerate(root.shape))
    return Region(root, ranges)


@dataclass(frozen=True, slots=True)
class Stage:
    """A value that one kernel keeps in a private array per work-item, computed once per row.

        softmax(q @ k)     max, sum and quotient each need the row of scores: it is computed once

    Attributes:
        root: the kernel.
        index: of the element that a step of the filling loop computes.
        ranges: of the filling loop: the axes of the array.
        axes: which axes of the value they are; the others are the row.
    """

    root: Node
    index: Index
    ranges: tuple[Atom, ...]
    axes: tuple[int, ...]

    def offset(self, index: Index) -> Ix:
        """Return where the array holds the element at an index of the value."""
        return ixs.flatten([index[a] for a in self.axes], [r.size for r in self.ranges])


@dataclass(frozen=True, slots=True)
class Realized:
    """Stored nodes with their ranges, consumers before producers, and private arrays."""

    regions: dict[Node, Region]
    stages: dict[Node, Stage]


def reduce_index(node: Node, index: Index) -> tuple[Index, tuple[Atom, ...]]:
    """Return the source index of a REDUCE with fresh ranges on reduced axes, and those ranges."""
    axes, shape = node.arg[1], node.src[0].shape
    ranges: list[Atom] = []
    inner: list[Ix] = []
    for axis, (i, size) in enumerate(zip(index, shape, strict=True)):
        if axis in axes and size > 1:
            ranges.append(ixs.new_range(size, f"k{axis}"))
            inner.append(ixs.of(ranges[-1]))
        else:
            inner.append(i)
    return tuple(inner), tuple(ranges)

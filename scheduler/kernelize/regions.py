"""Defines StorePlan, the record of all stored nodes, and their planned loop nests (regions).

This module has the data only: `realize.py` makes a StorePlan, `store_plan.py` repeats that until
all kernels fit the device. A stored node has one or more regions, each for all or a slice of it:

    stored: cat(a, b, c)            ->  three loop nests of one kernel, each writes its slice
    stored: relu(cat(a, b) * w)     ->  two: relu(a * w[:, :ka]), relu(b * w[:, ka:])

Without this split at a concat (CAT), one loop nest would evaluate every source for every element,
without vector loads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from scheduler.device.costs import Costs
from scheduler.device.spec import DeviceSpec
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.movement import Index
from scheduler.ir.node import Node
from scheduler.ir.ops import ELEMENTWISE, Op


@dataclass(slots=True)
class Use:
    """One kernel's use of a node."""

    root: Region
    index: Index  # index of the needed element, in the ranges of that kernel
    times: float  # number of evaluations per element of the node, without hoisting
    # Whether it is used inside a reduction, where one evaluation serves a whole register tile.
    reduced: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A planned loop nest. Regions compare by identity."""

    root: Node  # the computed node: a stored node, or one source of a stored concat
    ranges: tuple[Atom | None, ...]  # one loop per axis of root; None for axes of size 1
    target: Node  # the stored node: root itself, a concat, or an ASSIGN to a part of a buffer
    at: tuple[int, ...]  # position of root in target: first index (at) and step (steps) per axis
    steps: tuple[int, ...]
    # For a write of rows at run-time indices: the axis, and an integer node (m,) with the target
    # index of each row.
    row: tuple[int, Node] | None = None
    begin: tuple[int, ...] = ()  # first index of the loops in root, per axis; () for all zeros

    @property
    def index(self) -> Index:
        """The index of root that one iteration computes."""
        here = tuple(ixs.ZERO if r is None else ixs.of(r) for r in self.ranges)
        begin = self.begin or (0,) * len(here)
        return tuple(ixs.shift(i, b) if b else i for i, b in zip(here, begin, strict=True))

    @property
    def target_index(self) -> Index:
        """The index of target that one iteration stores to; 0 on the axis of `row`."""
        placed = zip(self.index, self.at, self.steps, strict=True)
        index = [ixs.add(ixs.mul(i, step), ixs.constant(a)) for i, a, step in placed]
        if self.row is not None:
            index[self.row[0]] = ixs.ZERO
        return tuple(index)


def open_region(root: Node, target: Node | None = None, at: tuple[int, ...] = ()) -> Region:
    """Return a region with new ranges that computes `root` and stores it at `at` in `target`."""
    rank = len(root.shape)
    return Region(root, _ranges(root.shape), target or root, at or (0,) * rank, (1,) * rank)


def open_regions(
    node: Node, cut: tuple[int, Sequence[int]] | None, *, in_parts: bool
) -> tuple[Region, ...]:
    """Return the loop nests of a stored node; none for the result of a custom kernel.

    Args:
        node: the stored node.
        cut: axis and ends of the slices to compute it in; None for one nest.
        in_parts: whether each source of a concat has its own loops.
    """
    if node.op is Op.RESULT:
        return ()  # the launch of the custom kernel computes it
    if in_parts:
        return _open_parts(node)
    if node.op is Op.ASSIGN and node.arg is not None:
        return (_open_write(node),)
    return (open_region(node),) if cut is None else _open_slices(node, *cut)


def _open_write(assign: Node) -> Region:
    """Return a region over the value of an ASSIGN to a part of a buffer.

    `assign.arg` has (start, stop, step) per axis, or None on the axis of rows whose indices are the
    third source.
    """
    parts = [part or (0, 1, 1) for part in assign.arg]
    row = (assign.arg.index(None), assign.src[2]) if None in assign.arg else None
    value = assign.src[1]
    at, steps = tuple(p[0] for p in parts), tuple(p[2] for p in parts)
    return Region(value, _ranges(value.shape), assign, at, steps, row)


def _ranges(shape: Sequence[int]) -> tuple[Atom | None, ...]:
    return tuple(None if s == 1 else ixs.new_range(s, f"r{i}") for i, s in enumerate(shape))


def _open_parts(concat: Node) -> tuple[Region, ...]:
    """Return one region per source of a CAT; each writes its slice of the concat."""
    parts, begin = [], 0
    for source in concat.src:
        at = tuple(begin if axis == concat.arg else 0 for axis in range(len(concat.shape)))
        parts.append(open_region(source, concat, at))
        begin += source.shape[concat.arg]
    return tuple(parts)


def _open_slices(root: Node, axis: int, ends: Sequence[int]) -> tuple[Region, ...]:
    """Return one region per slice of a node along an axis; `ends` are the ends of the slices."""
    rank, slices, start = len(root.shape), [], 0
    for end in ends:
        shape = [end - start if a == axis else s for a, s in enumerate(root.shape)]
        begin = tuple(start if a == axis else 0 for a in range(rank))
        at, steps = (0,) * rank, (1,) * rank
        slices.append(Region(root, _ranges(shape), root, at, steps, begin=begin))
        start = end
    return tuple(slices)


@dataclass(frozen=True, slots=True)
class Stage:
    """A value that one kernel keeps in a private array per work-item.

    softmax(q @ k)     max, sum and quotient all need the scores of a row, computed once per row
    """

    root: Region
    index: Index  # index of the element that one step of the filling loop computes
    ranges: tuple[Atom, ...]  # loops that fill the array, one per axis of the array
    axes: tuple[
        int, ...
    ]  # axes of the value that the array holds; the array is refilled per index of the others

    def offset(self, index: Index) -> Ix:
        """Return the offset in the array of the element at an index of the value."""
        return ixs.flatten([index[a] for a in self.axes], [r.size for r in self.ranges])


@dataclass(frozen=True, slots=True)
class StorePlan:
    """All stored nodes with their loop nests and the reasons for storing them.

    Attributes:
        sinks: outputs and ASSIGN nodes.
        spec: the device row.
        requested: nodes stored at any cost, each with a short phrase as the reason.
        alone: stored nodes whose kernels are not merged with others.
        regions: loop nests of each stored node, consumers first; one per slice or per source of
            a concat if it is computed in parts.
        stages: values that kernels keep in private arrays.
        reasons: the reason for storing each stored node.
    """

    sinks: tuple[Node, ...]
    spec: DeviceSpec
    requested: Mapping[Node, str]
    alone: frozenset[Node]
    regions: dict[Node, tuple[Region, ...]]
    stages: dict[Node, Stage]
    reasons: dict[Node, str]


def reduce_index(node: Node, index: Index) -> tuple[Index, tuple[Atom, ...]]:
    """Return the source index of a REDUCE, with new ranges on reduced axes, and these ranges."""
    axes, shape = node.arg[1], node.src[0].shape
    ranges = {a: ixs.new_range(shape[a], f"k{a}") for a in sorted(axes) if shape[a] > 1}
    inner = tuple(ixs.of(ranges[a]) if a in ranges else i for a, i in enumerate(index))
    return inner, tuple(ranges[a] for a in axes if a in ranges)


def in_parts(
    concat: Node, carries: Mapping[Node, bool], cost: Mapping[Node, float], costs: Costs
) -> bool:
    """Whether the sources of a stored concat are computed in separate loops, without selection.

    Args:
        concat: the node; anything but a CAT gives False.
        carries: whether each node holds a reduction.
        cost: for each node, the cost of recomputing an element.
        costs: the cost model of the device row.
    """
    if concat.op is not Op.CAT:
        return False
    if any(carries[s] for s in concat.src):
        return True
    size = prod(concat.shape)
    repeated = sum(cost[s] * (size - prod(s.shape)) for s in concat.src)
    return repeated > costs.launch or _is_worth_slicing(concat, len(concat.src), costs)


def _is_worth_slicing(node: Node, sources: int, costs: Costs) -> bool:
    """Whether separate loops are allowed and cost less than selecting a source per element."""
    selecting = prod(node.shape) * (sources - 1) * costs.select
    return 1 < sources <= costs.max_slices and selecting > costs.launch


def cut_at_concats(
    node: Node, users: Mapping[Node, Sequence[Node]], forced: Collection[Node], costs: Costs
) -> tuple[int, list[int]] | None:
    """Return the axis and ends of the slices to compute a stored value in; None to not slice it.

    Args:
        node: the stored node; it holds no reduction.
        users: the readers of each node.
        forced: nodes that are stored in any case.
        costs: the cost model of the device row.
    """
    cuts: dict[int, set[int]] = {}
    for concat, axes in _concats_among_inputs(node, users, forced):
        ends, at = cuts.setdefault(axes.index(concat.arg), set()), 0
        for source in concat.src:
            at += source.shape[concat.arg]
            ends.add(at)
    if not cuts:
        return None
    axis = max(cuts, key=lambda a: len(cuts[a]))
    return (axis, sorted(cuts[axis])) if _is_worth_slicing(node, len(cuts[axis]), costs) else None


def _concats_among_inputs(
    node: Node, users: Mapping[Node, Sequence[Node]], forced: Collection[Node]
) -> list[tuple[Node, tuple[int, ...]]]:
    """Return the concats that a value reads through elementwise ops and that nothing else reads.

    Each has the axes of the value that its own axes correspond to.
    """
    start = (node, tuple(range(len(node.shape))))
    stack, seen, found = [start], {node}, []
    while stack:
        below, axes = stack.pop()
        if below.op is Op.CAT:
            found.append((below, axes))
            continue
        if below.op is Op.PERMUTE:
            axes = tuple(below.arg[a] for a in axes)
        elif below.op not in ELEMENTWISE and below.op is not Op.CONTIGUOUS:
            continue
        for source in below.src:
            # A source that is read twice, as in PReLU, is visited after both of its readers.
            mine = seen.issuperset(users[source])
            if mine and source not in seen and source not in forced:
                seen.add(source)
                stack.append((source, axes))
    return found

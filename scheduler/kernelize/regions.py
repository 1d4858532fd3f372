"""A StorePlan says what is stored, and by which loop nests (regions).

    stored: cat(a, b, c)            ->  three loop nests of one kernel, each writes its slice
    stored: relu(cat(a, b) * w)     ->  two: relu(a * w[:, :ka]), relu(b * w[:, ka:])

Without the cut at a concat (CAT), one loop nest would evaluate every source for every element,
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
    """How one kernel needs a node."""

    root: Region
    index: Index  # of the needed element, in the ranges of that kernel
    times: float  # evaluations per element of the node, if nothing is hoisted
    reduced: bool = False  # inside a reduction, whose register tile shares it between results


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A loop nest to be; compared by identity."""

    root: Node  # what it computes: a stored node, or one source of a stored concat
    ranges: tuple[Atom | None, ...]  # over the shape of root; None for axes of size 1
    target: Node  # the stored node: root itself, a concat, or an ASSIGN to a part of a buffer
    at: tuple[int, ...]  # at, steps: where root begins in target, and its step there, per axis
    steps: tuple[int, ...]
    row: tuple[int, Node] | None = None  # axis, and integers (m,): where each row goes on it
    begin: tuple[int, ...] = ()  # where in root the loops begin, per axis; () is the origin

    @property
    def index(self) -> Index:
        """The element of root that one iteration computes."""
        here = tuple(ixs.ZERO if r is None else ixs.of(r) for r in self.ranges)
        begin = self.begin or (0,) * len(here)
        return tuple(ixs.shift(i, b) if b else i for i, b in zip(here, begin, strict=True))

    @property
    def target_index(self) -> Index:
        """The element of target that it stores; 0 on the axis of `row`."""
        placed = zip(self.index, self.at, self.steps, strict=True)
        index = [ixs.add(ixs.mul(i, step), ixs.constant(a)) for i, a, step in placed]
        if self.row is not None:
            index[self.row[0]] = ixs.ZERO
        return tuple(index)


def open_region(root: Node, target: Node | None = None, at: tuple[int, ...] = ()) -> Region:
    """Return a region with fresh ranges that computes `root`, from `at` on in `target`."""
    rank = len(root.shape)
    return Region(root, _ranges(root.shape), target or root, at or (0,) * rank, (1,) * rank)


def open_regions(
    node: Node, cut: tuple[int, Sequence[int]] | None, *, in_parts: bool
) -> tuple[Region, ...]:
    """Return the loop nests of a stored node, none for the result of a custom kernel.

    Args:
        node: what is stored.
        cut: axis and ends of the slices that it is computed in; None for all at once.
        in_parts: whether the sources of a concat get loops of their own.
    """
    if node.op is Op.RESULT:
        return ()  # its launch computes it; what that reads is stored as well
    if in_parts:
        return _open_parts(node)
    if node.op is Op.ASSIGN and node.arg is not None:
        return (_open_write(node),)
    return (open_region(node),) if cut is None else _open_slices(node, *cut)


def _open_write(assign: Node) -> Region:
    """Return a region over the value of an ASSIGN to a part of a buffer."""
    parts = [part or (0, 1, 1) for part in assign.arg]
    row = (assign.arg.index(None), assign.src[2]) if None in assign.arg else None
    value = assign.src[1]
    at, steps = tuple(p[0] for p in parts), tuple(p[2] for p in parts)
    return Region(value, _ranges(value.shape), assign, at, steps, row)


def _ranges(shape: Sequence[int]) -> tuple[Atom | None, ...]:
    return tuple(None if s == 1 else ixs.new_range(s, f"r{i}") for i, s in enumerate(shape))


def _open_parts(concat: Node) -> tuple[Region, ...]:
    """Return one region for each source of a CAT, each writing its slice of the concat."""
    parts, begin = [], 0
    for source in concat.src:
        at = tuple(begin if axis == concat.arg else 0 for axis in range(len(concat.shape)))
        parts.append(open_region(source, concat, at))
        begin += source.shape[concat.arg]
    return tuple(parts)


def _open_slices(root: Node, axis: int, ends: Sequence[int]) -> tuple[Region, ...]:
    """Return regions that compute a node slice by slice along an axis, up to each of `ends`."""
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
    """A value that one kernel keeps in a private array per work-item, computed once per row.

    softmax(q @ k)     max, sum and quotient each need the row of scores: it is computed once
    """

    root: Region
    index: Index  # of the element that a step of the filling loop computes
    ranges: tuple[Atom, ...]  # of the filling loop: the axes of the array
    axes: tuple[int, ...]  # which axes of the value they are; the others are the row

    def offset(self, index: Index) -> Ix:
        """Return where the array holds the element at an index of the value."""
        return ixs.flatten([index[a] for a in self.axes], [r.size for r in self.ranges])


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Every node that is stored, and why.

    Attributes:
        sinks: outputs and ASSIGN nodes.
        spec: of the device.
        asked: nodes stored at any cost, with the reason: a short phrase.
        alone: stored nodes whose kernels are not merged with others.
        regions: loop nests of each stored node, consumers first; of a concat, one per source.
        stages: values that kernels keep in private arrays.
        reasons: of each stored node.
    """

    sinks: tuple[Node, ...]
    spec: DeviceSpec
    asked: Mapping[Node, str]
    alone: frozenset[Node]
    regions: dict[Node, tuple[Region, ...]]
    stages: dict[Node, Stage]
    reasons: dict[Node, str]


def reduce_index(node: Node, index: Index) -> tuple[Index, tuple[Atom, ...]]:
    """Return the source index of a REDUCE with fresh ranges on reduced axes, and those ranges."""
    axes, shape = node.arg[1], node.src[0].shape
    ranges = {a: ixs.new_range(shape[a], f"k{a}") for a in sorted(axes) if shape[a] > 1}
    inner = tuple(ixs.of(ranges[a]) if a in ranges else i for a, i in enumerate(index))
    return inner, tuple(ranges[a] for a in axes if a in ranges)


def in_parts(
    concat: Node, carries: Mapping[Node, bool], cost: Mapping[Node, float], costs: Costs
) -> bool:
    """Whether the sources of a stored concat are computed in loops of their own, not selected from.

    Args:
        concat: the CAT; other nodes have no parts.
        carries: per node, whether it holds a reduction.
        cost: per node, of computing an element again.
        costs: those of the device.
    """
    if concat.op is not Op.CAT:
        return False
    if any(carries[s] for s in concat.src):
        return True
    size = prod(concat.shape)
    repeated = sum(cost[s] * (size - prod(s.shape)) for s in concat.src)
    return repeated > costs.launch or _selected(concat, len(concat.src), costs)


def _selected(node: Node, sources: int, costs: Costs) -> bool:
    """Whether choosing among sources for each element costs more than loops of their own."""
    selecting = prod(node.shape) * (sources - 1) * costs.select
    return 1 < sources <= costs.max_slices and selecting > costs.launch


def cut_at_concats(
    node: Node, users: Mapping[Node, Sequence[Node]], forced: Collection[Node], costs: Costs
) -> tuple[int, list[int]] | None:
    """Return the axis and ends of the slices to compute a stored value in; None for all at once.

    Args:
        node: what is stored; it holds no reduction.
        users: per node, who reads it.
        forced: what is stored in any case.
        costs: those of the device.
    """
    cuts: dict[int, set[int]] = {}
    for concat, axes in _concats_below(node, users, forced):
        ends, at = cuts.setdefault(axes.index(concat.arg), set()), 0
        for source in concat.src:
            at += source.shape[concat.arg]
            ends.add(at)
    if not cuts:
        return None
    axis = max(cuts, key=lambda a: len(cuts[a]))
    return (axis, sorted(cuts[axis])) if _selected(node, len(cuts[axis]), costs) else None


def _concats_below(
    node: Node, users: Mapping[Node, Sequence[Node]], forced: Collection[Node]
) -> list[tuple[Node, tuple[int, ...]]]:
    """Return the concats that alone make up a value elementwise, each with the value's axes."""
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
            # What reads it twice, as PReLU does, is looked at before.
            mine = seen.issuperset(users[source])
            if mine and source not in seen and source not in forced:
                seen.add(source)
                stack.append((source, axes))
    return found

"""Chooses the nodes that are cheapest to store, in one reverse walk over the graph.

    y = relu(conv(x)); z = conv(y) + y      ->      kernels {relu(conv(x))}, {conv(y) + y}

Consumers are visited before their sources, so each node knows the indices at which kernels need it.
A node that is not stored is computed inside every kernel that needs it. It is stored if that would
cost more than memory does. The result is a StorePlan, by these rules:

- Outputs, state writes and pins (CONTIGUOUS) are always stored.
- A value that holds a reduction is computed once per element. It stays inside a kernel only if
  exactly one kernel needs it and runs the loops it depends on once, hoisted out of other loops if
  necessary. Otherwise it is stored after its elementwise operations, so bias, activation and
  residual are in its kernel.
- An elementwise value without a reduction is recomputed unless the repeated work costs more than a
  store and a launch, it is needed at too many places, or an index would divide too often.
- Movement ops, casts to a wider type and products fused into a sum are not stored by choice.
- A stored concat (CAT) has one loop nest per source, which writes its slice (`regions.py`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from scheduler.device.costs import Costs
from scheduler.device.spec import DeviceSpec
from scheduler.ir import index as ixs
from scheduler.ir.custom_kernel import stored_for_custom
from scheduler.ir.index import Atom
from scheduler.ir.movement import MOVES, Index, cat_sources, source_index
from scheduler.ir.node import Node, consumers, toposort
from scheduler.ir.ops import COST, ELEMENTWISE, LEAVES, MOVEMENT, Op, is_fused
from scheduler.kernelize.regions import (
    Region,
    Stage,
    StorePlan,
    Use,
    cut_at_concats,
    in_parts,
    open_regions,
    reduce_index,
)

# Leaves are read where they are. If a movement op has to be stored, the node below it is.
_NEVER_STORED = LEAVES | {Op.WORDS} | MOVES
# Maximum number of ends of elementwise paths tracked per value. With more, the value itself counts
# as an end (`_needed_apart`).
MAX_ENDS = 16
_UNKNOWN = "?"  # name of ranges that replace an index known only at run time
_ONE_TO_ONE = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP})


@dataclass(slots=True)
class _Walk:
    """Decisions made so far in the walk.

    Attributes:
        spec: the device row.
        regions: loop nests of stored nodes.
        stages: values kept in private arrays.
        around: for each reduce range, the ranges of the loops around it.
        hoisted: for each kernel, the outer ranges that its hoisted reductions depend on.
        reduced: for each node, the elements read by the largest reduction that it holds through
            elementwise and movement ops.
    """

    spec: DeviceSpec
    regions: dict[Node, tuple[Region, ...]]
    stages: dict[Node, Stage]
    around: dict[Atom, frozenset[Atom]]
    hoisted: dict[Region, frozenset[Atom]]
    reduced: dict[Node, int]

    def loops_of(self, index: Index) -> frozenset[Atom] | None:
        """Return the loops around a value at an index; None if only known at run time."""
        atoms: set[Atom] = set()
        for ix in index:
            for atom in ixs.leaves(ix):
                atoms.add(atom)
                atoms |= self.around.get(atom, frozenset())
        return (
            None
            if any(a.node is not None or a.name == _UNKNOWN for a in atoms)
            else frozenset(atoms)
        )

    def stays_inside(self, node: Node, use: Use) -> bool:
        """Whether a value that holds a reduction is computed in the only kernel that needs it."""
        loops = self.loops_of(use.index)
        if loops is None or prod(a.size for a in loops) > prod(node.shape):
            return False
        mine = {r for r in use.root.ranges if r is not None}
        if not loops <= mine:
            return self.reduced[node] <= self.spec.costs.max_nested_work
        return self._hoists(use.root, loops, mine, self.reduced[node])

    def _hoists(self, root: Region, loops: frozenset[Atom], mine: set[Atom], work: int) -> bool:
        """Whether a kernel can hoist a value into the loops `loops`; if so, records these loops."""
        if loops == mine:
            return True
        costs = self.spec.costs
        large = prod(root.root.shape) > costs.small_kernel or work > costs.max_serial_work
        few = prod(a.size for a in loops) < costs.hoist_rows and large
        if few or self.hoisted.get(root, loops) != loops:
            return False
        self.hoisted[root] = loops
        return True

    def try_stage(self, node: Node, needed: list[Use]) -> bool:
        """Keep a value in a private array of the only kernel that needs it, if it is small enough.

        All uses must share the row, whose axes are loops of the kernel, and the work per row is
        bounded. Return whether the value is kept.
        """
        root = needed[0].root
        if len(needed) < 2 or any(u.root is not root for u in needed):
            return False
        columns = [{u.index[axis] for u in needed} for axis in range(len(node.shape))]
        mine = {r for r in root.ranges if r is not None}
        axes, row = [], set[Atom]()
        for axis, found in enumerate(columns):
            leaves = {a for ix in found for a in ixs.leaves(ix)}
            inside = all(ix.lo >= 0 and ix.hi < node.shape[axis] for ix in found)
            if not inside or any(a.node is not None or a.name == _UNKNOWN for a in leaves):
                return False
            if len(found) == 1 and leaves <= mine:
                row |= leaves
            else:
                axes.append(axis)
        array = prod(node.shape[a] for a in axes)
        most = self.spec.private_elements
        small = array <= most and self.reduced[node] <= self.spec.costs.max_nested_work
        rows = prod(a.size for a in row)
        if not axes or not small or rows * array > prod(node.shape):
            return False
        if not self._hoists(root, frozenset(row), mine, self.reduced[node]):
            return False
        ranges = tuple(ixs.new_range(node.shape[a], f"s{a}") for a in axes)
        step = dict(zip(axes, ranges, strict=True))
        first = needed[0].index
        index = tuple(ixs.of(step[a]) if a in step else ix for a, ix in enumerate(first))
        self.stages[node] = Stage(root, index, ranges, tuple(axes))
        self.around.update(dict.fromkeys(ranges, frozenset(row) | set(ranges)))
        return True


def realize(
    sinks: Sequence[Node],
    spec: DeviceSpec,
    requested: Mapping[Node, str],
    alone: frozenset[Node],
) -> StorePlan:
    """Return the plan of stored nodes and of values kept in private arrays."""
    order = toposort(sinks)
    forced = _forced(sinks, order, requested)
    reasons: dict[Node, str] = {}
    users = consumers(order)
    carries, cost = _summaries(order, forced, users, spec.costs)
    uses: dict[Node, dict[tuple[Region, Index], Use]] = {n: {} for n in order}
    walk = _Walk(spec, {}, {}, {}, {}, _reduced_elements(order))
    for node in reversed(order):
        needed = list(uses[node].values())
        reason = forced.get(node, "")
        if not reason and needed and node.op not in _NEVER_STORED:
            reason = _reason_to_store(node, needed, carries[node], cost[node], walk)
        divided = in_parts(node, carries, cost, spec.costs)
        if reason and (node in forced or divided or not walk.try_stage(node, needed)):
            cut = None if carries[node] else cut_at_concats(node, users, forced, spec.costs)
            regions = open_regions(node, cut, in_parts=divided)
            walk.regions[node], reasons[node] = regions, reason
            for region in regions:
                if region.root is not node:
                    _merge_use(uses[region.root], Use(region, region.index, 1.0))
                if region.row is not None:
                    axis, row = region.row
                    _merge_use(uses[row], Use(region, (region.index[axis],), 1.0))
            needed = [Use(r, r.index, _share(r)) for r in regions if r.root is node]
        elif reason:
            needed = [Use(walk.stages[node].root, walk.stages[node].index, 1.0)]
        elif node.op in LEAVES:
            continue
        for use in needed:
            for src, need in _needs(node, use, walk):
                _merge_use(uses[src], need)
    return StorePlan(tuple(sinks), spec, requested, alone, walk.regions, walk.stages, reasons)


def _forced(
    sinks: Sequence[Node], order: Sequence[Node], requested: Mapping[Node, str]
) -> dict[Node, str]:
    """Return the nodes that are always stored, with reasons."""
    return {
        **{n: "contiguous() was requested" for n in order if n.op is Op.CONTIGUOUS},
        **dict.fromkeys(stored_for_custom(order), "a custom kernel reads or writes it"),
        **requested,
        **dict.fromkeys(sinks, "an output"),
        **{n: "the new value of a state" for n in order if n.op is Op.ASSIGN},
    }


def _share(region: Region) -> float:
    """Return the fraction of the elements of its root that a region computes."""
    return prod(r.size for r in region.ranges if r is not None) / max(1, prod(region.root.shape))


def _merge_use(table: dict[tuple[Region, Index], Use], use: Use) -> None:
    """Add a use; an element needed twice by one kernel is evaluated once there."""
    old = table.get((use.root, use.index))
    if old is None:
        table[use.root, use.index] = use
    else:
        old.times = max(old.times, use.times)
        old.reduced = old.reduced and use.reduced


def _reason_to_store(node: Node, needed: list[Use], carries: bool, cost: float, walk: _Walk) -> str:
    """Return the reason to store a value instead of recomputing it; "" to recompute."""
    if _widens(node) or is_fused(node):
        return ""
    costs = walk.spec.costs
    if len(needed) > costs.max_uses:
        return f"it is needed at {len(needed)} places"
    if any(ix.depth > costs.max_index_depth for use in needed for ix in use.index):
        return "an index would divide too often"
    if carries:
        if len(needed) > 1:
            return f"its reduction is needed at {len(needed)} places"
        return "" if walk.stays_inside(node, needed[0]) else "its reduction would be repeated"
    reuse = costs.tile_reuse
    evaluations = sum(max(1.0, u.times / reuse) if u.reduced else u.times for u in needed)
    size = prod(node.shape)
    memory = costs.operand_memory if any(u.reduced for u in needed) else costs.memory
    worth = size * (evaluations - 1) * cost > costs.launch + size * memory
    return "computing it again costs more than memory" if worth else ""


def _widens(node: Node) -> bool:
    """Whether a node only widens its source; then the narrow value is stored instead."""
    return node.op is Op.CAST and node.src[0].dtype.itemsize < node.dtype.itemsize


def _summaries(
    order: list[Node], forced: Container[Node], users: dict[Node, list[Node]], costs: Costs
) -> tuple[dict[Node, bool], dict[Node, float]]:
    """Return, per node, whether it carries a reduction and its cost of recomputing, in adds.

    A node carries a reduction if it is one, or reaches one through one-to-one operations and nodes
    that are not stored.
    """
    carries: dict[Node, bool] = {}
    cost: dict[Node, float] = {}
    apart = _needed_apart(order, forced, users)
    for node in order:
        below = [s for s in node.src if s not in forced and s not in apart]
        if node.op is Op.REDUCE:
            carries[node], cost[node] = True, 1e9
            continue
        carries[node] = _is_one_to_one(node) and any(carries[s] for s in below)
        own = float(COST.get(node.op, 1)) if node.op in ELEMENTWISE else 0.0
        if node.op is Op.CAT:
            own = 2.0 * len(node.src)
        if node.op is Op.GATHER:
            # Single values are looked up lane by lane; rows are read as vectors.
            own = 2.0 if len(node.src[0].shape) > 1 else costs.lookup
        cost[node] = own + sum(cost[s] for s in below if not carries[s])
    return carries, cost


def _is_one_to_one(node: Node) -> bool:
    """Whether each element of a node is computed from the same element of its sources."""
    if node.op is Op.EXPAND:
        return node.shape == node.src[0].shape
    return node.op in ELEMENTWISE or node.op in _ONE_TO_ONE


def _needed_apart(
    order: list[Node], forced: Container[Node], users: dict[Node, list[Node]]
) -> set[Node]:
    """Return nodes that several reductions or movements need, each by its own path.

    If such a node holds a reduction, as a residual stream before a layernorm does, it is stored,
    and its consumers do not carry the reduction.
    """
    reached: dict[Node, frozenset[Node]] = {}
    for node in reversed(order):
        found = [
            reached[u] if _is_one_to_one(u) and u not in forced else frozenset({u})
            for u in users[node]
        ]
        ends = found[0] if len(found) == 1 else frozenset[Node]().union(*found)
        reached[node] = ends if len(ends) <= MAX_ENDS else frozenset({node})
    return {
        node
        for node in order
        if node.op in ELEMENTWISE or node.op is Op.REDUCE
        if len(reached[node]) > 1 or reached[node] == {node}
        if not any(_is_one_to_one(u) and reached[u] == reached[node] for u in users[node])
    }


def _needs(node: Node, use: Use, walk: _Walk) -> list[tuple[Node, Use]]:
    """Return the uses of its sources that one use of `node` causes."""
    index, times = use.index, use.times
    if node.op in ELEMENTWISE:
        return [(s, Use(use.root, index, times, use.reduced)) for s in node.src]

    def need(inner: Index, ratio: float) -> Use:
        return Use(use.root, inner, times * ratio, use.reduced)

    if node.op in LEAVES:
        return []
    if node.op is Op.ASSIGN:
        return [(node.src[1], use)]
    if node.op is Op.WORDS:
        return [(node.src[0], need((*index[:-1], ixs.mul(index[-1], 4)), 0.25))]
    if node.op is Op.REDUCE:
        inner, ranges = reduce_index(node, index)
        outside = walk.loops_of(index)
        around = (outside or frozenset()) | set(ranges)
        walk.around.update(dict.fromkeys(ranges, around))
        if outside is not None:  # it stays here: its loops run once, hoisted if necessary
            times = prod(a.size for a in around) / max(1, prod(node.src[0].shape))
        return [(node.src[0], Use(use.root, inner, times, reduced=True))]
    if node.op is Op.GATHER:
        data, which = node.src
        at = index[node.arg : node.arg + len(which.shape)]
        # The row is known only at run time, so a reduction below a gather is stored, and other data
        # is counted twice.
        hidden = tuple(ixs.of(ixs.new_range(max(2, s), _UNKNOWN)) for s in data.shape)
        ratio = prod(node.shape) / max(1, prod(which.shape))
        return [(data, need(hidden, 2.0)), (which, need(at, ratio))]
    if node.op is Op.CAT:  # all sources are evaluated for every result, then one is selected
        size = prod(node.shape)
        found = [(s, i) for s, i, inside in cat_sources(node, index) if inside != ixs.NEVER]
        return [(s, need(i, size / max(1, prod(s.shape)))) for s, i in found]
    if node.op in MOVEMENT:
        src = node.src[0]
        inner, _ = source_index(node, index)
        ratio = prod(node.shape) / max(1, prod(src.shape))
        if node.op is Op.EXPAND and node.shape[-1] > src.shape[-1]:
            ratio = max(1.0, ratio / min(walk.spec.costs.shared_lanes, node.shape[-1]))
        return [(src, need(inner, ratio))]
    return [(s, need(index, 1.0)) for s in node.src]


def _reduced_elements(order: Sequence[Node]) -> dict[Node, int]:
    """Return, per node, the value of `_Walk.reduced`."""
    found: dict[Node, int] = {}
    for node in order:
        if node.op is Op.REDUCE:
            found[node] = prod(node.src[0].shape)
        elif node.op in ELEMENTWISE or node.op in MOVEMENT:
            found[node] = max((found[s] for s in node.src), default=0)
        else:
            found[node] = 0
    return found

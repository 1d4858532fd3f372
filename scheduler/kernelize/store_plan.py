"""Decides which nodes are stored so that every kernel fits the device and can be generated.

    s = a0 + a1 + ... + a511, at most 64 buffers     ->   partial sums of 63 terms are stored
    kernel {softmax(q @ k) @ v}, refused             ->   q @ k is stored, the rest is retried

`realize` chooses the nodes that are cheapest to store and returns a StorePlan (a class of
`regions.py`, which both modules import). This module requests more nodes, with reasons, and lets
`realize` choose again if

- a kernel has too many buffers; each is an argument, results included;
- a kernel fuses too many operations, since compile time grows faster than their number;
- the code of a kernel cannot be generated or breaks a limit that only the code shows. Merged
  kernels are taken apart first. The model still runs, more slowly, and a warning names the part and
  the cause.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final

from scheduler.device.costs import Costs
from scheduler.device.spec import DeviceSpec
from scheduler.ir.build import peel
from scheduler.ir.movement import MOVES
from scheduler.ir.node import Node, consumers, is_weight, post_order
from scheduler.ir.ops import ELEMENTWISE, LEAVES, MOVEMENT, Op, is_fused
from scheduler.kernelize.kernel import Kernel, name_of
from scheduler.kernelize.realize import realize
from scheduler.kernelize.regions import StorePlan

logger = logging.getLogger(__name__)

_NOTHING: Final[Mapping[Node, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Refused:
    """A kernel that cannot be used, with the reason in one line."""

    kernel: Kernel
    reason: str

    def __str__(self) -> str:
        return f"kernel of {name_of(self.kernel)}: {self.reason}"


def store_plan(
    sinks: Sequence[Node],
    spec: DeviceSpec,
    requested: Mapping[Node, str] = _NOTHING,
    alone: frozenset[Node] = frozenset(),
) -> StorePlan:
    """Return a plan of cheap kernels that have few enough buffers and operations for the device."""
    while True:
        plan = realize(sinks, spec, requested, alone)
        more = {n: why for n, why in _over_limits(plan).items() if n not in requested}
        if not more:
            return plan
        requested = {**requested, **more}


def split(plan: StorePlan, refused: Refused, kernels: Sequence[Kernel]) -> StorePlan | None:
    """Return a plan that splits a refused kernel; None if it cannot be split further.

    `kernels` are all kernels made from `plan`.
    """
    targets = frozenset(refused.kernel.targets)
    cut: set[Node] = set()
    if len(targets) == 1 or targets <= plan.alone:
        stored = frozenset(t for k in kernels for t in k.targets)
        cut = {n for t in targets for n in split_points(t, stored, plan.spec.costs)}
        if cut <= plan.requested.keys() & plan.alone:
            return None
    logger.warning("%s; computing it as %d kernels", refused, len(targets) + len(cut))
    requested = dict.fromkeys(cut, f"a kernel was refused: {refused.reason}")
    requested |= plan.requested
    # Its kernels must stay alone, or fusion would merge them again.
    return store_plan(plan.sinks, plan.spec, requested, plan.alone | targets | cut)


def _over_limits(plan: StorePlan) -> dict[Node, str]:
    """Return the nodes to store so that every kernel is within limits, with reasons."""
    found: dict[Node, str] = {}
    for root in plan.regions:
        if root.op is Op.RESULT:
            continue  # a custom kernel cannot be split
        fused = _fused(root, plan.regions)
        most = plan.spec.limits.max_buffers - 1
        buffers = _split_buffers(root, fused, plan.regions, most)
        found |= dict.fromkeys(buffers, "its kernel would have too many buffers")
        operations = _split_operations(root, fused, plan.spec)
        found |= dict.fromkeys(operations, "its kernel would do too many operations")
    return found


def _fused(root: Node, stored: Container[Node]) -> list[Node]:
    """Return the nodes that the kernel of a stored node computes, sources first."""
    done: dict[Node, None] = {}
    for node in post_order(
        root, lambda n: n.src[::-1] if n is root or n not in stored else (), done
    ):
        done[node] = None
    return [n for n in done if n is root or n not in stored]


def _reads_few(fused: Sequence[Node], regions: Container[Node], most: int) -> bool:
    """Whether a kernel surely reads at most `most` buffers; each view counts as one."""
    read: set[Node] = set()
    for node in fused:
        if node.op is Op.BUFFER or _is_view_of_weight(node):
            read.add(node)
        else:
            read.update([s for s in node.src if s in regions])
    return len(read) <= most


def _split_buffers(
    root: Node, fused: Sequence[Node], regions: Container[Node], most: int
) -> set[Node]:
    """Return nodes of one kernel to store so that no value in it reads more than `most` buffers."""
    if _reads_few(fused, regions, most):
        return set()
    reads: dict[Node, frozenset[Node]] = {}
    cut: set[Node] = set()
    for node in fused:
        if node.op is Op.BUFFER:
            reads[node] = frozenset({node})
            continue
        if _is_view_of_weight(node):
            # Each view of a weight may be packed in its own order, as a separate argument.
            reads[node] = frozenset({node})
            continue
        sources = [s for s in node.src if node.op is not Op.ASSIGN or s is not node.src[0]]
        needed = {s: reads.get(s, frozenset({s} if s in regions else ())) for s in sources}
        if sum(map(len, needed.values())) > most:  # a bound first: making the union is slow
            cut |= _store_largest(needed, most)
        if len(needed) == 1:
            reads[node] = next(iter(needed.values()))
        else:
            reads[node] = frozenset().union(*needed.values())
    return cut - {root}


def _store_largest(needed: dict[Node, frozenset[Node]], most: int) -> set[Node]:
    """Replace sources by their stored values until at most `most` buffers are needed."""
    cut: set[Node] = set()
    while len(frozenset().union(*needed.values())) > most:
        largest = max(needed, key=lambda s: len(needed[s]))
        if len(needed[largest]) <= 1:
            break  # one operation reads this many buffers: no node below it could be stored
        below = peel(largest, MOVES)[1]
        cut.add(below)
        needed[largest] = frozenset({below})
    return cut


def _split_operations(root: Node, fused: Sequence[Node], spec: DeviceSpec) -> set[Node]:
    """Return nodes of one kernel to store so that no part exceeds the limit of operations.

    The kernel is split where the fewest values are needed later. All of these are stored, because
    any other would be recomputed after the split.
    """
    most, costs = spec.limits.operations, spec.costs
    weights = [_weight(n, costs) if n is not root else 0 for n in fused]
    if sum(weights) <= most:
        return set()
    last = _last_uses(fused)
    change = [0] * (len(fused) + 1)
    for position, node in enumerate(fused):
        if last.get(node, position) > position:
            change[position] += 1
            change[last[node]] -= 1
    cut: set[Node] = set()
    alive: list[Node] = []
    start, done, live, best, fewest = 0, 0, 0, -1, 0
    for position, weight in enumerate(weights):
        if done + weight > most and best >= 0:
            # Values needed later were alive at the last split or have been computed since.
            alive = [n for n in (*alive, *fused[start : best + 1]) if last.get(n, -1) > best]
            cut.update(alive if fewest <= costs.max_live else [fused[best]])
            start, done, best = best + 1, sum(weights[best + 1 : position]), -1
        done += weight
        live += change[position]
        if weight and 2 * done >= most and (best < 0 or live <= fewest):
            best, fewest = position, live
    return cut - {root}


def _last_uses(fused: Sequence[Node]) -> dict[Node, int]:
    """Return the position of the last use of each value of a kernel, looking through movements."""
    inside = frozenset(fused)
    last: dict[Node, int] = {}
    for position, node in enumerate(fused):
        if node.op in MOVES or is_fused(node):
            continue
        read = (s for n in node.src for s in (n.src if is_fused(n) else (n,)))
        for value in (peel(n, MOVES)[1] for n in read):
            if value in inside and value.op not in LEAVES:
                last[value] = position
    return last


def _weight(node: Node, costs: Costs) -> int:
    if node.op is Op.REDUCE:
        return costs.reduction_operations
    return 1 if node.op in ELEMENTWISE and not is_fused(node) else 0


def _is_view_of_weight(node: Node) -> bool:
    if node.op not in MOVES:
        return False
    _, below = peel(node, MOVES)
    # an fp16 weight is widened first
    return is_weight(below.src[0] if below.op is Op.CAST else below)


# --- Splitting a kernel that cannot be generated --------------------------------------------


def split_points(root: Node, stored: Container[Node], costs: Costs) -> set[Node]:
    """Return one node to store that splits the kernel of `root` into two simpler ones, or no node.

    A reduction is preferred, then a node read by a movement op, then an elementwise node. Among
    equals, the node that splits the work most evenly wins.
    """
    inner = _fused(root, stored)
    size = _sizes(inner)
    users = consumers(inner)
    whole = size[root]
    choices: list[tuple[int, int, int]] = []
    for position, node in enumerate(inner):
        place = _preference(node, users[node])
        bytes_stored = node.dtype.itemsize * prod(node.shape)
        if place is None or node is root or not size[node] or bytes_stored > costs.max_cut_bytes:
            continue
        if whole - size[node] < 1:
            continue  # no work would be left for the kernel of `root`
        choices.append((place, abs(whole - 2 * size[node]), position))
    return {inner[min(choices)[2]]} if choices else set()


def _preference(node: Node, users: Sequence[Node]) -> int | None:
    """Return the rank of a node as a split point, lower is better; None if it is no candidate."""
    if node.op is Op.REDUCE:
        return 0
    works = node.op in ELEMENTWISE or node.op in (Op.GATHER, Op.CAT)
    if not works or is_fused(node):
        return None
    return 1 if any(u.op in MOVEMENT or u.op is Op.GATHER for u in users) else 2


def _sizes(inner: Sequence[Node]) -> dict[Node, int]:
    """Return, for each node, the number of operations of the kernel below it, itself included."""
    under: dict[Node, int] = {}  # bit sets: shared operations count once
    for bit, node in enumerate(inner):
        found = 0
        for source in node.src:
            found |= under.get(source, 0)
        works = node.op in ELEMENTWISE or node.op in (Op.REDUCE, Op.GATHER, Op.CAT)
        under[node] = found | (1 << bit) if works else found
    return {node: bits.bit_count() for node, bits in under.items()}

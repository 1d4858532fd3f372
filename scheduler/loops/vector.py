"""Chooses the range that vector lanes run over.

Lanes are the elements of an OpenCL vector. The best range is the one that most loads step through
with stride 1. Weights always can, because they are packed to fit. Stores and arithmetic also count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from scheduler.device.costs import LaneVotes
from scheduler.device.spec import DeviceSpec
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import ELEMENTWISE, Op, parts_of
from scheduler.kernelize.kernel import Kernel
from scheduler.kernelize.scalar import atoms_of, scalar_nodes
from scheduler.loops.images import TEXEL
from scheduler.loops.place import PlacedBody, PlacedStore, accumulates, dependencies, looped

# Vector widths in elements, widest first.
WIDTHS = (16, 8, 4)


@dataclass(frozen=True, slots=True)
class LoadInfo:
    """A load and the number of times that one output element performs it."""

    node: Node
    weight: bool
    times: int
    masked_by: frozenset[Atom]  # ranges that its predicate depends on
    gathered_by: frozenset[Atom] = frozenset()  # ranges that its run-time indices depend on


def loads_of(body: PlacedBody) -> list[LoadInfo]:
    """Return the loads of a body, with their number of repetitions per output element."""
    depends = dependencies(body.value)
    mine = set(body.ranges)
    result = []
    for node in reversed(scalar_nodes(body.value)):
        if node.op is Op.LOAD:
            times = prod(r.size for r in depends[node] if r not in mine)
            # A run-time index refers to a node, so the ranges of that node also move the load.
            behind = {a.node for ix in node.arg.index for a in ixs.leaves(ix)} - {None}
            gathered = frozenset(r for n, on in depends.items() if n in behind for r in on)
            result.append(LoadInfo(node, is_weight(node.src[0]), times, _masks(node), gathered))
    return result


def contracted_axes(kernels: Iterable[Kernel]) -> dict[Node, int]:
    """Return the axis of each stored node that all its contractions with weights reduce.

    sum(x[0, c, 2*y + ky, 2*x + kx] * w[o, c, ky, kx]; c, ky, kx)     ->     x: 1
    """
    found: dict[Node, set[int | None]] = {}
    for body in (b for k in kernels for b in k.bodies):
        for node in scalar_nodes(body.value):
            if node.op is Op.ACCUMULATE and node.src[0].op is Op.MUL:
                for load, axis in _walked(node):
                    found.setdefault(load.src[0], set()).add(axis)
    alike = {node: axes.pop() for node, axes in found.items() if len(axes) == 1}
    return {node: axis for node, axis in alike.items() if axis is not None}


def _walked(node: Node) -> Iterator[tuple[Node, int | None]]:
    """Yield the non-weight operands of a contraction, widened ones included, each with its axis."""
    factors = [s.src[0] if s.op is Op.CAST else s for s in node.src[0].src]
    loads = [s for s in factors if s.op is Op.LOAD]
    weights = [ld for ld in loads if is_weight(ld.src[0])]
    followed = {a for ld in weights for ix in ld.arg.index for a in ixs.leaves(ix)}
    walked = {ixs.of(r) for r in node.arg[1] if r in followed}
    for load in (ld for ld in loads if weights and ld not in weights):
        sizes = zip(load.arg.index, load.src[0].shape, strict=True)
        axes = [axis for axis, (ix, n) in enumerate(sizes) if ix in walked and n % TEXEL == 0]
        yield load, axes[0] if len(axes) == 1 else None


def choose_vector(
    body: PlacedBody,
    free: Collection[Node],
    spec: DeviceSpec,
    read_along: Mapping[Node, int] = MappingProxyType({}),
) -> tuple[Atom | None, int]:
    """Return the output range to run lanes over, and the number of lanes.

    (None, lanes) means that lanes should run across reductions; (None, 1) is scalar code. Ranges
    are not merged yet. Results in `free` may have any order of axes. If all results are in
    `read_along`, lanes run along the given axis.
    """
    widest, votes = _widest(body, spec), spec.loops.votes
    wanted = wanted_range(body, read_along)
    if wanted is not None:
        return wanted, TEXEL
    loads = loads_of(body)
    depends = dependencies(body.value)
    arithmetic = [n for n in scalar_nodes(body.value) if n.op in ELEMENTWISE]
    reduces_of = {r: [o.size for o in n.arg[1]] for n in accumulates(body) for r in divisible(n)}
    rows = {r for n in looped(body) if n.op is Op.STAGE for r in depends[n]}
    rows |= {r for s in body.stores if s.row is not None for r in depends[body.values[s.row[0]]]}
    best: tuple[float, Atom | None, int] = (0.0, None, 1)
    # Ranges are tried from the innermost outwards; only a better score replaces an earlier one.
    for atom in [*reversed(body.ranges), *reversed(reduces_of)]:
        is_output = atom in body.ranges
        lanes = _lanes(atom.size, widest)
        if is_output and _is_narrow(atom, body, loads, spec):
            # Lanes beyond a narrow range read the padded packed copy, so a wider vector is safe.
            lanes = _wide_lanes(atom.size, widest)
        # a private array or a run-time store row is shared by all lanes
        if lanes == 1 or atom in rows:
            continue
        serial = is_output and not spec.is_simt
        turned = transposed_range(body, loads, atom, lanes, spec) if serial else None
        score = sum(load_score(ld, atom, votes, transposed=turned is not None) for ld in loads)
        score += votes.arithmetic * sum(atom in depends[n] for n in arithmetic)
        if is_output:
            score += sum(_store_score(s, atom, votes) for s in body.stores if s.target not in free)
        if is_output and any(is_outer_product(load, atom, loads) for load in loads):
            score *= votes.outer_product
        score *= _efficiency(atom.size, lanes, widest, votes)
        if not is_output:  # a horizontal sum at the end, and no sharing between lanes
            # The horizontal sum is paid once per result, so long reductions outweigh it.
            steps = prod(reduces_of[atom]) / lanes
            score *= votes.across * steps / (steps + spec.loops.horizontal)
        if score > best[0]:
            best = (score, atom if is_output else None, lanes)
    return best[1], best[2]


def _widest(body: PlacedBody, spec: DeviceSpec) -> int:
    """Return the widest vector: 16 bytes on GPUs, the lanes of float32 arithmetic on CPUs."""
    nodes = scalar_nodes(body.value)
    bytes_alone = spec.is_simt and all(n.dtype in (dt.uint8, dt.int8) for n in nodes)
    return 4 * spec.lanes if bytes_alone else spec.lanes


def wanted_range(body: PlacedBody, read_along: Mapping[Node, int]) -> Atom | None:
    """Return the range that moves every result along the axis on which it is read."""
    ways = [(s, read_along.get(s.target)) for s in body.stores]
    for atom in reversed(body.ranges):
        if atom.size % TEXEL == 0 and all(
            axis is not None and ixs.coefficient(s.index[axis], atom) == 1 for s, axis in ways
        ):
            return atom
    return None


def _store_score(store: PlacedStore, atom: Atom, votes: LaneVotes) -> float:
    # A store that does not use the range runs once for all lanes.
    if atom not in set(ixs.leaves(store.offset)):
        return 0.0
    return 1.0 if ixs.coefficient(store.offset, atom) == 1 else votes.alone


def _lanes(size: int, widest: int) -> int:
    return next((n for n in WIDTHS if n <= min(widest, size)), 1)


def _wide_lanes(size: int, widest: int) -> int:
    # The smallest width that holds the range leaves the fewest lanes idle.
    return next((n for n in reversed(WIDTHS) if n >= size), widest)


def _is_narrow(atom: Atom, body: PlacedBody, loads: Collection[LoadInfo], spec: DeviceSpec) -> bool:
    """Whether a range may fill part of a vector: packed weights repeat its last element."""
    known = {*body.ranges, *(r for n in looped(body) for r in n.arg[1])}
    if not 1 < atom.size < spec.lanes or spec.is_simt:
        return False
    for load in loads:
        leaves = {a for ix in load.node.arg.index for a in ixs.leaves(ix)} | load.masked_by
        if atom in leaves and not (load.weight and leaves <= known and load.times > 1):
            return False
    others = [n for n in scalar_nodes(body.value) if n.op in (Op.SELECT, Op.INDEX, Op.PICK)]
    return all(atom not in atoms_of(n) for n in others) and any(
        load.weight and load.times > 1 and atom in set(ixs.leaves(load.node.arg.offset))
        for load in loads
    )


def _efficiency(size: int, lanes: int, widest: int, votes: LaneVotes) -> float:
    useful = size / (-(-size // lanes) * lanes)
    return useful * float((lanes / widest) ** votes.width_power)


def transposed_range(
    body: PlacedBody, loads: Collection[LoadInfo], vector: Atom, lanes: int, spec: DeviceSpec
) -> Atom | None:
    """Return the output range along which the loads that lanes cannot serve are contiguous.

        y[c, p] = x[p, c], lanes over p     ->     c: 16 vectors along c, transposed in registers

    None without such loads or such a range; kernels with reductions have a register tile already.
    """
    alone = [ld for ld in loads if not ld.weight and not _is_run(ld.node, vector)]
    if not alone or looped(body):
        return None
    if any(ld.node.arg.valid != () or ld.gathered_by for ld in alone):
        return None
    known = [ixs.coefficient(ld.node.arg.offset, vector) is not None for ld in alone]
    if not all(known) and not spec.is_simt:
        return None
    for r in reversed(body.ranges):
        steps = {ixs.coefficient(ld.node.arg.offset, r) for ld in alone}
        if r is not vector and r.size >= lanes and steps == {1}:
            return r
    return None


def _is_run(load: Node, atom: Atom) -> bool:
    return ixs.coefficient(load.arg.offset, atom) in (0, 1)


def load_score(load: LoadInfo, atom: Atom, votes: LaneVotes, *, transposed: bool = False) -> float:
    """Return the gain of a load from lanes over a range; negative if each lane loads separately.

    `transposed` says whether such loads form a tile that is transposed in registers.
    """
    if atom in load.gathered_by:
        # Lookups in a small table gain nothing from lanes over another range.
        return 0.0 if prod(load.node.src[0].shape) <= votes.table else votes.alone * load.times
    # Weights are packed with lanes innermost, whatever their stride was.
    if load.weight:
        return float(load.times)
    step = ixs.coefficient(load.node.arg.offset, atom)
    if step not in (0, 1):
        return (votes.transposed if transposed else votes.alone) * load.times
    return (votes.masked if atom in load.masked_by else 1.0) * load.times


def is_outer_product(load: LoadInfo, atom: Atom, loads: list[LoadInfo]) -> bool:
    """Whether lanes over `atom` make a weight a vector and another operand a scalar."""
    if not load.weight or load.times == 1 or atom not in set(ixs.leaves(load.node.arg.offset)):
        return False
    # Only loads that are repeated as often are in the same loop and can share registers.
    others = [o for o in loads if not o.weight and o.times == load.times]
    return bool(others) and all(ixs.coefficient(o.node.arg.offset, atom) == 0 for o in others)


def divisible(node: Node) -> tuple[Atom, ...]:
    """Return the ranges that lanes may run over; in a fixed order only that of partial sums."""
    ranges: tuple[Atom, ...] = node.arg[1]
    parts = parts_of(node)
    return ranges if not parts else ranges[-1:] if parts > 1 else ()


def choose_across(node: Node, lanes: int, votes: LaneVotes) -> Atom | None:
    """Return the reduced range whose loads lanes serve best; None if lanes would gather."""
    best: tuple[float, Atom | None] = (0.0, None)
    loads = [n for n in scalar_nodes(node.src[0]) if n.op is Op.LOAD]
    for atom in reversed(divisible(node)):
        # A range shorter than the lanes would run entirely in the scalar loop at its end.
        if atom.size < lanes:
            continue
        infos = [LoadInfo(n, is_weight(n.src[0]), 1, _masks(n)) for n in loads]
        score = sum(load_score(info, atom, votes) for info in infos)
        if score > best[0]:
            best = (score, atom)
    return best[1]


def _masks(load: Node) -> frozenset[Atom]:
    return frozenset(a for ix, _, _ in load.arg.valid for a in ixs.leaves(ix))

"""Packs operands in the order in which their kernel reads them, so that it loads whole vectors.

A weight is packed on the host, at compile time:

    W[co, ci] read by a tile of 2x16 outputs, loop over ci   ->   P[co/32][ci][2][16]

Another operand of a contraction is packed at run time, by a separate launch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.device.spec import DeviceSpec
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.node import Node, is_weight, make
from scheduler.ir.ops import LOOPS, Op, is_fused, parts_of
from scheduler.kernelize.body import Access, Body, Store, moved_access
from scheduler.kernelize.kernel import Kernel, make_kernel
from scheduler.kernelize.scalar import depends_on, rebuild, scalar_nodes
from scheduler.loops.place import Layout, Place, PlacedBody, place, split_ranges

# Packing may repeat elements, since the last block may overlap. A weight that would grow by more
# than this factor is not packed; one of fewer than MIN_SIZE elements may grow as if it had that
# many.
MAX_GROWTH = 4
MIN_SIZE = 64


@dataclass(frozen=True, slots=True)
class Axis:
    """The split of one range: value = min(outer*block, size-block) + unroll*lanes + lane.

    A single block may be larger than the range: then min(unroll*lanes, size-lanes) + lane. So may a
    single vector: its lanes beyond the range repeat the last element.
    """

    atom: Atom  # the range
    outer: int  # numbers of outer steps, of unrolled steps (unroll) and of lanes
    unroll: int
    lanes: int
    # True to pack unrolled steps next to outer ones, so that the elements that other axes read in
    # between are contiguous.
    apart: bool = False

    @property
    def block(self) -> int:
        """Elements per outer step."""
        return self.unroll * self.lanes

    def starts(self) -> NDArray[np.int64]:
        """Return the first index of each vector, over (outer, unroll); the last may overlap."""
        size, inside = self.atom.size, np.arange(self.unroll) * self.lanes
        if self.outer == 1:
            return np.minimum(inside, max(0, size - self.lanes))[None]
        base = np.minimum(np.arange(self.outer) * self.block, size - self.block)
        return np.asarray(base[:, None] + inside, np.int64)

    def values(self) -> NDArray[np.int64]:
        """Return the values of the range, over (outer, unroll, lane)."""
        return np.asarray(self.starts()[:, :, None] + np.arange(self.lanes), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A packed weight; strides in elements of each axis' outer, unroll and lane coordinate."""

    source: Node
    data: NDArray[Any]
    strides: dict[Atom, tuple[int, int, int]]

    def same_as(self, other: PackedWeight) -> bool:
        """Whether another packing has the same elements in the same order."""
        return (
            self.source is other.source
            and self.strides == other.strides
            and np.array_equal(self.data, other.data)
        )


# The buffer that a kernel parameter is bound to.
Argument = Node | PackedWeight


def pack(load: Node, axes: list[Axis]) -> PackedWeight | None:
    """Return the packed form of a placed weight LOAD; None if it cannot be packed.

    `axes` are ranges of the kernel in loop order, lanes last. A load that uses any other range or a
    run-time index is not packed.
    """
    place: Place = load.arg
    buffer = load.src[0].arg
    leaves = [a for ix in (*place.index, *(p[0] for p in place.valid)) for a in ixs.leaves(ix)]
    if not {axis.atom for axis in axes}.issuperset(leaves):
        return None
    used = [axis for axis in axes if axis.atom in leaves]
    order = _order(used)
    at = {part: i for i, part in enumerate(order)}
    sizes = [(used[i].outer, used[i].unroll, used[i].lanes)[part] for i, part in order]
    # Growth of several axes multiplies, so it is checked before anything is allocated.
    if prod(sizes) > MAX_GROWTH * max(MIN_SIZE, buffer.data.size):
        return None
    grids: dict[Atom, NDArray[np.int64]] = {}
    for i, axis in enumerate(used):
        places = [at[i, part] for part in range(3)]
        shape = [s if p in places else 1 for p, s in enumerate(sizes)]
        grids[axis.atom] = axis.values().reshape(shape)
    index = tuple(np.broadcast_to(_evaluate(ix, grids), sizes) for ix in place.index)
    inside = np.ones(sizes, bool)
    for ix, low, high in place.valid:
        value = _evaluate(ix, grids)
        inside &= (value >= low) & (value <= high)
    # Indices outside are clipped to valid ones; `inside` then replaces their elements by the fill.
    clipped = tuple(np.clip(i, 0, s - 1) for i, s in zip(index, buffer.shape, strict=True))
    data = np.where(inside, buffer.data[clipped], buffer.data.dtype.type(place.fill))
    steps = [prod(sizes[p + 1 :]) for p in range(len(sizes))]
    strides = {
        a.atom: (steps[at[i, 0]], steps[at[i, 1]], steps[at[i, 2]]) for i, a in enumerate(used)
    }
    return PackedWeight(load.src[0], np.asarray(data, order="C").reshape(-1), strides)


def _order(axes: list[Axis]) -> list[tuple[int, int]]:
    """Return (axis, 0 for outer steps, 1 for unrolled ones, 2 for lanes), outermost first."""
    # Loop order first, then unrolled steps, then lanes, so a register tile reads contiguous memory.
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


# --- Packing an operand at run time -----------------------------------------------------------
#
#     q[i, d] * k[j, d], both with d innermost    ->    p[d, j] = k[j, d]     a separate launch
#     summed over d                                     q[i, d] * p[d, j]     lanes over j
#
# Otherwise lanes would run along the sum and need a horizontal sum for every result. The copy costs
# as much as a few of these. It also pays if a sum reads more pages than a core's cache holds.

# Vectors per panel: the columns that a register tile reads side by side. Columns are split into
# panels if their rows share a set of the innermost cache.
PANEL = 2


def pack_operand(
    kernel: Kernel, layouts: Mapping[Node, Layout], spec: DeviceSpec
) -> tuple[Kernel, ...]:
    """Return the kernels that replace one: the kernel itself, or an operand copy and its reader.

    The kernel is not a custom one; nodes without a layout are row-major. On GPUs nothing is packed
    at run time.
    """
    if spec.is_simt or len(kernel.bodies) != 1:
        return (kernel,)
    (body,) = kernel.bodies
    sums = [n for n in scalar_nodes(body.value) if _is_sum(n)]
    least = spec.costs.launch_products
    if not any(_work(body, node) >= least for node in sums):
        return (kernel,)
    on = depends_on(body.value)
    placed = split_ranges(place(body, layouts))
    in_memory = [n for n in scalar_nodes(placed.value) if _is_sum(n)]
    for node, same in zip(sums, in_memory, strict=True):
        if _work(body, node) >= least:
            found = _choose(node, body, on, spec, _badly_placed(same, placed, spec))
            if found is not None:
                return _packed(kernel, node, on, *found, spec)
    return (kernel,)


def _is_sum(node: Node) -> bool:
    """Whether a scalar node is a sum of products without several partial sums."""
    if node.op is not Op.ACCUMULATE or parts_of(node) > 1:
        return False
    return node.arg[0] is Op.ADD and node.src[0].op is Op.MUL


def _outputs(body: Body) -> list[Atom]:
    return [r for r in body.ranges if r is not None]


def _work(body: Body, node: Node) -> int:
    """Return the total number of multiply-adds of a sum."""
    return prod(r.size for r in {*_outputs(body), *node.arg[1]})


def _badly_placed(node: Node, body: PlacedBody, spec: DeviceSpec) -> Sequence[int]:
    """Return the factors to pack: lanes cannot run along them, or the cache cannot hold them."""
    lanes = spec.lanes
    on, reduced = depends_on(node.src[0]), set(node.arg[1])
    loads = [n for n in scalar_nodes(node.src[0]) if n.op is Op.LOAD and on[n] & reduced]
    if any(is_weight(n.src[0]) for n in loads):
        return ()
    parts = [set(scalar_nodes(factor)) for factor in node.src[0].src]
    far = {n for n in loads if _reach(n, reduced, spec) > spec.l2_bytes}
    if far:
        return [i for i, part in enumerate(parts) if not far.isdisjoint(part)]
    # In a much longer sum, the horizontal sum at its end costs little.
    long = prod(r.size for r in reduced) >= 2 * spec.loops.horizontal * lanes
    for r in (*body.ranges, *node.arg[1]):
        along = {ixs.coefficient(n.arg.offset, r) for n in loads}
        if r.size < lanes:
            continue
        if r in reduced and along == {1} and long and not parts_of(node):
            return ()
        if r not in reduced and 1 in along and along <= {0, 1}:
            return ()
    return range(len(parts))


def _reach(load: Node, ranges: Collection[Atom], spec: DeviceSpec) -> int:
    """Return the most bytes in the pages that a sum reads."""
    steps = ((ixs.coefficient(load.arg.offset, r) or 0) * (r.size - 1) for r in ranges)
    span = sum(map(abs, steps)) * load.dtype.itemsize
    return min(span, prod(r.size for r in ranges) * spec.loops.page)


def _choose(
    node: Node, body: Body, on: Mapping[Node, set[Atom]], spec: DeviceSpec, wanted: Sequence[int]
) -> tuple[int, Atom] | None:
    """Return which of the `wanted` factors to pack, and its innermost range; None for neither."""
    lanes, factors, outputs = spec.lanes, node.src[0].src, _outputs(body)
    nodes = [scalar_nodes(f) for f in factors]
    known, work = {*outputs, *node.arg[1]}, _work(body, node)
    best: tuple[tuple[float, int], int, Atom] | None = None
    for number in wanted:
        factor = factors[number]
        plain = on[factor] <= known and all(n.op not in LOOPS for n in nodes[number])
        reuse = work // max(1, prod(r.size for r in on[factor]))
        if not plain or reuse < spec.loops.copy_uses:
            continue
        for place_of, r in enumerate(outputs):
            if r.size >= lanes and r in on[factor] and r not in on[factors[1 - number]]:
                filled = r.size / (-(-r.size // lanes) * lanes)
                # The reader has this range innermost, at best.
                score = (filled, place_of)
                if best is None or score > best[0]:
                    best = (score, number, r)
    return None if best is None else best[1:]


def _packed(
    kernel: Kernel,
    node: Node,
    on: Mapping[Node, set[Atom]],
    number: int,
    inner: Atom,
    spec: DeviceSpec,
) -> tuple[Kernel, Kernel]:
    """Return the kernel that copies a factor, and the kernel that reads the copy."""
    outputs = _outputs(kernel.bodies[0])
    product = node.src[0]
    factor, other = product.src[number], product.src[1 - number]
    # If products may be regrouped, a constant scale of the other factor is folded into the copy.
    regroups = other.op is Op.MUL and not is_fused(product)
    scale = [s for s in other.src if s.op is Op.CONST] if regroups else []
    if len(scale) == 1:
        other = next(s for s in other.src if s is not scale[0])
        factor = make(Op.MUL, factor.dtype, (factor, scale[0]))
    ranges = [r for r in (*outputs, *node.arg[1]) if r in on[product.src[number]]]
    outside = [r for r in ranges if r is not inner and r in outputs]
    summed = [r for r in ranges if r is not inner and r not in outputs]
    wide = inner.size * factor.dtype.itemsize >= spec.loops.page
    width = PANEL * spec.lanes
    width = width if wide and inner.size % width == 0 else inner.size
    panel, column = ixs.floordiv(ixs.of(inner), width), ixs.mod(ixs.of(inner), width)
    fresh = {r: ixs.new_range(r.size, r.name) for r in (*outside, *summed)}
    panels = ixs.new_range(inner.size // width, f"{inner.name}q")
    columns = ixs.new_range(width, f"{inner.name}m")
    order = (*(fresh[r] for r in outside), panels, *(fresh[r] for r in summed), columns)
    index = (*map(ixs.of, outside), panel, *map(ixs.of, summed), column)
    shape = tuple(r.size for r in order)
    packed = make(Op.PACK, factor.dtype, (kernel.targets[0],), (shape, index))
    whole = ixs.add(ixs.mul(ixs.of(panels), width), ixs.of(columns))
    mapping = {**{r: ixs.of(f) for r, f in fresh.items()}, inner: whole}
    value = rebuild(factor, mapping, moved_access)
    copy = Body(order, (Store(packed, tuple(map(ixs.of, order)), value),))
    load = make(Op.LOAD, factor.dtype, (packed,), Access(index, (), 0))
    reads = (load, other) if number == 0 else (other, load)
    new = make(Op.MUL, product.dtype, reads, product.arg)
    stores = tuple(_with(s, product, new) for s in kernel.bodies[0].stores)
    rest = replace(kernel.bodies[0], stores=stores)
    return make_kernel((copy,), kernel.origin), make_kernel((rest,), kernel.origin)


def _with(store: Store, old: Node, new: Node) -> Store:
    """Return a store with one scalar node replaced by another."""

    def same(load: Node, _: Mapping[Atom, Ix]) -> Any:
        return load.arg

    def swap(made: Node) -> Node | None:
        return new if made is old else None

    row = store.row
    if row is not None:
        row = replace(row, value=rebuild(row.value, {}, same, swap))
    return replace(store, value=rebuild(store.value, {}, same, swap), row=row)

"""Runs a chain of kernels band by band: all kernels for a few rows, then for the next rows.

    s = q @ k         all rows          for each band of rows:  s = q[band] @ k
    p = exp(s - max)  all rows    ->                            p = exp(s - max)
    y = p @ v         all rows                                  y[band] = p @ v

An attention over thousands of tokens has more scores than caches hold. A work-item runs its bands
one after another in the same memory, so the scores stay in the core's own cache. A node that is
passed from one of these kernels to the next is called handed on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from scheduler.device.spec import DeviceSpec
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.node import Node, is_weight, make, storage_of
from scheduler.ir.ops import Op
from scheduler.kernelize.body import Access, Body, Store, moved
from scheduler.kernelize.kernel import Kernel, make_kernel
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.place import PlacedBody

# Maximum number of kernels in a chain: scores, their exponentials, the sums of these, the product,
# ...
MAX_LENGTH = 6

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bands:
    """Kernels to run one after another, band by band."""

    # The outermost ranges of each kernel enumerate the bands. A value that is handed on has a copy
    # per work-item, but its index names the band. `scheduler/render/render.py` maps all bands of a
    # work-item to its copy.
    kernels: tuple[Kernel, ...]
    count: int
    chunk: int  # consecutive bands per work-item

    @property
    def items(self) -> int:
        """Number of work-items to launch."""
        return -(-self.count // self.chunk)

    @property
    def handed_on(self) -> tuple[Node, ...]:
        """The nodes that only these kernels write and read."""
        return tuple(t for k in self.kernels[:-1] for t in k.targets)

    def together(self, kernels: Sequence[Kernel]) -> Kernel:
        """Return the single launch of these kernels, or of rewritten versions of them."""
        own = self.handed_on
        origin = dict.fromkeys(name for kernel in kernels for name in kernel.origin)
        made = make_kernel(tuple(k.bodies[0] for k in kernels), tuple(origin))
        targets = (*(t for t in made.targets if t not in own), *own)
        reads = tuple(r for r in made.reads if r not in own)
        return replace(made, targets=targets, reads=reads, scratch=own)


def bands_from(
    kernels: Sequence[Kernel],
    last_read: Mapping[Node, int],
    start: int,
    free: frozenset[Node],
    spec: DeviceSpec,
) -> Bands | None:
    """Return the kernels from number `start` on that can run in bands; None if there are none.

    Kernels are in running order; `last_read` is the number of a node's last reader. `free` nodes
    need not be stored in row-major order, or at all. The result is None on GPUs, which run no
    bands.
    """
    if spec.is_simt or not _multiplies_values(kernels[start], ()):
        return None
    chain: list[Kernel] = []
    for end in range(start, min(start + MAX_LENGTH, len(kernels))):
        kernel, own = kernels[end], [t for k in chain for t in k.targets]
        if not _is_plain(kernel) or (own and set(own).isdisjoint(kernel.reads)):
            return None
        chain.append(_split(kernel, own))
        if own and _multiplies_values(kernel, own):
            # A state written by one band would change for later bands that still read it.
            states = any(t.op in (Op.ASSIGN, Op.BUFFER) for t in kernel.targets)
            apart = states or any(last_read[n] > end for n in own)
            return None if apart else _cut(chain, spec)
        if not free.issuperset(kernel.targets):
            return None
    return None


def _is_plain(kernel: Kernel) -> bool:
    """Whether a kernel has one loop nest and all its indices are known at compile time."""
    if kernel.custom is not None or len(kernel.bodies) != 1:
        return False
    atoms = [a for n in _loads(kernel) for ix in n.arg.index for a in ixs.leaves(ix)]
    known = all(a.node is None for a in atoms)
    return known and all(s.row is None for s in kernel.bodies[0].stores)


def _multiplies_values(kernel: Kernel, own: Collection[Node]) -> bool:
    """Whether a kernel sums products of two non-weights.

    If `own` is not empty, at least one of them must be loaded from a node in it.
    """
    for node in (n for b in kernel.bodies for n in scalar_nodes(b.value)):
        if node.op is Op.ACCUMULATE and node.arg[0] is Op.ADD and node.src[0].op is Op.MUL:
            read = [n.src[0] for n in scalar_nodes(node.src[0]) if n.op is Op.LOAD]
            if not any(map(is_weight, read)) and (not own or not set(read).isdisjoint(own)):
                return True
    return False


def _loads(kernel: Kernel) -> list[Node]:
    return [n for b in kernel.bodies for n in scalar_nodes(b.value) if n.op is Op.LOAD]


def _outputs(kernel: Kernel) -> list[Atom]:
    return [r for r in kernel.bodies[0].ranges if r is not None]


def _split(kernel: Kernel, own: Collection[Node]) -> Kernel:
    """Split a range c into c / b and c % b where a load of a node in `own` is indexed by c / b.

    Example: the channels c of 64 per head, with the heads next to each other.

    y[i, c] = p[c / 64, i, :] @ ...    ->    y[i, 64 h + d] = p[h, i, :] @ ...
    """
    (body,) = kernel.bodies
    mapping: dict[Atom, Ix] = {}
    ranges: list[Atom] = []
    indices = [ix for n in _loads(kernel) if n.src[0] in own for ix in n.arg.index]
    for r in _outputs(kernel):
        parts = [a.by for ix in indices for a, _ in ix.terms if a.inner is ixs.of(r)]
        if not parts or r.size % min(parts):
            ranges.append(r)
            continue
        outer = ixs.new_range(r.size // min(parts), f"{r.name}q")
        inner = ixs.new_range(min(parts), f"{r.name}m")
        mapping[r] = ixs.add(ixs.mul(ixs.of(outer), inner.size), ixs.of(inner))
        ranges += [outer, inner]
    if not mapping:
        return kernel
    return make_kernel((replace(moved(body, mapping), ranges=tuple(ranges)),), kernel.origin)


def _cut(chain: Sequence[Kernel], spec: DeviceSpec) -> Bands | None:
    """Return a chain in bands; None if no rows are shared or no height of a band is good."""
    rows = _shared_rows(chain)
    if rows is None:
        return None
    sizes = [r.size for r in rows.of[0]]
    above, last = prod(sizes[:-1]), sizes[-1]
    handed = [t for k in chain[:-1] for t in k.targets]
    bytes_ = sum(prod(n.shape) * n.dtype.itemsize for n in handed)
    height = _height(above, last, bytes_, spec)
    if height == 0:
        return None
    count = above * (last // height)
    return _Cut(rows, height, -(-count // spec.loops.max_items)).of(chain, count)


def _height(above: int, rows: int, handed_on: int, spec: DeviceSpec) -> int:
    """Return the number of rows per band, 0 if no height is good.

    `above` is the product of the sizes of the other shared ranges. `handed_on` is the number of
    bytes passed between the kernels in all bands, which must exceed the cores' own caches.
    """
    if handed_on <= spec.l2_bytes * spec.cores:
        return 0
    costs = spec.loops
    # Rows whose handed-on values fill the share of the cache: share / (bytes per row).
    most = spec.l2_bytes // costs.band_cache_part * above * rows // handed_on
    most = min(most, above * rows // costs.min_bands)
    height = max((d for d in range(1, min(most, rows) + 1) if rows % d == 0), default=0)
    return height if height >= min(costs.min_band_rows, rows) else 0


@dataclass(frozen=True, slots=True)
class _Rows:
    """Ranges that all kernels of a chain have in common.

    A shared range is an output range of every kernel, and indexes one axis of every node that is
    handed on. So a band computes and reads only its own elements.
    """

    of: tuple[tuple[Atom, ...], ...]  # the shared ranges of each kernel, in one order
    # For each node that is handed on: per axis, the position of its range in `of`, or None.
    axes: Mapping[Node, tuple[int | None, ...]]


def _shared_rows(chain: Sequence[Kernel]) -> _Rows | None:
    """Return the shared ranges of a chain; None if there are none."""
    first = chain[0].bodies[0].stores
    start = [r for ix in first[0].index if (r := ixs.as_atom(ix)) is not None]
    found: list[dict[int, Atom]] = [dict(enumerate(start))]
    axes = {s.target: _axes_of(s, found[0]) for s in first}
    for kernel in chain[1:]:
        mine = _passed_on(kernel, axes)
        if mine is None:
            return None
        found.append(mine)
        axes |= {s.target: _axes_of(s, mine) for s in kernel.bodies[0].stores}
    # Each element that is handed on belongs to one band.
    handed_on = [axes[t] for k in chain[:-1] for t in k.targets]
    kept = [n for n in found[0] if all(n in m for m in found) and all(n in a for a in handed_on)]
    if not kept:
        return None
    rank = {n: i for i, n in enumerate(kept)}
    return _Rows(
        tuple(tuple(mine[n] for n in kept) for mine in found),
        {
            node: tuple(None if n is None else rank.get(n) for n in numbers)
            for node, numbers in axes.items()
        },
    )


def _passed_on(
    kernel: Kernel, axes: Mapping[Node, tuple[int | None, ...]]
) -> dict[int, Atom] | None:
    """Return the range of a kernel for each shared one; None if it reads in another way."""
    mine: dict[int, Atom | None] = {}
    outputs = set(_outputs(kernel))
    for load in _loads(kernel):
        if load.src[0] not in axes:
            if storage_of(load.src[0]) in axes:
                return None
            continue
        for number, ix in zip(axes[load.src[0]], load.arg.index, strict=True):
            if number is not None:
                r = ixs.as_atom(ix)
                same = r in outputs and mine.setdefault(number, r) is r
                mine[number] = r if same else None
    found = {n: r for n, r in mine.items() if r is not None}
    return found if len(set(found.values())) == len(found) else None


def _axes_of(store: Store, rows: Mapping[int, Atom]) -> tuple[int | None, ...]:
    number = {r: n for n, r in rows.items()}
    atoms = [ixs.as_atom(ix) for ix in store.index]
    return tuple(None if a is None else number.get(a) for a in atoms)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A division of a chain's shared rows into bands."""

    rows: _Rows  # shared ranges of the kernels; the last one is divided
    height: int
    chunk: int

    def of(self, chain: Sequence[Kernel], count: int) -> Bands:
        """Return the kernels in `count` bands."""
        places: dict[Node, Node] = {}
        made = []
        for kernel, mine in zip(chain, self.rows.of, strict=True):
            last = kernel is chain[-1]
            made.append(self._kernel(kernel, mine, count, places, last=last))
        return Bands(tuple(made), count, self.chunk)

    def _kernel(
        self,
        kernel: Kernel,
        mine: Sequence[Atom],
        count: int,
        places: dict[Node, Node],
        *,
        last: bool,
    ) -> Kernel:
        above = [ixs.new_range(r.size, r.name) for r in mine[:-1]]
        band = ixs.new_range(mine[-1].size // self.height, f"{mine[-1].name}b")
        row = ixs.new_range(self.height, f"{mine[-1].name}r")
        whole = ixs.add(ixs.mul(ixs.of(band), self.height), ixs.of(row))
        mapping = {**{o: ixs.of(n) for o, n in zip(mine, above, strict=False)}, mine[-1]: whole}
        bands = (*above, band)
        number = ixs.flatten([ixs.of(r) for r in bands], [r.size for r in bands])
        # In later analyses each band has memory of its own, so the index must name the band.
        start = (number, ixs.of(row))

        def swap(node: Node) -> Node | None:
            if node.op is not Op.LOAD or node.src[0] not in places:
                return None
            index = self._inside(node.src[0], node.arg.index, start)
            access = Access(index, node.arg.valid, node.arg.fill)
            return make(Op.LOAD, node.dtype, (places[node.src[0]],), access)

        stores = []
        for store in moved(kernel.bodies[0], mapping, swap).stores:
            index, target = store.index, store.target
            if not last:
                items = -(-count // self.chunk)
                shape = (items, self.height, *self._rest(target, target.shape))
                places[target] = make(Op.PACK, target.dtype, (target,), (shape, self.height))
                index, target = self._inside(target, index, start), places[target]
            stores.append(Store(target, index, store.value))
        others = [r for r in _outputs(kernel) if r not in mine]
        return make_kernel((Body((*bands, row, *others), tuple(stores)),), kernel.origin)

    def _rest(self, node: Node, parts: Sequence[T]) -> Iterator[T]:
        """Yield the parts of the axes that no shared range indexes."""
        return (p for n, p in zip(self.rows.axes[node], parts, strict=True) if n is None)

    def _inside(self, node: Node, index: Sequence[Ix], start: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (*start, *self._rest(node, index))


def counting(ranges: Sequence[Atom], count: int) -> tuple[Atom, ...]:
    """Return the leading ranges that enumerate the bands, even if they were split."""
    found: list[Atom] = []
    for r in ranges:
        if prod(a.size for a in found) == count:
            break
        found.append(r)
    return tuple(found)


def banded(schedule: LoopSchedule, body: PlacedBody, count: int) -> LoopSchedule | None:
    """Return loops in which step n of the outer loop is band n; None if that is impossible.

    The schedule is that of a separate kernel; the leading ranges of its body enumerate the bands.
    """
    outside = counting(body.ranges, count)
    tiles = schedule.tiles[: len(outside)]
    whole = prod(r.size for r in outside) == count
    if not whole or [t.atom for t in tiles] != list(outside) or any(t.block > 1 for t in tiles):
        return None
    if len(schedule.tiles) - schedule.inner < len(outside):
        return None
    steps = prod(t.outer for t in schedule.tiles[: len(schedule.tiles) - schedule.inner])
    return replace(
        schedule, steps=steps, chunk=steps // count, parts=1, blocked=None, prefetch=None
    )

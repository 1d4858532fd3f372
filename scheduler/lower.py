"""Lowers a list of kernels to OpenCL C.

For each kernel this chooses the vectorized range (the loop index that runs over lanes) and the
memory layout of the results, merges ranges, chooses the loops and renders the text. Layouts and
loops depend on neighboring kernels, so all kernels of an entry are lowered together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from scheduler.context import CompileContext
from scheduler.device.spec import Limits
from scheduler.errors import LoweringError
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import COST, ELEMENTWISE, PRODUCTS, Op
from scheduler.kernelize.body import Body
from scheduler.kernelize.kernel import CustomLaunch, Kernel, intermediates, states_in_place
from scheduler.kernelize.scalar import overwrites, scalar_nodes
from scheduler.kernelize.store_plan import Refused
from scheduler.loops import simt
from scheduler.loops.bands import banded, bands_from, counting
from scheduler.loops.choose import exact_schedule, is_exact, tuned_schedule
from scheduler.loops.factor import group_factors, keep_whole_steps
from scheduler.loops.images import ImagePlan
from scheduler.loops.pack import Argument, pack_operand
from scheduler.loops.place import (
    Layout,
    PlacedBody,
    PlacedStore,
    accumulates,
    dependencies,
    merge_ranges,
    place,
    row_major,
    split_ranges,
    split_reductions,
    store_as,
)
from scheduler.loops.vector import choose_vector, contracted_axes, wanted_range
from scheduler.render.custom_kernel import render_custom
from scheduler.render.kernel_code import KernelCode
from scheduler.render.render import Nest, render

# Kernels index with int.
MAX_OFFSET = ixs.LARGEST


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel as OpenCL C, with its loops and the data that its launch needs."""

    kernel: Kernel  # the kernel before lowering
    # The rendered text. It writes the kernel's targets. For an ASSIGN in place, it writes the
    # BUFFER of the state.
    code: KernelCode
    flops: int  # arithmetic operations of one run, estimated statically
    kind: str  # "contract", "reduce", "map" or "custom", for display only
    nests: tuple[Nest, ...] = ()  # the loop nests with their chosen loops; a custom kernel has none
    # the node whose storage the result reuses; this is its last read
    in_place_of: Node | None = None

    @property
    def storage(self) -> tuple[Node, ...]:
        """The nodes whose storage the kernel writes, in parameter order."""
        return self.code.storage

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments bound after the storage, in parameter order."""
        return self.code.arguments

    @property
    def items(self) -> int:
        """The number of work-items that have work to do."""
        return self.code.items

    @property
    def lanes(self) -> tuple[int, ...]:
        """The vector widths in use."""
        return self.code.lanes

    @property
    def text(self) -> str:
        """The kernel's C text, without the declarations above its parameter list."""
        return self.code.text


class _Program:
    """The data about all kernels of an entry that the lowering of one kernel needs.

    Attributes:
        layouts: memory layout of each intermediate lowered so far.
        direct: state BUFFER of each ASSIGN node that is written in place.
        arena: stored nodes that are neither outputs nor written to a state.
        free: nodes of the arena whose layout the writing kernel may choose.
        plain: nodes that cannot be images.
        last_read: position of the last kernel that reads each node.
        images: plan of which nodes are images; None if the device reads buffers only.
        read_along: the axis of each node along which contractions read four elements per texel.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        outputs: Sequence[Node],
        context: CompileContext,
        images: ImagePlan | None,
    ) -> None:
        self.kernels, self.images = kernels, images
        self.context, self.spec = context, context.spec
        self.layouts: dict[Node, Layout] = {}
        self.direct = states_in_place(kernels)
        self.last_read = {node: i for i, k in enumerate(kernels) for node in k.reads}
        self.arena = frozenset(intermediates(kernels, outputs))
        # The source text of a custom kernel assumes row-major elements.
        custom = {n for k in kernels if k.custom for n in (*k.custom.inputs, *k.targets)}
        # A WORDS load reads neighbors along the last axis.
        words = {n.src[0].src[0] for k in kernels for n in k.loads if n.src[0].op is Op.WORDS}
        # The caller of a state reads and writes it in a fixed layout, so it is not free.
        self.free = {t for t in self.arena if t.op is not Op.ASSIGN} - custom - words
        # A copy in another order of axes exists for that order.
        self.free -= {t for t in self.free if t.op is Op.CONTIGUOUS and t.src[0].op is Op.PERMUTE}
        # The epilogue of a custom kernel reads buffers, in any layout.
        self.plain = {n for k in kernels if k.custom for n in k.reads}
        self.read_along = {} if images is None else contracted_axes(kernels)

    def lay_out(self, store: PlacedStore, vector: Atom | None) -> None:
        """Give a result the layout that suits its lanes, and make it an image if possible."""
        self.layouts[store.target] = _layout(store, vector)
        if self.images is not None and store.target not in self.plain:
            self.images.offer(store, self.layouts[store.target])

    def in_place_of(self, position: int, kernel: Kernel, nest: Nest) -> Node | None:
        """Return a node that is read last here and whose storage the only result may overwrite."""
        images = frozenset(self.images.tensors) if self.images is not None else frozenset[Node]()
        mine = self.arena - images
        # An overlapping last block would recompute elements from overwritten sources.
        if len(kernel.targets) > 1 or kernel.targets[0] not in mine or not is_exact(nest.schedule):
            return None
        (store,) = nest.body.stores
        free = (r for r in kernel.reads if r in mine and self.last_read[r] == position)
        # The arena planner gives each storage one size.
        same_size = (r for r in free if _size(r) == _size(store.target))
        return next((r for r in same_size if _overwrites(nest.body, store, r)), None)


def lower_kernels(
    kernels: Sequence[Kernel], outputs: Sequence[Node], context: CompileContext
) -> list[LoweredKernel] | Refused:
    """Lower kernels in running order, or return the first one that cannot be rendered.

    Outputs are stored row-major.
    """
    # Each round chooses all layouts and loops again.
    most = context.spec.images
    images = None if most is None else ImagePlan(most)
    while True:
        program = _Program(kernels, outputs, context, images)
        lowered: list[LoweredKernel] = []
        position = 0
        while position < len(kernels):
            kernel = kernels[position]
            try:
                found = _lower_in_bands(program, position) or _lower_one(program, position)
            except LoweringError as error:
                return Refused(kernel, str(error))
            lowered.extend(found.launches)
            position += found.kernels
        # A kernel may find that a node it reads should be a buffer, after its writer was lowered.
        # Each round removes images and adds none, so the loop ends, and is deterministic.
        images = None if images is None else images.again()
        if images is None:
            return lowered


class _Launches(NamedTuple):
    """Launches, and the number of kernels that they cover."""

    launches: list[LoweredKernel]
    kernels: int


def _lower_one(program: _Program, position: int) -> _Launches:
    parts = _parts(program, program.kernels[position])
    return _Launches([_lower(program, position, part) for part in parts], 1)


def _lower_in_bands(program: _Program, position: int) -> _Launches | None:
    """Lower a kernel and its successors to one launch that processes one band of rows at a time.

    Returns None if `bands_from` finds no bands, or the kernels' loops do not allow them.
    """
    spec, kernels = program.spec, program.kernels
    bands = bands_from(kernels, program.last_read, position, frozenset(program.free), spec)
    if bands is None:
        return None
    own = set(bands.handed_on)
    program.free |= own
    copies: list[Kernel] = []
    nests: list[Nest] = []
    rest: list[Kernel] = []
    for one in bands.kernels:
        *before, kernel = pack_operand(one, program.layouts, spec)
        if any(not own.isdisjoint(copy.reads) for copy in before):
            return None
        nest = _nest(program, kernel, kernel.bodies[0], bands.count)
        schedule = banded(nest.schedule, nest.body, bands.count)
        if schedule is None:
            return None
        copies += before
        rest.append(kernel)
        nests.append(replace(nest, schedule=schedule))
    whole = bands.together(rest)
    spare = _spare_buffers(whole, spec.limits)
    code = render([replace(nest, spare_buffers=spare) for nest in nests], bands)
    launches = [_lower(program, position, copy) for copy in copies]
    return _Launches([*launches, _lowered(whole, nests, code)], len(rest))


def _parts(program: _Program, kernel: Kernel) -> tuple[Kernel, ...]:
    """Return a kernel, after kernels that copy an operand into a better order for it."""
    if kernel.custom is not None or program.images is not None:
        return (kernel,)
    return pack_operand(kernel, program.layouts, program.spec)


def _lower(program: _Program, position: int, kernel: Kernel) -> LoweredKernel:
    """Lower one kernel: choose its layouts and loops, and render it."""
    if kernel.custom is not None:
        return _lower_custom(program, kernel, kernel.custom)
    if len(kernel.bodies) > 1:
        _lay_out_parts(program, kernel)
    nests = [_nest(program, kernel, body) for body in kernel.bodies]
    # With several nests, one could read elements that another has overwritten.
    reused = program.in_place_of(position, kernel, *nests) if len(nests) == 1 else None
    code = render(nests)
    return replace(_lowered(kernel, nests, code), in_place_of=reused)


def _lowered(kernel: Kernel, nests: Sequence[Nest], code: KernelCode) -> LoweredKernel:
    flops = sum(flops_of(nest.body) for nest in nests)
    return LoweredKernel(kernel, code, flops, _kind([n.body for n in nests]), tuple(nests))


def _lower_custom(program: _Program, kernel: Kernel, launch: CustomLaunch) -> LoweredKernel:
    body = None if launch.epilogue is None else place(launch.epilogue, program.layouts)
    if body is not None:
        _check_offsets(body)
    code = render_custom(launch, kernel.targets, body)
    flops = launch.spec.flops + (0 if body is None else flops_of(body))
    return LoweredKernel(kernel, code, flops, "custom")


def _nest(program: _Program, kernel: Kernel, body: Body, bands: int = 1) -> Nest:
    """Choose layouts and loops of one loop nest; `bands` is the number of bands of rows."""
    spec = program.spec
    # The parts of a split range can be better ranges for lanes.
    placed = _placed(program, body)
    # A result that several loop nests write already has a layout.
    whole = {s.target for s in body.stores} if len(kernel.bodies) == 1 else set[Node]()
    free = program.free & whole
    vector, lanes = choose_vector(placed, free, spec, program.read_along)
    for store in placed.stores:
        if store.target in free:
            program.lay_out(store, vector)
    placed = store_as(placed, program.layouts)
    _check_offsets(placed)
    placed, vector = merge_ranges(placed, vector, counting(placed.ranges, bands))
    placed = keep_whole_steps(group_factors(placed, vector))
    # An ASSIGN in place writes the state itself, which can be a parameter that is also read.
    outputs = tuple(program.direct.get(s.target, s.target) for s in placed.stores)
    reads = {n.src[0] for n in scalar_nodes(placed.value) if n.op is Op.LOAD}
    updated = [(s, n) for s, n in zip(placed.stores, outputs, strict=True) if n in reads]
    # An overlapping last block would read elements of the state that it has just overwritten.
    if updated:
        schedule = exact_schedule(placed, vector, lanes, spec)
    else:
        schedule = tuned_schedule(placed, vector, lanes, spec, program.context.tuned)
    # Work-items of other nests would never reach the barriers of a tile in local memory.
    if schedule.local is not None and len(kernel.bodies) > 1:
        schedule = simt.choose_schedule(placed, vector, lanes, spec, apart=True)
    for store, node in updated:
        if not _overwrites(placed, store, node):
            raise LoweringError(f"{node.arg}: overwrites elements of the state that it still reads")
    spare = _spare_buffers(kernel, spec.limits)
    return Nest(placed, schedule, outputs, spec, program.images, spare)


def _overwrites(body: PlacedBody, store: PlacedStore, source: Node) -> bool:
    """Whether a placed result can be stored over a placed source."""
    return overwrites(body.value, body.ranges, store.offset, source, lambda n: n.arg.offset)


def _size(node: Node) -> tuple[int, int]:
    return prod(node.shape), node.dtype.itemsize


def _placed(program: _Program, body: Body) -> PlacedBody:
    """Place a body, with its ranges split where indices divide them."""
    placed = place(body, program.layouts)
    lanes = wanted_range(placed, program.read_along)
    placed = split_ranges(placed, () if lanes is None else (lanes,))
    return split_reductions(placed) if program.spec.is_simt else placed


def _lay_out_parts(program: _Program, kernel: Kernel) -> None:
    """Choose the layout of results that several loop nests write: the one for the largest nest."""
    # Larger nests come later and override the choice of smaller ones.
    bodies = sorted(kernel.bodies, key=lambda b: prod(r.size for r in b.ranges if r is not None))
    for body in bodies:
        for store in body.stores:
            if store.target in program.free:
                placed = _placed(program, body)
                wanted = {store.target}
                vector, _ = choose_vector(placed, wanted, program.spec, program.read_along)
                mine = next(s for s in placed.stores if s.target is store.target)
                program.lay_out(mine, vector)


def _spare_buffers(kernel: Kernel, limits: Limits) -> int:
    """Return how many arguments each loop nest can have in addition to those its body reads."""
    # Each view of a weight can be packed in its own order, which needs another argument.
    read = {n if is_weight(n.src[0]) else n.src[0] for n in kernel.loads}
    free = limits.max_buffers - len(read) - len(kernel.targets)
    return max(0, free // len(kernel.bodies))


def _check_offsets(body: PlacedBody) -> None:
    offsets = [s.offset for s in body.stores]
    offsets += [n.arg.offset for n in scalar_nodes(body.value) if n.op is Op.LOAD]
    largest = max(offset.hi for offset in offsets)
    if largest > MAX_OFFSET:
        raise LoweringError(f"a buffer of {largest + 1} elements; at most {MAX_OFFSET + 1} fit")


def _layout(store: PlacedStore, vector: Atom | None) -> Layout:
    """Return an order of axes with the vector's axis innermost, or row-major without a vector."""
    rank = len(store.index)
    if vector is None:
        return row_major(rank)
    # Then the lanes are consecutive in memory.
    inner = [a for a in range(rank) if ixs.coefficient(store.index[a], vector) != 0]
    return Layout(tuple([a for a in range(rank) if a not in inner] + inner))


def flops_of(body: PlacedBody) -> int:
    """Return the arithmetic operations of one run, with hoisting; a multiply-add counts as two."""
    total = 0
    depends = dependencies(body.value)
    for node in scalar_nodes(body.value):
        times = prod(r.size for r in depends[node])
        if node.op is Op.ACCUMULATE:
            total += times * prod(r.size for r in node.arg[1])
        elif node.op in ELEMENTWISE:
            total += times * int(COST.get(node.op, 1))
    return total


def _kind(bodies: Sequence[PlacedBody]) -> str:
    reductions = [n for body in bodies for n in accumulates(body)]
    if not reductions:
        return "map"
    products = [n for n in reductions if n.arg[0] is Op.ADD and n.src[0].op in PRODUCTS]
    return "contract" if products else "reduce"

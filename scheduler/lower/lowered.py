"""Lower a list of kernels: choose vector and layout of results, merge ranges, schedule, render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from scheduler import index as ixs
from scheduler import trace
from scheduler.errors import LoweringError
from scheduler.index import Atom
from scheduler.kernelize.body import Body, scalar_nodes
from scheduler.kernelize.custom import CustomLaunch
from scheduler.kernelize.fallback import KernelRefusedError, Refused
from scheduler.kernelize.kernel import Kernel, name_of, states_in_place
from scheduler.lower.custom import render_custom
from scheduler.lower.in_place import exact_schedule, in_place_of, overwrites
from scheduler.lower.place import (
    Layout,
    PlacedBody,
    PlacedStore,
    accumulates,
    dependencies,
    merge_ranges,
    place,
    row_major,
    split_ranges,
    store_as,
)
from scheduler.lower.render import Nest, render
from scheduler.lower.schedule import choose_schedule, choose_vector
from scheduler.lower.values import Argument
from scheduler.node import Node
from scheduler.ops import COST, ELEMENTWISE, Op

# Kernels index with int.
MAX_OFFSET = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel as OpenCL text and what its launch needs.

    Attributes:
        kernel: what was lowered.
        storage: nodes whose storage it writes, in parameter order: the kernel's targets, but the
            state's BUFFER where an ASSIGN is done in place.
        text: "(parameters) { body }" without a name.
        arguments: bound after the storage, in parameter order.
        items: work-items, one per work-group.
        lanes: vector widths used.
        flops: static estimate.
        kind: "contract", "reduce", "map" or "custom"; only a name for people.
        in_place_of: intermediate whose storage the result takes over; the kernel reads it last.
    """

    kernel: Kernel
    storage: tuple[Node, ...]
    text: str
    arguments: tuple[Argument, ...]
    items: int
    lanes: tuple[int, ...]
    flops: int
    kind: str
    in_place_of: Node | None = None


class _Program:
    """What lowering one kernel needs to know of the others.

    Attributes:
        kernels, outputs: as for `lower_kernels`.
        layouts: of intermediates lowered so far.
        direct: state BUFFER of each ASSIGN node that is written in place.
        arena: stored nodes that are neither outputs nor written to a state.
        free: those of them whose layout is up to the kernel that writes them.
        last_read: position of the last kernel that reads a node.
    """

    def __init__(self, kernels: Sequence[Kernel], outputs: Sequence[Node]) -> None:
        self.kernels, self.outputs = kernels, frozenset(outputs)
        self.layouts: dict[Node, Layout] = {}
        self.direct = states_in_place(kernels)
        self.last_read = {node: i for i, k in enumerate(kernels) for node in k.reads}
        targets = [t for k in kernels for t in k.targets if t not in self.direct]
        self.arena = {t for t in targets if t.op is not Op.BUFFER} - self.outputs
        # What a custom kernel reads or writes is row-major: its source says where elements are.
        custom = {n for k in kernels if k.custom for n in (*k.custom.inputs, *k.targets)}
        self.free = {t for t in self.arena if t.op is not Op.ASSIGN} - custom

    def free_after(self, position: int) -> list[Node]:
        """Return intermediates a kernel reads last whose bytes its result would fill exactly."""
        kernel = self.kernels[position]
        target = kernel.targets[0]
        if target not in self.arena or len(kernel.targets) > 1 or len(kernel.bodies) > 1:
            return []
        shape, width = target.shape, target.dtype.itemsize
        return [
            r
            for r in kernel.reads
            if r in self.arena and self.last_read[r] == position
            if prod(r.shape) == prod(shape) and r.dtype.itemsize == width
        ]


def lower_kernels(kernels: Sequence[Kernel], outputs: Sequence[Node]) -> list[LoweredKernel]:
    """Lower kernels in running order.

    Args:
        kernels: from `make_kernels`.
        outputs: stored nodes that are program outputs: they stay row-major.

    Raises:
        KernelRefusedError: a kernel has no rendering; the message names its origin.
    """
    program = _Program(kernels, outputs)
    lowered = []
    for position, kernel in enumerate(kernels):
        try:
            lowered.append(_lower(program, position))
        except LoweringError as error:
            stored = frozenset(t for k in kernels for t in k.targets)
            refused = Refused(kernel.targets, stored, name_of(kernel), str(error))
            raise KernelRefusedError(refused) from error
    return lowered


def _lower(program: _Program, position: int) -> LoweredKernel:
    kernel = program.kernels[position]
    if kernel.custom is not None:
        return _lower_custom(program, kernel, kernel.custom)
    nests = [_nest(program, kernel, body) for body in kernel.bodies]
    trace.loops(kernel, [nest.schedule for nest in nests])
    reused = None
    if len(nests) == 1:
        free = program.free_after(position)
        reused = in_place_of(nests[0].body, nests[0].schedule, free)
    rendered = render(nests)
    return LoweredKernel(
        kernel,
        tuple(dict.fromkeys(node for nest in nests for node in nest.outputs)),
        rendered.text,
        rendered.arguments,
        rendered.items,
        rendered.lanes,
        sum(_flops(nest.body) for nest in nests),
        _kind([nest.body for nest in nests]),
        reused,
    )


def _lower_custom(program: _Program, kernel: Kernel, launch: CustomLaunch) -> LoweredKernel:
    trace.loops(kernel, [])
    body = None if launch.epilogue is None else place(launch.epilogue, program.layouts)
    if body is not None:
        _check_offsets(body)
    made = render_custom(launch, kernel.targets, body)
    flops = launch.spec.flops + (0 if body is None else _flops(body))
    return LoweredKernel(
        kernel,
        kernel.targets,
        made.text,
        made.arguments,
        made.items,
        made.lanes,
        flops,
        "custom",
    )


def _nest(program: _Program, kernel: Kernel, body: Body) -> Nest:
    """Choose layouts and loops of one loop nest."""
    placed = split_ranges(place(body, program.layouts))
    # What several loop nests write in parts is laid out before it is known what each would like.
    whole = {s.target for s in body.stores} if len(kernel.bodies) == 1 else set[Node]()
    free = program.free & whole
    vector, lanes = choose_vector(placed, free)
    for store in placed.stores:
        if store.target in free:
            program.layouts[store.target] = _layout(store, vector)
    placed = store_as(placed, program.layouts)
    _check_offsets(placed)
    placed, vector = merge_ranges(placed, vector)
    outputs = tuple(program.direct.get(s.target, s.target) for s in placed.stores)
    reads = {n.src[0] for n in scalar_nodes(placed.value) if n.op is Op.LOAD}
    updated = [(s.target, n) for s, n in zip(placed.stores, outputs, strict=True) if n in reads]
    schedule = (exact_schedule if updated else choose_schedule)(placed, vector, lanes)
    for target, node in updated:
        if not overwrites(placed, node, target):
            raise LoweringError(f"{node.arg}: overwrites elements of the state that it still reads")
    return Nest(placed, schedule, outputs)


def _check_offsets(body: PlacedBody) -> None:
    offsets = [s.offset for s in body.stores]
    offsets += [n.arg.offset for n in scalar_nodes(body.value) if n.op is Op.LOAD]
    largest = max(offset.hi for offset in offsets)
    if largest > MAX_OFFSET:
        raise LoweringError(f"a buffer of {largest + 1} elements; at most {MAX_OFFSET + 1} fit")


def _layout(store: PlacedStore, vector: Atom | None) -> Layout:
    """Return the order of axes with the vector's axis innermost."""
    rank = len(store.index)
    if vector is None:
        return row_major(rank)
    inner = [a for a in range(rank) if ixs.coefficient(store.index[a], vector) != 0]
    return Layout(tuple([a for a in range(rank) if a not in inner] + inner))


def _flops(body: PlacedBody) -> int:
    """Return arithmetic operations of one run, everything hoisted; a multiply-add counts two."""
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
    products = [n for n in reductions if n.arg[0] is Op.ADD and n.src[0].op is Op.MUL]
    return "contract" if products else "reduce"

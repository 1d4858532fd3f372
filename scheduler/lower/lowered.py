"""Lower a list of kernels: choose vector and layout of results, merge ranges, schedule, render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from scheduler import index as ixs
from scheduler import trace
from scheduler.errors import LoweringError
from scheduler.index import Atom
from scheduler.kernelize.body import scalar_nodes
from scheduler.kernelize.kernels import Kernel, state_of
from scheduler.lower.in_place import exact_schedule, in_place_of, overwrites
from scheduler.lower.pack import PackedWeight
from scheduler.lower.place import (
    Layout,
    PlacedBody,
    accumulates,
    dependencies,
    merge_ranges,
    place,
    row_major,
    split_ranges,
    store_as,
)
from scheduler.lower.render import render
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
        target: node whose storage it writes (a state BUFFER where an ASSIGN is done in place).
        text: "(parameters) { body }" without a name.
        arguments: bound after the target, in parameter order.
        items: work-items, one per work-group.
        lanes: vector width used.
        flops, bytes_moved: static estimates; bytes count each buffer read and written once.
        kind: "contract", "reduce" or "map"; only a name for people.
        in_place_of: intermediate whose storage the result takes over; the kernel reads it last.
    """

    kernel: Kernel
    target: Node
    text: str
    arguments: tuple[Argument, ...]
    items: int
    lanes: int
    flops: int
    bytes_moved: int
    kind: str
    in_place_of: Node | None = None


class _Program:
    """What lowering one kernel needs to know of the others.

    Attributes:
        kernels, outputs: as for `lower_kernels`.
        layouts: of intermediates lowered so far.
        arena: stored nodes that are neither outputs nor written to a state.
        last_read: position of the last kernel that reads a node.
    """

    def __init__(self, kernels: Sequence[Kernel], outputs: Sequence[Node]) -> None:
        self.kernels, self.outputs = kernels, frozenset(outputs)
        self.layouts: dict[Node, Layout] = {}
        self.last_read = {node: i for i, k in enumerate(kernels) for node in k.reads}
        targets = [k.target for k in kernels if state_of(k, kernels) is None]
        self.arena = {t for t in targets if t.op is not Op.BUFFER} - self.outputs

    def free_after(self, position: int) -> list[Node]:
        """Return intermediates a kernel reads last whose bytes its result would fill exactly."""
        kernel = self.kernels[position]
        if kernel.target not in self.arena:
            return []
        shape, width = kernel.target.shape, kernel.target.dtype.itemsize
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
        LoweringError: a kernel has no rendering; the message names its origin.
    """
    program = _Program(kernels, outputs)
    lowered = []
    for position, kernel in enumerate(kernels):
        try:
            lowered.append(_lower(program, position))
        except LoweringError as error:
            origin = ", ".join(kernel.origin) or repr(kernel.target)
            raise LoweringError(f"kernel of {origin}: {error}") from error
    return lowered


def _lower(program: _Program, position: int) -> LoweredKernel:
    kernel, layouts = program.kernels[position], program.layouts
    body = split_ranges(place(kernel.body, layouts))
    fixed = kernel.target in program.outputs or kernel.target.op in (Op.ASSIGN, Op.BUFFER)
    vector, lanes = choose_vector(body, free_layout=not fixed)
    if not fixed:
        layouts[kernel.target] = _layout(body, vector)
        body = store_as(body, layouts[kernel.target])
    _check_offsets(body)
    body, vector = merge_ranges(body, vector)
    target = state_of(kernel, program.kernels) or kernel.target
    updates = target in kernel.reads
    schedule = (exact_schedule if updates else choose_schedule)(body, vector, lanes)
    if updates and not overwrites(body, target):
        raise LoweringError(f"{target.arg}: overwrites elements of the state that it still reads")
    trace.loops(kernel, schedule)
    reused = in_place_of(body, schedule, program.free_after(position))
    rendered = render(body, schedule, target)
    flops = _flops(body)
    moved = target.dtype.itemsize * prod(target.shape)
    moved += sum(_argument_bytes(a) for a in rendered.arguments)
    return LoweredKernel(
        kernel,
        target,
        rendered.text,
        rendered.arguments,
        rendered.items,
        rendered.lanes,
        flops,
        moved,
        _kind(body),
        reused,
    )


def _check_offsets(body: PlacedBody) -> None:
    offsets = [body.offset, *(n.arg.offset for n in scalar_nodes(body.value) if n.op is Op.LOAD)]
    largest = max(offset.hi for offset in offsets)
    if largest > MAX_OFFSET:
        raise LoweringError(f"a buffer of {largest + 1} elements; at most {MAX_OFFSET + 1} fit")


def _layout(body: PlacedBody, vector: Atom | None) -> Layout:
    """Return the order of axes with the vector's axis innermost."""
    rank = len(body.shape)
    if vector is None:
        return row_major(rank)
    inner = [a for a in range(rank) if ixs.coefficient(body.index[a], vector) != 0]
    return Layout(tuple([a for a in range(rank) if a not in inner] + inner))


def _argument_bytes(argument: Argument) -> int:
    if isinstance(argument, PackedWeight):
        return int(argument.data.nbytes)
    return argument.dtype.itemsize * prod(argument.shape)


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


def _kind(body: PlacedBody) -> str:
    reductions = accumulates(body)
    if not reductions:
        return "map"
    products = [n for n in reductions if n.arg[0] is Op.ADD and n.src[0].op is Op.MUL]
    return "contract" if products else "reduce"

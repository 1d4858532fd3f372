"""Renders a scheduled kernel as OpenCL C.

The kernel's expression is evaluated once per coordinate of the register tile, which is the block of
results that a step keeps in registers. Each range is replaced by `outer*block + coordinate
(+ lane)`. A value is cached for the coordinates that it depends on. A weight vector or a column of
a sliding window is therefore loaded once per tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from scheduler.device.spec import DeviceSpec
from scheduler.errors import LoweringError
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.bands import Bands
from scheduler.loops.images import ImagePlan
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.pack import Argument, Axis, PackedWeight
from scheduler.loops.place import PlacedBody, looped
from scheduler.loops.simt import group_of, guard_of
from scheduler.render import memory as image_access
from scheduler.render import opencl_c as cl
from scheduler.render.inner_loops import Loops, union
from scheduler.render.kernel_code import Emitter, Instance, KernelCode, Needs, Parameter
from scheduler.render.local_tiles import emit_tile
from scheduler.render.rolled_tile import is_worth_rolling, roll, transpose_loads
from scheduler.render.values import Values


@dataclass(frozen=True, slots=True)
class Nest:
    """One loop nest to render."""

    body: PlacedBody  # the expression to compute, with memory offsets and merged ranges
    schedule: LoopSchedule  # the loops
    outputs: tuple[Node, ...]  # the nodes whose storage it writes, in the order of its stores
    spec: DeviceSpec  # the target device
    # plan of which nodes are images; None if the device reads buffers only
    images: ImagePlan | None = None
    spare_buffers: int = 0  # number of arguments that can be added to those the body reads


class _Renderer:
    """Renders one loop nest; nests of one kernel share its parameters."""

    def __init__(
        self,
        nest: Nest,
        outputs: dict[Node, str],
        inputs: dict[Argument, str],
        scratch: dict[Node, str],
    ) -> None:
        self.body, self.schedule, self.simt = nest.body, nest.schedule, nest.spec.is_simt
        # The parameter that each store writes.
        self.pointers = [outputs[node] for node in nest.outputs]
        self.lanes = self.schedule.lanes
        self.outputs = [Axis(t.atom, t.outer, t.unroll, t.lanes) for t in self.schedule.tiles]
        vector = self.schedule.vector
        # Lanes beyond these compute copies of the last element, which are not stored.
        self._useful = self.lanes if vector is None else min(self.lanes, vector.size)
        self.e = Emitter(unsigned=self.simt)
        self.loops = Loops(self.e, self.schedule)
        # Weights are packed along the output ranges, and along the reduced ranges that `block`
        # divides. The remainder iterations of a reduction run in separate scalar loops.
        reduces = self.loops.reduces.values()
        whole = [a for a in reduces if a.atom.size == a.outer * a.block]
        axes = [*self.outputs, *whole]
        if self.simt:  # neighboring work-items read neighboring weights
            axes = [*(replace(a, apart=True) for a in whole), *self.outputs]
        self.v = Values(self.e, self.body.value, axes, self.lanes, self._run_here)
        self.v.pointers.arguments, self.v.images = inputs, nest.images
        self.v.weights_in_images = self.schedule.weights_in_images
        self.v.pointers.spare_buffers, self.v.prefetch = nest.spare_buffers, self.schedule.prefetch
        self.v.pointers.scratch = scratch
        # Unaligned vectors cost nothing on the host's processor. Pointers to scratch memory are
        # shifted per work-item (`_in_turn`), so they need not be aligned to 16 bytes.
        self.v.pointers.whole_vectors = not nest.spec.host_clang and not scratch
        self.v.narrow = vector if self._useful < self.lanes else None
        self.v.pointers.opaque = self.schedule.contracts and self._vectors() == 1
        self.loops.v = self.v

    def _vectors(self) -> int:
        """Return the number of vectors in the register tile."""
        return prod(a.unroll for a in self.outputs if a.atom is self.schedule.vector)

    def _run_here(self, node: Node, instance: Instance) -> None:
        self.loops.run(node, [instance])

    def render(self, first: str, level: int) -> str:
        """Return the statements of the nest; `first` is C code: its work-item's number from 0.

        In the code, `item` is that number. A step is one iteration of the merged outer loops. An
        item runs one step, a chunk of steps, or one part of a step's outermost inner loop.
        """
        schedule = self.schedule
        if schedule.local is not None:
            numbers = list(range(len(self.body.stores)))
            emit_tile(self.e, self.v, schedule.local, lambda i: self._store_all([i], numbers))
            return self.e.text(level)
        self.e.statement(f"const int item = {first};")
        part = self._part() if schedule.parts > 1 else None
        outer = self.outputs[: len(self.outputs) - schedule.inner]
        inner = self.outputs[len(outer) :]
        known = {a.atom for a in outer}
        with ExitStack() as loops:
            if schedule.chunk > 1:
                end = f"item * {schedule.chunk} + {schedule.chunk}"
                # The last item can have fewer steps, and must not run past the end.
                whole = schedule.steps % schedule.chunk == 0
                last = end if whole else f"({end} < {schedule.steps} ? {end} : {schedule.steps})"
                self.e.statement(f"const int end = {last};")
                header = f"for (int step = item * {schedule.chunk}; step < end; step++)"
                loops.enter_context(self.e.loop(header))
            name = "step" if schedule.chunk > 1 or part is not None else "item"
            instances = self._instances(outer, self._outer_steps(outer, name))
            self._reduce_all(instances, known)
            # Stores that do not depend on the inner loops must stay outside of them.
            above = [self.body.loops_around(s) <= known for s in self.body.stores]
            self._store_all(instances, [i for i, here in enumerate(above) if here])
            if inner:
                steps = {inner[0].atom: self._open_part(loops, inner[0].outer, part)}
                steps |= {a.atom: self.loops.open(loops, a.outer) for a in inner[1:]}
                below = self._instances(inner, steps)
                instances = [o.extended(i) for o in instances for i in below]
                self._reduce_all(instances, {a.atom for a in self.outputs})
            self._store_all(instances, [i for i, here in enumerate(above) if not here])
        return self.e.text(level)

    def _part(self) -> Ix:
        """Emit the work-item's step and part, and return the part.

        With 3 parts, item 7 computes part 1 of step 2.
        """
        parts = self.schedule.parts
        self.e.statement(f"const int step = item / {parts};")
        self.e.statement(f"const int part = item % {parts};")
        atom = ixs.new_range(parts, "part")
        self.e.name_atom(atom, "part", self.e.depth)
        return ixs.of(atom)

    def _open_part(self, loops: ExitStack, count: int, part: Ix | None) -> Ix:
        """Open the outermost loop inside a step and return its index, out of `count` iterations.

        With parts, the loop runs over the work-item's equal share of them only.
        """
        if part is None:
            return self.loops.open(loops, count)
        share = count // self.schedule.parts
        return ixs.add(ixs.mul(part, share), self.loops.open(loops, share))

    def _store_all(self, instances: list[Instance], numbers: list[int]) -> None:
        """Emit the numbered stores at all given coordinates."""
        values = [self.body.values[n] for n in numbers]
        axes = [a for a in self.outputs if a.atom in instances[0].mapping]  # axes of the open loops
        with ExitStack() as loops:
            # Private arrays with run-time indices are slow on GPUs.
            if not self.simt and is_worth_rolling(values, axes, instances):
                instances = [roll(self.loops, loops, values, axes, instances)]
            if self.schedule.transposed is not None:
                transpose_loads(self.v, values, instances)
            for instance in instances:
                # evaluate all first, as one store can overwrite another's input
                for value in values:
                    self.v.evaluate(value, instance)
                for number in numbers:
                    self._store(number, instance)

    def _reduce_all(self, instances: list[Instance], known: set[Atom]) -> None:
        """Emit the loops that depend on known ranges only and are not yet emitted."""
        for node in looped(self.body):
            if known.issuperset(self.v.depends(node)):
                self.loops.run(node, instances)

    def _outer_steps(self, axes: list[Axis], name: str) -> dict[Atom, Ix]:
        """Split the step number, the C variable `name`, into the iteration of each range's loop.

        The innermost range varies fastest. With loops of 3 x 4 iterations, step 9 is (2, 1). The
        loop of a blocked range is split in two (`LoopSchedule.blocked`): its blocks vary slowest.
        """
        whole = ixs.new_range(max(1, self.schedule.steps), name)
        self.e.name_atom(whole, name, self.e.depth)
        rest = ixs.of(whole)
        blocked, per_block = self.schedule.blocked or (None, 0)
        steps: dict[Atom, Ix] = {}
        # Neighboring steps access neighboring memory.
        for axis in reversed(axes):
            count = per_block if axis.atom is blocked else axis.outer
            steps[axis.atom] = self._variable(ixs.mod(rest, count))
            rest = ixs.floordiv(rest, count)
        if blocked is not None:
            # `rest` is the block; the iteration found above counts from the block's start.
            base = ixs.mul(self._variable(rest), per_block)
            steps[blocked] = self._variable(ixs.add(base, steps[blocked]))
        return steps

    def _variable(self, ix: Ix) -> Ix:
        """Assign an index to a variable, so that later arithmetic stays affine in it."""
        if ix.is_const or (len(ix.terms) == 1 and ix.terms[0][0].kind == "range"):
            return ix
        atom, name = ixs.new_range(ix.hi + 1, "o"), self.e.fresh("o")
        self.e.statement(f"const int {name} = {self.e.index(ix)};")
        self.e.name_atom(atom, name, self.e.depth)
        return ixs.of(atom)

    def _instances(self, axes: list[Axis], steps: dict[Atom, Ix]) -> list[Instance]:
        """Return the coordinates of the register tile over some ranges."""
        cuts = [self.loops.cut(axis, steps[axis.atom]) for axis in axes]
        return [union(combination) for combination in product(*cuts)]

    def _store(self, number: int, instance: Instance) -> None:
        """Emit one store at one coordinate."""
        value, pointer = self.body.values[number], self.pointers[number]
        kind = value.dtype
        if value.op is Op.CAST and (kind, value.src[0].dtype) == (dt.float16, dt.float32):
            value = value.src[0]  # the store rounds
        self.v.evaluate(value, instance)
        offset = ixs.substitute(self.body.stores[number].offset, instance.mapping)
        lanes = self.lanes if self.v.moves(offset) else 1
        guard, row = self._row(number, instance)
        code = self.v.in_lanes(value, instance, lanes)
        if self.v.images is not None:
            store = self.body.stores[number]
            written = image_access.write(self.v.images, self.v, store, instance, pointer, code)
            if written is not None:
                self.e.statement(written)
                return
        narrow = lanes > 1 and self._useful < lanes
        if lanes == 1 or (ixs.coefficient(offset, self.v.lane) == 1 and not narrow):
            first = self.v.at_lane(offset, 0)
            base, start = self.v.pointers.address(pointer, first, kind, written=True)
            aligned = not row and self.v.pointers.is_aligned(first, kind, lanes)
            text = cl.store(base, start + row, code, kind, lanes, aligned=aligned)
            self.e.statement(guard + text)
            return
        # Store lane by lane: the elements are not adjacent, or idle lanes of a vector store would
        # overwrite the next elements.
        name = self.e.fresh("s")
        self.e.statement(f"const {cl.ctype(kind, lanes)} {name} = {code};")
        for k in range(min(lanes, self._useful)):
            base, at = self.v.pointers.address(
                pointer, self.v.at_lane(offset, k), kind, written=True
            )
            self.e.statement(guard + cl.store(base, at + row, f"{name}.s{k:x}", kind, 1))

    def _row(self, number: int, instance: Instance) -> tuple[str, str]:
        """Return the condition and the offset of a store whose row is known only at run time.

        Both are C code, and empty if the row is known.
        """
        row = self.body.stores[number].row
        if row is None:
            return "", ""
        which, rows, stride = row
        node = self.body.values[which]
        self.v.evaluate(node, instance)
        code = self.v.value(node, instance).code
        # A run-time index can be out of range.
        return f"if (({code} >= 0) & ({code} < {rows})) ", f" + {code} * {stride}"


def render(nests: Sequence[Nest], bands: Bands | None = None) -> KernelCode:
    """Return the code of one kernel. With several loop nests, each work-item runs one of them.

    With `bands` of rows, each work-item instead runs all nests for one band after another. Raises
    LoweringError if the number of work-items or an index exceeds an int.
    """
    # A result that several nests write is one parameter. Parameters are in the order of first use,
    # except that with bands the result comes before intermediate values.
    ordered = nests if bands is None else [nests[-1], *nests[:-1]]
    nodes = dict.fromkeys(node for nest in ordered for node in nest.outputs)
    names = ["out"] if len(nodes) == 1 else [f"out{i}" for i in range(len(nodes))]
    outputs = dict(zip(nodes, names, strict=True))
    inputs: dict[Argument, str] = {}
    # The values that one nest hands to the next, in scratch memory that the work-item reuses.
    own = {} if bands is None else {n: f"own{i}" for i, n in enumerate(bands.handed_on)}
    renderers = [_Renderer(nest, outputs | own, inputs, own) for nest in nests]
    if bands is not None:
        memory = {name: (outputs[node], node) for node, name in own.items()}
        lines = "\n".join(_in_turn(renderers, bands, memory))
    elif len(nests) == 1:
        lines = renderers[0].render("get_global_id(0)", 1)
    else:
        lines = "\n".join(_side_by_side(renderers))
    images = nests[0].images
    parameters = [_parameter(images, node, name, written=True) for node, name in outputs.items()]
    parameters += [_parameter(images, arg, name, written=False) for arg, name in inputs.items()]
    # Each nest takes a range of the work-item numbers.
    items = sum(n.schedule.items for n in nests) if bands is None else bands.items
    if items > ixs.LARGEST:
        raise LoweringError(f"{items} work-items; at most {ixs.LARGEST}: use a smaller batch")
    lanes = tuple(dict.fromkeys(nest.schedule.lanes for nest in nests))
    needs = Needs(float64=any(computes_in_float64(nest.body.value) for nest in nests))
    needs = sum((renderer.e.needs for renderer in renderers), needs)
    # All loop nests of a launch use the first nest's maximum work-group size.
    most = nests[0].schedule.group
    body = f"{{\n{guard_of(items, most)}{lines}\n}}\n"
    return KernelCode(tuple(parameters), body, items, lanes, needs, group_of(items, most))


def computes_in_float64(value: Node) -> bool:
    """Whether a body has a float64 value, stored or intermediate."""
    return any(node.dtype is dt.float64 for node in scalar_nodes(value))


def _parameter(
    images: ImagePlan | None, argument: Argument, name: str, *, written: bool
) -> Parameter:
    image = None if images is None else images.image_of(argument)
    if image is not None:
        kind = image_access.parameter_type(written=written)
        return Parameter(name, kind, argument, written, image)
    stored = argument.source.dtype if isinstance(argument, PackedWeight) else argument.dtype
    return Parameter(name, cl.buffer_type(stored, written=written), argument, written)


def _in_turn(
    renderers: Sequence[_Renderer], bands: Bands, memory: Mapping[str, tuple[str, Node]]
) -> Iterator[str]:
    """Yield lines that run all loop nests band by band, in memory that all bands reuse.

    `memory` maps the name of each handed-on value to its parameter and node. Nests index it by
    band. Its pointer is shifted so that every band of a work-item uses the same slot, number
    `get_global_id(0)`.
    """
    yield f"  const int first = get_global_id(0) * {bands.chunk};"
    end = f"first + {bands.chunk}"
    if bands.count % bands.chunk:
        end = f"({end} < {bands.count} ? {end} : {bands.count})"
    yield f"  const int last = {end};"
    yield "  for (int band = first; band < last; band++) {"
    for name, (parameter, node) in memory.items():
        kind = f"__global {node.dtype.cl}*"
        size = prod(node.shape[1:]) * node.dtype.itemsize
        back = f"((long)get_global_id(0) - band) * {size}"
        yield f"    {kind} const {name} = ({kind})((uintptr_t){parameter} + {back});"
    for renderer in renderers:
        yield "    {"
        yield renderer.render("band", 3)
        yield "    }"
    yield "  }"


def _side_by_side(renderers: Sequence[_Renderer]) -> Iterator[str]:
    """Yield lines in which each work-item runs one of several loop nests.

    Nests of 8 and 4 items take the work-items 0 to 7 and 8 to 11.
    """
    yield "  const int launched = get_global_id(0);"
    begin, opening = 0, "  if"
    for renderer in renderers:
        end = begin + renderer.schedule.items
        last = renderer is renderers[-1]
        yield "  } else {" if last else f"{opening} (launched < {end}) {{"
        first = f"launched - {begin}" if begin else "launched"
        yield renderer.render(first, 2)
        begin, opening = end, "  } else if"
    yield "  }"

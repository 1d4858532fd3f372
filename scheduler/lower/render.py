"""Render a scheduled kernel as OpenCL C.

The register tile is unrolled symbolically: the body is evaluated once per tile coordinate with the
ranges replaced by `outer*block + coordinate (+ lane)`. Values that do not depend on a coordinate
are found again in the memo, so a weight vector is loaded once per tile and a sliding window loads
each column once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from math import prod

from scheduler import dtype as dt
from scheduler import index as ixs
from scheduler.index import Atom, Ix
from scheduler.lower import clang
from scheduler.lower.emitter import Emitter, Val
from scheduler.lower.pack import Axis, PackedWeight
from scheduler.lower.place import PlacedBody, looped
from scheduler.lower.schedule import Schedule
from scheduler.lower.values import Argument, Instance, Values
from scheduler.node import Node
from scheduler.ops import Op, identity


@dataclass(frozen=True, slots=True)
class Nest:
    """One loop nest to render.

    Attributes:
        body: placed and merged.
        schedule: its loops.
        outputs: nodes whose storage its stores write, in their order.
    """

    body: PlacedBody
    schedule: Schedule
    outputs: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """Text of a kernel from the parameter list on, and what to launch it with.

    Attributes:
        text: "(parameters) { body }" without a name.
        arguments: what is bound after the outputs, in parameter order.
        items: work-items to launch.
        lanes: vector widths used.
    """

    text: str
    arguments: tuple[Argument, ...]
    items: int
    lanes: tuple[int, ...]


class _Renderer:
    def __init__(self, nest: Nest, outputs: dict[Node, str], inputs: dict[Argument, str]) -> None:
        self.body, self.schedule = nest.body, nest.schedule
        self.pointers = [outputs[node] for node in nest.outputs]
        self.lanes = self.schedule.lanes
        self.outputs = [Axis(t.atom, t.outer, t.unroll, t.lanes) for t in self.schedule.tiles]
        self.reduces = {
            r: self._reduce_axis(node, r)
            for node, order in self.schedule.reduce_order.items()
            for r in order
        }
        # The leftover of a range that lanes do not divide is a loop of its own: not packed for.
        whole = [a for a in self.reduces.values() if a.atom.size == a.outer * a.block]
        self.e = Emitter()
        axes = [*self.outputs, *whole]
        self.v = Values(self.e, self.body.value, axes, self.lanes, self._run_here)
        self.v.arguments = inputs

    def _reduce_axis(self, node: Node, atom: Atom) -> Axis:
        if atom is self.schedule.across.get(node):
            return Axis(atom, atom.size // self.lanes, 1, self.lanes)
        unroll = self.schedule.reduce_unroll.get(atom, 1)
        return Axis(atom, atom.size // unroll, unroll, 1)

    def render(self, first: str, level: int) -> str:
        """Return the statements of the nest.

        Args:
            first: expression of the number of its work-item.
            level: of indentation.
        """
        schedule = self.schedule
        self.e.statement(f"const int item = {first};")
        outer = self.outputs[: len(self.outputs) - schedule.inner]
        inner = self.outputs[len(outer) :]
        known = {a.atom for a in outer}
        with ExitStack() as loops:
            if schedule.chunk > 1:
                end = f"item * {schedule.chunk} + {schedule.chunk}"
                whole = schedule.steps % schedule.chunk == 0
                last = end if whole else f"({end} < {schedule.steps} ? {end} : {schedule.steps})"
                self.e.statement(f"const int end = {last};")
                header = f"for (int step = item * {schedule.chunk}; step < end; step++)"
                loops.enter_context(self.e.loop(header))
            name = "step" if schedule.chunk > 1 else "item"
            instances = self._instances(outer, self._outer_steps(outer, name))
            self._reduce_all(instances, known)
            above = [self.body.loops_around(s) <= known for s in self.body.stores]
            self._store_all(instances, [i for i, here in enumerate(above) if here])
            if inner:
                steps = {a.atom: self._open_loop(loops, a.outer) for a in inner}
                below = self._instances(inner, steps)
                instances = [o.extended(i) for o in instances for i in below]
                self._reduce_all(instances, {a.atom for a in self.outputs})
            self._store_all(instances, [i for i, here in enumerate(above) if not here])
        return self.e.text(level)

    def _store_all(self, instances: list[Instance], numbers: list[int]) -> None:
        for instance in instances:
            for number in numbers:  # one may overwrite what another one still has to read
                self.v.evaluate(self.body.values[number], instance)
            for number in numbers:
                self._store(number, instance)

    def _reduce_all(self, instances: list[Instance], known: set[Atom]) -> None:
        """Emit the reductions that depend on known ranges only and are not emitted yet."""
        for node in looped(self.body):
            if known.issuperset(self.v.depends(node)):
                self._run(node, instances)

    def _run(self, node: Node, instances: list[Instance]) -> None:
        """Emit a reduction or the filling of a private array, where it is not known yet."""
        targets = {self.v.key(node, i): i for i in instances}
        targets = {k: i for k, i in targets.items() if self.e.lookup(k) is None}
        if targets and node.op is Op.STAGE:
            for key, instance in targets.items():
                self._fill(node, key, instance)
        elif targets:
            self._reduce(node, targets)

    def _run_here(self, node: Node, instance: Instance) -> None:
        self._run(node, [instance])

    def _fill(self, node: Node, key: tuple[object, ...], instance: Instance) -> None:
        """Emit a private array and the loops that fill it."""
        order = self.schedule.reduce_order[node]
        across = self.schedule.across.get(node)
        name, kind = self.e.fresh("row"), clang.register(node.dtype).cl
        size = prod(r.size for r in order)
        self.e.statement(f"{kind} {name}[{size}];")
        depth = self.e.depth
        lanes = self.lanes if across is not None else 1
        with ExitStack() as loops:
            steps = [self._open_loop(loops, self.reduces[r].outer) for r in order]
            cuts = [list(self._cut(self.reduces[r], s)) for r, s in zip(order, steps, strict=True)]
            for coordinates in product(*cuts):
                self._put(node, name, instance.extended(_union(coordinates)), lanes)
        done = across.size // self.lanes * self.lanes if across is not None else 0
        if across is not None and done < across.size:
            with ExitStack() as loops:
                rest = {r: self._open_loop(loops, self.reduces[r].outer) for r in order[:-1]}
                at = ixs.add(self._open_loop(loops, across.size - done), ixs.constant(done))
                cuts = [list(self._cut(self.reduces[r], rest[r])) for r in order[:-1]]
                cuts.append([Instance({across: at}, {})])
                for coordinates in product(*cuts):
                    self._put(node, name, instance.extended(_union(coordinates)), 1)
        self.e.remember(key, Val(name, vector=False, depth=depth))

    def _put(self, node: Node, name: str, instance: Instance, lanes: int) -> None:
        """Store one element, or lanes of them, of a private array."""
        self.v.evaluate(node.src[0], instance)
        code = self.v.in_lanes(node.src[0], instance, lanes)
        ranges = node.arg[1]
        offset = ixs.flatten([instance.mapping[r] for r in ranges], [r.size for r in ranges])
        if lanes > 1 and ixs.coefficient(offset, self.v.lane) != 1:  # lanes over an outer axis
            vector = self.e.fresh("s")
            self.e.statement(f"const {clang.ctype(node.dtype, lanes)} {vector} = {code};")
            sign = "-" if node.dtype is dt.bool_ else ""
            for k in range(lanes):
                at = self.e.index(self.v.at_lane(offset, k))
                self.e.statement(f"{name}[{at}] = {sign}{vector}.s{k:x};")
            return
        start = self.e.index(ixs.substitute(offset, {self.v.lane: ixs.ZERO}))
        self.e.statement(clang.store_private(name, start, code, node.dtype, lanes))

    def _outer_steps(self, axes: list[Axis], name: str) -> dict[Atom, Ix]:
        """Decompose the linear step number into the outer step of each range, innermost fastest."""
        whole = ixs.new_range(max(1, self.schedule.steps), name)
        self.e.name_atom(whole, name, self.e.depth)
        rest = ixs.of(whole)
        steps: dict[Atom, Ix] = {}
        for axis in reversed(axes):
            steps[axis.atom] = self._variable(ixs.mod(rest, axis.outer))
            rest = ixs.floordiv(rest, axis.outer)
        return steps

    def _variable(self, ix: Ix) -> Ix:
        """Give an index a variable of its own, so that later arithmetic stays affine in it."""
        if ix.is_const or (len(ix.terms) == 1 and ix.terms[0][0].kind == "range"):
            return ix
        atom, name = ixs.new_range(ix.hi + 1, "o"), self.e.fresh("o")
        self.e.statement(f"const int {name} = {self.e.index(ix)};")
        self.e.name_atom(atom, name, self.e.depth)
        return ixs.of(atom)

    def _instances(self, axes: list[Axis], steps: dict[Atom, Ix]) -> list[Instance]:
        """Return the coordinates of the register tile over some ranges."""
        cuts = [list(self._cut(axis, steps[axis.atom])) for axis in axes]
        return [_union(combination) for combination in product(*cuts)]

    def _cut(self, axis: Axis, step: Ix) -> Iterator[Instance]:
        """Yield the unrolled coordinates of one range at an outer step."""
        base = (
            self._clamped(axis, step) if axis.atom.size % axis.block else ixs.mul(step, axis.block)
        )
        for u in range(axis.unroll):
            value = ixs.add(base, ixs.constant(u * axis.lanes))
            if axis.lanes > 1:
                value = ixs.add(value, ixs.of(self.v.lane))
            yield Instance({axis.atom: value}, {axis.atom: (step, u)})

    def _clamped(self, axis: Axis, step: Ix) -> Ix:
        """Start of a block; the last overlaps the one before: min(step*block, size - block)."""
        last = axis.atom.size - axis.block
        if step.is_const:
            return ixs.constant(min(step.const * axis.block, last))
        atom, name = ixs.new_range(last + 1, "b"), self.e.fresh("b")
        start = self.e.index(ixs.mul(step, axis.block))
        self.e.statement(f"const int {name} = {start} < {last} ? {start} : {last};")
        self.e.name_atom(atom, name, self.e.depth)
        return ixs.of(atom)

    def _open_loop(self, stack: ExitStack, count: int) -> Ix:
        if count == 1:
            return ixs.ZERO
        name = self.e.fresh("i")
        step = ixs.new_range(count, name)
        stack.enter_context(self.e.loop(f"for (int {name} = 0; {name} < {count}; {name}++)"))
        self.e.name_atom(step, name, self.e.depth)
        return ixs.of(step)

    def _reduce(self, node: Node, targets: dict[tuple[object, ...], Instance]) -> None:
        """Emit accumulators, loops over the reduced ranges, and the results of one reduction."""
        across = self.schedule.across.get(node)
        moving = any(
            self.v.moves(i.mapping[a]) for i in targets.values() for a in self.v.depends(node)
        )
        lanes = self.lanes if across is not None or moving else 1
        names = {key: self._accumulator(node, lanes) for key in targets}
        order = self.schedule.reduce_order[node]
        with ExitStack() as loops:
            steps = {r: self._open_loop(loops, self.reduces[r].outer) for r in order}
            cuts = [list(self._cut(self.reduces[r], steps[r])) for r in order]
            self._accumulate(node, targets, names, [_union(c) for c in product(*cuts)], lanes)
        if across is not None:
            names = {key: self._across(name, node, lanes) for key, name in names.items()}
            self._leftover(node, across, targets, names)
        for key, name in names.items():
            self.e.remember(key, Val(name, moving and across is None, self.e.depth))

    def _accumulate(
        self,
        node: Node,
        targets: dict[tuple[object, ...], Instance],
        names: dict[tuple[object, ...], str],
        inner: list[Instance],
        lanes: int,
    ) -> None:
        for coordinates in inner:
            for key, outer in targets.items():
                value = self._next(node, outer.extended(coordinates), names[key], lanes)
                self.e.statement(f"{names[key]} = {value};")

    def _leftover(
        self,
        node: Node,
        across: Atom,
        targets: dict[tuple[object, ...], Instance],
        names: dict[tuple[object, ...], str],
    ) -> None:
        """Reduce what lanes left over at the end of their range, one element at a time."""
        done = across.size // self.lanes * self.lanes
        if done == across.size:
            return
        order = self.schedule.reduce_order[node]
        with ExitStack() as loops:
            cuts = []
            for r in order:
                if r is not across:
                    step = self._open_loop(loops, self.reduces[r].outer)
                    cuts.append(list(self._cut(self.reduces[r], step)))
            at = ixs.add(self._open_loop(loops, across.size - done), ixs.constant(done))
            cuts.append([Instance({across: at}, {})])
            self._accumulate(node, targets, names, [_union(c) for c in product(*cuts)], 1)

    def _accumulator(self, node: Node, lanes: int) -> str:
        name = self.e.fresh("acc")
        start = clang.literal(identity(node.arg[0], node.dtype), node.dtype)
        value = clang.widen(start, node.dtype, lanes) if lanes > 1 else start
        self.e.statement(f"{clang.ctype(node.dtype, lanes)} {name} = {value};")
        return name

    def _next(self, node: Node, instance: Instance, name: str, lanes: int) -> str:
        """Return the accumulator's next value; a product is fused into its sum."""
        op, term = node.arg[0], node.src[0]
        if op is Op.ADD and term.op is Op.MUL and node.dtype.is_float:
            for source in term.src:
                self.v.evaluate(source, instance)
            a, b = (self.v.in_lanes(s, instance, lanes) for s in term.src)
            return (
                f"m_fma({a}, {b}, {name})"
                if node.dtype is not dt.float64
                else f"fma({a}, {b}, {name})"
            )
        self.v.evaluate(term, instance)
        value = self.v.in_lanes(term, instance, lanes)
        return clang.combine(op, name, value, node.dtype, lanes)

    def _across(self, name: str, node: Node, lanes: int) -> str:
        """Combine the lanes of an accumulator pairwise; return the scalar accumulator."""
        code = name
        while lanes > 1:
            lanes //= 2
            low, high = ("lo", "hi") if lanes > 1 else ("s0", "s1")
            text = clang.combine(node.arg[0], f"{code}.{low}", f"{code}.{high}", node.dtype, lanes)
            if node.dtype is dt.bool_ and lanes == 1:
                text = f"-({text})"  # true is -1 in lanes, 1 as a scalar
            code, kind = self.e.fresh("h"), clang.ctype(node.dtype, lanes)
            self.e.statement(f"{kind} {code} = {text};")
        return code

    def _store(self, number: int, instance: Instance) -> None:
        value, pointer = self.body.values[number], self.pointers[number]
        kind = value.dtype
        self.v.evaluate(value, instance)
        offset = ixs.substitute(self.body.stores[number].offset, instance.mapping)
        lanes = self.lanes if self.v.moves(offset) else 1
        guard, row = self._row(number, instance)
        code = self.v.in_lanes(value, instance, lanes)
        if lanes == 1 or ixs.coefficient(offset, self.v.lane) == 1:
            start = self.e.index(self.v.at_lane(offset, 0)) + row
            self.e.statement(guard + clang.store(pointer, start, code, kind, lanes))
            return
        name = self.e.fresh("s")
        self.e.statement(f"const {clang.ctype(kind, lanes)} {name} = {code};")
        for k in range(lanes):
            at = self.e.index(self.v.at_lane(offset, k)) + row
            self.e.statement(guard + clang.store(pointer, at, f"{name}.s{k:x}", kind, 1))

    def _row(self, number: int, instance: Instance) -> tuple[str, str]:
        """Return the condition of a store to a row known at run time, and what it adds."""
        row = self.body.stores[number].row
        if row is None:
            return "", ""
        which, rows, stride = row
        node = self.body.values[which]
        self.v.evaluate(node, instance)
        code = self.v.value(node, instance).code
        return f"if (({code} >= 0) & ({code} < {rows})) ", f" + {code} * {stride}"


def _union(parts: tuple[Instance, ...]) -> Instance:
    result = Instance({}, {})
    for part in parts:
        result = result.extended(part)
    return result


def render(nests: Sequence[Nest]) -> Rendered:
    """Return the OpenCL text of one kernel.

    Args:
        nests: its loop nests; of several, each work-item runs one.
    """
    nodes = dict.fromkeys(node for nest in nests for node in nest.outputs)
    names = ["out"] if len(nodes) == 1 else [f"out{i}" for i in range(len(nodes))]
    outputs = dict(zip(nodes, names, strict=True))
    inputs: dict[Argument, str] = {}
    if len(nests) == 1:
        lines = _Renderer(nests[0], outputs, inputs).render("get_global_id(0)", 1)
    else:
        lines = "\n".join(_side_by_side(nests, outputs, inputs))
    parameters = [f"__global {node.dtype.cl}* {name}" for node, name in outputs.items()]
    for argument, name in inputs.items():
        kind = argument.source.dtype if isinstance(argument, PackedWeight) else argument.dtype
        parameters.append(f"const __global {kind.cl}* {name}")
    text = f"({', '.join(parameters)})\n{{\n{lines}\n}}\n"
    items = sum(nest.schedule.items for nest in nests)
    lanes = tuple(dict.fromkeys(nest.schedule.lanes for nest in nests))
    return Rendered(text, tuple(inputs), items, lanes)


def _side_by_side(
    nests: Sequence[Nest], outputs: dict[Node, str], inputs: dict[Argument, str]
) -> Iterator[str]:
    """Yield the lines of a kernel in which each work-item runs one of several loop nests."""
    yield "  const int launched = get_global_id(0);"
    begin, opening = 0, "  if"
    for nest in nests:
        end = begin + nest.schedule.items
        yield f"{opening} (launched < {end}) {{" if nest is not nests[-1] else "  } else {"
        first = f"launched - {begin}" if begin else "launched"
        yield _Renderer(nest, outputs, inputs).render(first, 2)
        begin, opening = end, "  } else if"
    yield "  }"

"""Emits the loops inside a kernel's step, which computes one register tile of results.

These are reductions, and loops that fill private arrays. A reduction over products, and a window
with padding:

    acc = 0; for k in range(K): acc = fma(x[k], w[k], acc)
    for ky in 0..2: acc += (0 <= y+ky-1 < H ? x[y+ky-1] : 0) * w[ky]
    ->  for ky in max(0, 1-y) .. min(3, H+1-y) - 1: acc += x[y+ky-1] * w[ky]

If a loop is neither unrolled nor vectorized, predicates of loads narrow its bounds, so padding
costs neither work nor tests. Inner reductions and invariants are emitted before a reduction's
loops. All other values are emitted inside, for all
coordinates of the register tile together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product

import numpy as np

from scheduler.errors import LoweringError
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import LOOPS, Op, identity, is_fused, parts_of
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.pack import Axis
from scheduler.render import opencl_c as cl
from scheduler.render.horizontal import combine_lanes
from scheduler.render.kernel_code import Emitter, Instance, Val
from scheduler.render.values import Values

Key = tuple[object, ...]
# Unrolling is decided here, so the compiler must not unroll.
NO_UNROLL = "__attribute__((opencl_unroll_hint(1)))"
# Compilers that ignore such hints unroll loops of up to this many steps (Mesa's limit). They do
# not unroll a loop whose start they do not know. `get_global_id(1)` is such a start: launches
# have one dimension, so it is 0.
UNROLLED_STEPS = 32


class Loops:
    """Emits reductions and private arrays through an Emitter; `v` computes their elements."""

    def __init__(self, emitter: Emitter, schedule: LoopSchedule) -> None:
        self.e, self.schedule, self.lanes = emitter, schedule, schedule.lanes
        self.v: Values  # set by the renderer, because the two objects need each other
        self.reduces = {
            r: self._reduce_axis(node, r)
            for node, order in schedule.reduce_order.items()
            for r in order
        }
        self._nested: dict[Node, list[Node]] = {}  # loops inside a node's expression
        # For each reduction, the tests of `vanishing`.
        self._tests: dict[Node, Predicate] = {}

    def _reduce_axis(self, node: Node, atom: Atom) -> Axis:
        unroll = self.schedule.reduce_unroll.get(atom, 1)
        lanes = self.lanes if atom is self.schedule.across.get(node) else 1
        return Axis(atom, atom.size // (unroll * lanes), unroll, lanes)

    def open(self, stack: ExitStack, count: int) -> Ix:
        """Open a loop of `count` steps and return its variable; a single step needs no loop."""
        return self._open(stack, count, ("0", str(count))) if count > 1 else ixs.ZERO

    def open_rolled(self, stack: ExitStack, count: int) -> Ix:
        """Open a loop with a hint that the device's compiler should not unroll it."""
        return self._open(stack, count, ("0", str(count)), f"{NO_UNROLL} ")

    def _open(self, stack: ExitStack, count: int, bounds: tuple[str, str], hint: str = "") -> Ix:
        # Generated loops count with an int.
        if count > ixs.LARGEST:
            raise LoweringError(f"a loop of {count} steps; at most {ixs.LARGEST}: work on parts")
        name = self.e.fresh("i")
        step = ixs.new_range(count, name)
        header = f"{hint}for (int {name} = {bounds[0]}; {name} < {bounds[1]}; {name}++)"
        stack.enter_context(self.e.loop(header))
        self.e.name_atom(step, name, self.e.depth)
        return ixs.of(step)

    def cut(self, axis: Axis, step: Ix) -> list[Instance]:
        """Return the unrolled coordinates of one range at an outer step."""
        result = []
        # The index of a vector is its start plus the lane number.
        for u, start in enumerate(self._starts(axis, step)):
            value = ixs.add(start, ixs.of(self.v.lane)) if axis.lanes > 1 else start
            result.append(Instance({axis.atom: value}, {axis.atom: (step, ixs.constant(u))}))
        return result

    def _starts(self, axis: Axis, step: Ix) -> Iterator[Ix]:
        """Yield the start of each vector of a block; the last block can overlap the one before."""
        if step.is_const or axis.outer == 1:
            yield from (ixs.constant(int(s)) for s in axis.starts()[step.const])
            return
        base = ixs.mul(step, axis.block)
        # The last block starts earlier, so that it ends with the range.
        if axis.atom.size % axis.block:
            base = self._clamped(base, axis.atom.size - axis.block)
        for u in range(axis.unroll):
            yield ixs.shift(base, u * axis.lanes)

    def _clamped(self, start: Ix, last: int) -> Ix:
        """Return min(start, last) as a variable."""
        atom, name = ixs.new_range(last + 1, "b"), self.e.fresh("b")
        code = self.e.index(start)
        self.e.statement(f"const int {name} = {code} < {last} ? {code} : {last};")
        self.e.name_atom(atom, name, self.e.depth)
        return ixs.of(atom)

    def run(self, node: Node, instances: Iterable[Instance]) -> None:
        """Emit a reduction, or the filling of a private array, unless its value is known."""
        # Instances share a result if they differ only in ranges that the node does not depend on.
        targets = {self.v.key(node, i): i for i in instances}
        targets = {k: i for k, i in targets.items() if self.e.lookup(k) is None}
        if not targets:
            return
        # An inner reduction that does not depend on this node's loops is emitted before them.
        self._run_nested(node, targets.values())
        if node.op is Op.STAGE:
            for key, instance in targets.items():
                self._fill(node, key, instance)
        else:
            self._reduce(node, targets)

    def _run_nested(self, node: Node, instances: Iterable[Instance]) -> None:
        """Emit the reductions inside a node whose ranges are all known."""
        if node not in self._nested:
            inside = scalar_nodes(node.src[0], into_reductions=False)
            self._nested[node] = [n for n in inside if n.op in LOOPS]
        known = list(instances)
        for inner in self._nested[node]:
            if all(a in i.mapping for a in self.v.depends(inner) for i in known):
                self.run(inner, known)

    def _fill(self, node: Node, key: Key, instance: Instance) -> None:
        """Emit a private array and the loops that fill it."""
        order = self.schedule.reduce_order[node]
        across = self.schedule.across.get(node)
        name, kind = self.e.fresh("row"), cl.register(node.dtype).cl
        size = int(np.prod([r.size for r in order]))
        self.e.statement(f"{kind} {name}[{size}];")
        depth = self.e.depth
        with ExitStack() as loops:
            steps = [self.open(loops, self.reduces[r].outer) for r in order]
            cuts = [self.cut(self.reduces[r], s) for r, s in zip(order, steps, strict=True)]
            self._put_all(node, name, instance, cuts, 1 if across is None else self.lanes)
        done = self._done(across)
        # A scalar loop fills the elements at the end that no whole vector covers.
        if across is not None and done < across.size:
            with ExitStack() as loops:
                rest = {r: self.open(loops, self.reduces[r].outer) for r in order[:-1]}
                at = ixs.add(self.open(loops, across.size - done), ixs.constant(done))
                cuts = [self.cut(self.reduces[r], rest[r]) for r in order[:-1]]
                self._put_all(node, name, instance, [*cuts, [Instance({across: at}, {})]], 1)
        self.e.remember(key, Val(name, vector=False, depth=depth))

    def _done(self, across: Atom | None) -> int:
        """Return how many elements of a range the vectorized loop covers."""
        if across is None:
            return 0
        axis = self.reduces[across]
        return axis.outer * axis.block

    def _put_all(
        self, node: Node, name: str, outer: Instance, cuts: list[list[Instance]], lanes: int
    ) -> None:
        instances = [outer.extended(union(coordinates)) for coordinates in product(*cuts)]
        self._run_nested(node, instances)
        for instance in instances:
            self._put(node, name, instance, lanes)

    def _put(self, node: Node, name: str, instance: Instance, lanes: int) -> None:
        """Store one element, or one vector, into a private array."""
        self.v.evaluate(node.src[0], instance)
        code = self.v.in_lanes(node.src[0], instance, lanes)
        ranges = node.arg[1]
        offset = ixs.flatten([instance.mapping[r] for r in ranges], [r.size for r in ranges])
        if lanes > 1 and ixs.coefficient(offset, self.v.lane) != 1:
            # Lanes over an outer axis are not consecutive in the array.
            vector = self.e.fresh("s")
            self.e.statement(f"const {cl.ctype(node.dtype, lanes)} {vector} = {code};")
            # True is -1 in a vector and 1 in the array.
            sign = "-" if node.dtype is dt.bool_ else ""
            for k in range(lanes):
                at = self.e.index(self.v.at_lane(offset, k))
                self.e.statement(f"{name}[{at}] = {sign}{vector}.s{k:x};")
            return
        start = self.e.index(ixs.substitute(offset, {self.v.lane: ixs.ZERO}))
        self.e.statement(cl.store_private(name, start, code, node.dtype, lanes))

    def _reduce(self, node: Node, targets: dict[Key, Instance]) -> None:
        """Emit the accumulators, loops over reduced ranges, and results of one reduction."""
        across = self.schedule.across.get(node)
        # Lanes are either in the result or along the reduction; both make the accumulator a
        # vector.
        moving = any(
            self.v.moves(i.mapping[a]) for i in targets.values() for a in self.v.depends(node)
        )
        lanes = self.lanes if across is not None or moving else 1
        parts = self.schedule.accumulators(node)
        sums = {key: [self._accumulator(node, lanes) for _ in range(parts)] for key in targets}
        order = self.schedule.reduce_order[node]
        with ExitStack() as loops:
            tile = list(targets.values())
            steps = {r: self._open_reduced(loops, node, r, tile) for r in order}
            cuts = [self.cut(self.reduces[r], steps[r]) for r in order]
            self._accumulate(node, targets, sums, [union(c) for c in product(*cuts)], lanes)
        names = {key: self._folded(node, found, lanes) for key, found in sums.items()}
        if across is not None:
            codes = combine_lanes(self.e, list(names.values()), node.arg[0], node.dtype, lanes)
            names = dict(zip(names, codes, strict=True))
        if across is not None or parts > 1:
            rest = 1 if across is not None else lanes
            self._leftover(node, across or order[-1], targets, names, rest)
        for key, name in names.items():
            # Combining the lanes makes the result a scalar.
            self.e.remember(key, Val(name, moving and across is None, self.e.depth))

    def _folded(self, node: Node, sums: list[str], lanes: int) -> str:
        """Combine the accumulators of one result, the second half of the list into the first."""
        while len(sums) > 1:
            half = len(sums) // 2
            for low, high in zip(sums[:half], sums[half:], strict=True):
                value = cl.combine(node.arg[0], low, high, node.dtype, lanes)
                self.e.statement(f"{low} = {value};")
            sums = sums[:half]
        return sums[0]

    def _accumulate(
        self,
        node: Node,
        targets: dict[Key, Instance],
        sums: Mapping[Key, Sequence[str]],
        inner: list[Instance],
        lanes: int,
    ) -> None:
        """Emit the unrolled iterations `inner`; iteration n adds to accumulator n % len(sums)."""
        if any(n.op in LOOPS for n in self._nested[node]):
            self._run_nested(node, [o.extended(i) for o in targets.values() for i in inner])
        for number, coordinates in enumerate(inner):
            for key, outer in targets.items():
                instance = outer.extended(coordinates)
                if not self._vanishes(node, instance):
                    name = sums[key][number % len(sums[key])]
                    value = self._next(node, instance, name, lanes)
                    self.e.statement(f"{name} = {value};")

    def _leftover(
        self,
        node: Node,
        across: Atom,
        targets: dict[Key, Instance],
        names: dict[Key, str],
        lanes: int,
    ) -> None:
        """Reduce the elements at the end of a range that no whole block covers, one at a time."""
        done = self._done(across)
        if done == across.size:
            return
        order = self.schedule.reduce_order[node]
        with ExitStack() as loops:
            cuts = [
                self.cut(self.reduces[r], self.open(loops, self.reduces[r].outer))
                for r in order
                if r is not across
            ]
            at = ixs.add(self.open(loops, across.size - done), ixs.constant(done))
            cuts.append([Instance({across: at}, {})])
            alone = {key: [name] for key, name in names.items()}
            self._accumulate(node, targets, alone, [union(c) for c in product(*cuts)], lanes)

    def _accumulator(self, node: Node, lanes: int) -> str:
        name = self.e.fresh("acc")
        start = cl.literal(identity(node.arg[0], node.dtype), node.dtype)
        value = cl.widen(start, node.dtype, lanes) if lanes > 1 else start
        self.e.statement(f"{cl.ctype(node.dtype, lanes)} {name} = {value};")
        return name

    def _next(self, node: Node, instance: Instance, name: str, lanes: int) -> str:
        """Return the accumulator's next value; a product is fused into the sum."""
        op, term = node.arg[0], node.src[0]
        # A fused multiply-add rounds once, and is a single instruction on devices that have it.
        is_product = term.op is Op.MUL and node.dtype.is_float
        fused = term.op is Op.DOT4 or (is_fused(term) if parts_of(node) else is_product)
        if op is Op.ADD and fused:
            for source in term.src:
                self.v.evaluate(source, instance)
            a, b = (self.v.in_lanes(s, instance, lanes) for s in term.src)
            if term.op is Op.DOT4:
                return f"m_dot4({a}, {b}, {name})"
            return f"{cl.function('m_fma', node.dtype)}({a}, {b}, {name})"
        self.v.evaluate(term, instance)
        value = self.v.in_lanes(term, instance, lanes)
        return cl.combine(op, name, value, node.dtype, lanes)

    def _open_reduced(self, stack: ExitStack, node: Node, r: Atom, tile: list[Instance]) -> Ix:
        """Open the loop over a reduced range, without the steps known to contribute nothing."""
        axis = self.reduces[r]
        if self.v.images is not None and 1 < axis.outer <= UNROLLED_STEPS:
            # An unrolled loop would keep all image reads in flight, which needs too many registers.
            zero = self.e.define(("zero",), "int", "get_global_id(1)", vector=False, depth=0)
            return self._open(stack, axis.outer, (zero.code, str(axis.outer)))
        if axis.block > 1 or axis.outer == 1 or self.v.images is not None:
            # No test to save: reads outside an image are zero.
            return self.open(stack, axis.outer)
        bounds, ensured = ["0", str(r.size)], []
        for test in self._vanishing(node):
            ix, low, high = test
            factor = ixs.coefficient(ix, r)
            rests = {self._rest(ix, r, i.mapping) for i in tile}
            rest = self._rest(ix, r, tile[0].mapping)
            # All coordinates of the tile share the loop, so they must agree on its bounds.
            if not factor or factor < 0 or len(rests) > 1 or not self.e.knows(rest):
                continue
            if self.v.moves(rest):  # all lanes share one loop
                continue
            away = ixs.mul(rest, -1)  # low <= rest + factor*r <= high, solved for r
            first = ixs.floordiv(ixs.shift(away, low + factor - 1), factor)
            last = ixs.shift(ixs.floordiv(ixs.shift(away, high), factor), 1)
            bounds[0] = self._further(">", bounds[0], first, 0)
            bounds[1] = self._further("<", bounds[1], last, r.size)
            ensured.append(test)
        step = self._open(stack, axis.outer, (bounds[0], bounds[1]))
        # Loads inside these bounds need no tests of their own.
        self._assume(stack, ixs.substitute_predicate(tuple(ensured), tile[0].mapping | {r: step}))
        return step

    def _rest(self, ix: Ix, r: Atom, mapping: Mapping[Atom, Ix]) -> Ix:
        factor = ixs.coefficient(ix, r) or 0
        return ixs.substitute(ixs.add(ix, ixs.mul(ixs.of(r), -factor)), mapping)

    def _further(self, sign: str, bound: str, ix: Ix, limit: int) -> str:
        """Return the tighter of a loop bound and an index, in a variable if it is not constant.

        `sign` is ">" for a lower bound, "<" for an upper one; `limit` is the range's own bound.
        """
        if (ix.hi <= limit) if sign == ">" else (ix.lo >= limit):
            return bound
        code = self.e.index(ix)
        if ix.is_const and bound.isdecimal():
            return str(max(int(bound), ix.const) if sign == ">" else min(int(bound), ix.const))
        text = f"({code}) {sign} {bound} ? ({code}) : {bound}"
        key = ("bound", sign, bound, ix)
        return self.e.define(key, "int", text, vector=False, depth=self.e.depth_of(ix)).code

    def _assume(self, stack: ExitStack, tests: Predicate) -> None:
        """Assume that tests hold until the loops of a stack are closed."""
        fresh = set(tests) - self.v.assumed
        self.v.assumed |= fresh
        stack.callback(self.v.assumed.difference_update, fresh)

    def _vanishes(self, node: Node, instance: Instance) -> bool:
        tests = self._vanishing(node)
        return ixs.substitute_predicate(tests, instance.mapping) == ixs.NEVER

    def _vanishing(self, node: Node) -> Predicate:
        if node not in self._tests:
            self._tests[node] = vanishing(node)
        return self._tests[node]


def vanishing(node: Node) -> Predicate:
    """Return tests on the ranges of a reduction; a step for which one fails contributes nothing."""
    op, term = node.arg[0], node.src[0]
    if op is Op.ADD and term.op is Op.MUL:
        a, b = term.src
        both = [(x, y) for x, y in ((a, b), (b, a)) if _is_finite(y)]
        return tuple(test for x, _ in both for test in _outside(x, 0))
    return _outside(term, identity(op, node.dtype))


def _outside(node: Node, fill: float) -> Predicate:
    """Return the predicate of a load that yields `fill` if it fails, possibly below a cast."""
    load = node.src[0] if node.op is Op.CAST and fill == 0 else node
    if load.op is not Op.LOAD or load.arg.fill != fill:
        return ()
    valid: Predicate = load.arg.valid
    return valid


def _is_finite(node: Node) -> bool:
    """Whether a factor is a weight without NaN or infinity, so that 0 times it is 0."""
    load = node.src[0] if node.op is Op.CAST else node
    if load.op is not Op.LOAD or not is_weight(load.src[0]):
        return False
    return bool(np.isfinite(load.src[0].arg.data).all()) and bool(np.isfinite(load.arg.fill))


def union(parts: Iterable[Instance]) -> Instance:
    """Return the combined coordinates of several ranges."""
    result = Instance({}, {})
    for part in parts:
        result = result.extended(part)
    return result

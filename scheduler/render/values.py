"""Emits the scalar nodes of a kernel's expression at one coordinate of the register tile.

A value that is the same at several coordinates is emitted once. If a weight can be packed
(`scheduler/loops/pack.py`), its loads read a copy stored in the order in which the kernel reads it.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.errors import LoweringError
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import LOOPS, Op
from scheduler.kernelize.scalar import atoms_of, scalar_nodes
from scheduler.loops.images import ImagePlan
from scheduler.loops.pack import Axis, PackedWeight, pack
from scheduler.loops.place import Place, dependencies
from scheduler.render import memory
from scheduler.render import opencl_c as cl
from scheduler.render.kernel_code import Emitter, Instance, Val
from scheduler.render.memory import Pointers, read_of_quad
from scheduler.render.quotient import rounded_quotients

# The next panel of a packed weight is prefetched from this size on, in bytes. Smaller weights stay
# in a core's innermost cache of 32 to 64 KiB.
MIN_PREFETCH_BYTES = 65536


class Values:
    """Computes scalar nodes through an Emitter, and collects the kernel's arguments.

    Attributes:
        e: the emitter.
        axes: the ranges by which weights can be packed.
        lanes: vector width.
        lane: the variable of the lane number in indices.
        pointers: pointers into the kernel's buffers.
        assumed: tests that the bounds of open loops ensure.
        images: plan of which nodes are images; None if the device reads buffers only.
        weights_in_images: whether packed weights may be images.
        prefetch: the range for whose next step weights are prefetched.
        narrow: the range of the lanes, if it has fewer steps than there are lanes.

    Args:
        reduce: emits a reduction that is needed inside the open loop, and remembers its result.
    """

    def __init__(
        self,
        emitter: Emitter,
        value: Node,
        axes: list[Axis],
        lanes: int,
        reduce: Callable[[Node, Instance], None],
    ) -> None:
        self.e, self.axes, self.lanes, self._reduce = emitter, axes, lanes, reduce
        # A range of size 1 would fold to the constant 0.
        self.lane = ixs.new_range(max(2, lanes), "lane")
        emitter.name_atom(self.lane, "lane", 0)
        self.pointers = Pointers(emitter, lanes)
        self._packed: dict[Node, PackedWeight | None] = {}
        self.assumed: set[tuple[Ix, int, int]] = set()
        self._by_lane = {self.lane}  # atoms that differ by lane
        self.images: ImagePlan | None = None
        self.weights_in_images = True
        self.prefetch: Atom | None = None
        self.narrow: Atom | None = None
        # The index variable for the C name of a value computed at run time.
        self._runtime: dict[str, Atom] = {}
        self._orders: dict[Node, list[Node]] = {}
        self._depends = dependencies(value)
        self._index_of = _index_atoms(value)
        self._quotients = rounded_quotients(scalar_nodes(value))

    def depends(self, node: Node) -> tuple[Atom, ...]:
        """Return the ranges a node's value depends on."""
        return self._depends[node]

    def key(self, node: Node, instance: Instance) -> tuple[object, ...]:
        """Return the key under which a node's value at an instance is remembered."""
        # The key has only ranges that matter, so values from outside a loop are found inside it.
        return (node, *(instance.mapping.get(a) for a in self._depends[node]))

    def evaluate(self, root: Node, instance: Instance) -> None:
        """Emit `root` at an instance, and everything it needs that is not yet known."""
        # Cached, because the order is the same for all instances.
        if root not in self._orders:
            self._orders[root] = scalar_nodes(root, into_reductions=False)
        for node in self._orders[root]:
            if node.op is Op.CONST:
                continue
            key = self.key(node, instance)
            # Loops remember their results under the same key.
            value = self.e.lookup(key)
            if value is None and node.op in LOOPS:
                self._reduce(node, instance)
                value = self.e.lookup(key)
            if value is None:
                value = self._emit(node, instance)
                self.e.remember(key, value)
            for atom in self._index_of.get(node, ()):
                instance.mapping[atom] = self._runtime_index(atom, value)

    def value(self, node: Node, instance: Instance) -> Val:
        """Return the value of an evaluated node; raise LoweringError for others, a compiler bug."""
        if node.op is Op.CONST:
            return Val(cl.literal(node.arg, node.dtype), vector=False, depth=0)
        found = self.e.lookup(self.key(node, instance))
        if found is None:
            raise LoweringError(f"{node!r}: used before it is computed")
        return found

    def in_lanes(self, node: Node, instance: Instance, lanes: int) -> str:
        """Return an evaluated node as an expression of the given width."""
        value = self.value(node, instance)
        if lanes == 1 or value.vector:
            return value.code
        return cl.widen(value.code, node.dtype, lanes)

    def moves(self, ix: Ix) -> bool:
        """Whether an index differs by lane."""
        return any(a in self._by_lane for a in ixs.leaves(ix))

    def at_lane(self, ix: Ix, lane: int) -> Ix:
        """Return an index at one lane."""
        mapping: dict[Atom, Ix] = {self.lane: ixs.constant(lane)}
        for atom in ixs.leaves(ix):
            if atom in self._by_lane and atom is not self.lane:
                mapping[atom] = self._lane_of(atom, lane)
        return ixs.substitute(ix, mapping)

    def _lane_of(self, atom: Atom, lane: int) -> Ix:
        """Return the scalar atom for one lane of a run-time index."""
        # A lane's scope is that of its vector.
        name = f"{self.e.name_of(atom)}.s{lane:x}"
        if name not in self._runtime:
            single = ixs.new_range(atom.hi + 1, "g")
            self.e.name_atom(single, name, self.e.depth_of(ixs.of(atom)))
            self._runtime[name] = single
        return ixs.of(self._runtime[name])

    def _runtime_index(self, atom: Atom, value: Val) -> Ix:
        """Return the index of a value computed at run time."""
        if value.code not in self._runtime:
            fresh = ixs.new_range(max(2, atom.hi + 1), "g")
            self.e.name_atom(fresh, value.code, value.depth)
            self._runtime[value.code] = fresh
            if value.vector:
                self._by_lane.add(fresh)
        return ixs.of(self._runtime[value.code])

    def _emit(self, node: Node, instance: Instance) -> Val:
        """Emit a node whose sources are already known."""
        if node.op is Op.LOAD:
            return self._load(node, instance)
        if node.op is Op.INDEX:
            return self._index(ixs.substitute(node.arg, instance.mapping))
        if node.op is Op.SELECT:
            return self._select(node, instance)
        if node.op is Op.PICK:
            return self._pick(node, instance)
        sources = [self.value(s, instance) for s in node.src]
        lanes = self.lanes if any(s.vector for s in sources) else 1
        operands = [self.in_lanes(s, instance, lanes) for s in node.src]
        parts = self._quotients.get(node)
        code = (
            cl.operation(node, operands, lanes)
            if parts is None
            else cl.quotient(operands[0], parts, lanes)
        )
        depth = max(s.depth for s in sources)
        name = self.e.fresh("v")
        self.e.statement(f"const {cl.ctype(node.dtype, lanes)} {name} = {code};", depth)
        return Val(name, lanes > 1, depth)

    def _index(self, ix: Ix) -> Val:
        """Emit an index as a value; it is a vector if it differs by lane."""
        depth = self.e.depth_of(ix)
        if not self.moves(ix):
            return self.e.define(("index", ix), "int", self.e.index(ix), vector=False, depth=depth)
        step = ixs.coefficient(ix, self.lane)
        n = self.lanes
        # The ramp is correct only if no other atom differs by lane.
        if step is not None and not any(
            self.moves(ixs.of(a)) for a, _ in ix.terms if a is not self.lane
        ):
            start = self.e.index(ixs.substitute(ix, {self.lane: ixs.ZERO}))
            ramp = ", ".join(str(k * step) for k in range(n))
            code = f"(int{n})({start}) + (int{n})({ramp})"
        else:
            code = f"(int{n})({', '.join(self.e.index(self.at_lane(ix, k)) for k in range(n))})"
        return self.e.define(("index", ix), f"int{n}", code, vector=True, depth=depth)

    def condition(self, predicate: Predicate) -> Val:
        """Return a predicate as an int: 0 or 1, or 0 or -1 per lane."""
        known = self.e.lookup(("if", predicate))
        if known is not None:
            return known
        if not any(self.moves(ix) for ix, _, _ in predicate):
            code, depth = self.e.predicate(predicate)
            return self.e.define(("if", predicate), "int", code, vector=False, depth=depth)
        # A vector comparison yields 0 or -1 in each lane, so `&` combines them to a valid mask.
        tests, depth = [], 0
        for ix, low, high in predicate:
            value = self._index(ix)
            depth = max(depth, value.depth)
            code = value.code if value.vector else f"(int{self.lanes})({value.code})"
            tests.append(f"({code} >= {low}) & ({code} <= {high})")
        n = self.lanes
        return self.e.define(
            ("if", predicate), f"int{n}", " & ".join(tests), vector=True, depth=depth
        )

    def _select(self, node: Node, instance: Instance) -> Val:
        """Emit a choice between two values by a predicate on indices."""
        predicate = ixs.substitute_predicate(node.arg, instance.mapping)
        if predicate in ((), ixs.NEVER):
            return self.value(node.src[0 if predicate == () else 1], instance)
        test = self.condition(predicate)
        sources = [self.value(s, instance) for s in node.src]
        lanes = self.lanes if test.vector or any(s.vector for s in sources) else 1
        yes, no = (self.in_lanes(s, instance, lanes) for s in node.src)
        # A scalar test uses C's operator; a vector test must select by lane.
        if lanes == 1 or not test.vector:
            code = f"({test.code} ? {yes} : {no})"
        else:
            code = cl.choose(test.code, yes, no, node.dtype, lanes)
        depth = max(test.depth, *(s.depth for s in sources))
        name = self.e.fresh("v")
        self.e.statement(f"const {cl.ctype(node.dtype, lanes)} {name} = {code};", depth)
        return Val(name, lanes > 1, depth)

    def _pick(self, node: Node, instance: Instance) -> Val:
        """Read a private array: one element for all lanes, a vector, or one element per lane."""
        array = self.value(node.src[0], instance)
        offset = ixs.substitute(node.arg, instance.mapping)
        depth = max(array.depth, self.e.depth_of(offset))
        step = self._lane_step(offset)
        lanes = 1 if step == 0 else self.lanes
        if step in (0, 1):
            at = self.e.index(ixs.substitute(offset, {self.lane: ixs.ZERO}))
            code = cl.load_private(array.code, at, node.dtype, lanes)
        else:
            sign = "-" if node.dtype is dt.bool_ else ""  # true is 1 in the array and -1 in lanes
            places = [self.e.index(self.at_lane(offset, k)) for k in range(lanes)]
            parts = [f"{sign}{array.code}[{at}]" for at in places]
            code = f"({cl.ctype(node.dtype, lanes)})({', '.join(parts)})"
        kind = cl.ctype(node.dtype, lanes)
        return self.e.define(
            ("pick", array.code, offset), kind, code, vector=lanes > 1, depth=depth
        )

    def _load(self, node: Node, instance: Instance) -> Val:
        """Emit a load from a buffer, an image or a packed weight."""
        place: Place = node.arg
        packed = self._pack(node) if is_weight(node.src[0]) else None
        if packed is not None:
            return self._load_packed(packed, instance)
        if self.images is not None:
            texel = memory.read(self.images, self, node, instance)
            if texel is not None:
                return texel
        offset = ixs.substitute(place.offset, instance.mapping)
        # Without open tests, the load needs no branch.
        valid = self._unproven(ixs.substitute_predicate(place.valid, instance.mapping))
        key = ("load", node.src[0], offset, valid, place.fill)
        known = self.e.lookup(key)
        if known is not None:
            return known
        if valid == () and self._lane_step(offset) == 0:
            quad = read_of_quad(self.e, self.pointers, node, instance, offset)
            if quad is not None:
                return quad
        pointer = self.pointers.argument(node.src[0])
        fill = cl.literal(place.fill, node.dtype)
        if valid == ixs.NEVER:
            return Val(fill, vector=False, depth=0)
        depth = max([self.e.depth_of(offset), *(self.e.depth_of(ix) for ix, _, _ in valid)])
        masks_move = any(self.moves(ix) for ix, _, _ in valid)
        step = self._lane_step(offset)
        last = self._last_lane(place)
        if step is None or step > 1 or step < 0 or masks_move or last < self.lanes - 1:
            code, vector = self._load_lanes(node, offset, valid, last), True
        else:
            vector = step == 1
            lanes = self.lanes if vector else 1
            start = ixs.substitute(offset, {self.lane: ixs.ZERO})
            # Elements outside the buffer are never read.
            test = self.condition(valid) if valid else None
            found = None if test is None else self.pointers.masked(node, start, test, valid)
            base, at = found or (pointer, start)
            aligned = all(self.pointers.is_aligned(ix, node.dtype, lanes) for ix in (start, at))
            address = self.pointers.address(base, at, node.dtype)
            code = cl.load(*address, node.dtype, lanes, aligned=aligned)
            if test is not None and found is None:
                other = cl.widen(fill, node.dtype, lanes) if vector else fill
                code = f"{test.code} ? {code} : {other}"
        lanes = self.lanes if vector else 1
        return self.e.define(key, cl.ctype(node.dtype, lanes), code, vector=vector, depth=depth)

    def _unproven(self, valid: Predicate) -> Predicate:
        """Return the tests of a predicate that open loops do not already ensure."""
        return tuple(test for test in valid if test not in self.assumed)

    def _last_lane(self, place: Place) -> int:
        """Return the last lane that reads; an unpacked weight has no elements past its range."""
        if self.narrow is None or self.narrow not in set(ixs.leaves(place.offset)):
            return self.lanes - 1
        return self.narrow.hi

    def _lane_step(self, offset: Ix) -> int | None:
        """Return the offset's step per lane, or None if it differs between lanes."""
        if not self.moves(offset):
            return 0
        if any(a in self._by_lane and a is not self.lane for a in ixs.leaves(offset)):
            return None
        return ixs.coefficient(offset, self.lane)

    def _load_lanes(self, load: Node, offset: Ix, valid: Predicate, last: int) -> str:
        """Return a load of one element per lane; lanes beyond the last one repeat its element."""
        pointer, kind = self.pointers.argument(load.src[0]), load.dtype
        fill = cl.literal(load.arg.fill, kind)
        parts = []
        for k in (min(lane, last) for lane in range(self.lanes)):
            code = cl.load(*self.pointers.address(pointer, self.at_lane(offset, k), kind), kind, 1)
            predicate: Predicate = ()
            for ix, low, high in valid:
                predicate = ixs.conjoin(predicate, self.at_lane(ix, k), low, high)
            if predicate == ixs.NEVER:
                code = fill
            elif predicate:
                code = f"(({self.e.predicate(predicate)[0]}) ? {code} : {fill})"
            # True is -1 in a vector lane and 1 in memory.
            parts.append(f"-({code})" if kind is dt.bool_ else code)
        return f"({cl.ctype(kind, self.lanes)})({', '.join(parts)})"

    def _pack(self, node: Node) -> PackedWeight | None:
        """Return the packed form of a load's weight, or None if it cannot be packed."""
        if node not in self._packed:
            # Loads with equal data and strides share one buffer.
            packed = pack(node, self.axes)
            same = [p for p in self._packed.values() if p is not None and packed is not None]
            for other in same:
                if packed is not None and other.same_as(packed):
                    packed = other
            self._packed[node] = packed
        return self._packed[node]

    def _load_packed(self, packed: PackedWeight, instance: Instance) -> Val:
        """Emit a load from a packed weight."""
        offset, vector = ixs.ZERO, False
        for atom, (outer, unroll, lane) in packed.strides.items():
            step, coordinate = instance.coordinates[atom]
            offset = ixs.add(offset, ixs.mul(step, outer))
            offset = ixs.add(offset, ixs.mul(coordinate, unroll))
            vector = vector or (lane == 1 and self.moves(instance.mapping[atom]))
        if self.images is not None and vector and self.weights_in_images:
            texel = memory.read_packed(self.images, self, packed, offset)
            if texel is not None:
                return texel
        kind = packed.source.dtype
        lanes = self.lanes if vector else 1
        key = ("packed", id(packed), offset)
        known = self.e.lookup(key)
        if known is not None:
            return known
        base, at = self.pointers.address(self.pointers.argument(packed), offset, kind)
        depth = self.e.depth_of(offset)
        prefetched = packed.strides[self.prefetch][0] if self.prefetch in packed.strides else 0
        # After the last panel the prefetched address is past the end, which is harmless.
        if vector and prefetched and packed.data.nbytes >= MIN_PREFETCH_BYTES:
            self.e.statement(f"M_AHEAD({base} + ({int(at) + prefetched}));", depth)
        aligned = self.pointers.is_aligned(offset, kind, lanes)
        code = cl.load(base, at, kind, lanes, aligned=aligned)
        return self.e.define(key, cl.ctype(kind, lanes), code, vector=vector, depth=depth)


def _index_atoms(value: Node) -> dict[Node, list[Atom]]:
    """Return, for each scalar node used as an index at run time, the atoms that represent it."""
    found: dict[Node, dict[Atom, None]] = {}
    for node in scalar_nodes(value):
        for atom in atoms_of(node):
            if atom.node is not None:
                found.setdefault(atom.node, {})[atom] = None
    return {n: list(atoms) for n, atoms in found.items()}

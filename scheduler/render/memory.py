"""Renders memory accesses: pointers into buffers, and reads and writes of images.

in0[row*512 + k + 7], in0[row*512 + k + 519]     ->     p = in0 + (row*512 + k); p[7], p[519]
inside ? in0[row*512 + k] : 0                    ->     q = inside ? in0 + row*512 : zeros; q[k]
four loads of p[4*i] to p[4*i + 3]               ->     q = *(float4*)(p + 4*i); q.s0, ... q.s3

`scheduler.loops.images` decides which tensors are images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import Node
from scheduler.loops.images import TEXEL, ImagePlan, Texel, weight_image
from scheduler.loops.pack import Argument, PackedWeight
from scheduler.loops.place import Place, PlacedStore
from scheduler.render import opencl_c as cl
from scheduler.render.kernel_code import Emitter, Instance, Needs, Val

# Maximum number of elements of a buffer of fill values, which masked loads read if their predicate
# fails. A longer load adds its whole index before the choice of the pointer.
MAX_FILL = 4096
# Sizes of these buffers are multiples of this, so that most loads share one buffer.
FILL_BLOCK = 256
# A GPU work-item's widest access, in bytes. All memory of buffers is aligned to it.
MAX_ALIGNMENT = 16
# Number of adjacent elements that a GPU loads for the cost of one element.
QUAD: Final = 4
# The sampler returns zero outside the image.
SAMPLER: Final = (
    "__constant sampler_t m_nearest =\n"
    "  CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;\n"
)


class Pointers:
    """Declares pointers through an Emitter.

    Attributes:
        arguments: parameter names of the kernel's arguments, shared by its loop nests.
        scratch: parameter names of values that an earlier loop nest of the kernel wrote.
        first: number in the name of the first argument, `in{first}`.
        spare_buffers: number of arguments that can be added for fill values.
        whole_vectors: whether vectors of at most 16 bytes, at a multiple of their size, are
            accessed as aligned. Buffers are aligned to 16 bytes.
        opaque: whether to prevent the compiler from addressing with an index register. A
            multiply-add can have a memory operand only if its address is a pointer plus a constant.
    """

    def __init__(self, emitter: Emitter, lanes: int) -> None:
        self.e, self.lanes = emitter, lanes
        self.arguments: dict[Argument, str] = {}
        self.scratch: Mapping[Node, str] = {}
        self.first = 0
        self.spare_buffers = 0
        self.whole_vectors = False
        self.opaque = False
        self._fills: dict[tuple[object, ...], PackedWeight] = {}
        # (start, fill values, pointer) of the masked loads that differ only by a constant
        self._masked: dict[tuple[object, ...], list[tuple[int, PackedWeight, Val]]] = {}

    def argument(self, source: Argument) -> str:
        """Return the parameter name of a buffer, adding it on first use."""
        if isinstance(source, Node) and source in self.scratch:
            return self.scratch[source]
        return self.arguments.setdefault(source, f"in{self.first + len(self.arguments)}")

    def address(
        self, pointer: str, offset: Ix, kind: dt.DType, *, written: bool = False
    ) -> tuple[str, str]:
        """Return a pointer and a constant for an offset into a buffer.

        Offsets that differ by a constant share the pointer. Indexing with an int instead would
        widen it for each access.
        """
        place = ixs.shift(offset, -offset.const)
        if place.is_const:
            return pointer, str(offset.const)
        key = ("at", pointer, place)
        known = self.e.lookup(key)
        if known is None:
            depth = self.e.depth_of(place)
            const = "" if written else "const "
            name = self.e.fresh("p")
            # Zero extension is cheaper than sign extension.
            plain = "(uint)" if self.e.unsigned and place.lo >= 0 else ""
            code = f"{pointer} + {plain}({self.e.index(place)})"
            hidden = self.opaque and not written and depth > 0
            fixed = "" if hidden else " const"
            self.e.statement(f"{const}__global {kind.cl}*{fixed} {name} = {code};", depth)
            if hidden:
                self.e.statement(f"M_OPAQUE({name});", depth)
            known = Val(name, vector=False, depth=depth)
            self.e.remember(key, known)
        return known.code, str(offset.const)

    def is_aligned(self, offset: Ix, kind: dt.DType, lanes: int) -> bool:
        """Return whether a vector can be accessed as aligned to its size."""
        if not self.whole_vectors or lanes * kind.itemsize > MAX_ALIGNMENT:
            return False
        return not any(c % lanes for c in (offset.const, *(c for _, c in offset.terms)))

    def masked(self, load: Node, offset: Ix, test: Val, valid: Predicate) -> tuple[str, Ix] | None:
        """Choose between the source and its fill values before the load instead of after it.

            valid ? p[row + k] : 0     ->     q = valid ? p + row : zeros;   ... q[k]

        The choice moves out of loops that the predicate does not depend on, and loads need no
        branch. Returns None if the kernel cannot have another buffer. If lanes move the offset,
        `offset` is that of the first lane. The test is the same in all lanes.
        """
        pointer = self.argument(load.src[0])
        # Atoms deeper than the test are added after the choice.
        inside = [a for a, _ in offset.terms if self.e.depth_of(ixs.of(a)) > test.depth]
        inner = ixs.only(offset, inside)
        # If the indices exceed a fill buffer, the choice is made at each load's own index.
        if inner.hi - inner.lo + self.lanes > MAX_FILL:
            inner = ixs.ZERO
        inner = ixs.shift(inner, -inner.lo)
        outer = ixs.add(offset, ixs.mul(inner, -1))
        terms = ixs.shift(outer, -outer.const)
        place: Place = load.arg
        key = (pointer, terms, valid, place.fill)
        for base, fill, name in self._masked.get(key, ()):  # reuse the pointer of a nearby load
            # `near` is this load's offset from the other load's pointer.
            near = ixs.shift(inner, outer.const - base)
            fits = near.lo >= 0 and near.hi + self.lanes <= fill.data.size
            if fits and self.e.lookup(("pointer", *key, base, fill)) == name:
                return name.code, near
        made = self._fill(load, inner.hi + self.lanes)
        if made is None:
            return None
        kind = f"__global {load.dtype.cl}*"
        code = f"{test.code} ? {pointer} + ({self.e.index(outer)}) : {self.argument(made)}"
        depth = max(test.depth, self.e.depth_of(outer))
        known = ("pointer", *key, outer.const, made)  # one for each combination
        name = self.e.define(known, kind, code, vector=False, depth=depth)
        self._masked.setdefault(key, []).append((outer.const, made, name))
        return name.code, inner

    def _fill(self, load: Node, size: int) -> PackedWeight | None:
        """Return a buffer with a load's fill value, or None if no more buffers are allowed."""
        place: Place = load.arg
        whole = -(-size // FILL_BLOCK) * FILL_BLOCK
        key = (load.dtype, place.fill, whole)
        if key not in self._fills:
            # Each buffer of fill values is another kernel argument.
            if len(self._fills) >= self.spare_buffers:
                return None
            data = np.full(whole, place.fill, load.dtype.np)
            self._fills[key] = PackedWeight(load.src[0], data, {})
        return self._fills[key]


def read_of_quad(
    e: Emitter, pointers: Pointers, load: Node, instance: Instance, offset: Ix
) -> Val | None:
    """Emit an aligned load of the four elements that contain one element; return that element.

    Returns None if the loop does not use four neighbors, or if they can cross such a vector's
    boundary. The load must have no conditions and be the same for all lanes. `offset` is the
    element's offset.
    """
    kind = load.dtype
    first = ixs.shift(offset, -(offset.const % QUAD))
    if kind is dt.bool_ or not pointers.is_aligned(first, kind, QUAD):
        return None
    if not _takes_four(load.arg.offset, instance):
        return None
    base, at = pointers.address(pointers.argument(load.src[0]), first, kind)
    code = cl.load(base, at, kind, QUAD, aligned=True)
    key, depth = ("quad", load.src[0], first), e.depth_of(first)
    found = e.define(key, cl.ctype(kind, QUAD), code, vector=True, depth=depth)
    return Val(f"{found.code}.s{offset.const % QUAD}", vector=False, depth=depth)


def _takes_four(offset: Ix, instance: Instance) -> bool:
    """Whether the loop body reads all four: a range walks over elements, several per iteration."""
    return any(
        ixs.coefficient(offset, atom) == 1
        and instance.mapping[atom].terms != ()
        and not any(c % QUAD for _, c in instance.mapping[atom].terms)
        for atom in instance.coordinates
    )


# --- Images -----------------------------------------------------------------------------------


class Values(Protocol):
    """The values of the kernel around an access, such as `scheduler.render.values.Values`."""

    e: Emitter
    pointers: Pointers
    lanes: int
    lane: Atom

    def moves(self, ix: Ix) -> bool:
        """Return whether an index differs by lane."""
        ...

    def at_lane(self, ix: Ix, lane: int) -> Ix:
        """Return an index at one lane."""
        ...

    def condition(self, predicate: Predicate) -> Val:
        """Emit the condition that a predicate holds."""
        ...


def parameter_type(*, written: bool) -> str:
    """Return the C type of an image parameter."""
    return f"__{'write' if written else 'read'}_only image2d_t"


def read(plan: ImagePlan, values: Values, load: Node, instance: Instance) -> Val | None:
    """Emit a load from an image; return None for a buffer, after recording an unsuitable image."""
    source, place = load.src[0], load.arg
    tensor = plan.tensors.get(source)
    valid = ixs.substitute_predicate(place.valid, instance.mapping)
    if tensor is None or valid == ixs.NEVER:
        return None
    index = tuple(ixs.substitute(ix, instance.mapping) for ix in place.index)
    at = tensor.at(index, values.lane)
    gates: Predicate = valid
    if at is not None and at.by_axis and place.fill == 0:
        gates = tuple(b for b in valid if not tensor.is_zero_outside(index, b))
    if at is None and values.lanes == TEXEL:
        picked = _picked(plan, values, load, index, valid)
        if picked is not None:
            return picked
    moving = at is None or any(values.moves(ix) for ix in (at.x, at.y, *(g[0] for g in gates)))
    if at is None or moving or (at.component is None and values.lanes != TEXEL):
        plan.refused[source] = None
        return None
    return _texel(plan, values, load, at, gates)


def read_packed(plan: ImagePlan, values: Values, packed: PackedWeight, offset: Ix) -> Val | None:
    """Emit a load of four elements of a packed weight; return None if it is a buffer."""
    image = plan.weights.get(packed)
    if image is None:
        image = weight_image(packed, plan.most) if values.lanes == TEXEL else None
        if image is None:
            return None
        plan.weights[packed] = image
    whole = ixs.floordiv(offset, TEXEL)
    x, y = ixs.mod(whole, image.width), ixs.floordiv(whole, image.width)
    return _read_texel(plan, values, packed, x, y)


def write(
    plan: ImagePlan, values: Values, store: PlacedStore, instance: Instance, name: str, code: str
) -> str | None:
    """Return the statement that stores four elements, or None if the result is a buffer.

    `code` is a vector if the offset differs by lane.
    """
    tensor = plan.tensors.get(store.target)
    if tensor is None:
        return None
    index = tuple(ixs.substitute(ix, instance.mapping) for ix in store.index)
    at = tensor.at(index, values.lane)
    whole = at is not None and at.component is None and values.lanes == TEXEL
    if at is None or not whole or values.moves(at.x) or values.moves(at.y):
        plan.refused[store.target] = None
        return None
    x, y = values.e.index(at.x), values.e.index(at.y)
    values.e.needs += Needs(image_writes=1)
    return f"write_imagef({name}, (int2)({x}, {y}), {code});"


def _texel(plan: ImagePlan, values: Values, load: Node, at: Texel, gates: Predicate) -> Val:
    """Emit the read of a texel, or of one of its elements that all lanes share."""
    place: Place = load.arg
    x, y = at.x, at.y
    if not gates:
        found = _read_texel(plan, values, load.src[0], x, y)
    elif place.fill == 0:
        found = _read_texel(plan, values, load.src[0], x, y, gates)
    else:
        # Reads outside the image are defined, so the read needs no branch.
        texel = _read_texel(plan, values, load.src[0], x, y)
        test = values.condition(gates)
        fill = cl.widen(cl.literal(place.fill, load.dtype), load.dtype, TEXEL)
        key = ("gated texel", texel, gates, fill)
        if values.e.lookup(key) is None:
            values.e.needs += Needs(gated_reads=1)
        code = f"{test.code} ? {texel.code} : {fill}"
        depth = max(texel.depth, test.depth)
        found = values.e.define(key, "float4", code, vector=True, depth=depth)
    if at.component is None:
        return found
    return Val(f"{found.code}.s{at.component}", vector=False, depth=found.depth)


def _picked(
    plan: ImagePlan, values: Values, load: Node, index: tuple[Ix, ...], valid: Predicate
) -> Val | None:
    """Emit the read of one texel in which each lane uses its own element; None if it needs more.

    x[c / 2], lanes over c     ->     read_imagef(x, ...).s0011
    """
    tensor = plan.tensors[load.src[0]]
    lanes = [
        tensor.at(tuple(values.at_lane(ix, k) for ix in index), values.lane) for k in range(TEXEL)
    ]
    first = lanes[0]
    if first is None or any(
        at is None or at.component is None or (at.x, at.y) != (first.x, first.y) for at in lanes
    ):
        return None
    gates = valid
    if first.by_axis and load.arg.fill == 0:
        gates = tuple(b for b in valid if not tensor.is_zero_outside(index, b))
    if any(values.moves(ix) for ix, _, _ in gates):
        return None
    whole = _texel(plan, values, load, first._replace(component=None), gates)
    components = "".join(str(at.component) for at in lanes if at is not None)
    return Val(f"{whole.code}.s{components}", vector=True, depth=whole.depth)


def _read_texel(
    plan: ImagePlan, values: Values, source: Argument, x: Ix, y: Ix, gates: Predicate = ()
) -> Val:
    """Emit the read of a texel, unless it is known already; it is zero if `gates` do not hold.

        inside ? read(x, y) : 0     ->     read(x, inside ? y : -1)

    Compilers turn the former into a branch. Reading outside without a sampler is undefined in
    OpenCL.
    """
    name = values.pointers.argument(source)
    key = ("texel", name, x, y, gates)
    known = values.e.lookup(key)
    if known is not None:
        return known
    values.e.needs += Needs(image_reads=1, gated_reads=1 if gates else 0)
    # A test joins the coordinate that has its ranges, so neighbors along the other one share it.
    of_y = tuple(test for test in gates if _missing(test[0], y) <= _missing(test[0], x))
    of_x = tuple(test for test in gates if test not in of_y)
    column, row = _gated(values, x, of_x), _gated(values, y, of_y)
    image = plan.image_of(source)
    bare = plan.most.sampler_less and not gates and image is not None and image.holds(x, y)
    sampler = "" if bare else "m_nearest, "
    code = f"read_imagef({name}, {sampler}(int2)({column.code}, {row.code}))"
    depth = max(column.depth, row.depth)
    return values.e.define(key, "float4", code, vector=True, depth=depth)


def _missing(ix: Ix, coordinate: Ix) -> int:
    """Return the number of an index's ranges that a coordinate does not depend on."""
    return len(set(ixs.leaves(ix)) - set(ixs.leaves(coordinate)))


def _gated(values: Values, coordinate: Ix, gates: Predicate) -> Val:
    """Emit a coordinate that is outside the image if `gates` do not hold."""
    code, depth = values.e.index(coordinate), values.e.depth_of(coordinate)
    if not gates:
        return Val(code, vector=False, depth=depth)
    test = values.condition(gates)
    depth = max(depth, test.depth)
    code = f"{test.code} ? {code} : -1"
    return values.e.define(("gated", coordinate, gates), "int", code, vector=False, depth=depth)

"""Read and write images: accesses to what `scheduler.loops.images` made one."""

from __future__ import annotations

from typing import Final, Protocol

from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import Node
from scheduler.loops.images import TEXEL, ImagePlan, Texel, weight_image
from scheduler.loops.pack import Argument, PackedWeight
from scheduler.loops.place import Place, PlacedStore
from scheduler.render import opencl_c as cl
from scheduler.render.emitter import Emitter, Instance, Val
from scheduler.render.kernel_code import Needs
from scheduler.render.pointers import Pointers

# What is read outside is zero.
SAMPLER: Final = (
    "__constant sampler_t m_nearest =\n"
    "  CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;\n"
)


class Values(Protocol):
    """The kernel that an access is part of; `scheduler.render.values.Values` is one."""

    e: Emitter
    pointers: Pointers
    lanes: int
    lane: Atom

    def moves(self, ix: Ix) -> bool:
        """Return whether an index changes with the lane."""
        ...

    def at_lane(self, ix: Ix, lane: int) -> Ix:
        """Return an index at one lane."""
        ...

    def condition(self, predicate: Predicate) -> Val:
        """Emit the condition that a predicate holds."""
        ...


def parameter_type(*, written: bool) -> str:
    """Return the type of an image parameter."""
    return f"__{'write' if written else 'read'}_only image2d_t"


def read(plan: ImagePlan, values: Values, load: Node, instance: Instance) -> Val | None:
    """Emit a load from an image; None if its source is none, which is noted if it should be."""
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
    """Emit a load of four elements of a packed weight; None if it is a buffer."""
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
    """Return the statement that stores four elements; None if the result is a buffer.

    `code` is lanes wide if the offset moves with the lane.
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
    """Emit the read of a texel, or of the one of its elements that all lanes take."""
    place: Place = load.arg
    x, y = at.x, at.y
    if not gates:
        found = _read_texel(plan, values, load.src[0], x, y)
    elif place.fill == 0:
        found = _read_texel(plan, values, load.src[0], x, y, gates)
    else:
        # What is read outside is defined, so the read needs no branch.
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
    """Emit the read of one texel of which each lane takes an element of its own; None if of more.

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
    """Emit the read of a texel where it is not known yet; zero where `gates` do not hold.

        inside ? read(x, y) : 0     ->     read(x, inside ? y : -1)

    Compilers make a branch of the former. Without a sampler a read outside is undefined in OpenCL.
    """
    name = values.pointers.argument(source)
    key = ("texel", name, x, y, gates)
    known = values.e.lookup(key)
    if known is not None:
        return known
    values.e.needs += Needs(image_reads=1, gated_reads=1 if gates else 0)
    # A test moves with the coordinate that has its ranges: neighbours in the other one share both.
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
    """Return how many ranges of an index a coordinate does not depend on."""
    return len(set(ixs.leaves(ix)) - set(ixs.leaves(coordinate)))


def _gated(values: Values, coordinate: Ix, gates: Predicate) -> Val:
    """Emit a coordinate that is outside of the image where `gates` do not hold."""
    code, depth = values.e.index(coordinate), values.e.depth_of(coordinate)
    if not gates:
        return Val(code, vector=False, depth=depth)
    test = values.condition(gates)
    depth = max(depth, test.depth)
    code = f"{test.code} ? {code} : -1"
    return values.e.define(("gated", coordinate, gates), "int", code, vector=False, depth=depth)

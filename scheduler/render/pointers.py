"""Pointers into the buffers of a kernel, and the buffers it is given.

in0[row*512 + k + 7], in0[row*512 + k + 519]     ->     p = in0 + (row*512 + k); p[7], p[519]
inside ? in0[row*512 + k] : 0                    ->     q = inside ? in0 + row*512 : zeros; q[k]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Ix, Predicate
from scheduler.ir.node import Node
from scheduler.loops.pack import Argument, PackedWeight
from scheduler.loops.place import Place
from scheduler.render import opencl_c as cl
from scheduler.render.emitter import Emitter, Instance, Val

# Most elements of a buffer of fill values, which masked loads read where their predicate fails. A
# longer load keeps its whole index on the side of the source.
MAX_FILL = 4096
# Sizes are multiples of this, so that most loads share one buffer.
FILL_BLOCK = 256
# Bytes of a GPU work-item's widest access, which every memory of a buffer is aligned to.
MAX_ALIGNMENT = 16


class Pointers:
    """Declares pointers through an Emitter.

    Attributes:
        arguments: what the kernel is given, by parameter name; its loop nests share one.
        scratch: what an earlier loop nest of the kernel wrote, by parameter name.
        first: number of the first of their parameters.
        spare_buffers: arguments that may be added for fill values.
        whole_vectors: whether vectors at a multiple of their size are accessed as such, of at most
            16 bytes: buffers begin at a multiple of that.
        opaque: whether compilers are kept from addressing with an index register: an operand in
            memory is part of its multiply-add only where the address is a pointer and a constant.
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
        # (start, fill values, pointer) of the masked loads that differ by a constant only
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

        Offsets that differ by a constant share the pointer; an int index would be widened for each
        access.
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
            # A widening without a sign is cheaper.
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
        """Return whether a vector is to be accessed as what lies at a multiple of its size."""
        if not self.whole_vectors or lanes * kind.itemsize > MAX_ALIGNMENT:
            return False
        return not any(c % lanes for c in (offset.const, *(c for _, c in offset.terms)))

    def masked(self, load: Node, offset: Ix, test: Val, valid: Predicate) -> tuple[str, Ix] | None:
        """Choose between the source and its fill values before the load, not after it.

            valid ? p[row + k] : 0     ->     q = valid ? p + row : zeros;   ... q[k]

        The choice leaves the loops that the predicate does not depend on, and no branch is left.
        None if the kernel may not have one more buffer. `offset` is that of the first element if
        lanes move it; the test is the same in all lanes.
        """
        pointer = self.argument(load.src[0])
        # Atoms deeper than the test are added after the choice.
        inside = [a for a, _ in offset.terms if self.e.depth_of(ixs.of(a)) > test.depth]
        inner = ixs.only(offset, inside)
        # Beyond the limit of a fill buffer the choice moves inward.
        if inner.hi - inner.lo + self.lanes > MAX_FILL:
            inner = ixs.ZERO
        inner = ixs.shift(inner, -inner.lo)
        outer = ixs.add(offset, ixs.mul(inner, -1))
        terms = ixs.shift(outer, -outer.const)
        place: Place = load.arg
        key = (pointer, terms, valid, place.fill)
        for base, fill, name in self._masked.get(key, ()):  # a few elements on: the same pointer
            # `near` is this load's place relative to the other one's base.
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
        known = ("pointer", *key, outer.const, made)  # one for each number of them
        name = self.e.define(known, kind, code, vector=False, depth=depth)
        self._masked.setdefault(key, []).append((outer.const, made, name))
        return name.code, inner

    def _fill(self, load: Node, size: int) -> PackedWeight | None:
        """Return a buffer that holds the fill value of a load, None if there are enough of them."""
        place: Place = load.arg
        whole = -(-size // FILL_BLOCK) * FILL_BLOCK
        key = (load.dtype, place.fill, whole)
        if key not in self._fills:
            # Each set of fill values is one more kernel argument.
            if len(self._fills) >= self.spare_buffers:
                return None
            data = np.full(whole, place.fill, load.dtype.np)
            self._fills[key] = PackedWeight(load.src[0], data, {})
        return self._fills[key]


# Read four neighbours of a buffer as one vector, where the body of a loop takes each by itself:
#
#     four loads of p[4*i] to p[4*i + 3]  ->  q = *(float4*)(p + 4*i);   q.s0, q.s1, q.s2, q.s3
#
# A GPU's load costs the same for one element as for 16 bytes.

QUAD: Final = 4


def read_of_quad(
    e: Emitter, pointers: Pointers, load: Node, instance: Instance, offset: Ix
) -> Val | None:
    """Emit the vector that an element lies in, if it is not known yet, and return the element.

    None if the loop does not take four neighbours, or these may lie across such vectors. The load
    has no conditions and is the same for all lanes; `offset` is the element's.
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
    """Whether the body has all four: a range walks elements, and the body takes several steps."""
    return any(
        ixs.coefficient(offset, atom) == 1
        and instance.mapping[atom].terms != ()
        and not any(c % QUAD for _, c in instance.mapping[atom].terms)
        for atom in instance.coordinates
    )

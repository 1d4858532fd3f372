"""Read four neighbours of a buffer as one vector, where the body of a loop takes each by itself.

    a = p[4*i]; b = p[4*i + 1]; c = p[4*i + 2]; d = p[4*i + 3]
    ->  q = *(float4*)(p + 4*i);   q.s0, q.s1, q.s2, q.s3

A GPU's load costs the same for one element as for 16 bytes.
"""

from __future__ import annotations

from typing import Final

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Ix
from scheduler.ir.node import Node
from scheduler.render import opencl_c as cl
from scheduler.render.emitter import Emitter, Val
from scheduler.render.instance import Instance
from scheduler.render.pointers import Pointers

QUAD: Final = 4


def read_of_quad(
    e: Emitter, pointers: Pointers, load: Node, instance: Instance, offset: Ix
) -> Val | None:
    """Emit the vector that an element lies in, if it is not known yet, and return the element.

    None where the loop does not take four neighbours, or these may lie across such vectors.

    Args:
        e: the emitter.
        pointers: into the buffers of the kernel.
        load: without conditions, and the same for all lanes.
        instance: where it is evaluated.
        offset: of the element at that place.
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

"""Prepares hand-written kernels: chooses between alternatives and gives inputs storage.

`expand_alternatives` keeps the form of a value that suits the device:

    alternatives(sorted_places(keys), count_before(keys))   ->   sorted_places(keys)     on a CPU
                                                            ->   count_before(keys)      on a GPU

`custom_inputs` gives the inputs of custom kernels storage, so that they can be bound as arguments:

    custom(iota(4))              ->  custom(weight)             known values, computed on the host
    custom(permute(w)), w known  ->  custom(weight)
    custom(permute(x))           ->  custom(contiguous(permute(x)))
    contiguous(custom(x))        ->  custom(x)              already stored, and nothing to fuse
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from scheduler.device.spec import DeviceSpec
from scheduler.ir import interp
from scheduler.ir.build import like, new_weight, peel
from scheduler.ir.movement import MOVES
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import SERIAL, SIMT, Rewriter, Rule, keep_form, remake


def expand_alternatives(roots: Sequence[Node], spec: DeviceSpec) -> dict[Node, Node]:
    """Return old node -> new node without ALTERNATIVES."""
    return keep_form(roots, SIMT if spec.is_simt else SERIAL)


# Larger known values are computed by a kernel, because an artifact stores weights uncompressed.
MAX_ELEMENTS = 1 << 20


def _bindable(source: Node) -> Node:
    """Return an input that has storage, or that can be stored without affecting other readers."""
    chain, top = peel(source, MOVES)
    moved = any(n.op is not Op.RESHAPE for n in chain)
    free = top.op in (Op.CONST, Op.IOTA)
    if not moved and not free:
        return source
    if (free or is_weight(top)) and prod(source.shape) <= MAX_ELEMENTS:
        data = np.asarray(interp.evaluate([source])[0], order="C")
        return new_weight(data, source.dtype)
    return like(source, Op.CONTIGUOUS, (source,))


def _inputs(node: Node) -> Node | None:
    src = tuple(_bindable(s) for s in node.src)
    return None if src == node.src else remake(node, src)


def _stored_already(node: Node) -> Node | None:
    result = node.src[0]
    if result.op is not Op.RESULT or (result.arg == 0 and result.src[0].arg.has_slot):
        return None  # the user's boundary keeps the epilogue out of the custom kernel
    return result


RULES = (
    Rule("bind custom inputs", (Op.CUSTOM,), _inputs),
    Rule("contiguous result", (Op.CONTIGUOUS,), _stored_already),
)


def custom_inputs(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with the inputs of custom kernels made bindable."""
    return Rewriter(RULES)(roots)

"""The passes for hand-written kernels: which form of a value to keep, and storage for inputs.

The first pass keeps, of each value with alternatives, the form that suits the device:

    alternatives(sorted_places(keys), count_before(keys))   ->   sorted_places(keys)     on a CPU
                                                            ->   count_before(keys)      on a GPU

The last one gives inputs storage, so that they can be bound as arguments:

    custom(iota(4))              ->  custom(weight)             known values: made on the host
    custom(permute(w)), w known  ->  custom(weight)
    custom(permute(x))           ->  custom(contiguous(permute(x)))
    contiguous(custom(x))        ->  custom(x)              stored already, and nothing to fuse into
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


# Larger known values are computed by a kernel: an artifact holds weights as they are.
MAX_ELEMENTS = 1 << 20


def _bindable(source: Node) -> Node:
    """Return an input as something that has storage, or gets it without harm to other readers."""
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
        return None  # an epilogue is not computed across a boundary that was asked for
    return result


RULES = (
    Rule("bind custom inputs", (Op.CUSTOM,), _inputs),
    Rule("contiguous result", (Op.CONTIGUOUS,), _stored_already),
)


def custom_inputs(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with the inputs of custom kernels made bindable."""
    return Rewriter(RULES)(roots)

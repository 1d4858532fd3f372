"""The pass stores factors of weighted sums as floats, on processors without byte products.

    sum((x - z) * s * w), x uint8, stored     ->     sum(contiguous((x - z) * s) * w)

Otherwise a sum converts a byte again for each of its results, which takes longer than the products.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.device.spec import DeviceSpec
from scheduler.ir.build import like
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import unchanged, with_sources
from scheduler.passes.eight_bits.byte_products import factors, known_nodes, quantised
from scheduler.passes.eight_bits.byte_words import Operand, operand_of


def byte_floats(roots: Sequence[Node], spec: DeviceSpec) -> dict[Node, Node]:
    """Return old node -> new node with dequantized factors of sums stored; none on GPUs."""
    order = toposort(roots)
    new = unchanged(order)
    if spec.dot4 or spec.is_simt:
        return new
    known = known_nodes(order)
    bases: set[Node] = set()
    for node in order:
        found = factors(node)
        if node.dtype.is_float and any(f in known for f in found):
            bases |= {operand_of(f).base for f in found if f not in known}
    for node in order:
        new[node] = with_sources(node, new)
        if node in bases and quantised(Operand((), node)) is not None:
            new[node] = like(new[node], Op.CONTIGUOUS, (new[node],))
    return new

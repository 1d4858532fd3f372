"""The pass splits a wide CAT into stages, so that no kernel has more buffers than devices take.

cat(x0 ... x69)     ->     cat(cat(x0 ... x31), cat(x32 ... x63), cat(x64 ... x69))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from scheduler.device.limits import Limits
from scheduler.ir.node import Node, make
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import Rewriter, Rule

# Devices with at most this many buffers for a kernel have few; OpenCL promises 8 at least.
FEW_BUFFERS = 32


def max_sources(limits: Limits) -> int:
    """Return how many sources a concat has at most: half of a kernel's buffers.

    The others are for sources that read more than one. Where buffers are few, all but one: stages
    cost more than storing such sources.
    """
    buffers = limits.max_buffers
    return buffers // 2 if buffers > FEW_BUFFERS else buffers - 1


def _split(node: Node, most: int) -> Node | None:
    if len(node.src) <= most:
        return None
    groups = [node.src[i : i + most] for i in range(0, len(node.src), most)]
    stages = [
        g[0]
        if len(g) == 1
        else make(Op.CONTIGUOUS, node.dtype, (make(Op.CAT, node.dtype, g, node.arg),))
        for g in groups
    ]
    return make(Op.CAT, node.dtype, tuple(stages), node.arg)


def split_concat(roots: Sequence[Node], limits: Limits) -> dict[Node, Node]:
    """Return old node -> new node with wide concats split in stages."""
    split = partial(_split, most=max_sources(limits))
    return Rewriter((Rule("split cat", (Op.CAT,), split),))(roots)

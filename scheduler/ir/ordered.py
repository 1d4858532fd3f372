"""Reductions in a fixed order: what a sum of floats is, whatever runs it.

    REDUCE (ADD, axes)         any order: parts of it may be added first, on each device as it likes
    REDUCE (ADD, axes, 1)      ((0 + x0) + x1) + x2 ...   the axes as loops, the first outermost
    REDUCE (ADD, axes, 16)     16 such sums, of every 16th element of the last axis; then
                               s[i] + s[i + 8], of these 8 s[i] + s[i + 4], ... down to one; then
                               what is left at the end of the last axis, one by one

A summed product is FUSED with its addition only where the graph says so: fma(a, b, sum) rounds
once.
"""

from __future__ import annotations

from typing import Final

from scheduler.ir.ops import Op
from scheduler.ir.shapes import Source

# Partial sums: the lanes of the widest vector, so that any narrower one divides them.
PARTS: Final = 16
# Argument of a MUL that is part of a sum and has no value of its own.
FUSED: Final = "fused"


def parts_of(node: Source) -> int:
    """Return the partial sums of a REDUCE or ACCUMULATE; 0 if its order is free."""
    return int(node.arg[2]) if len(node.arg) > 2 else 0


def is_fused(node: Source) -> bool:
    """Whether a node is a product that is rounded together with the sum that reads it."""
    return node.op is Op.MUL and node.arg == FUSED

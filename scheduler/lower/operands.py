"""What the rows of a register tile read beside weights: how far apart, and whether they share.

sum(x[2*p + t] * w[t, c]; t)     ->     rows 2 apart, 3 taps 1 apart: x[2] serves rows 0 and 1
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import gcd

from scheduler import dtype as dt
from scheduler import index as ixs
from scheduler.index import Atom
from scheduler.lower.vector import LoadInfo
from scheduler.node import Node


@dataclass(frozen=True, slots=True)
class Operands:
    """What a register tile's size depends on beside its extents.

    Attributes:
        stride: bytes from one row's operand to the next one's; 0 if it is not known.
        narrow: whether weights are halves, widened for each tile.
        shared: whether a scalar of one row serves another one at a later step of a reduce loop
            that is unrolled whole: it waits in a register.
    """

    stride: int = 0
    narrow: bool = False
    shared: bool = False


def operands_of(row: Atom, loads: Collection[LoadInfo], whole: Collection[Atom]) -> Operands:
    """Return what the rows of a contraction read.

    Args:
        row: the range that rows are of.
        loads: those inside the reduction.
        whole: reduced ranges that the innermost loops hold all steps of.
    """
    others = [ld.node for ld in loads if not ld.weight]
    strides = {(ixs.coefficient(n.arg.offset, row) or 0) * n.dtype.itemsize for n in others} - {0}
    return Operands(
        strides.pop() if len(strides) == 1 else 0,
        any(ld.weight and ld.node.dtype is dt.float16 for ld in loads),
        any(_meet(n, row, r) for n in others for r in whole),
    )


def _meet(load: Node, row: Atom, reduced: Atom) -> bool:
    """Whether two rows read one element, at different steps of a reduced range."""
    step = abs(ixs.coefficient(load.arg.offset, row) or 0)
    tap = abs(ixs.coefficient(load.arg.offset, reduced) or 0)
    # Rows i and steps t with i * step == t * tap; the least such t is step / gcd.
    return step > 0 and tap > 0 and step // gcd(step, tap) < reduced.size

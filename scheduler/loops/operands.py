"""Operands tell how far apart the rows of a register tile read, and whether they share values.

sum(x[2*p + t] * w[t, c]; t)     ->     rows 2 apart, 3 taps 1 apart: x[2] serves rows 0 and 1
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import gcd, prod

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.node import Node
from scheduler.ir.ops import COST, ELEMENTWISE, Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.place import PlacedBody, accumulates, dependencies, looped
from scheduler.loops.vector import LoadInfo

# From this many rows on, hoisted reductions leave enough tiles to share evenly.
MIN_SHARED_ROWS = 128


@dataclass(frozen=True, slots=True)
class Operands:
    """What a register tile's size depends on beside its extents."""

    stride: int = 0  # bytes from one row's operand to the next one's; 0 if it is not known
    narrow: bool = False  # whether weights are halves, widened for each tile
    # Whether a scalar of one row waits in a register for another one, at a later unrolled step.
    shared: bool = False
    work: int = 0  # operations per step that compute a row's scalar from what is loaded


def operands_of(
    body: PlacedBody, tile: tuple[Atom, Atom], loads: Collection[LoadInfo], whole: Collection[Atom]
) -> Operands:
    """Return what the rows of a contraction read, by its loads inside the reduction.

    `tile` are the ranges that lanes run over, and that rows are of; `whole` reduced ranges are
    unrolled.
    """
    vector, row = tile
    others = [ld.node for ld in loads if not ld.weight]
    strides = {(ixs.coefficient(n.arg.offset, row) or 0) * n.dtype.itemsize for n in others} - {0}
    return Operands(
        strides.pop() if len(strides) == 1 else 0,
        any(ld.weight and ld.node.dtype is dt.float16 for ld in loads),
        any(_meet(n, row, r) for n in others for r in whole),
        _scalar_work(body, vector, row),
    )


def hoisted_rows(body: PlacedBody, vector: Atom, rows: list[Atom]) -> list[Atom]:
    """Return those rows of hoisted reductions that may share what a sum below them reads.

        for row: s = sum(row); out[row] = sum(x[row, k] / s * v[k, :])   ->   for 4 rows: ...

    None if a private array holds one row, or if rows are few: cores would be idle.
    """
    depends = dependencies(body.value)
    loops = looped(body)
    if any(n.op is Op.STAGE for n in loops) or all(vector not in depends[n] for n in loops):
        return []
    return rows if prod(r.size for r in rows) >= MIN_SHARED_ROWS else []


def _scalar_work(body: PlacedBody, vector: Atom, row: Atom) -> int:
    """Return what it costs, per step of a sum, to compute the operand that its lanes share."""
    depends = dependencies(body.value)
    found = 0
    for node in accumulates(body):
        reduced = set(node.arg[1])
        mine = [
            n
            for n in scalar_nodes(node.src[0], into_reductions=False)
            if n.op in ELEMENTWISE and row in depends[n] and vector not in depends[n]
        ]
        found = max(found, sum(int(COST.get(n.op, 1)) for n in mine if reduced & {*depends[n]}))
    return found


def _meet(load: Node, row: Atom, reduced: Atom) -> bool:
    """Whether two rows read one element, at different steps of a reduced range."""
    steps = [ixs.coefficient(load.arg.offset, r) for r in (row, reduced)]
    if None in steps:  # behind a remainder both are steps, but for its ends
        return {row, reduced} <= set(ixs.leaves(load.arg.offset))
    step, tap = (abs(s or 0) for s in steps)
    # Rows i and steps t with i * step == t * tap; the least such t is step / gcd.
    return step > 0 and tap > 0 and step // gcd(step, tap) < reduced.size

"""Choose how much one step of a kernel without reductions moves.

y[c] = 2 * x[c]                   ->     a step stores whole cache lines
y[c] = c < 12 ? a[c] : b[c - 12]  ->     a step stores all c: each vector comes from one of both
"""

from __future__ import annotations

from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.ops import Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.loop_schedule import Tile
from scheduler.loops.place import PlacedBody

# Bytes a step of a streaming kernel stores at most, two cache lines: its index arithmetic is paid
# once for both; and vectors of a step, the most that fit.
STREAM_BYTES = 128
STREAM_UNROLLS = (8, 4, 2)
# Vectors of a range that decides what is stored, up to which a step holds all of them (seen: of 128
# channels of a concat 0.08 of the time of a step for each vector, which computes all sources).
MAX_CHOICES = 8


def stream_unroll(tile: Tile, body: PlacedBody, *, streams: bool) -> int:
    """Return the vectors of a step.

    Args:
        tile: of the range that lanes run over.
        body: placed and merged, without reductions.
        streams: whether lanes serve every load.
    """
    vectors, rest = divmod(tile.atom.size, tile.lanes)
    if rest == 0 and vectors <= MAX_CHOICES and _is_chosen_by(body, tile.atom):
        return vectors
    vector_bytes = tile.lanes * body.value.dtype.itemsize
    for unroll in STREAM_UNROLLS if streams else ():
        # A step that is not whole would be stored again with an overlap; streaming has nothing to
        # gain.
        exact = tile.atom.size % (tile.lanes * unroll) == 0
        if exact and vector_bytes * unroll <= STREAM_BYTES:
            return unroll
    return tile.unroll


def _is_chosen_by(body: PlacedBody, r: Atom) -> bool:
    """Whether a range decides which of two values is stored, as behind a concat along it."""
    tests = [n.arg for n in scalar_nodes(body.value) if n.op is Op.SELECT]
    return any(r in ixs.leaves(ix) for test in tests for ix, _, _ in test)

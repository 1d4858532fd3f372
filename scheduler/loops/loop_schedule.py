"""The loops of a kernel, as data: how each range is cut, in which order they run, what lanes do.

for r1: 4 tiles of 2 vectors x 16 lanes     Tile(r1, unroll=2, lanes=16)
for r2: 22 tiles of 9 rows                  Tile(r2, unroll=9)
for k3: 48 steps, 4 of them in a body       reduce_order, reduce_unroll
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final

from scheduler.ir import dtype as dt
from scheduler.ir.index import Atom
from scheduler.ir.node import Node
from scheduler.ir.ops import parts_of


@dataclass(slots=True)
class Tile:
    """How one output range is cut: `size = outer * unroll * lanes`; the last block may overlap."""

    atom: Atom
    unroll: int = 1
    lanes: int = 1

    @property
    def block(self) -> int:
        """Elements per step of the outer loop."""
        return self.unroll * self.lanes

    @property
    def outer(self) -> int:
        """Steps of the outer loop."""
        return -(-self.atom.size // self.block)


@dataclass(slots=True)
class LoopSchedule:
    """The loops of a kernel."""

    tiles: list[Tile]  # output ranges, outermost loop first
    vector: Atom | None  # the output range that lanes run over, None for scalar results
    lanes: int
    # How many of the last tiles are loops inside a step, below hoisted reductions; the others make
    # up `steps`, of which each work-item does `chunk` consecutive ones.
    inner: int = 0
    steps: int = 1
    chunk: int = 1
    # Into how many the outermost loop inside a step is cut, each for a work-item of its own; the
    # items of a step repeat what is above that loop.
    parts: int = 1
    # An output range whose steps are counted in blocks outside all other loops, and the steps of a
    # block; the block divides them.
    blocked: tuple[Atom, int] | None = None
    # The output range whose next step's weights are fetched during a step, None if weights stay in
    # the innermost cache.
    prefetch: Atom | None = None
    row: Atom | None = None  # that the register tile's rows are of, None if it has none
    contracts: bool = False  # each vector of weights meets several rows; else rows share a window
    transposed: Atom | None = None  # along which a tile's strided loads are vectors of memory
    reduce_unroll: dict[Atom, int] = field(default_factory=dict)  # steps in the loop body
    # Per ACCUMULATE or STAGE its ranges, outermost loop first.
    reduce_order: dict[Node, tuple[Atom, ...]] = field(default_factory=dict)
    # Per ACCUMULATE or STAGE the range of its own that lanes run over, where the result has none.
    across: dict[Node, Atom] = field(default_factory=dict)
    local: LocalTile | None = None  # tile of a work-group; None if work-items work alone
    group: int = 1  # work-items of a work-group at most; a launch of fewer has a smaller one
    weights_in_images: bool = True  # packed weights may be images, if the device reads these

    def accumulators(self, node: Node) -> int:
        """Return the variables that keep one result of a reduction, each of all lanes."""
        lanes = self.lanes if node in self.across else 1
        return max(1, parts_of(node) // lanes)

    @property
    def items(self) -> int:
        """Work-items to launch."""
        return -(-self.steps // self.chunk) * self.parts


# --- The tile of a matrix product that a work-group computes from local memory ----------------
#
# `simt.py` chooses it, `scheduler/render/local_tiles.py` writes it. No GPU was at hand: sizes are
# reasoned, not measured.

# float32 elements of a vector: 16 bytes, the widest load of one work-item.
LANES: Final = 4

# Steps of the reduction in a tile: those of the largest tile take 17 of 32 KiB.
DEPTH: Final = 16

# Neighbours that store a column then do not meet in one bank.
PADDING: Final = 4

# Products are made of one tile while the next one is on its way.
BUFFERS: Final = 2


# Rows x columns of a work-group's tile, largest first: the larger, the fewer loads for a product.
TILES: Final = ((64, 64), (32, 64), (32, 32))

# What a choice says for none of them; the next numbers are the tiles.
APART: Final = 1

# Work-groups that the tiles divide among their work-items.
GROUPS: Final = (64, 256)


@dataclass(frozen=True, slots=True)
class LocalTile:
    """How a work-group computes a tile of a matrix product."""

    node: Node  # the ACCUMULATE
    left: Node  # left, right: loads of rows x depth and of depth x columns
    right: Node
    row: Atom
    column: Atom  # the range that lanes run over
    depth: Atom
    batch: tuple[Atom, ...]  # the other ranges of the result, outermost first
    rows: int
    columns: int
    side: int  # work-items along either of them

    @property
    def groups(self) -> int:
        """Work-groups to launch."""
        tiles = -(-self.row.size // self.rows) * -(-self.column.size // self.columns)
        return tiles * prod(r.size for r in self.batch)


def array_bytes(extent: int) -> int:
    """Return the size of an operand's array in local memory: two tiles of floats, taking turns."""
    return BUFFERS * DEPTH * (extent + PADDING) * dt.float32.itemsize

"""Describes the loops of a kernel as data: how ranges are tiled, the loop order, the lanes.

A range is the variable of one loop; lanes are the elements of an OpenCL vector. `schedule.py`
(CPUs) and `simt.py` (GPUs) choose a LoopSchedule, and `scheduler/render/` writes its code.

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
    """The split of one output range into `outer * unroll * lanes`; the last block may overlap."""

    atom: Atom
    unroll: int = 1
    lanes: int = 1

    @property
    def block(self) -> int:
        """Elements per step of the outer loop."""
        return self.unroll * self.lanes

    @property
    def outer(self) -> int:
        """Number of steps of the outer loop."""
        return -(-self.atom.size // self.block)


@dataclass(slots=True)
class LoopSchedule:
    """The loops of a kernel."""

    tiles: list[Tile]  # output ranges, outermost loop first
    vector: Atom | None  # output range that lanes run over; None for scalar results
    lanes: int
    # The last `inner` tiles are loops inside a step, below hoisted reductions. The other tiles make
    # up `steps`; each work-item runs `chunk` consecutive steps.
    inner: int = 0
    steps: int = 1
    chunk: int = 1
    # Number of work-items that share the outermost loop inside a step. Each of them repeats the
    # work above that loop.
    parts: int = 1
    # Output range whose steps are grouped into blocks outside all other loops, and the steps per
    # block, which divide those of the range.
    blocked: tuple[Atom, int] | None = None
    # Output range whose weights for the next step are fetched during a step; None if weights stay
    # in the innermost cache.
    prefetch: Atom | None = None
    row: Atom | None = None  # range of the register tile's rows; None without rows
    # True if each weight vector meets several rows; False if rows share a window
    contracts: bool = False
    # range along which strided loads of a tile are vectors in memory
    transposed: Atom | None = None
    reduce_unroll: dict[Atom, int] = field(default_factory=dict)  # steps per loop body
    # For each ACCUMULATE or STAGE, its ranges, outermost loop first.
    reduce_order: dict[Node, tuple[Atom, ...]] = field(default_factory=dict)
    # For each ACCUMULATE or STAGE without lanes in its result, the reduced range that lanes run
    # over.
    across: dict[Node, Atom] = field(default_factory=dict)
    local: LocalTile | None = None  # tile of a work-group; None if work-items do not cooperate
    group: int = 1  # most work-items per work-group; smaller launches use smaller groups
    # whether packed weights may be images, if the device supports them
    weights_in_images: bool = True

    def accumulators(self, node: Node) -> int:
        """Return the number of all-lane variables that hold one result of a reduction."""
        lanes = self.lanes if node in self.across else 1
        return max(1, parts_of(node) // lanes)

    @property
    def items(self) -> int:
        """Number of work-items to launch."""
        return -(-self.steps // self.chunk) * self.parts


# --- The tile of a matrix product that a work-group computes from local memory ----------------
#
# `simt.py` chooses it, `scheduler/render/local_tiles.py` writes it. The sizes are derived by
# reasoning; they have not been measured on a GPU.

# float32 elements per vector: 16 bytes, the widest load of one work-item.
LANES: Final = 4

# Steps of the reduction per tile. The largest tile then takes 17 of 32 KiB.
DEPTH: Final = 16

# Extra elements per row, so that neighbors that store a column use different banks.
PADDING: Final = 4

# Number of buffers: one tile is multiplied while the next one is loaded.
BUFFERS: Final = 2


# Rows x columns of a work-group's tile, largest first: larger tiles need fewer loads per product.
TILES: Final = ((64, 64), (32, 64), (32, 32))

# Value of `Choice.local` for no tile; the values after it select one of TILES.
APART: Final = 1

# Sizes of work-groups whose work-items can share the tiles evenly.
GROUPS: Final = (64, 256)


@dataclass(frozen=True, slots=True)
class LocalTile:
    """A tile of a matrix product that a work-group computes together."""

    node: Node  # the ACCUMULATE of the product
    left: Node  # operands (left, right): loads of rows x depth, and of depth x columns
    right: Node
    row: Atom
    column: Atom  # range that lanes run over
    depth: Atom
    batch: tuple[Atom, ...]  # other ranges of the result, outermost first
    rows: int
    columns: int
    side: int  # work-items along each side of the tile

    @property
    def groups(self) -> int:
        """Number of work-groups to launch."""
        tiles = -(-self.row.size // self.rows) * -(-self.column.size // self.columns)
        return tiles * prod(r.size for r in self.batch)


def array_bytes(extent: int) -> int:
    """Return the bytes of an operand's array in local memory: alternating tiles of floats."""
    return BUFFERS * DEPTH * (extent + PADDING) * dt.float32.itemsize

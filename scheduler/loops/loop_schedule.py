"""Describes the loops of a kernel as data: how ranges are tiled, the loop order, the lanes.

A range is the variable of one loop; lanes are the elements of an OpenCL vector. A step is one
iteration of the outer loops, which are merged into one. Work-items divide the steps. `schedule.py`
(CPUs) and `simt.py` (GPUs) choose a LoopSchedule, and `scheduler/render/` writes its code.

for r1: 4 tiles of 2 vectors x 16 lanes     Tile(r1, unroll=2, lanes=16)
for r2: 22 tiles of 9 rows                  Tile(r2, unroll=9)
for k3: 48 iterations, 4 per loop body      reduce_order, reduce_unroll
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
        """Number of elements per iteration of the outer loop."""
        return self.unroll * self.lanes

    @property
    def outer(self) -> int:
        """Number of iterations of the outer loop."""
        return -(-self.atom.size // self.block)


@dataclass(slots=True)
class LoopSchedule:
    """The loops of a kernel."""

    tiles: list[Tile]  # output ranges, outermost loop first
    vector: Atom | None  # output range that lanes run over; None for scalar results
    lanes: int
    # The loops of the last `inner` tiles run inside a step, after reductions that do not depend on
    # them. The loops of the other tiles are merged into `steps` steps; each work-item runs `chunk`
    # consecutive steps.
    inner: int = 0
    steps: int = 1
    chunk: int = 1
    # Number of work-items among which the outermost loop inside a step is divided. Each of them
    # repeats the work of the step above that loop.
    parts: int = 1
    # Output range whose loop is split in two, and the iterations of its inner half, a divisor of
    # the range's iterations. The outer half runs outside all other loops.
    blocked: tuple[Atom, int] | None = None
    # Output range whose weights for the next step are fetched during a step; None if weights stay
    # in the innermost cache.
    prefetch: Atom | None = None
    row: Atom | None = None  # range of the register tile's rows; None without rows
    # Whether one vector of weights serves all rows of the register tile, as in a matrix product. In
    # a window the rows share inputs instead.
    contracts: bool = False
    # Range along which a tile with strided lanes is loaded as vectors and then transposed.
    transposed: Atom | None = None
    reduce_unroll: dict[Atom, int] = field(default_factory=dict)  # iterations per loop body
    # For each ACCUMULATE or STAGE, its ranges, outermost loop first.
    reduce_order: dict[Node, tuple[Atom, ...]] = field(default_factory=dict)
    # For each ACCUMULATE or STAGE without lanes in its result, the reduced range that lanes run
    # over.
    across: dict[Node, Atom] = field(default_factory=dict)
    local: LocalTile | None = None  # tile of a work-group; None if work-items do not cooperate
    group: int = 1  # most work-items per work-group; smaller launches use smaller groups
    # Whether packed weights may be images, if the device supports them.
    weights_in_images: bool = True

    def accumulators(self, node: Node) -> int:
        """Return the number of vector accumulators per result of a reduction."""
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

# Extra elements per row, so that neighbours that store a column use different banks.
PADDING: Final = 4

# Number of buffers: one tile is multiplied while the next one is loaded.
BUFFERS: Final = 2


# Rows x columns of a work-group's tile, largest first: larger tiles need fewer loads per product.
TILES: Final = ((64, 64), (32, 64), (32, 32))

# Value of `Choice.local` in `tuned_table.py` for no tile. Higher values select one of TILES; 0
# leaves the choice to the heuristic.
APART: Final = 1

# Sizes of work-groups whose work-items divide the loads of a tile evenly.
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
    """Return the bytes of an operand's array in local memory: two tiles, used in turn."""
    return BUFFERS * DEPTH * (extent + PADDING) * dt.float32.itemsize

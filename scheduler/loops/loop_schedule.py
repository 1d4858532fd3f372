"""The loops of a kernel, as data: how each range is cut, in which order they run, what lanes do.

for r1: 4 tiles of 2 vectors x 16 lanes     Tile(r1, unroll=2, lanes=16)
for r2: 22 tiles of 9 rows                  Tile(r2, unroll=9)
for k3: 48 steps, 4 of them in a body       reduce_order, reduce_unroll
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.ir.index import Atom
from scheduler.ir.node import Node
from scheduler.ir.ops import parts_of
from scheduler.loops.local_tiles import LocalTile


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

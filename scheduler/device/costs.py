"""Costs by which the compiler decides what to store, fuse and cut; each device row has a table.

replace(spec, costs=replace(spec.costs, launch=20_000))      launches are cheaper there
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one kind of device.

    The comment of each field has its unit and source. An add is the addition of two vectors,
    `scheduler.ir.ops.COST` has other operations. Where no source is named, the number was chosen by
    hand with the example models on row `cpu`; other rows keep it until somebody measures there.
    """

    # Adds that a launch takes beside its work: about 10 us on PoCL (2026-11).
    launch: int = 100_000
    # Adds to store an element and load it. Repeated work below this and a launch is recomputed.
    memory: int = 32
    # The same for an operand of a contraction, which is computed one element at a time.
    operand_memory: int = 20
    # Adds to read a list at indices of the run time: 20 cycles were seen for 16 lanes.
    lookup: int = 16
    # Adds to select one of two values: an address that is chosen, a load of its own, the choice.
    select: int = 4
    # Lanes that share what does not move along the innermost axis.
    shared_lanes: int = 16
    # Outputs for which the register tile of a contraction reads each of its inputs once.
    tile_reuse: int = 16
    # Nested divisions of an index; beyond, loads of a stored value cost less.
    max_index_depth: int = 12
    # Places that need one value; beyond, it is stored, or indices would multiply forever.
    max_uses: int = 64
    # Rows that a kernel must have before a reduction is hoisted out of the loop over its columns:
    # work-items share the rows.
    hoist_rows: int = 16
    # Elements of a kernel that is too small for the number of its rows to matter.
    small_kernel: int = 4096
    # Elements read by a reduction that fewer rows may share: cores wait meanwhile.
    max_serial_work: int = 16384
    # Elements read by a reduction inside another one: it has no register tile of its own.
    max_nested_work: int = 1 << 20
    # Slices of one value; each is a loop nest of its own in the kernel's text.
    max_slices: int = 48
    # Loop nests of one launch.
    max_bodies: int = 16
    # Adds for an element that a merged loop nest computes again instead of loading it.
    max_cost_again: int = 8
    # Elements computed again for the reductions of rows, per element of the rows.
    max_again: int = 4
    # Operations that take as long to compile as a reduction, which is a loop of its own.
    reduction_operations: int = 8
    # Values stored at one cut; where more are alive one is, and the rest is computed again.
    max_live: int = 64
    # Bytes stored at one cut, or splitting one kernel would take the memory of all.
    max_cut_bytes: int = 256 << 20

"""Costs by which the compiler decides about kernels and their loops; each device row has its own.

replace(spec, costs=replace(spec.costs, launch=20_000))      launches are cheaper there
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs by which is decided what to store, fuse and cut.

    Comments have the unit and the source of each number. An add is the addition of two vectors;
    `scheduler.ir.ops.COST` has other operations. Numbers without a source were chosen by hand with
    the example models on row `cpu`; other rows keep them until somebody measures there.
    """

    launch: int = 100_000  # adds, beside its work: about 10 us on PoCL (2026-11)
    # Multiply-adds of sums that take less time than one more launch, which copies an operand.
    launch_products: int = 1 << 20
    # Adds to store an element and load it. Repeated work below this and a launch is recomputed.
    memory: int = 32
    operand_memory: int = 20  # the same for a contraction's operand: computed without lanes
    lookup: int = 16  # adds to read a list at indices of the run time: 20 cycles seen for 16 lanes
    # Elements and multiply-adds of a branch's sum, beyond which a launch costs little beside it.
    batch_outputs: int = 16384
    batch_products: int = 2_000_000
    # Adds to select one of two values: an address that is chosen, a load of its own, the choice.
    select: int = 4
    shared_lanes: int = 16  # lanes that share what does not move along the innermost axis
    tile_reuse: int = 16  # outputs for which a contraction's register tile reads an input once
    max_index_depth: int = 12  # nested divisions of an index; beyond, loads cost less
    max_uses: int = 64  # places that need a value; beyond, indices would multiply forever
    # Rows that a reduction hoisted out of the loop over its columns leaves to work-items.
    hoist_rows: int = 16
    small_kernel: int = 4096  # elements of a kernel so small that the number of rows is no matter
    max_serial_work: int = 16384  # elements of a reduction that fewer rows share: cores wait
    # Elements read by a reduction inside another one: it has no register tile of its own.
    max_nested_work: int = 1 << 20
    max_slices: int = 48  # of one value; each is a loop nest of its own in the kernel's text
    max_bodies: int = 16  # loop nests of one launch
    max_cost_again: int = 8  # adds for an element that is computed again, not stored and read
    max_again: int = 4  # elements computed again for the reductions of rows, for each of the rows
    # Operations that take as long to compile as a reduction, which is a loop of its own.
    reduction_operations: int = 8
    max_live: int = 64  # values stored at a cut; of more, one is and the rest is computed again
    max_cut_bytes: int = 256 << 20  # stored at a cut, or splitting would take the memory of all


@dataclass(frozen=True, slots=True)
class LaneVotes:
    """Votes for the range that lanes run over; set by hand, what matters is their order.

    The unit is what lanes gain on a load or store that becomes one of a vector.
    """

    alone: float = -2.0  # a load or store of each lane: of another stride than 0 or 1, or unknown
    masked: float = -1.5  # a load whose predicate differs from lane to lane: each is tested
    # A strided load of a tile that is transposed in registers: as many loads as of runs, shuffles.
    transposed: float = 0.25
    arithmetic: float = 0.2  # an elementwise operation
    outer_product: float = 1.25  # factor for an outer product: a register tile shares all loads
    # Narrower vectors than the device has are worth (lanes / widest) to this power: 16 % less by
    # half.
    width_power: float = 0.25
    across: float = 0.8  # factor for lanes across a reduction in place of lanes over results
    table: int = 256  # elements of a weight whose lookups by lanes are as fast over any range


@dataclass(frozen=True, slots=True)
class TexelCosts:
    """Issue slots of a contraction that reads texels, with registers and sizes of its tile.

    Counted in what Mesa's compiler for Adreno 6xx makes of such loops, 2026-11-28.
    """

    read: int = 4  # a read with its share of addresses
    loop: int = 14  # a step of the loop
    latency: int = 64  # until a texel has come
    address_registers: int = 4
    window_steps: int = 3  # of a window of which a work-item's rows share texels


@dataclass(frozen=True, slots=True)
class LoopCosts:
    """Costs by which the loops of a kernel are chosen; units and sources as in `Costs`."""

    votes: LaneVotes = field(default_factory=LaneVotes)
    texels: TexelCosts = field(default_factory=TexelCosts)
    # Elementary operations of a work-item, or of a part of one, that pay its share of a launch.
    min_item_work: int = 20_000
    max_items: int = 32  # work-items of a launch: enough for several cores to share evenly
    # Blocks of rows that become work-items, and work-items wanted where rows are few: the same.
    wanted_parts: int = 16
    # What a work-item repeats of the work above its loop may be so much of its own. Two parts are
    # made whatever they repeat, or one core would do it all.
    max_repeated: float = 0.5
    free_parts: int = 2
    # Weights are fewer than so many times the elements of what else is read when rows become
    # work-items: each reads all of them.
    blocked_weights: int = 4
    max_prefetch_repeats: int = 32  # row tiles of a block of weights while the next one is fetched
    min_prefetch_rows: int = 8  # of the tile, which share the cost of asking early
    # Bands, at least. Seen: 64 or 128 of a MobileViT's scores take 0.975 of its time in three
    # launches, 16 of them 1.01.
    min_bands: int = 64
    min_band_rows: int = 8  # whose register tile shares each vector of the other operand
    band_cache_part: int = 2  # of a core's cache for what is handed on; operands need the rest
    # Steps of a reduce loop that is unrolled whole, so that overlapping windows, up to those of
    # 7x7, share their loads; steps that the body of a longer one holds.
    full_unroll: int = 7
    unroll: int = 4
    max_unrolled: int = 128  # multiply-adds of an unrolled innermost loop: beyond, code only grows
    stream_vectors: int = 4  # of results without rows: several streams of weights at once
    stream_bytes: int = 128  # stored by a step without sums: two cache lines share index arithmetic
    # Vectors of such a step. Up to so many it holds all of a range that decides what is stored
    # (seen: of 128 channels of a concat 0.08 of the time of a step for each vector, which computes
    # all sources).
    step_vectors: int = 8
    # Rows of a contraction's tile without a model of the device: 4 accumulators of 4 lanes leave
    # most registers of a GPU to neighbours. Of hoisted reductions each work-item has such a tile.
    tile_rows: int = 4
    min_groups: int = 4  # work-groups of a core before a work-item takes several rows
    # Rows of a sliding window's tile. Of one without weights, as in pooling: one part of so many of
    # the registers are accumulators, and its rows.
    window_rows: int = 8
    window_part: int = 2
    pool_rows: int = 4
    small_range: int = 4  # results of a range that only weights follow: it is unrolled
    issue: int = 2  # multiply-adds of vectors, and loads, a cycle of a core: x86-64 since AVX2
    latency: int = 4  # cycles until the result of a multiply-add can be added to
    # Operations a cycle, half of what a core can issue: its other hardware thread may be busy. A
    # scalar that several vectors use is loaded once; one that a single vector uses is an operand in
    # memory where the device has such operands.
    issued: float = 3.4
    # Registers more than there are that still serve where several vectors use the rows of a step,
    # which compilers load first (seen: 2x10 and 4x5 of 32 do, 2x12 and 2x13 spill).
    register_slack: int = 2
    # Registers that accumulators of one vector leave free: its rows are operands in memory. Where
    # they are not, a vector of weights and a scalar take at least two.
    spare_registers: int = 6
    operand_registers: int = 2
    # Cycles per byte of weights that are read again for the next rows, around a tile's reduction,
    # per vector of results: as `issue` to here, fitted on one processor with registers of 512 bits.
    stream: float = 0.002
    tile: int = 12
    result: int = 3
    row: int = 3  # cycles per row of results, which starts on a cache line of its own
    conversion: float = 1.0  # cycles to widen a vector of halves
    max_vectors: int = 4  # of a tile, by any model: of five, 32 registers hold four rows only
    # Rows of a tile of texels; rows and columns of dot products: 64 sums are more than any row's
    # registers.
    max_rows: int = 8
    # Steps of a reduction that the sum over lanes at its end takes as long as; twice as many make
    # it cheap.
    horizontal: int = 4
    # Uses that pay for an element's copy: a strided load and store take as many multiply-adds.
    copy_uses: int = 16
    scalar_rows: int = 8  # sums of a tile without lanes: they hide the latency of an addition
    # Rows beyond the cache's that replacement still copes with (seen: 25 rows in 2 sets of 12 ways
    # run at full speed, 25 in one set at half of it, in 2 sets of 8 ways at 0.6).
    max_shared_rows: int = 2
    page: int = 4096  # bytes after which the innermost cache's sets repeat: 64 of lines of 64 bytes
    min_ways: int = 4  # of that cache


@dataclass(frozen=True, slots=True)
class WinogradCosts:
    """Cycles of fast convolutions, fitted to measurements on 2 cores (PoCL 3.0, November 2026).

    Multiply-adds and loads are `LoopCosts.issue` a cycle.
    """

    cache_part: int = 4  # of a core's cache for transformed inputs; more for a single register tile
    input: int = 40  # of a tile, for a vector of channels: B^T d B with its 16 loads and stores
    output: int = 35  # the way back with its 4 stores
    sum: int = 12  # to start a sum and store it
    item: int = 1000  # of a work-item
    load: float = 0.1  # of a load beside the multiply-adds
    lone_vector: float = 1.12  # factor where one vector's other operand comes from memory
    # Bytes of weights that a core gets in a cycle from its second cache, and from beyond it; part
    # of the wait for the latter is hidden behind arithmetic.
    near_bytes: int = 22
    far_bytes: int = 12
    direct_part: float = 0.88  # of the peak that direct kernels reach; weights come meanwhile
    least_gain: float = 1.15  # of the direct kernel's time over this one's
    least_saved: int = 50_000  # as its results are stored in any case

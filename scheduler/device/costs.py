"""The cost model: constants that decide fusion, storage and loops. Each device row has its own set.

replace(spec, costs=replace(spec.costs, launch=20_000))      launches are cheaper there
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs that decide which values are stored and which kernels are fused or split.

    Comments give the unit and the source of each number. An add is the addition of two vectors;
    `scheduler.ir.ops.COST` has the cost of other operations. Numbers without a source were chosen
    by hand with the example models on row `cpu`; they have not been measured on other rows.
    """

    launch: int = 100_000  # overhead of one launch, in adds: about 10 us on PoCL (2026-11)
    # Sums with fewer multiply-adds than this take less time than an extra launch to copy an
    # operand.
    launch_products: int = 1 << 20
    # Adds to store and load an element. Repeated work below this plus a launch is recomputed.
    memory: int = 32
    operand_memory: int = 20  # the same for a contraction's operand, computed element by element
    lookup: int = 16  # adds to look up an element at run time; measured: 20 cycles for 16 lanes
    # Parallel branches are batched into one launch only if each has at most this many outputs and
    # multiply-adds. Above it, the cost of a launch per branch is negligible.
    batch_outputs: int = 16384
    batch_products: int = 2_000_000
    # Adds to select one of two values: address selection, an additional load, value selection.
    select: int = 4
    shared_lanes: int = 16  # lanes that share a value which does not depend on the innermost axis
    tile_reuse: int = 16  # outputs of a contraction's register tile that share one read of an input
    # A value is stored if its index would have more nested divisions than this.
    max_index_depth: int = 12
    # A value is stored if more places than this need it, because each has an index of its own.
    max_uses: int = 64
    # A reduction is hoisted out of the loop over its columns only if at least this many rows remain
    # as work-items, because cores would idle. Kernels of at most `small_kernel` elements whose
    # reduction reads at most `max_serial_work` are exempt.
    hoist_rows: int = 16
    small_kernel: int = 4096
    max_serial_work: int = 16384
    # A reduction that reads more elements than this is not nested in another one, where it would
    # have no register tile.
    max_nested_work: int = 1 << 20
    max_slices: int = 48  # maximum slices of one value; each adds a loop nest to the kernel
    max_bodies: int = 16  # maximum number of loop nests in one launch
    # When kernels are merged, an element that costs more adds than this is stored, not recomputed.
    max_recompute_cost: int = 8
    # Loop nests, one of which recomputes values, are merged only if their reductions read at most
    # this many elements per element of the merged nest.
    max_recomputed: int = 4
    # Compile time of a reduction, which is a loop, in elementwise operations.
    reduction_operations: int = 8
    # A split that would store more values than this stores only the one at which the kernel is
    # split; the kernel behind the split recomputes the others.
    max_live: int = 64
    # Maximum number of bytes to store at a split, so that splitting does not exhaust the memory.
    max_cut_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class LaneVotes:
    """Votes for the range that lanes run over. Chosen by hand; only their order matters.

    The unit is the gain of a load or store that becomes a vector load or store.
    """

    alone: float = -2.0  # a load or store per lane: the stride is unknown or other than 0 and 1
    masked: float = -1.5  # a load whose predicate differs between lanes and is tested per lane
    # A strided load in a tile that is transposed in registers: contiguous loads, plus shuffles.
    transposed: float = 0.25
    arithmetic: float = 0.2  # an elementwise operation
    outer_product: float = 1.25  # factor for an outer product: a register tile shares all loads
    # Vectors narrower than the device's count (lanes / widest) to this power: 16 % less for half
    # the width.
    width_power: float = 0.25
    across: float = 0.8  # factor for lanes across a reduction instead of over results
    table: int = 256  # most elements of a weight whose lookups are equally fast over any range


@dataclass(frozen=True, slots=True)
class TexelCosts:
    """Issue slots of a contraction that reads texels, with registers and sizes of its tile.

    Counted in code that Mesa's compiler for Adreno 6xx generates for such loops, 2026-11-28.
    """

    read: int = 4  # slots per read, with its share of address computation
    loop: int = 14  # slots per step of the loop
    latency: int = 64  # slots until a texel arrives
    address_registers: int = 4
    window_steps: int = 3  # most steps of a window if a work-item's rows share texels


@dataclass(frozen=True, slots=True)
class LoopCosts:
    """Costs that decide the loops of a kernel; units and sources as in `Costs`."""

    votes: LaneVotes = field(default_factory=LaneVotes)
    texels: TexelCosts = field(default_factory=TexelCosts)
    # A launch gets another work-item, or an item another part, only if each then has at least this
    # many elementary operations. Fewer do not pay for starting it.
    min_item_work: int = 20_000
    max_items: int = 32  # maximum work-items per launch: enough for several cores to share evenly
    # Target number of work-items, when rows are divided into blocks or a row into parts.
    wanted_parts: int = 16
    # Parts of a row repeat the work before their common loop. There are only as many parts as keep
    # that work below this fraction of a part's own work. Up to `free_parts` parts may repeat
    # any amount of work, to use a second core.
    max_repeated: float = 0.5
    free_parts: int = 2
    # Rows become work-items if weights have fewer elements than this many times those of the other
    # operands, since each work-item reads all weights.
    blocked_weights: int = 4
    # The next block of weights is prefetched only if each block serves at most this many row tiles.
    max_prefetch_repeats: int = 32
    # ... and only if a tile has at least this many rows, which share the cost of prefetching.
    min_prefetch_rows: int = 8
    # Kernels that process rows in bands in one launch (`scheduler/loops/bands.py`) need at least
    # this many bands. Measured: with 64 or 128 bands, the scores of a MobileViT take 0.975 of the
    # time of three launches, with 16 bands 1.01.
    min_bands: int = 64
    min_band_rows: int = 8  # minimum rows per band, which share each vector of the other operand
    # The values passed between these kernels get 1 / `band_cache_part` of a core's cache. Operands
    # need the rest.
    band_cache_part: int = 2
    # Longest reduce loop that is unrolled fully, so that windows up to 7x7 share loads where they
    # overlap. Longer loops have `unroll` steps per body.
    full_unroll: int = 7
    unroll: int = 4
    max_unrolled: int = 128  # maximum multiply-adds in an unrolled loop: more only enlarge the code
    stream_vectors: int = 4  # result vectors without rows: several streams of weights in parallel
    # Maximum bytes stored per step without sums: two cache lines share the index arithmetic.
    stream_bytes: int = 128
    # Maximum vectors per step without sums. A range of up to this many vectors whose index selects
    # among stored values is covered in one step. Measured on a concat of 128 channels: this takes
    # 0.08 of the time of one vector per step, which computes all sources.
    step_vectors: int = 8
    # Rows of a contraction's tile on devices without a model: 4 accumulators of 4 lanes leave most
    # registers of a GPU to other waves. Rows below hoisted reductions are tiled
    # only if there are `tile_rows` for each of `max_items` work-items.
    tile_rows: int = 4
    min_groups: int = 4  # work-groups per core that are reached before items get several rows
    # Rows of a sliding window's tile. Without weights, as in pooling, accumulators take the
    # registers divided by `window_part`, and rows are at most `pool_rows`.
    window_rows: int = 8
    window_part: int = 2
    pool_rows: int = 4
    # A range that indexes only weights, not inputs, is unrolled up to this size.
    small_range: int = 4
    issue: int = 2  # vector multiply-adds, and loads, per cycle and core: x86-64 since AVX2
    latency: int = 4  # cycles until the result of a multiply-add can be used
    # Operations per cycle. This is half of a core's issue rate, as its other hardware thread may be
    # busy. A scalar used by several vectors is loaded once; a scalar used by one vector is a memory
    # operand, on devices that have these.
    issued: float = 3.4
    # Registers in excess of the real ones that still work if several vectors use the rows of a
    # step, which compilers load first (measured with 32: 2x10 and 4x5 work, 2x12 and 2x13 spill).
    register_slack: int = 2
    # Registers that a tile of one vector leaves to everything but accumulators. Its multiply-adds
    # read their rows from memory. Where they cannot, a weight vector and a scalar need at least
    # `operand_registers`.
    spare_registers: int = 6
    operand_registers: int = 2
    # These three and the numbers from `issue` on were fitted on a processor with 512-bit registers.
    stream: float = 0.002  # cycles per byte of weights that are read again for the next rows
    tile: int = 12  # cycles per tile
    result: int = 3  # cycles per vector of results
    row: int = 3  # cycles per row of results, which starts on its own cache line
    conversion: float = 1.0  # cycles to widen a vector of fp16
    max_vectors: int = 4  # maximum vectors of a tile: with five, 32 registers hold four rows only
    # Maximum rows of a texel tile, and rows and columns of a tile of dot products. With 8 by 8, 64
    # sums exceed the registers of every device row.
    max_rows: int = 8
    # Steps of a reduction that take as long as the sum over lanes at its end. With twice as many
    # steps, that sum is cheap.
    horizontal: int = 4
    # An operand is copied into another order if each element is used at least this often. The copy
    # is a strided load and a store, which cost this many multiply-adds.
    copy_uses: int = 16
    scalar_rows: int = 8  # sums in a tile without lanes, to hide the latency of an addition
    # Rows of an operand that can share a cache set beyond its ways without loss. Measured: 25 rows
    # in 2 sets of 12 ways run at full speed, 25 in one set at 0.5, 25 in 2 sets of 8 ways at 0.6.
    max_shared_rows: int = 2
    page: int = 4096  # bytes after which the L1 cache's sets repeat: 64 sets of 64-byte lines
    min_ways: int = 4  # minimum number of ways of that cache


@dataclass(frozen=True, slots=True)
class WinogradCosts:
    """Costs of Winograd convolutions, in cycles, fitted on 2 cores (PoCL 3.0, November 2026).

    Multiply-adds and loads run at `LoopCosts.issue` per cycle.
    """

    cache_part: int = 4  # part of a core's cache for inputs; larger for a single register tile
    input: int = 40  # input transform B^T d B per tile and channel vector, 16 loads and stores
    output: int = 35  # output transform, with 4 stores
    sum: int = 12  # start and final store of a sum
    item: int = 1000  # per work-item
    load: float = 0.1  # per load, in addition to the multiply-adds
    lone_vector: float = 1.12  # factor if one vector's other operand is in memory
    # Bytes of weights per cycle from a core's L2 cache, and from beyond it. Part of the latter's
    # latency is hidden by arithmetic.
    near_bytes: int = 22
    far_bytes: int = 12
    # fraction of the peak that direct kernels reach while weights are loaded
    direct_part: float = 0.88
    least_gain: float = 1.15  # smallest ratio of the direct kernel's time to this one's
    least_saved: int = 50_000  # fewest cycles to save, because its results are always stored

"""The roofline model: measures a device's ceilings and compares each kernel with them.

Ceilings are the highest rates of the device. Minimal kernels measure them: chains of independent
multiply-adds, and sums over an array that is read repeatedly. They run in the same process as the
program, because the speed of a shared machine changes over time.

A launch with f operations and b bytes takes at least ``max(f / peak, b / bandwidth)``, with the
bandwidth of the smallest memory level that holds the bytes. Weights are counted separately: each
frame reads all of them once, so they come from the smallest level that holds all weights together.
``of_roofline`` is this least time / the **median** measured time. A kernel with several launches is
judged by the sums over its launches. The peak is that of float32 multiply-adds, so kernels with
other operations (divisions, integer positions of a warp) cannot reach it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runtime.format.manifest import Manifest
from runtime.run.profile import KernelTime

if TYPE_CHECKING:
    from runtime import Device
    from runtime.opencl.binding import cl

# Number of independent multiply-add chains. Two units with a latency of 4 need 8 chains, and 12 fit
# in 16 or 32 registers.
CHAINS = 12
ITEMS_PER_CORE = 4
REPEATS = 9
# Duration of a timed launch: much longer than the launch overhead, shorter than a time slice.
TARGET_NS = 6_000_000
EVERYTHING = 1 << 62  # capacity in bytes of the last memory level
SGEMM_SIZE = 1024
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# A kernel is flagged if it takes more than this share of the frame and reaches less than this part
# of its roofline.
FLAG_SHARE = 0.02
FLAG_ROOFLINE = 0.5

SOURCE = """
__kernel void arithmetic(__global V* out, const float a, const float b, const int rounds) {
  V x[CHAINS];
  #pragma unroll
  for (int k = 0; k < CHAINS; k++) x[k] = (V)(0.25f * k + get_global_id(0));
  for (int i = 0; i < rounds; i++) {
    #pragma unroll
    for (int k = 0; k < CHAINS; k++) x[k] = x[k] * a + b;
  }
  V sum = x[0];
  #pragma unroll
  for (int k = 1; k < CHAINS; k++) sum += x[k];
  out[get_global_id(0)] = sum;
}

// Work-item i reads `count` vectors from i * first on, every `step`-th, `rounds` times.
__kernel void read(__global V* out, const __global V* data, const int first, const int step,
                   const int count, const int rounds) {
  const __global V* from = data + (size_t)get_global_id(0) * first;
  V x[8];
  #pragma unroll
  for (int k = 0; k < 8; k++) x[k] = (V)(0.0f);
  for (int r = 0; r < rounds; r++)
    for (int i = 0; i < count; i += 8) {
      #pragma unroll
      for (int k = 0; k < 8; k++) x[k] += from[(size_t)(i + k) * step];
    }
  out[get_global_id(0)] = x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7];
}
"""


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """A level of the memory hierarchy."""

    name: str
    capacity: int  # bytes, of all cores together
    gbytes_per_s: float  # read rate of all cores together


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The highest measured rates of a device."""

    gflops: float  # float32 vector multiply-adds, two operations each
    levels: tuple[MemoryLevel, ...]  # smallest first; the last one holds everything
    sgemm_gflops: float  # numpy's matrix product on this machine's CPU; 0 for a GPU

    def level_of(self, size: int) -> MemoryLevel:
        """Return the smallest level that holds `size` bytes."""
        return next((level for level in self.levels if size <= level.capacity), self.levels[-1])

    def best_of(self, other: Ceilings) -> Ceilings:
        """Return the higher of two measurements on the same device."""
        levels = tuple(
            MemoryLevel(a.name, a.capacity, max(a.gbytes_per_s, b.gbytes_per_s))
            for a, b in zip(self.levels, other.levels, strict=True)
        )
        return Ceilings(
            max(self.gflops, other.gflops), levels, max(self.sgemm_gflops, other.sgemm_gflops)
        )


class CeilingProbe:
    """Measures the ceilings of one device; ``measure`` can be called several times.

    `caches` are (L2 of one core, L3) in bytes for a CPU; the default is this machine's. `target_ns`
    is the intended duration of one timed launch.
    """

    def __init__(
        self,
        device: Device,
        caches: tuple[int, int] | None = None,
        target_ns: int = TARGET_NS,
    ) -> None:
        from runtime.opencl.binding import cl
        from scheduler.device.targets import spec_of_device

        info = device.info
        self._cl = cl
        self._is_cpu = info.kind == "cpu"
        self._target_ns = target_ns
        # Wider vectors would be split by the compiler and need too many registers.
        width = max(1, min(16, device.handle.preferred_vector_width_float))
        width = spec_of_device(device).lanes if self._is_cpu else width
        self._vector_bytes = 4 * width
        # A CPU core runs work-items one after the other; a GPU runs thousands at the same time. A
        # CPU gets several per core, because the driver can give the first two to one thread.
        self._items = info.compute_units * (ITEMS_PER_CORE if self._is_cpu else 2048)
        enable = cl.command_queue_properties.PROFILING_ENABLE
        self._queue = cl.CommandQueue(device.context, properties=enable)
        self._context = device.context
        vector = "float" if width == 1 else f"float{width}"
        options = [f"-DV={vector}", f"-DCHAINS={CHAINS}", "-cl-mad-enable", "-cl-fast-relaxed-math"]
        program = cl.Program(device.context, SOURCE).build(options=options)
        self._arithmetic = cl.Kernel(program, "arithmetic")
        self._read = cl.Kernel(program, "read")
        flags = cl.mem_flags.READ_WRITE
        self._out = cl.Buffer(device.context, flags, self._items * self._vector_bytes)
        if self._is_cpu:
            l2, l3 = caches or cache_sizes()
            self._sizes = cpu_levels(l2, l3, info.compute_units, info.max_alloc_bytes)
        else:
            cache = int(device.handle.global_mem_cache_size)
            self._sizes = gpu_levels(cache, info.max_alloc_bytes)

    def measure(self) -> Ceilings:
        """Measure all ceilings once, which takes about a second."""
        levels = tuple(
            MemoryLevel(name, capacity, self._read_rate(array))
            for name, capacity, array in self._sizes
        )
        sgemm = measure_sgemm() if self._is_cpu else 0.0
        return Ceilings(self._arithmetic_rate(), levels, sgemm)

    def _arithmetic_rate(self) -> float:
        def launch(rounds: int) -> cl.Event:
            scalars = (np.float32(0.999), np.float32(0.001), np.int32(rounds))
            return self._arithmetic(self._queue, (self._items,), self._local(), self._out, *scalars)

        flops = 2 * CHAINS * (self._vector_bytes // 4) * self._items
        return self._best_rate(launch, flops, 1 << 14)

    def _read_rate(self, array_bytes: int) -> float:
        count = max(8, array_bytes // self._vector_bytes // self._items // 8 * 8)
        size = count * self._items * self._vector_bytes
        data = self._cl.Buffer(self._context, self._cl.mem_flags.READ_ONLY, size)
        # Fill the buffer: untouched pages all map to one page of zeros, which fits in every cache.
        self._cl.enqueue_fill_buffer(self._queue, data, np.ones(1, np.float32), 0, size).wait()
        # Each CPU core reads its own piece; the threads of a GPU read adjacent vectors.
        first, step = (count, 1) if self._is_cpu else (1, self._items)

        def launch(rounds: int) -> cl.Event:
            numbers = (np.int32(first), np.int32(step), np.int32(count), np.int32(rounds))
            arguments = (self._out, data, *numbers)
            return self._read(self._queue, (self._items,), self._local(), *arguments)

        try:
            return self._best_rate(launch, size, 1)
        finally:
            data.release()

    def _best_rate(self, launch: Callable[[int], cl.Event], work: int, rounds: int) -> float:
        """Return the best rate in `work` per nanosecond, where `work` is that of one round.

        The number of rounds is chosen so that a launch takes the target duration.
        """
        elapsed_ns = self._time_ns(launch(rounds))
        rounds = max(1, min(1 << 20, int(rounds * self._target_ns / max(elapsed_ns, 1))))
        best_ns = min(self._time_ns(launch(rounds)) for _ in range(REPEATS))
        return work * rounds / best_ns

    def _time_ns(self, event: cl.Event) -> int:
        event.wait()
        return int(event.profile.end - event.profile.start)

    def _local(self) -> tuple[int]:
        return (1,) if self._is_cpu else (256,)


def cpu_levels(l2: int, l3: int, cores: int, max_alloc: int) -> list[tuple[str, int, int]]:
    """Return (name, capacity, bytes to read) of each memory level of a CPU.

    Each work-item reads its piece of the array repeatedly on one core. The piece for L2 is half of
    the L2. The piece for L3 is four times the L2 if the L3 is large enough. The array for DRAM is
    twice the L3, limited by the largest buffer.

    `l2` is the size for one core in bytes. `l3` is the size for all cores, or 0.
    """
    items = cores * ITEMS_PER_CORE
    levels = [("L2", l2 * cores, l2 // 2 * items)]
    piece = min(4 * l2, l3 // 2 // items)
    if piece >= 2 * l2:
        levels.append(("L3", l3, piece * items))
    levels.append(("DRAM", EVERYTHING, min(2 * max(l3, l2 * cores, 32 << 20), max_alloc // 2)))
    return levels


def gpu_levels(cache: int, max_alloc: int) -> list[tuple[str, int, int]]:
    """Return (name, capacity, bytes to read) of a GPU's cache, if it has one, and memory."""
    memory = ("DRAM", EVERYTHING, min(max(8 * cache, 256 << 20), max_alloc // 2))
    return [("L2", cache, cache // 2), memory] if cache else [memory]


def cache_sizes(directory: Path = CACHES) -> tuple[int, int]:
    """Return the sizes in bytes of one core's L2 and of its L3; 1 MiB and 0 if sysfs lacks them."""
    found = {2: 1 << 20, 3: 0}
    for index in sorted(directory.glob("index*")):
        level = int((index / "level").read_text(encoding="utf-8"))
        text = (index / "size").read_text(encoding="utf-8").strip()
        if level in found:
            found[level] = int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}[text[-1]]
    return found[2], found[3]


def measure_sgemm(size: int = SGEMM_SIZE) -> float:
    """Return the best GFLOP/s of numpy's float32 product of two `size` x `size` matrices."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    out = np.empty_like(a)
    times_ns = []
    for _ in range(REPEATS):
        started_ns = time.perf_counter_ns()
        np.matmul(a, b, out=out)
        times_ns.append(time.perf_counter_ns() - started_ns)
    return 2 * size**3 / min(times_ns)


def describe(ceilings: Ceilings) -> Sequence[str]:
    """Return the ceilings as lines of text."""
    lines = [f"{ceilings.gflops:.0f} GFLOP/s float32 multiply-adds on all cores"]
    lines += [f"{level.gbytes_per_s:.1f} GB/s from {level.name}" for level in ceilings.levels]
    if ceilings.sgemm_gflops:
        lines.append(f"{ceilings.sgemm_gflops:.0f} GFLOP/s numpy sgemm, {SGEMM_SIZE} cubed")
    return lines


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """One launch, compared with the ceilings. Rates and `of_...` use the median time."""

    launch: int
    name: str
    origin: tuple[str, ...]  # the ONNX nodes that it computes
    ms: float  # median time
    min_ms: float  # shortest time
    least_ms: float  # lower bound of the time by the roofline
    share: float  # median time / sum of the medians of all launches
    flops: int
    bytes_moved: int  # bytes of all buffers, each counted once
    weight_bytes: int  # bytes of weights among them
    gflops: float
    gbytes_per_s: float
    bound: str  # "compute", or the name of the memory level that limits it
    of_roofline: float  # least time / median time, 0 to about 1
    of_sgemm: float | None  # rate / rate of numpy's sgemm; None if that was not measured


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one kernel, with the fields of `RooflineRow`.

    Times, shares, operations and bytes are sums over the launches. Name, origin and bound are those
    of the slowest launch. A kernel is `flagged` if it takes over 2 % of the frame and reaches less
    than half of its roofline.
    """

    name: str
    origin: tuple[str, ...]
    launches: tuple[int, ...]
    ms: float
    min_ms: float
    share: float
    flops: int
    bytes_moved: int
    gflops: float
    gbytes_per_s: float
    bound: str
    of_roofline: float
    of_sgemm: float | None
    flagged: bool


def weight_bytes_of(manifest: Manifest, entry: str) -> list[int]:
    """Return the bytes of the weights among the arguments of each launch of an entry."""
    spec = manifest.entry(entry)
    assert spec is not None  # the program has run the entry
    sizes = []
    for index in spec.launches:
        kernel = manifest.kernels[index]
        weights = {n for n in kernel.args if manifest.buffers[n].kind == "weight"}
        # A kernel can read only a part of a buffer; bytes_moved counts only that part.
        total = sum(manifest.buffers[n].size for n in sorted(weights))
        sizes.append(min(total, kernel.bytes_moved))
    return sizes


def quietest(profiles: Sequence[Sequence[KernelTime]]) -> list[KernelTime]:
    """Return the fastest profile by the sum of medians, with the shortest times of all profiles."""
    chosen = min(profiles, key=lambda profile: sum(time.median_ms for time in profile))
    shortest = [min(time.min_ms for time in times) for times in zip(*profiles, strict=True)]
    return [replace(time, min_ms=ms) for time, ms in zip(chosen, shortest, strict=True)]


def make_rows(
    times: Sequence[KernelTime], weights: Sequence[int], ceilings: Ceilings
) -> list[RooflineRow]:
    """Compare each launch with the ceilings; return rows, slowest first.

    `weights` has the bytes of weights of each launch.
    """
    total_ms = sum(time.median_ms for time in times)
    all_weights = sum(weights)
    rows = [
        _row(time, weight, all_weights, total_ms, ceilings)
        for time, weight in zip(times, weights, strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.ms, row.launch))


def _row(
    time: KernelTime, weights: int, all_weights: int, total_ms: float, ceilings: Ceilings
) -> RooflineRow:
    others = time.bytes_moved - weights
    level, below = ceilings.level_of(others), ceilings.level_of(all_weights)
    # GB/s is bytes per ns, and GFLOP/s is operations per ns.
    others_ns, weights_ns = others / level.gbytes_per_s, weights / below.gbytes_per_s
    compute_ns = time.flops / ceilings.gflops
    bound = "compute"
    if others_ns + weights_ns > compute_ns:
        bound = level.name if others_ns >= weights_ns else below.name
    # Times are at least 1 ns, the resolution of the clock.
    taken_ns = max(time.median_ms * 1e6, 1.0)
    least_ns = max(compute_ns, others_ns + weights_ns)
    gflops = time.flops / taken_ns
    return RooflineRow(
        launch=time.launch,
        name=time.name,
        origin=time.origin,
        ms=time.median_ms,
        min_ms=time.min_ms,
        least_ms=least_ns / 1e6,
        share=time.median_ms / total_ms if total_ms > 0 else 0.0,
        flops=time.flops,
        bytes_moved=time.bytes_moved,
        weight_bytes=weights,
        gflops=gflops,
        gbytes_per_s=time.bytes_moved / taken_ns,
        bound=bound,
        of_roofline=least_ns / taken_ns,
        of_sgemm=gflops / ceilings.sgemm_gflops if ceilings.sgemm_gflops else None,
    )


def make_kernels(rows: Sequence[RooflineRow], ceilings: Ceilings) -> list[KernelRow]:
    """Compare each kernel with the ceilings by sums over its launches; slowest first."""
    launches: dict[str, list[RooflineRow]] = {}
    for row in rows:
        launches.setdefault(row.name, []).append(row)
    kernels = [_kernel(same, ceilings) for same in launches.values()]
    return sorted(kernels, key=lambda kernel: (-kernel.ms, kernel.launches))


def _kernel(rows: Sequence[RooflineRow], ceilings: Ceilings) -> KernelRow:
    ms, share = sum(row.ms for row in rows), sum(row.share for row in rows)
    flops, moved = sum(row.flops for row in rows), sum(row.bytes_moved for row in rows)
    taken_ns = max(ms * 1e6, 1.0)
    reached = sum(row.least_ms for row in rows) * 1e6 / taken_ns
    sgemm = ceilings.sgemm_gflops
    return KernelRow(
        name=rows[0].name,
        origin=rows[0].origin,
        launches=tuple(sorted(row.launch for row in rows)),
        ms=ms,
        min_ms=sum(row.min_ms for row in rows),
        share=share,
        flops=flops,
        bytes_moved=moved,
        gflops=flops / taken_ns,
        gbytes_per_s=moved / taken_ns,
        bound=rows[0].bound,
        of_roofline=reached,
        of_sgemm=flops / taken_ns / sgemm if sgemm else None,
        flagged=share > FLAG_SHARE and reached < FLAG_ROOFLINE,
    )


def share_below(rows: Sequence[RooflineRow]) -> float:
    """Return the share of the frame in launches that reach less than half of their roofline."""
    return sum(row.share for row in rows if row.of_roofline < FLAG_ROOFLINE)

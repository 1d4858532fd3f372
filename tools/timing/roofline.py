"""The roofline: measures a device's limits, and compares each kernel of a program with them.

The limits (ceilings) are measured by the simplest possible kernels: chains of independent
multiply-adds, and sums over an array that is read repeatedly. They run in the same process as the
program, because the speed of a shared machine changes within an hour.

A launch of f operations over b bytes takes at least ``max(f / peak, b / bandwidth)``, with the
bandwidth of the smallest memory level that holds the bytes. Weights are counted separately: a frame
reads all of them once, so if they do not fit a level together, the next frame finds them only in
the level below. ``of_roofline`` is that least time divided by the **median** measured time. A
kernel with several launches is judged by the sums over its launches. The peak is that of float32
multiply-adds, so a kernel with other operations (divisions, integer positions of a warp) cannot
reach it.
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

# Two multiply-add units with a latency of 4 need 8 chains. 12 fit into 16 or 32 registers.
CHAINS = 12
ITEMS_PER_CORE = 4
REPEATS = 9
TARGET_NS = 6_000_000  # duration of a timed launch: longer than overhead, shorter than a time slice
EVERYTHING = 1 << 62  # bytes, more than any device has
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
    """A level of the memory hierarchy.

    `capacity` is in bytes, over all cores. The rate is measured with all cores reading.
    """

    name: str
    capacity: int
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The measured limits of a device.

    `gflops` is the rate of float32 vector multiply-adds, two operations each. The last level holds
    everything. `sgemm_gflops` is the rate of numpy's matrix product on this CPU; 0 for a GPU.
    """

    gflops: float
    levels: tuple[MemoryLevel, ...]
    sgemm_gflops: float

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
    """Kernels that measure the ceilings, built for one device. `measure` can be called repeatedly.

    `caches` is (L2 of one core, L3) of a CPU in bytes, by default this machine's. `target_ns` is
    the duration of one timed launch.
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
        # The compiler would split wider vectors, which then need too many registers.
        width = max(1, min(16, device.handle.preferred_vector_width_float))
        width = spec_of_device(device).lanes if self._is_cpu else width
        self._vector_bytes = 4 * width
        # A CPU core runs work-items one by one, a GPU thousands at once. A CPU gets several per
        # core, because the driver may assign the first two to the same thread.
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
        """Measure everything once, which takes about 1 s."""
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
        # Without writing, all pages would be the same page of zeros, which fits every cache.
        self._cl.enqueue_fill_buffer(self._queue, data, np.ones(1, np.float32), 0, size).wait()
        # A CPU core reads its own part of the array; the threads of a GPU read adjacent vectors.
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
        """Return the best `work` per ns, over launches with a suitable number of rounds."""
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

    `l2` is the L2 of one core and `l3` that of all cores, in bytes; 0 if there is none.

    A work-item reads its piece of the array repeatedly on one core. For L2 the piece is half of the
    L2. For L3 it is four times the L2, or less if the L3 is small. For DRAM the array is twice the
    L3, or less if the device limits the size of a buffer.
    """
    items = cores * ITEMS_PER_CORE
    levels = [("L2", l2 * cores, l2 // 2 * items)]
    piece = min(4 * l2, l3 // 2 // items)
    if piece >= 2 * l2:
        levels.append(("L3", l3, piece * items))
    levels.append(("DRAM", EVERYTHING, min(2 * max(l3, l2 * cores, 32 << 20), max_alloc // 2)))
    return levels


def gpu_levels(cache: int, max_alloc: int) -> list[tuple[str, int, int]]:
    """Return (name, capacity, bytes to read) of a GPU's cache and memory; see `cpu_levels`."""
    memory = ("DRAM", EVERYTHING, min(max(8 * cache, 256 << 20), max_alloc // 2))
    return [("L2", cache, cache // 2), memory] if cache else [memory]


def cache_sizes(directory: Path = CACHES) -> tuple[int, int]:
    """Return the bytes of one core's L2 and of its L3; typical sizes if sysfs has none."""
    found = {2: 1 << 20, 3: 0}
    for index in sorted(directory.glob("index*")):
        level = int((index / "level").read_text(encoding="utf-8"))
        text = (index / "size").read_text(encoding="utf-8").strip()
        if level in found:
            found[level] = int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}[text[-1]]
    return found[2], found[3]


def measure_sgemm(size: int = SGEMM_SIZE) -> float:
    """Return the best GFLOP/s of numpy's float32 product of two square matrices."""
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
    """One launch, compared with the ceilings.

    Attributes:
        origin: the ONNX nodes that it computes.
        ms, min_ms: median and shortest time. Rates and `of_...` are relative to the median.
        least_ms: lower bound of the time.
        share: share of the sum of all launches' medians.
        bytes_moved: bytes of all buffers, each counted once; `weight_bytes` of them are weights.
        bound: "compute", or the memory level that limits it.
        of_roofline: least possible time / measured time, 0 to about 1.
        of_sgemm: rate of operations / that of numpy's sgemm; None if not measured.
    """

    launch: int
    name: str
    origin: tuple[str, ...]
    ms: float
    min_ms: float
    least_ms: float
    share: float
    flops: int
    bytes_moved: int
    weight_bytes: int
    gflops: float
    gbytes_per_s: float
    bound: str
    of_roofline: float
    of_sgemm: float | None


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one kernel, with the fields of `RooflineRow` summed where possible.

    Name, origin and bound are those of the slowest launch. `flagged` means more than 2 % of the
    frame and less than half of the roofline.
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
    """Return, for each launch of an entry, the bytes of weights among its arguments."""
    spec = manifest.entry(entry)
    assert spec is not None  # the program has run it
    sizes = []
    for index in spec.launches:
        kernel = manifest.kernels[index]
        weights = {n for n in kernel.args if manifest.buffers[n].kind == "weight"}
        # A kernel may read only a part of a buffer, so bytes_moved is the limit.
        total = sum(manifest.buffers[n].size for n in sorted(weights))
        sizes.append(min(total, kernel.bytes_moved))
    return sizes


def quietest(profiles: Sequence[Sequence[KernelTime]]) -> list[KernelTime]:
    """Return the profile with the smallest sum, but with the shortest times of all profiles."""
    chosen = min(profiles, key=lambda profile: sum(time.median_ms for time in profile))
    shortest = [min(time.min_ms for time in times) for times in zip(*profiles, strict=True)]
    return [replace(time, min_ms=ms) for time, ms in zip(chosen, shortest, strict=True)]


def make_rows(
    times: Sequence[KernelTime], weights: Sequence[int], ceilings: Ceilings
) -> list[RooflineRow]:
    """Compare each launch with the ceilings; slowest first.

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
    # A clock of 1 ns resolution cannot measure less.
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
    """Compare each kernel, by the sums over its launches, with the ceilings; slowest first."""
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

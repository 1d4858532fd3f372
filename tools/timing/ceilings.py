"""Measures the ceilings of a device with small kernels: arithmetic, and reading memory.

The kernels are as simple as can be (chains of independent multiply-adds; sums over an array that is
read again and again), so that what they reach is a ceiling for kernels that compute something.
Measured in the same process as what is judged by it, because a shared machine is another machine
an hour later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runtime.texts import count_text

if TYPE_CHECKING:
    from runtime import Device
    from runtime.opencl.binding import cl

# Two multiply-add units with a latency of 4 need 8 chains; 12 fit into 16 or 32 registers.
CHAINS = 12
ITEMS_PER_CORE = 4
REPEATS = 9
TARGET_NS = 6_000_000  # one timed launch: long beside a launch, short beside a time slice
EVERYTHING = 1 << 62  # more bytes than any device has
SGEMM_SIZE = 1024
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

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

    `capacity` are bytes that fit, of all cores together; the rate is measured with all cores
    reading.
    """

    name: str
    capacity: int
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device reached.

    `gflops` are multiply-adds of float32 vectors, two operations each; the last of the levels holds
    everything. `sgemm_gflops` is numpy's matrix product on this machine's CPU, 0 next to a GPU.
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
    """The kernels, built for one device; ``measure`` may be called several times.

    `caches` are (L2 of one core, L3) in bytes, for a CPU; those of this machine by default. One
    timed launch should take `target_ns`.
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
        # Vectors that the compiler would cut in pieces need more registers than there are.
        width = max(1, min(16, device.handle.preferred_vector_width_float))
        width = spec_of_device(device).lanes if self._is_cpu else width
        self._vector_bytes = 4 * width
        # A CPU runs one work-item after the other on each core, a GPU thousands at once. Several
        # for each core: the driver may hand the first two to the same thread.
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
        """Measure everything once, which takes about a second."""
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
        # Untouched pages would all be the same page of zeros, which fits every cache.
        self._cl.enqueue_fill_buffer(self._queue, data, np.ones(1, np.float32), 0, size).wait()
        # A core reads a piece of its own; the threads of a GPU read side by side.
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
        """Return `work` per nanosecond of one round, at best; finds a sensible number of rounds."""
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
    """Return (name, capacity, bytes to read) of each level of a CPU.

    A work-item reads its piece of the array over and over on one core. The piece for L2 is half of
    it, the one for L3 four times the L2, as far as L3 is that large; the array for DRAM is twice
    the L3, as far as one buffer may be that large.

    `l2` are bytes of one core, `l3` of all cores, 0 if there is none.
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
    """Return the bytes of one core's L2 and of the L3 it sees; usual sizes if sysfs has none."""
    found = {2: 1 << 20, 3: 0}
    for index in sorted(directory.glob("index*")):
        level = int((index / "level").read_text(encoding="utf-8"))
        text = (index / "size").read_text(encoding="utf-8").strip()
        if level in found:
            found[level] = int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}[text[-1]]
    return found[2], found[3]


def measure_sgemm(size: int = SGEMM_SIZE) -> float:
    """Return the GFLOP/s of numpy's float32 product of two square matrices, at best of some."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    out = np.empty_like(a)
    times_ns = []
    for _ in range(REPEATS):
        started_ns = time.perf_counter_ns()
        np.matmul(a, b, out=out)
        times_ns.append(time.perf_counter_ns() - started_ns)
    return 2 * size**3 / min(times_ns)


def cpu_name() -> str:
    """Return the name of the CPU as Linux gives it, with the number of cores we may use."""
    name = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {count_text(len(os.sched_getaffinity(0)), 'core')}"


def describe(ceilings: Ceilings) -> Sequence[str]:
    """Return the ceilings as lines for people."""
    lines = [f"{ceilings.gflops:.0f} GFLOP/s float32 multiply-adds on all cores"]
    lines += [f"{level.gbytes_per_s:.1f} GB/s from {level.name}" for level in ceilings.levels]
    if ceilings.sgemm_gflops:
        lines.append(f"{ceilings.sgemm_gflops:.0f} GFLOP/s numpy sgemm, {SGEMM_SIZE} cubed")
    return lines

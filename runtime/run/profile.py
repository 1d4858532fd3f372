"""Statistics of a loaded program, and the kernel times of a profiled run.

A profiled run records one `Span` per launch; `summarize` reduces those of several runs.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.format.manifest import Manifest


@dataclass(slots=True)
class ProgramStats:
    """Properties of a loaded program, and counters that `run` updates."""

    device: str  # the device's name
    driver: str  # see `DeviceInfo.driver`
    kernels: int  # number of distinct kernel functions
    launches: dict[str, int]  # entry -> number of launches
    arena_bytes: int
    weight_bytes: int
    state_bytes: int
    load_ms: float  # duration of loading
    built_from_source: int  # number of programs found neither in the artifact nor in the cache
    runs: int = 0  # number of runs so far
    last_run_ms: float = 0.0


def make_stats(
    manifest: Manifest, device: str, driver: str, built_from_source: int
) -> ProgramStats:
    """Return the stats of a newly loaded program; the caller fills in `load_ms`."""
    sizes = dict.fromkeys(("weight", "state"), 0)
    for buffer in manifest.buffers:
        if buffer.kind in sizes:
            sizes[buffer.kind] += buffer.size
    return ProgramStats(
        device=device,
        driver=driver,
        kernels=len({(kernel.program, kernel.name) for kernel in manifest.kernels}),
        launches={entry.name: len(entry.launches) for entry in manifest.entries},
        arena_bytes=manifest.arena_size,
        weight_bytes=sizes["weight"],
        state_bytes=sizes["state"],
        load_ms=0.0,
        built_from_source=built_from_source,
    )


# --- The measurements of a profiled run: one span per launch, and a summary per kernel --------


@dataclass(frozen=True, slots=True)
class Span:
    """The time of one launch, by the device's clock: ns since an arbitrary start."""

    launch: int  # index in the entry's launch list
    name: str  # name of the kernel
    queued_ns: int  # when the launch was queued
    start_ns: int  # when it began
    end_ns: int  # when it ended


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of one launch of an entry, over all profiled iterations."""

    launch: int  # index in the entry's launch list
    name: str  # name of the kernel
    origin: tuple[str, ...]  # the ONNX nodes that the kernel computes
    median_ms: float
    min_ms: float
    flops: int  # operations of one launch
    bytes_moved: int  # bytes read and written by one launch, each buffer once

    @property
    def gflops(self) -> float:
        """Arithmetic rate at the median time, in GFLOP/s."""
        return self.flops / (self.median_ms * 1e6) if self.median_ms > 0 else 0.0

    @property
    def gbytes_per_s(self) -> float:
        """Memory rate at the median time, in GB/s, counting each buffer's bytes once."""
        return self.bytes_moved / (self.median_ms * 1e6) if self.median_ms > 0 else 0.0


def summarize(
    iterations: Sequence[Sequence[Span]], work: Sequence[tuple[tuple[str, ...], int, int]]
) -> list[KernelTime]:
    """Reduce the spans of all iterations, each in launch order, to one time per launch.

    `work` holds the origin, flops and bytes of each launch.
    """
    times = []
    for spans, (origin, flops, bytes_moved) in zip(
        zip(*iterations, strict=True), work, strict=True
    ):
        milliseconds = [(span.end_ns - span.start_ns) / 1e6 for span in spans]
        times.append(
            KernelTime(
                launch=spans[0].launch,
                name=spans[0].name,
                origin=origin,
                median_ms=statistics.median(milliseconds),
                min_ms=min(milliseconds),
                flops=flops,
                bytes_moved=bytes_moved,
            )
        )
    return times

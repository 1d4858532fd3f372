"""The measurements of a profiled run: one span per launch, and sums per kernel."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One launch on the device's own clock, in ns since an arbitrary start."""

    launch: int  # position in the entry's launch list
    name: str
    queued_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One launch of an entry over all profiled iterations."""

    launch: int
    name: str
    origin: tuple[str, ...]  # the ONNX nodes the kernel computes
    median_ms: float
    min_ms: float
    flops: int
    bytes_moved: int

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
    """Reduce the spans of several iterations to one time per launch.

    Args:
        iterations: for each iteration, the spans of all launches in launch order.
        work: for each launch, its origin, flops and bytes.
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

"""Compares each kernel of a program with the ceilings of the device: the roofline.

A launch of f operations over b bytes cannot take less than ``max(f / peak, b / bandwidth)``, with
the bandwidth of the smallest memory level that holds the bytes. Weights are counted apart: a frame
reads all of them once, so where they do not fit a level together, the next frame finds them in the
level below. ``of_roofline`` is that least time over the **median** of those measured, as every
other figure is: what a frame takes, not what it could have taken once. A kernel that is launched
several times is judged by the sums over its launches. The peak is that of float32 multiply-adds, so
a kernel that computes other things (divisions, integer positions of a warp) cannot reach it.

Called by ``tools.bench.roofline``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.format.manifest import Manifest
from runtime.run.profile import KernelTime
from tools.timing.ceilings import Ceilings

# What is worth a reason in writing: a kernel over this share of the frame and below this part of
# its roofline.
FLAG_SHARE = 0.02
FLAG_ROOFLINE = 0.5


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """One launch.

    Attributes:
        origin: the ONNX nodes it computes.
        ms, min_ms: median and shortest time; rates and `of_...` are at the median.
        least_ms: the lower bound of its time.
        share: of the sum of the medians of all launches.
        bytes_moved: bytes touched, each buffer once, of which `weight_bytes` are weights.
        bound: "compute", or the memory level that limits it.
        of_roofline: least possible time / measured time, 0 to about 1.
        of_sgemm: rate of operations over that of numpy's sgemm; None if that was not measured.
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
    """All launches of one kernel; fields as of `RooflineRow`, sums where they are sums.

    Name, origin and bound are those of its slowest launch; `flagged` is over 2 % of the frame and
    below half of its roofline.
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
    """Return for each launch of an entry the bytes of the weights among its arguments."""
    spec = manifest.entry(entry)
    assert spec is not None  # the program has run it
    sizes = []
    for index in spec.launches:
        kernel = manifest.kernels[index]
        weights = {n for n in kernel.args if manifest.buffers[n].kind == "weight"}
        # A kernel may read a part of a buffer only, which is what bytes_moved counts.
        total = sum(manifest.buffers[n].size for n in sorted(weights))
        sizes.append(min(total, kernel.bytes_moved))
    return sizes


def quietest(profiles: Sequence[Sequence[KernelTime]]) -> list[KernelTime]:
    """Return the profile with the smallest sum, with the shortest times of all profiles."""
    chosen = min(profiles, key=lambda profile: sum(time.median_ms for time in profile))
    shortest = [min(time.min_ms for time in times) for times in zip(*profiles, strict=True)]
    return [replace(time, min_ms=ms) for time, ms in zip(chosen, shortest, strict=True)]


def make_rows(
    times: Sequence[KernelTime], weights: Sequence[int], ceilings: Ceilings
) -> list[RooflineRow]:
    """Judge each launch; slowest first.

    `weights` are bytes of weights of each launch.
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
    # GB/s are bytes per ns and GFLOP/s operations per ns.
    others_ns, weights_ns = others / level.gbytes_per_s, weights / below.gbytes_per_s
    compute_ns = time.flops / ceilings.gflops
    bound = "compute"
    if others_ns + weights_ns > compute_ns:
        bound = level.name if others_ns >= weights_ns else below.name
    # Nothing takes less than the clock can tell.
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
    """Judge each kernel by the sums over its launches; slowest first."""
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
    """Return the share of the frame of launches below half of their roofline, large or not."""
    return sum(row.share for row in rows if row.of_roofline < FLAG_ROOFLINE)

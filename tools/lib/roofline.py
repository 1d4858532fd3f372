"""How far each kernel of a program is from what the device can do: the roofline, per launch.

A launch of f operations over b bytes cannot take less than ``max(f / peak, b / bandwidth)``, with
the bandwidth of the smallest memory level that holds the bytes. Weights are counted apart: a frame
reads all of them once, so where they do not fit a level together, the next frame finds them in the
level below. ``of_roofline`` is that least time over the shortest one measured: the ceilings are the
best of some tries, so the kernels get the same chance, and a neighbour's work is not called our
waste. Shares of the frame are of medians. The peak is that of float32 multiply-adds, so a kernel
that computes other things (divisions, integer positions of a warp) cannot reach it.

Called by ``tools.bench_roofline``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.manifest import Manifest
from runtime.profile import KernelTime
from tools.lib.ceilings import Ceilings

# What is worth a reason in writing: a launch over this share of the frame and below this part of
# its roofline.
FLAG_SHARE = 0.02
FLAG_ROOFLINE = 0.5


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """One launch.

    Attributes:
        launch: position in the entry.
        name: of the kernel function.
        origin: the ONNX nodes it computes.
        ms: median time.
        min_ms: shortest time; rates and `of_...` are at this one.
        share: of the sum of the medians of all launches.
        flops: operations.
        bytes_moved: bytes touched, each buffer once.
        weight_bytes: of these, weights.
        gflops: operations per ns.
        gbytes_per_s: bytes per ns.
        bound: "compute", or the memory level that limits it.
        of_roofline: least possible time / measured time, 0 to about 1.
        of_sgemm: rate of operations over that of numpy's sgemm; None if that was not measured.
        flagged: over 2 % of the frame and below half of its roofline.
    """

    launch: int
    name: str
    origin: tuple[str, ...]
    ms: float
    min_ms: float
    share: float
    flops: int
    bytes_moved: int
    weight_bytes: int
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
    """Return the profile with the smallest sum, with the shortest times of all profiles.

    Args:
        profiles: of the same entry, one or more.
    """
    chosen = min(profiles, key=lambda profile: sum(time.median_ms for time in profile))
    shortest = [min(time.min_ms for time in times) for times in zip(*profiles, strict=True)]
    return [replace(time, min_ms=ms) for time, ms in zip(chosen, shortest, strict=True)]


def make_rows(
    times: Sequence[KernelTime], weights: Sequence[int], ceilings: Ceilings
) -> list[RooflineRow]:
    """Judge each launch; slowest first.

    Args:
        times: as `Program.profile` returns them.
        weights: bytes of weights of each launch.
        ceilings: what the device can do.
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
    least_ns = max(time.min_ms * 1e6, 1.0)
    reached = max(compute_ns, others_ns + weights_ns) / least_ns
    gflops = time.flops / least_ns
    share = time.median_ms / total_ms if total_ms > 0 else 0.0
    return RooflineRow(
        launch=time.launch,
        name=time.name,
        origin=time.origin,
        ms=time.median_ms,
        min_ms=time.min_ms,
        share=share,
        flops=time.flops,
        bytes_moved=time.bytes_moved,
        weight_bytes=weights,
        gflops=gflops,
        gbytes_per_s=time.bytes_moved / least_ns,
        bound=bound,
        of_roofline=reached,
        of_sgemm=gflops / ceilings.sgemm_gflops if ceilings.sgemm_gflops else None,
        flagged=share > FLAG_SHARE and reached < FLAG_ROOFLINE,
    )

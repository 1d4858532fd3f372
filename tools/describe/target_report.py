"""Estimates a compiled model on its target: launches, image reads, bytes, and time.

It is counted in the generated code, not measured. An image read is a `read_imagef` in the source of
a launched kernel, once for each launch, as the published figures count them; a gated one is chosen
by a condition. Inside a loop each counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from runtime.quantities import count_text, flops_text
from scheduler.device.spec import DeviceSpec
from tools.adreno.adreno_time import ANALYTIC

# comma.ai's reference vision model with half storage on an Adreno 630, as its tests assert them.
PUBLISHED_VISION: Final = {"kernels": 123, "image_reads": 1361, "gated_reads": 38}


@dataclass(frozen=True, slots=True)
class TargetReport:
    """What one entry point costs on a target.

    Attributes:
        entry: its name.
        kernels: launches.
        image_reads, gated_reads, image_writes: in the source of each launch.
        images: arguments of launches that are images.
        buffers: those that are buffers.
        bytes_moved: of each argument what is touched, once a launch.
        gflop: 10**9 operations.
        arithmetic_ms, memory_ms, launch_ms: at the target's ceilings, each alone.
        estimate_ms: the slower of the first two for each launch, and its launch.
        few_items: launches with fewer work-items than the target runs at once.
    """

    entry: str
    kernels: int
    image_reads: int
    gated_reads: int
    image_writes: int
    images: int
    buffers: int
    bytes_moved: int
    gflop: float
    arithmetic_ms: float
    memory_ms: float
    launch_ms: float
    estimate_ms: float
    few_items: int

    def plain(self) -> dict[str, Any]:
        """Return it as a dictionary for JSON."""
        return {**asdict(self), "estimate": ANALYTIC.plain(self.estimate_ms)}


def target_report(manifest: Mapping[str, Any], entry: str, spec: DeviceSpec) -> TargetReport:
    """Count an entry point and estimate its time.

    Args:
        manifest: of the artifact.
        entry: name of the entry point.
        spec: the target; its ceilings must be known.
    """
    launches = [manifest["kernels"][i] for i in manifest["entries"][entry]["launches"]]
    codes = [k["code"] for k in launches]
    peak = spec.peak
    arithmetic = [k["flops"] / peak.gflops / 1e6 for k in launches]
    memory = [k["bytes"] / peak.gbytes / 1e6 for k in launches]
    slower = sum(max(a, m) for a, m in zip(arithmetic, memory, strict=True))
    launch_ms = len(launches) * peak.launch_us / 1e3
    arguments = [manifest["buffers"][i] for k in launches for i in k["args"]]
    return TargetReport(
        entry=entry,
        kernels=len(launches),
        image_reads=sum(code["image_reads"] for code in codes),
        gated_reads=sum(code["gated_reads"] for code in codes),
        image_writes=sum(code["image_writes"] for code in codes),
        images=sum("image" in b for b in arguments),
        buffers=sum("image" not in b for b in arguments),
        bytes_moved=sum(k["bytes"] for k in launches),
        gflop=round(sum(k["flops"] for k in launches) / 1e9, 4),
        arithmetic_ms=round(sum(arithmetic), 3),
        memory_ms=round(sum(memory), 3),
        launch_ms=round(launch_ms, 3),
        estimate_ms=round(slower + launch_ms, 3),
        few_items=sum(k["global"][0] < spec.subgroup * spec.cores for k in launches),
    )


def describe_target(report: TargetReport, spec: DeviceSpec) -> list[str]:
    """Return lines for people, with the published figures beside ours."""
    known = PUBLISHED_VISION
    reads = f"image reads {report.image_reads} ({known['image_reads']})"
    gated = f"gated {report.gated_reads} ({known['gated_reads']})"
    parts = f"arithmetic {report.arithmetic_ms:.2f}, memory {report.memory_ms:.2f}"
    arguments = f"{count_text(report.images, 'image')}, {count_text(report.buffers, 'buffer')}"
    return [
        f"{report.entry} on target {spec.target}, counted, not measured",
        "  (in brackets: published for the reference vision model on an Adreno 630)",
        f"  kernels {report.kernels} ({known['kernels']}), {reads}, {gated}",
        f"  arguments: {arguments}",
        f"  too small to fill the device: {count_text(report.few_items, 'kernel')}",
        f"  {report.bytes_moved / 1e6:.1f} MB moved, {flops_text(1e9 * report.gflop)}",
        f"  no less than {report.estimate_ms:.2f} ms: {parts}, launches {report.launch_ms:.2f}",
        f"  {ANALYTIC.text(report.estimate_ms)}, by what published times were (docs/adreno.md)",
    ]

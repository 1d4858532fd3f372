"""Times of the runs of an entry: percentiles of whole runs, and medians of their phases."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tools.timing.trace import phased_runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from runtime import Program

WARM_UP_RUNS: Final = 5
# Of a measurement by time: fewer runs have no percentiles.
LEAST_RUNS: Final = 10
PERCENTILES: Final = (90, 95, 99)
# Phases are medians, so a few runs tell them.
PHASED_RUNS: Final = 50


def measure(
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    entry: str,
    runs: int | None,
    seconds: float | None = None,
    warm_up: int = WARM_UP_RUNS,
) -> dict[str, Any]:
    """Time runs of an entry back to back; return times in ms and its work by the manifest.

    Without `runs` there are as many as `seconds` last, but at least `LEAST_RUNS`. Runs to warm up
    do not count.

    Raises:
        InputError, RuntimeFault: as `Program.run`.
    """
    for _ in range(warm_up):
        program.run(inputs, entry)
    times_ns: list[int] = []
    least = LEAST_RUNS if runs is None else 1
    begun_ns = ended_ns = time.perf_counter_ns()
    end_ns = None if seconds is None else begun_ns + round(seconds * 1e9)
    while runs is None or len(times_ns) < runs:
        started_ns = time.perf_counter_ns()
        if end_ns is not None and started_ns >= end_ns and len(times_ns) >= least:
            break
        program.run(inputs, entry)
        ended_ns = time.perf_counter_ns()
        times_ns.append(ended_ns - started_ns)
    return {
        "artifact": program.manifest.name,
        "entry": entry,
        **_summary(np.array(times_ns, np.float64) / 1e6),
        "runs": len(times_ns),
        "warm_up_runs": warm_up,
        "seconds": (ended_ns - begun_ns) / 1e9,
        "runs_per_s": len(times_ns) * 1e9 / (ended_ns - begun_ns),
        **_phases(program, inputs, entry, min(len(times_ns), PHASED_RUNS)),
        **_work(program, entry, float(np.median(times_ns))),
    }


def _summary(times_ms: NDArray[np.float64]) -> dict[str, float]:
    percentiles = np.percentile(times_ms, PERCENTILES)
    return {
        "median_ms": float(np.median(times_ms)),
        "mean_ms": float(times_ms.mean()),
        **{f"p{p}_ms": float(v) for p, v in zip(PERCENTILES, percentiles, strict=True)},
        "min_ms": float(times_ms.min()),
        "max_ms": float(times_ms.max()),
    }


def _phases(
    program: Program, inputs: Mapping[str, NDArray[Any]], entry: str, runs: int
) -> dict[str, float]:
    """Return medians of runs of their own, in which the device is idle between phases."""
    found = phased_runs(program, inputs, entry, runs)
    return {
        "write_ms": float(np.median([run.written_ns - run.begun_ns for run in found])) / 1e6,
        "kernels_ms": float(np.median([run.done_ns - run.written_ns for run in found])) / 1e6,
        "read_ms": float(np.median([run.read_ns - run.done_ns for run in found])) / 1e6,
    }


def _work(program: Program, entry: str, median_ns: float) -> dict[str, Any]:
    manifest = program.manifest
    spec = manifest.entry(entry)
    assert spec is not None  # program.run would have refused it
    launches = [manifest.kernels[index] for index in spec.launches]
    return {
        "kernels": len({(kernel.program, kernel.name) for kernel in launches}),
        "launches": len(launches),
        "submissions": program.submissions(entry),
        "bytes_moved": sum(kernel.bytes_moved for kernel in launches),
        "arena_peak_bytes": manifest.arena_size,
        "gflops": sum(kernel.flops for kernel in launches) / median_ns,
        "rss_mib": resident_mib(),
        "device": program.stats.device,
    }


def resident_mib() -> float:
    """Return this process's resident memory in MiB (Linux: VmRSS of /proc/self/status)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0

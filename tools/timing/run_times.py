"""Measures run times: of one program, or of several programs in alternating blocks.

`measure` returns percentiles of complete runs of an entry, and medians of their phases.

`measure_rounds` compares several programs. On a shared machine, speed drifts by tens of percent
within minutes, and worker threads of some runtimes spin after a call and occupy cores. Therefore
each program in turn runs a short block after a pause, and ratios are computed only within a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.timing.run_parts import phased_runs

if TYPE_CHECKING:
    from runtime import Program

WARM_UP_RUNS: Final = 5
# The minimum number of runs in a measurement by time, for meaningful percentiles.
LEAST_RUNS: Final = 10
PERCENTILES: Final = (90, 95, 99)
# The maximum number of runs to measure phases: medians need only a few.
PHASED_RUNS: Final = 50
# Calls in a block, and the pause before it. The pause is longer than any peer's workers spin; the
# daemon pauses between frames, too.
FRAMES: Final = 20
PAUSE_S: Final = 0.4


def measure(
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    entry: str,
    runs: int | None,
    seconds: float | None = None,
    warm_up: int = WARM_UP_RUNS,
) -> dict[str, Any]:
    """Time back-to-back runs of an entry; return times in ms, and its work by the manifest.

    The measurement ends after `runs` runs or after `seconds`, but not before `LEAST_RUNS` if `runs`
    is None. `warm_up` runs before it are not counted.

    Raises:
        InputError, RuntimeFault: from `Program.run`.
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
    """Return medians of the phases of separate runs, with an idle device between phases."""
    found = phased_runs(program, inputs, entry, runs)
    return {
        "write_ms": float(np.median([run.written_ns - run.begun_ns for run in found])) / 1e6,
        "kernels_ms": float(np.median([run.done_ns - run.written_ns for run in found])) / 1e6,
        "read_ms": float(np.median([run.read_ns - run.done_ns for run in found])) / 1e6,
    }


def _work(program: Program, entry: str, median_ns: float) -> dict[str, Any]:
    manifest = program.manifest
    spec = manifest.entry(entry)
    assert spec is not None  # the entry has been run
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two programs over the same rounds; times are in milliseconds."""

    ours_ms: float  # median over the rounds of our block medians
    theirs_ms: float  # median over the rounds of their block medians
    ratio: float  # median over the rounds of ours / theirs
    ratio_min: float  # smallest ratio of a round
    ratio_max: float  # largest ratio of a round
    ratio_quiet: float  # our fastest block / their fastest block; robust against other load
    blocks: tuple[tuple[float, float], ...]  # block medians (ours, theirs) of each round


def measure_block(
    run: Callable[[], object], frames: int = FRAMES, pause_s: float = PAUSE_S
) -> float:
    """Pause, call `run` `frames` times, and return the median time of a call in ms."""
    time.sleep(pause_s)
    times_ns = np.empty(frames, np.int64)
    for index in range(frames):
        started_ns = time.perf_counter_ns()
        run()
        times_ns[index] = time.perf_counter_ns() - started_ns
    return float(np.median(times_ns)) / 1e6


def measure_rounds(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    frames: int = FRAMES,
    pause_s: float = PAUSE_S,
) -> dict[str, NDArray[np.float64]]:
    """Run a block of each program in turn, `rounds` times, after a warm-up round.

    The order rotates from round to round. Each block has `frames` calls after a pause. Returns the
    (rounds,) block medians of each program in ms.
    """
    names = list(runs)
    medians = {name: np.empty(rounds) for name in names}
    for number in range(-1, rounds):
        start = (number + 1) % len(names)
        for name in names[start:] + names[:start]:
            found = measure_block(runs[name], frames, pause_s)
            if number >= 0:
                medians[name][number] = found
    return medians


def compare(ours_ms: NDArray[np.float64], theirs_ms: NDArray[np.float64]) -> Comparison:
    """Compare our blocks with the peer's, given the (rounds,) block medians of the same rounds."""
    ratios = ours_ms / theirs_ms
    return Comparison(
        ours_ms=float(np.median(ours_ms)),
        theirs_ms=float(np.median(theirs_ms)),
        ratio=float(np.median(ratios)),
        ratio_min=float(ratios.min()),
        ratio_max=float(ratios.max()),
        ratio_quiet=float(ours_ms.min() / theirs_ms.min()),
        blocks=tuple((float(a), float(b)) for a, b in zip(ours_ms, theirs_ms, strict=True)),
    )


def max_relative_error(
    ours: Mapping[str, NDArray[np.generic]], theirs: Mapping[str, NDArray[np.generic]]
) -> float:
    """Return the largest |difference| / max |theirs| over all outputs; inf if one is not finite.

    The peer must have all our outputs with the same numbers of elements; further ones are ignored.
    """
    worst = 0.0
    for name, values in ours.items():
        expected = np.asarray(theirs[name], np.float64).ravel()
        found = np.asarray(values, np.float64).ravel()
        if not (np.isfinite(expected).all() and np.isfinite(found).all()):
            return float("inf")
        scale = float(np.abs(expected).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(found - expected).max(initial=0.0)) / scale)
    return worst

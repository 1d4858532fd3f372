"""Times runs: of one program, and of several programs in alternating blocks.

`measure` returns percentiles over complete runs of an entry, and medians of their phases.

On a shared machine all speeds drift by tens of percent within minutes. Also, the worker threads of
some runtimes spin after a call and take cores from the next program. Therefore several programs are
compared in rounds: each runs a short block in turn, after a pause, and ratios are formed only
within a round.
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
# Fewest runs of a measurement that is limited by time; fewer have no percentiles.
LEAST_RUNS: Final = 10
PERCENTILES: Final = (90, 95, 99)
# Number of runs for the phases, whose medians need only a few.
PHASED_RUNS: Final = 50
# Calls per block, and the pause before a block. The pause is longer than the workers of any peer
# spin; the daemon also pauses between frames.
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
    """Time runs of an entry, one right after the other; return times in ms and the entry's work.

    Without `runs`, the runs take `seconds`, but there are at least `LEAST_RUNS`. `warm_up` runs
    before them are not counted.

    Raises:
        InputError, RuntimeFault: as for `Program.run`.
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
    """Return medians of the phases, from separate runs in which the device idles between them."""
    found = phased_runs(program, inputs, entry, runs)
    return {
        "write_ms": float(np.median([run.written_ns - run.begun_ns for run in found])) / 1e6,
        "kernels_ms": float(np.median([run.done_ns - run.written_ns for run in found])) / 1e6,
        "read_ms": float(np.median([run.read_ns - run.done_ns for run in found])) / 1e6,
    }


def _work(program: Program, entry: str, median_ns: float) -> dict[str, Any]:
    manifest = program.manifest
    spec = manifest.entry(entry)
    assert spec is not None  # program.run has accepted it
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
    """Two programs timed in the same rounds, in ms.

    Attributes:
        ours_ms, theirs_ms: median over the rounds of each side's block medians.
        ratio: median over the rounds of ours / theirs.
        ratio_min, ratio_max: smallest and largest ratio of a round.
        ratio_quiet: our fastest block / their fastest block, even of different rounds. It remains
            useful if other load disturbed many rounds.
        blocks: (ours, theirs) of each round, each the median of one block.
    """

    ours_ms: float
    theirs_ms: float
    ratio: float
    ratio_min: float
    ratio_max: float
    ratio_quiet: float
    blocks: tuple[tuple[float, float], ...]


def measure_block(
    run: Callable[[], object], frames: int = FRAMES, pause_s: float = PAUSE_S
) -> float:
    """Return the median time of a call over one block, in ms, after a pause."""
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
    """Run a block of each program in turn, `rounds` times, after one round to warm up.

    The order rotates from round to round, so that no program always follows the same one. Each
    block has `frames` calls after a pause. Returns each program's block medians in ms, float64
    (rounds,).
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
    """Compare our block medians with the peer's, round by round.

    Both arrays are from the same rounds, (rounds,).
    """
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

    `theirs` must have all names in `ours`, with as many elements, and may have more.
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

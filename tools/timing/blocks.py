"""Timing several programs in alternating blocks, and the ratio of two of them block by block.

On a shared machine the speed of everything drifts by tens of percent within minutes, and worker
threads of some runtimes spin after a call and take cores from whoever runs next. So each program
runs a short block in turn, after a pause, and only figures of the same round are divided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FRAMES = 20
# Longer than the workers of any peer spin; what a car does between two frames is pause too.
PAUSE_S = 0.4


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two programs over the same rounds; times in milliseconds.

    Attributes:
        ours_ms, theirs_ms: medians over the rounds of each side's block medians.
        ratio: median over the rounds of ours / theirs.
        ratio_min, ratio_max: of the rounds that suit us and the peer best.
        ratio_quiet: our quickest block / their quickest block, of any rounds: what is left of the
            ratio when a neighbour disturbed many rounds.
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
    """Return the median time of one call over a block, in ms, after a pause."""
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

    The order rotates from round to round, so that nobody always follows the same other one.

    Each block has `frames` calls after a pause. The result has the medians of each program's blocks
    in ms, float64 (rounds,).
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
    """Divide our blocks by the peer's, round by round.

    Both are medians of blocks of the same rounds, (rounds,).
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

    The peer must have our names and numbers of elements, and may have more.
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

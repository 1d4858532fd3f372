"""The timing gate compares a model's speed with its reference, also on a busy machine.

Absolute times say nothing on a shared machine. What is compared is the ratio of the model's time to
that of a fixed workload (``calibration_workload``), both in one process, run by run in alternation,
on one core and by processor time. Where memory pages lie differs from process to process and moves
the ratio by 2 %, so several processes are started and their spread decides how sure one may be: the
gate fails only if the whole confidence interval lies beyond the limit, and asks for more processes
while the limit lies inside it.

A reference ratio holds for one device. Where CI's machines differ, give a baseline: the artifact of
the other side is then measured in the same processes, and the ratio of the two decides.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from runtime.own_process import own_command
from tools.errors import ToolError
from tools.lib.driver_threads import thread_setting

# Half of the 10 % that must be noticed; four times the spread of a mean of four processes.
LIMIT = 0.05
MIN_PROCESSES = 4
MAX_PROCESSES = 12
RUNS = 40
TIMEOUT_S = 600.0
# Share of the time spent waiting for something else than a processor; a reference's own is below
# 1 % on a CPU.
WAITING_LIMIT = 0.05

# Quantiles of Student's t, 97.5 % one-sided by degrees of freedom from 1 (any table of it).
STUDENT_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over processes, and where its true value lies with 95 % confidence."""

    mean: float
    low: float
    high: float
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TimingResult:
    """What was measured.

    Attributes:
        device: the device and its processor; references of another one do not apply.
        clock: ``processor`` (CPUs) or ``wall``.
        ratio: time of the model over that of the calibration workload.
        to_baseline: time of the model over that of the baseline; None without one.
        model_ms: median over the processes; for people.
        waiting: share of the undisturbed runs that was no processor time; None where nearly all
            runs were disturbed, or time is wall time anyway.
    """

    device: str
    clock: str
    ratio: Interval
    to_baseline: Interval | None
    model_ms: float
    waiting: float | None


@dataclass(frozen=True, slots=True)
class TimingVerdict:
    """The gate's decision.

    Attributes:
        passed: whether the gate is open.
        slower: by how much the model is slower than its reference, 0.1 = 10 %; None: no reference.
        text: one line for people.
    """

    passed: bool
    slower: float | None
    text: str


def interval(samples: Sequence[float]) -> Interval:
    """Return mean and confidence interval (Student's t) of at least two independent values."""
    mean = fmean(samples)
    t = STUDENT_T[min(len(samples) - 1, len(STUDENT_T)) - 1]
    half = t * stdev(samples) / math.sqrt(len(samples))
    return Interval(mean, mean - half, mean + half, tuple(samples))


def measure_timing(
    artifact: Path,
    *,
    entry: str | None = None,
    device: str | None = None,
    baseline: Path | None = None,
    reference: float | None = None,
    runs: int = RUNS,
) -> TimingResult:
    """Measure an artifact in at least ``MIN_PROCESSES`` processes, one after the other.

    Args:
        artifact: what is measured.
        entry: of the artifact; None: its first one.
        device: OpenCL device; None: the best.
        baseline: another artifact with that entry, measured beside it.
        reference: ratio that the result will be judged by: measuring goes on, up to
            ``MAX_PROCESSES``, while the interval leaves open on which side of the limit it lies.
        runs: of the model, in each process.

    Raises:
        ToolError: a process failed.
    """
    base = 1.0 if baseline is not None else reference

    def is_decided(found: Sequence[dict[str, Any]]) -> bool:
        values = [_decisive(one) for one in found]
        between = interval(values)
        return base is None or not between.low <= base * (1.0 + LIMIT) <= between.high

    found = _gather(lambda: _run_process(artifact, entry, device, baseline, runs), is_decided)
    waits = [float(one["waiting"]) for one in found if one["waiting"] is not None]
    ratios = [float(one["ratio"]) for one in found]
    return TimingResult(
        device=str(found[0]["device"]),
        clock=str(found[0]["clock"]),
        ratio=interval(ratios),
        to_baseline=interval([_decisive(one) for one in found]) if baseline is not None else None,
        model_ms=sorted(float(one["model_ms"]) for one in found)[len(found) // 2],
        waiting=min(waits) if waits else None,
    )


def judge_timing(
    result: TimingResult, reference: Interval | None, *, waiting: float | None = None
) -> TimingVerdict:
    """Decide.

    Args:
        result: what was measured now.
        reference: ratio of the reference on this device; unused with a baseline, whose ratio is 1.
        waiting: `TimingResult.waiting` of the reference.
    """
    measured, base = result.ratio, reference
    if result.to_baseline is not None:
        measured, base = result.to_baseline, Interval(1.0, 1.0, 1.0, ())
    if base is None:
        return TimingVerdict(True, None, f"timing: no reference for {result.device}; not judged")
    slower = measured.mean / base.mean - 1.0
    spread = (measured.high - measured.low) / 2.0 / base.mean
    text = f"timing: {slower:+.1%} (+-{spread:.1%}, {len(measured.samples)} processes)"
    # Both sides were measured: the uncertainty of the reference counts as well.
    base_half = (base.high - base.low) / 2.0 / base.mean
    if slower - math.hypot(spread, base_half) > 0.0 and slower - spread > LIMIT:
        return TimingVerdict(False, slower, f"{text}: slower than the limit of {LIMIT:.0%}")
    if result.waiting is not None and result.waiting - (waiting or 0.0) > WAITING_LIMIT:
        text = (
            f"{text}: {result.waiting:.0%} of the time is spent waiting, {waiting or 0:.0%} before"
        )
        return TimingVerdict(False, slower, text)
    if slower + spread > LIMIT:
        return TimingVerdict(True, slower, f"{text}: too noisy to rule out {LIMIT:.0%}")
    return TimingVerdict(True, slower, text)


def _decisive(found: dict[str, Any]) -> float:
    if found["baseline_ratio"] is None:
        return float(found["ratio"])
    return float(found["ratio"]) / float(found["baseline_ratio"])


def _gather(
    run: Callable[[], dict[str, Any]], is_decided: Callable[[Sequence[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    found = [run() for _ in range(MIN_PROCESSES)]
    while len(found) < MAX_PROCESSES and not is_decided(found):
        found.append(run())
    return found


def _run_process(
    artifact: Path, entry: str | None, device: str | None, baseline: Path | None, runs: int
) -> dict[str, Any]:
    command = own_command("tools.regress.timing_process", "--artifact", str(artifact))
    command += ["--runs", str(runs)]
    for option, value in (("--entry", entry), ("--device", device), ("--baseline", baseline)):
        if value is not None:
            command += [option, str(value)]
    environment = os.environ | thread_setting(1)
    done = subprocess.run(  # noqa: S603 - our own module, no shell
        command,
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ToolError(f"timing of {artifact}: expected a measurement, found: {reason}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found

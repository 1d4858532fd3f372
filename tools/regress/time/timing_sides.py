"""Measures times for the timing gate, in one process per side; the sides run alternately.

The sides are the judged artifact and, if there is one, the baseline. Each is run by its own
checkout. Both run a frame in direct succession, so a busy machine slows both alike. Each pair of
processes gives one sample per frame; several pairs give the spread.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from runtime.own_process import own_command
from tools.errors import ToolError
from tools.lib.processes import thread_setting
from tools.regress.time.timing import (
    MAX_PROCESSES,
    MIN_PROCESSES,
    FrameTiming,
    Kernels,
    LaunchTime,
    StoredTiming,
    TimingResult,
    compare_kernels,
    frame_intervals,
    interval,
    judge_timing,
)
from tools.regress.timing_process import PROTOCOL

# Runs per process over all frames: with eight frames, six of each.
RUNS: Final = 48
PROFILED_ROUNDS: Final = 8
PROFILED_RUNS: Final = 4
TIMEOUT_S: Final = 600.0
# Exit code of argparse for unknown arguments.
REFUSED: Final = 2

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """An artifact to time, and the checkout that runs it."""

    artifact: Path
    tree: Path | None = None  # checkout whose runtime runs it; None: this one


@dataclass(frozen=True, slots=True)
class Measurement:
    """The two sides, and the inputs and device of both."""

    model: Side  # the artifact that is judged
    baseline: Side | None = None  # None: compare with a stored measurement
    entry: str | None = None  # entry of both artifacts; None: the first one
    device: str | None = None  # OpenCL device; None: the best
    frames: Path | None = None  # file of recorded frames; None: random inputs

    @property
    def sides(self) -> dict[str, Side]:
        """The sides by name."""
        return {"model": self.model} | ({"baseline": self.baseline} if self.baseline else {})


class SideProcess:
    """A running `timing_process`.

    `command` starts it; `name` is the artifact's name in error messages.
    """

    def __init__(self, command: Sequence[str], name: str) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | thread_setting(1),
        )
        self._timer = threading.Timer(TIMEOUT_S, self._process.kill)
        self._timer.start()
        self.hello: Answer = {}

    def greet(self) -> None:
        """Wait until the program is loaded.

        Raises:
            ToolError: the process ended, or speaks another protocol.
        """
        self.hello = self._answer()
        if self.hello.get("protocol") != PROTOCOL:
            raise self._unlike()

    def ask(self, request: str) -> Answer:
        """Return the answer to a request.

        Raises:
            ToolError: the process ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process ended; its error is on stderr
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise self._unlike() if code == REFUSED else self._failed()
        try:
            found = json.loads(line)
        except ValueError:
            raise self._unlike() from None
        # Timing processes without protocol numbers send a bare ratio first.
        return found if isinstance(found, dict) else {}

    def _failed(self) -> ToolError:
        return ToolError(
            f"timing of {self._name}: expected a measurement, found: {self._last_line()}"
        )

    def _unlike(self) -> ToolError:
        return ToolError(
            f"timing of {self._name}: expected a timing process that speaks protocol {PROTOCOL}, "
            f"found another one ({self._last_line()}); the checkout is of another age: give a "
            "newer one as --baseline-tree, or leave it out"
        )

    def _last_line(self) -> str:
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines() or ["no message"])[-1]


def measure_timing(
    what: Measurement, stored: StoredTiming | None = None, *, with_kernels: bool = False
) -> TimingResult:
    """Measure in at least ``MIN_PROCESSES`` pairs of processes, one after the other.

    Measuring continues, up to ``MAX_PROCESSES``, while more samples may still change the verdict on
    the model or one of its frames. If the gate fails, each kernel is timed.

    `stored`: the measurement to compare with if there is no baseline. `with_kernels`: time kernels
    even if the gate passes.

    Raises:
        ToolError: a process failed.
    """
    found: list[dict[str, Answer]] = []
    result = None
    while result is None or (len(found) < MAX_PROCESSES and judge_timing(result, stored).is_open):
        found += [_measure_pair(what) for _ in range(1 if found else MIN_PROCESSES)]
        result = summarize(found)
    verdict = judge_timing(result, stored)
    if verdict.passed and not with_kernels:
        return result
    return replace(result, kernels=_profile(what, result, verdict.worst, stored))


def _measure_pair(what: Measurement) -> dict[str, Answer]:
    """Run a pair of processes; return each side's hello and its answers by round and frame."""
    with _processes(what) as sides:
        count = len(sides["model"].hello["frames"])
        runs: dict[str, list[list[Answer]]] = {name: [] for name in sides}
        for number in range(max(1, RUNS // count)):
            for answers in runs.values():
                answers.append([])
            # Both sides run a frame in direct succession, and each goes first equally often.
            for frame in range(count):
                for name in sorted(sides, reverse=(number + frame) % 2 == 1):
                    runs[name][-1].append(sides[name].ask(f"time {frame}"))
        return {name: {**sides[name].hello, "runs": runs[name]} for name in sides}


def summarize(pairs: Sequence[Mapping[str, Answer]]) -> TimingResult:
    """Summarize the measurements of pairs of processes.

    `pairs`: at least two results of `_measure_pair`.
    """
    first = pairs[0]["model"]
    ratios = [_medians(pair["model"]["runs"], "ratio") for pair in pairs]
    to_baseline: list[list[float]] = []
    if "baseline" in pairs[0]:
        to_baseline = [
            _quotients(pair["model"]["runs"], pair["baseline"]["runs"]) for pair in pairs
        ]
    each = frame_intervals(ratios)
    each_to_baseline = frame_intervals(to_baseline) if to_baseline else [None] * len(each)
    frames = zip(first["frames"], each, each_to_baseline, strict=True)
    return TimingResult(
        device=str(first["device"]),
        clock=str(first["clock"]),
        ratio=interval([fmean(one) for one in ratios]),
        to_baseline=interval([fmean(one) for one in to_baseline]) if to_baseline else None,
        model_ms=_ms(pairs, "model"),
        waiting=_waiting(pairs, "model"),
        frames=tuple(FrameTiming(*one) for one in frames),
        baseline_ms=_ms(pairs, "baseline") if to_baseline else None,
        baseline_waiting=_waiting(pairs, "baseline") if to_baseline else None,
    )


def _medians(runs: Sequence[Sequence[Answer]], name: str) -> list[float]:
    """Return a median for each frame."""
    return [median(float(one[name]) for one in frame) for frame in zip(*runs, strict=True)]


def _quotients(
    model: Sequence[Sequence[Answer]], baseline: Sequence[Sequence[Answer]]
) -> list[float]:
    """Return for each frame the median ratio of model to baseline over paired runs."""
    return [
        median(one["ms"] / other["ms"] for one, other in zip(*frame, strict=True))
        for frame in zip(zip(*model, strict=True), zip(*baseline, strict=True), strict=True)
    ]


def _ms(pairs: Sequence[Mapping[str, Answer]], side: str) -> float:
    return float(median(fmean(_medians(pair[side]["runs"], "ms")) for pair in pairs))


def _waiting(pairs: Sequence[Mapping[str, Answer]], side: str) -> float | None:
    """Return the smallest share of waiting, over processes with 1/4 of runs undisturbed."""
    found = []
    for pair in pairs:
        all_runs = [one["waiting"] for runs in pair[side]["runs"] for one in runs]
        waits = [float(one) for one in all_runs if one is not None]
        if 4 * len(waits) >= len(all_runs):
            found.append(median(waits))
    return min(found, default=None)


def _profile(
    what: Measurement, result: TimingResult, worst: str, stored: StoredTiming | None
) -> Kernels:
    """Time the launches of the worst frame, on both sides alternately."""
    number = next((n for n, frame in enumerate(result.frames) if frame.name == worst), 0)
    with _processes(what) as sides:
        rounds: dict[str, list[Answer]] = {name: [] for name in sides}
        for _ in range(PROFILED_ROUNDS):
            for name, process in sides.items():
                rounds[name].append(process.ask(f"profile {number} {PROFILED_RUNS}"))
    now = _quietest(rounds["model"])
    before = _quietest(rounds["baseline"]) if "baseline" in rounds else None
    calibration_ms = min(float(one["calibration_ms"]) for one in rounds["model"])
    if before is None and stored is not None:
        before = [one._replace(ms=one.ms * calibration_ms) for one in stored.launches]
    launches = tuple(one._replace(ms=one.ms / calibration_ms) for one in now)
    return Kernels(
        result.frames[number].name, compare_kernels(before, now) if before else (), launches
    )


def _quietest(answers: Sequence[Answer]) -> list[LaunchTime]:
    """Return each launch with its shortest time."""
    launches = zip(*(answer["launches"] for answer in answers), strict=True)
    return [
        LaunchTime(same[0][0], tuple(same[0][1]), min(float(one[2]) for one in same))
        for same in launches
    ]


@contextmanager
def _processes(what: Measurement) -> Iterator[dict[str, SideProcess]]:
    with ExitStack() as stack:
        found = {}
        for name, side in what.sides.items():
            found[name] = SideProcess(_command(side, what), _name_of(side))
            stack.callback(found[name].close)
        for process in found.values():
            process.greet()
        yield found


def _name_of(side: Side) -> str:
    return f"{side.artifact}" + (f" by {side.tree}" if side.tree is not None else "")


def _command(side: Side, what: Measurement) -> list[str]:
    words = ["--protocol", str(PROTOCOL), "--artifact", str(side.artifact)]
    options: dict[str, object] = {
        "--entry": what.entry,
        "--device": what.device,
        "--frames": what.frames,
    }
    for option, value in options.items():
        if value is not None:
            words += [option, str(value)]
    return own_command("tools.regress.timing_process", *words, tree=side.tree)

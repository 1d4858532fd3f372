"""``modeld bench --paced``: measures the time of a run after a pause, as in the daemon.

In back-to-back runs, caches are warm, clocks high and threads awake. The daemon, however, runs once
every 50 ms. Here blocks of 10 runs, each after a pause of 0, 5, 30 or 50 ms, alternate until there
are ``--iters`` runs of each pause. ``p99_over_p50`` is the main metric, because absolute times of a
shared machine drift.

A host can place two CPUs of a virtual machine on one core for some tenths of a second. All workers
of the driver then need more than `SLOW_CORES` times their usual CPU time for the same work.
``slow_cores`` counts these runs. ``steady_p99_over_p50`` is the ratio without them.

``--realtime`` applies the daemon's real-time settings (ADR 0094); ``realtime`` has their effects.

``--beside`` repeats the measurement next to other work:

- ``busy``: a process that never sleeps occupies one CPU.
- ``model``: another process runs the same artifact every 50 ms.
- ``one-cpu``: only this process runs, on one CPU. ``busy`` should not be slower than this.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import runtime
from modeld.service import realtime
from modeld.service.config import RealtimeConfig
from modeld.service.realtime import Effect
from modeld.startup import StopSignals
from tools.errors import ToolError, UsageError
from tools.lib.json_output import print_json
from tools.lib.processes import Child
from tools.lib.terminal import format_table
from tools.timing.program_inputs import inputs_for, make_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from runtime import Program

PAUSES_MS = (0, 5, 30, 50)
BLOCK = 10
COMPANY = ("busy", "model", "one-cpu")
START_TIMEOUT_S = 120.0  # for the other process to load the artifact and build kernels
RUN_TIMEOUT_S = 2.0  # for one run and its pause
SLOW_CORES = 1.7
RATIOS = ("p99_over_p50", "steady_p99_over_p50")
REALTIME = RealtimeConfig(priority=50, lock_memory=True, freeze_gc=True)
NEIGHBOUR = "tools.bench.paced"  # module of the other process; it runs `main`

Times = dict[str, dict[str, float]]


def run(args: argparse.Namespace) -> int:
    """Measure, print the result and return exit code 0.

    Raises:
        UsageError: `--beside` names an unknown kind of work.
        ProcessError, ToolError: the other process failed.
    """
    company = _company(args.beside)
    path = args.path[0]
    with ExitStack() as resources:
        program = resources.enter_context(runtime.load_program(path, args.device))
        effects = _apply_realtime(program, resources) if args.realtime else ()
        entry = args.entry or program.entries[0]
        inputs = inputs_for(program.entry_inputs(entry), args.inputs, args.seed)
        model = ["--artifact", str(path), "--entry", entry]
        if args.device:
            model += ["--device", args.device]
        result: dict[str, Any] = {
            "artifact": program.manifest.name,
            "entry": entry,
            "device": program.stats.device,
            "realtime": [asdict(effect) for effect in effects],
            "pause_ms": measure(program, inputs, entry, args.iters),
            "beside": {},
        }
        cpu = ["--cpu", str(max(os.sched_getaffinity(0)))]
        for name in company:
            if name == "one-cpu":
                found = _measure_alone([*cpu, *model], args.iters)
            else:
                with Child(name, NEIGHBOUR, cpu if name == "busy" else model) as neighbour:
                    _wait_for_line(neighbour, START_TIMEOUT_S)
                    found = measure(program, inputs, entry, args.iters)
            result["beside"][name] = found
    if args.json:
        print_json(result)
    else:
        _print(result)
    return 0


def _apply_realtime(program: Program, resources: ExitStack) -> tuple[Effect, ...]:
    """Apply the real-time settings until `resources` are closed; return their effects."""
    resources.enter_context(realtime.collector_restored())
    effects = realtime.apply_to_process(REALTIME)
    effects += realtime.apply_to_program(REALTIME, program)
    effects += resources.enter_context(realtime.awake())
    return effects + realtime.apply_to_loop(REALTIME)


def measure(program: Program, inputs: Mapping[str, NDArray[Any]], entry: str, runs: int) -> Times:
    """Time `runs` runs after each pause.

    Returns `p50_ms`, `p99_ms` and `p99_over_p50` of a run, by the pause in ms as text. If the
    threads of the driver are known, `slow_cores` and `steady_p99_over_p50` are included.
    """
    runs_ms: dict[int, list[tuple[float, float]]] = {pause: [] for pause in PAUSES_MS}
    for _ in range(BLOCK):  # until the worker threads are assigned to CPUs
        program.run(inputs, entry)
    threads = () if program.workers is None else program.workers.threads
    while len(runs_ms[PAUSES_MS[-1]]) < runs:
        for pause, found in runs_ms.items():
            for _ in range(min(BLOCK, runs - len(found))):
                time.sleep(pause / 1e3)
                before_ns = _cpu_ns(threads)
                started_ns = time.perf_counter_ns()
                program.run(inputs, entry)
                run_ms = (time.perf_counter_ns() - started_ns) / 1e6
                spent_ns = [n - o for n, o in zip(_cpu_ns(threads), before_ns, strict=True)]
                found.append((run_ms, min(spent_ns, default=0) / 1e6))
    return {str(pause): _summary(found) for pause, found in runs_ms.items()}


def _cpu_ns(threads: Sequence[int]) -> list[int]:
    """Return the CPU time of each thread in ns (Linux: proc_pid_schedstat)."""
    places = (Path(f"/proc/self/task/{thread}/schedstat") for thread in threads)
    return [int(place.read_text("ascii").split()[0]) for place in places]


def _summary(found: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the metrics of runs, given as (run time, least CPU time of a worker) in ms."""
    times_ms, spent_ms = np.array(found).T
    p50, p99 = (float(value) for value in np.percentile(times_ms, (50, 99)))
    summary = {"p50_ms": p50, "p99_ms": p99, "p99_over_p50": p99 / p50}
    if not spent_ms.any():
        return summary
    slow = spent_ms > SLOW_CORES * np.median(spent_ms)
    p50, p99 = (float(value) for value in np.percentile(times_ms[~slow], (50, 99)))
    return summary | {"slow_cores": int(slow.sum()), "steady_p99_over_p50": p99 / p50}


def _company(text: str | None) -> list[str]:
    names = [name for name in (text or "").split(",") if name]
    for name in names:
        if name not in COMPANY:
            raise UsageError(f"--beside: expected some of {','.join(COMPANY)}, found {name!r}")
    return names


def _measure_alone(arguments: Sequence[str], runs: int) -> Times:
    with Child("one-cpu", NEIGHBOUR, [*arguments, "--measure", str(runs)]) as child:
        _wait_for_line(child, START_TIMEOUT_S)
        times: Times = json.loads(_wait_for_line(child, RUN_TIMEOUT_S * runs * len(PAUSES_MS)))
        return times


def _wait_for_line(child: Child, timeout_s: float) -> str:
    line = child.read_line(timeout_s)
    if line is None:
        raise ToolError(f"{child.name}: expected a line within {timeout_s:g} s, found none")
    return line


def _print(result: Mapping[str, Any]) -> None:
    print(f"{result['artifact']}, entry {result['entry']}, on {result['device']}")
    for effect in result["realtime"]:
        print(f"  {Effect(**effect)}")
    rows = []
    for name, times in {"-": result["pause_ms"], **result["beside"]}.items():
        for pause, found in times.items():
            ratios = [f"{found[key]:.2f}" if key in found else "-" for key in RATIOS]
            slow = str(found.get("slow_cores", "-"))
            rows.append((name, int(pause), found["p50_ms"], found["p99_ms"], *ratios, slow))
    head = ("beside", "pause ms", "p50 ms", "p99 ms", "p99/p50", "steady p99/p50", "slow cores")
    print(format_table(head, rows))


def main() -> int:
    """Run the other process of ``--beside``; return its exit code.

    Without an artifact the process keeps a CPU busy; with one it runs it every ``--period-ms``.
    With ``--measure RUNS`` it times paced runs, as its parent does, and prints the result as one
    JSON line. ``--cpu N`` restricts it to that CPU. It first prints "ready", and ends on a signal.
    """
    parser = argparse.ArgumentParser(description="other process of modeld bench --paced")
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--artifact", type=Path)
    parser.add_argument("--entry")
    parser.add_argument("--device")
    parser.add_argument("--period-ms", type=float, default=50.0)
    parser.add_argument("--measure", type=int, default=0, metavar="RUNS")
    args = parser.parse_args()
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    with StopSignals() as stop:
        if args.artifact is None:
            print("ready", flush=True)
            while not stop.event.is_set():
                pass
        else:
            _run_model(args, stop)
    return 0


def _run_model(args: argparse.Namespace, stop: StopSignals) -> None:
    # The driver's threads inherit the CPU affinity set by `main`.
    with runtime.load_program(args.artifact, args.device) as program:
        entry = args.entry or program.entries[0]
        inputs = make_inputs(program.entry_inputs(entry), seed=0)
        print("ready", flush=True)
        if args.measure:
            print_json(measure(program, inputs, entry, args.measure))
            return
        due_s = time.monotonic()
        while not stop.event.is_set():
            program.run(inputs, entry)
            due_s = max(due_s + args.period_ms / 1e3, time.monotonic())
            stop.event.wait(due_s - time.monotonic())


if __name__ == "__main__":
    sys.exit(main())

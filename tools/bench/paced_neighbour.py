"""The other process of ``modeld bench --paced --beside``: keeps a CPU busy, or runs a model.

``--cpu N`` restricts it to that CPU. Without an artifact it computes nothing, all the time; with
one it runs it every ``--period-ms``; with ``--measure RUNS`` it times paced runs, as its parent
does, and prints them as one JSON line. It prints "ready" first, and ends by a signal.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from modeld.startup import StopSignals


def main() -> int:
    """Run the process; return the exit code."""
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
    # After the CPU was chosen: the driver's threads inherit it.
    import runtime
    from tools.bench.paced import measure
    from tools.lib.json_output import print_json
    from tools.timing.program_inputs import make_inputs

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

"""One process of the timing gate: runs of a model and of the calibration workload in alternation.

Started by ``tools.regress.timing`` with one worker thread of PoCL; prints one JSON object. On a CPU
the clock is the processor time of this process, so another process that takes the core costs
nothing; elsewhere it is the time until the device has finished.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import runtime
from runtime.device import DeviceInfo, choose_device
from tools.lib.json_output import print_json
from tools.lib.program_inputs import make_inputs
from tools.regress.calibration_workload import CalibrationWorkload

WARM_RUNS = 3


class Timed(NamedTuple):
    """One call.

    Attributes:
        busy_ms: by the clock of the gate.
        wall_ms: until it returned.
        disturbed: the system took the processor away meanwhile.
    """

    busy_ms: float
    wall_ms: float
    disturbed: bool


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Alternate calibration, model and, where there is one, baseline; return the ratios.

    Each run of a model is divided by the mean of the calibrations just before and after it.
    """
    device = choose_device(args.device)
    calibration = CalibrationWorkload(device)
    is_cpu = device.info.kind == "cpu"
    models = {"model": args.artifact} | ({"baseline": args.baseline} if args.baseline else {})
    programs = {name: runtime.load_program(path, args.device) for name, path in models.items()}
    runs = {name: _runner(program, args.entry) for name, program in programs.items()}
    for _ in range(WARM_RUNS):
        for run in (calibration.run, *runs.values()):
            run()
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    waits: list[float] = []
    before = _timed(calibration.run, is_cpu=is_cpu)
    busy_ms = []
    for _ in range(args.runs):
        for name, run in runs.items():
            found = _timed(run, is_cpu=is_cpu)
            after = _timed(calibration.run, is_cpu=is_cpu)
            ratios[name].append(2.0 * found.busy_ms / (before.busy_ms + after.busy_ms))
            before = after
            if name == "model":
                busy_ms.append(found.busy_ms)
                if not found.disturbed:
                    waits.append(1.0 - found.busy_ms / found.wall_ms)
    for program in programs.values():
        program.close()
    return {
        "device": timed_device(device.info),
        "clock": "processor" if is_cpu else "wall",
        "ratio": float(np.median(ratios["model"])),
        "baseline_ratio": float(np.median(ratios["baseline"])) if args.baseline else None,
        "model_ms": float(np.median(busy_ms)),
        "waiting": float(np.median(waits)) if len(waits) * 4 >= args.runs else None,
    }


def timed_device(info: DeviceInfo) -> str:
    """Return the name under which times of a device are kept: times of one name are compared."""
    return f"{info.name}, {_processor()}" if info.kind == "cpu" else info.name


def _processor() -> str:
    """Return family, model and stepping: makes that differ in speed share one name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    values = {name.strip(): value.strip() for name, _, value in pairs}
    wanted = ("cpu family", "model", "stepping", "CPU part")  # the last one on ARM
    return ", ".join(f"{name} {values[name]}" for name in wanted if name in values)


def _runner(program: runtime.Program, entry: str | None) -> Callable[[], object]:
    chosen = entry or program.entries[0]
    inputs = make_inputs(program.entry_inputs(chosen), 0)
    return lambda: program.run(inputs, chosen)


def _timed(run: Callable[[], object], *, is_cpu: bool) -> Timed:
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    busy_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    run()
    wall_ms = (time.perf_counter_ns() - wall_ns) / 1e6
    busy_ms = (time.process_time_ns() - busy_ns) / 1e6 if is_cpu else wall_ms
    disturbed = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw != switches
    return Timed(busy_ms, wall_ms, disturbed)


def main() -> int:
    """Measure and print; errors end the process with a line on stderr."""
    parser = argparse.ArgumentParser(description="one process of the timing gate")
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--entry")
    parser.add_argument("--device")
    parser.add_argument("--runs", type=int, required=True)
    args = parser.parse_args()
    try:
        print_json(measure(args))
    except runtime.RuntimeFault as error:
        sys.exit(f"timing process: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

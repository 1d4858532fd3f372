"""``modeld bench --submission``: what it costs to hand a run to the driver, recorded or not.

The artifact is loaded twice, once with launches that the driver records and once with launches that
are enqueued one by one, and both run in alternating blocks of 20. ``host`` is the CPU time of the
calling thread in one run: inputs and outputs copied, everything enqueued, the wait slept through.
``run`` is the time of a run. Ratios are recorded / one by one within one round.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.quantities import count_text
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.timing.program_inputs import make_inputs
from tools.timing.run_times import FRAMES, PAUSE_S, compare

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from runtime import Program

CLOCKS = {"host": time.thread_time_ns, "run": time.perf_counter_ns}


def run_submission(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        UsageError: the arguments cannot work, or the device records nothing.
        RuntimeFault: the artifact or the device is not right.
    """
    result = measure_submission(args.path[0], args.device, args.entry, args.blocks, args.seed)
    if args.json:
        print_json(result)
        return 0
    launches = count_text(result["launches"], "launch")
    commands = count_text(result["submissions"], "command")
    print(f"{result['artifact']}, entry {result['entry']}, on {result['device']}")
    print(f"  {launches} as {commands} ({result['extension']}) and one by one")
    for name in CLOCKS:
        found = result[name]
        print(
            f"  {name:4}  {found['recorded_ms']:.3f} and {found['single_ms']:.3f} ms, ratio "
            f"{found['ratio']:.3f} ({found['ratio_min']:.3f} to {found['ratio_max']:.3f})"
        )
    print(f"  saved of the host: {result['saved_us_per_launch']:.2f} us a launch")
    return 0


def measure_submission(
    path: Path, device: str | None, entry: str | None, blocks: int, seed: int
) -> dict[str, Any]:
    """Load the artifact twice and run both in turns; return the object of ``--json``.

    `blocks` of each are kept.

    Raises:
        UsageError: the device records nothing, or the entry is one launch.
    """
    from runtime import load_program
    from runtime.opencl.device import choose_device

    recording = choose_device(device)
    support = recording.info.recording
    if support is None:
        raise UsageError(f"--submission: {recording.info.name} has no extension to record launches")
    single = dataclasses.replace(
        recording, info=dataclasses.replace(recording.info, recording=None)
    )
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(load_program(path, opened))
            for name, opened in {"recorded": recording, "single": single}.items()
        }
        program = programs["recorded"]
        name = entry or program.entries[0]
        submissions = program.submissions(name)
        if submissions == programs["single"].submissions(name):
            raise UsageError(
                f"--submission: {program.manifest.name}, entry {name!r}: its launches are not "
                "recorded (on PoCL's CPU devices only with RUNTIME_RECORD=1); the log says why"
            )
        inputs = make_inputs(program.entry_inputs(name), seed)
        found = _rounds(programs, inputs, name, blocks)
        result: dict[str, Any] = {
            "artifact": program.manifest.name,
            "entry": name,
            "device": program.stats.device,
            "extension": support.extension,
            "launches": program.stats.launches[name],
            "submissions": submissions,
        }
    for clock in CLOCKS:
        comparison = compare(found["recorded"][clock], found["single"][clock])
        result[clock] = {
            "recorded_ms": comparison.ours_ms,
            "single_ms": comparison.theirs_ms,
            "ratio": comparison.ratio,
            "ratio_min": comparison.ratio_min,
            "ratio_max": comparison.ratio_max,
        }
    saved_ms = result["host"]["single_ms"] - result["host"]["recorded_ms"]
    result["saved_us_per_launch"] = 1e3 * saved_ms / result["launches"]
    return result


def _rounds(
    programs: Mapping[str, Program], inputs: Mapping[str, NDArray[Any]], entry: str, blocks: int
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return for each program and clock the median of each of its blocks in ms."""
    names = list(programs)
    medians = {name: {clock: np.empty(blocks) for clock in CLOCKS} for name in names}
    for number in range(-1, blocks):
        # Who begins changes from round to round; the first one warms up.
        for name in names[:: 1 if number % 2 else -1]:
            time.sleep(PAUSE_S)
            times_ns = {clock: np.empty(FRAMES, np.int64) for clock in CLOCKS}
            for frame in range(FRAMES):
                before = {clock: read() for clock, read in CLOCKS.items()}
                programs[name].run(inputs, entry)
                for clock, read in CLOCKS.items():
                    times_ns[clock][frame] = read() - before[clock]
            for clock, values in times_ns.items():
                if number >= 0:
                    medians[name][clock][number] = np.median(values) / 1e6
    return medians

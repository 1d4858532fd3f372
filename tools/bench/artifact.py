"""``modeld bench FILE``: times complete runs of an artifact or an ONNX model, then each kernel.

``median_ms`` and the percentiles are times of `Program.run`, called back to back: inputs written,
kernels launched, outputs read. ``write_ms``, ``kernels_ms`` and ``read_ms`` are medians of separate
runs, in which the device is idle between these phases. ``load_warm_ms`` and ``load_cold_ms`` are
times to load an artifact in a fresh process until it is ready for the first frame, with a full and
an empty kernel cache. For an ONNX model, ``compile_s`` replaces them.

``--roofline`` compares every kernel with the ceilings of the device: multiply-adds, reads from each
memory level, and numpy's sgemm. The ceilings are measured before, between and after the profiles,
and the best value of each is used. `tools.timing.roofline` has the formulas.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import runtime
from runtime.format.artifact import read_artifact
from runtime.own_process import own_command
from runtime.texts import count_text, flops_text, short_origin, size_text
from tools.errors import ToolError
from tools.lib.json_output import print_json
from tools.lib.terminal import format_table
from tools.report.history import note_run
from tools.timing.program_inputs import inputs_for
from tools.timing.roofline import (
    FLAG_ROOFLINE,
    FLAG_SHARE,
    CeilingProbe,
    Ceilings,
    KernelRow,
    RooflineRow,
    describe,
    make_kernels,
    make_rows,
    quietest,
    share_below,
    weight_bytes_of,
)
from tools.timing.run_parts import MAX_EVENTS
from tools.timing.run_times import PERCENTILES, measure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from runtime import KernelTime, Program

PROFILED_RUNS = 20
SHOWN_KERNELS = 15  # without --profile
LOAD_TIMEOUT_S = 600
# With --roofline: rounds of profile and ceilings, and the most runs of one profile. More of either
# do not change the result.
ROUNDS = 2
MAX_ITERATIONS = 50


def run(args: argparse.Namespace) -> int:
    """Measure runs, print the result and return exit code 0.

    Raises:
        UsageError: the file of inputs cannot be read.
        InputError, RuntimeFault: the artifact, the device or an input cannot be used.
        ToolError: loading the artifact in a fresh process failed.
    """
    path = args.path[0]
    with runtime.load_program(path, args.device) as program:
        entry = args.entry or program.entries[0]
        inputs = inputs_for(program.entry_inputs(entry), args.inputs, args.seed)
        result = measure(program, inputs, entry, args.iters, args.duration, args.warmup)
        times = program.profile(inputs, entry, min(result["runs"], PROFILED_RUNS))
        if args.trace:
            result["trace_runs"] = _write_trace(program, inputs, entry, args, result["runs"])
    result["load_warm_ms"] = result["load_cold_ms"] = None
    result["compile_s"] = args.compile_s
    if not (args.no_load or args.compile_s is not None):
        result["load_warm_ms"] = measure_load(path, args.device, cold=False)
        result["load_cold_ms"] = measure_load(path, args.device, cold=True)
    note_run(
        args,
        subject=f"{result['artifact']} {entry}",
        device=result["device"],
        model=read_artifact(path).sha256,
        figures=result,
    )
    if args.json:
        if args.profile:
            result["per_kernel"] = [_kernel_row(kernel_time) for kernel_time in times]
        print_json(result)
    else:
        _print_tables(result, times, len(times) if args.profile else SHOWN_KERNELS)
        if args.trace:
            runs = f"{result['trace_runs']} of {count_text(result['runs'], 'run')}"
            print(f"\ntrace: {args.trace}, {runs} (a trace has at most {MAX_EVENTS:,} launches)")
    return 0


def _write_trace(
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    entry: str,
    args: argparse.Namespace,
    wanted: int,
) -> int:
    """Write a trace of `wanted` runs, or of as many as fit in a trace; return their number."""
    from tools.timing.run_parts import phased_runs, trace_events, traceable_runs, write_trace

    spec = program.manifest.entry(entry)
    assert spec is not None  # the entry has been measured
    runs = traceable_runs(len(spec.launches), wanted)
    found = phased_runs(program, inputs, entry, runs, profiling=True)
    write_trace(args.trace, trace_events(found, program.stats.device, program.manifest, entry))
    return runs


def measure_load(artifact: Path, device: str | None, *, cold: bool) -> float:
    """Load an artifact in a fresh process; return the milliseconds from file to first frame.

    With `cold`, our kernel cache and those of the drivers are empty and temporary.

    Raises:
        ToolError: the process failed; the message has its last line.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-bench-") as empty:
        environment = dict(os.environ)
        if cold:
            environment |= {
                "MODELD_CACHE_DIR": empty,
                "POCL_CACHE_DIR": str(Path(empty) / "pocl"),
                "CUDA_CACHE_PATH": str(Path(empty) / "cuda"),
            }
        try:
            # The command is our own module and does not use a shell.
            result = subprocess.run(  # noqa: S603
                own_command("tools.bench.artifact", str(artifact), device or ""),
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=LOAD_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise ToolError(f"{artifact}: loading took over {LOAD_TIMEOUT_S} s") from None
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise ToolError(f"{artifact}: loading in a fresh process failed: {last}")
    return float(result.stdout)


def _kernel_row(kernel_time: KernelTime) -> dict[str, Any]:
    return {
        "launch": kernel_time.launch,
        "name": kernel_time.name,
        "median_ms": kernel_time.median_ms,
        "min_ms": kernel_time.min_ms,
        "gflops": kernel_time.gflops,
        "gbytes_per_s": kernel_time.gbytes_per_s,
        "origin": list(kernel_time.origin),
    }


def _print_tables(result: Mapping[str, Any], times: Sequence[KernelTime], shown: int) -> None:
    print(f"{result['artifact']}, entry {result['entry']}, on {result['device']}")
    load = "not measured"
    if result["compile_s"] is not None:
        load = f"compiled in {result['compile_s']:.1f} s"
    if result["load_cold_ms"] is not None:
        load = f"{result['load_warm_ms']:.0f} ms warm, {result['load_cold_ms']:.0f} ms cold"
    names = ("median", "mean", *(f"p{p}" for p in PERCENTILES), "min", "max")
    spread = ", ".join(f"{result[f'{name}_ms']:.3f} {name}" for name in names)
    phases = ", ".join(
        f"{result[f'{name}_ms']:.3f} {name}" for name in ("write", "kernels", "read")
    )
    runs_text = (
        f"{result['runs']} in {result['seconds']:.2f} s, {result['runs_per_s']:.1f} a second, "
        f"after {result['warm_up_runs']} to warm up"
    )
    memory_text = (
        f"{size_text(result['bytes_moved'])} moved, "
        f"{size_text(result['arena_peak_bytes'])} arena, {result['rss_mib']:.0f} MiB resident"
    )
    facts = {
        "run ms": spread,
        "of it ms": f"{phases} (medians, each phase awaited)",
        "runs": runs_text,
        "rate": f"{flops_text(result['gflops'] * 1e9)}/s",
        "kernels": f"{result['kernels']} in {count_text(result['launches'], 'launch')}, "
        f"{count_text(result['submissions'], 'command')} of the driver",
        "memory": memory_text,
        "load": load,
    }
    for name, text in facts.items():
        print(f"  {name:8} {text}")
    total = sum(kernel_time.median_ms for kernel_time in times)
    slowest = sorted(times, key=lambda item: item.median_ms, reverse=True)[:shown]
    rows = [
        (
            item.launch,
            item.name,
            item.median_ms,
            f"{100 * item.median_ms / total:.1f} %" if total else "-",
            item.gflops,
            item.gbytes_per_s,
            short_origin(item.origin),
        )
        for item in slowest
    ]
    launches = count_text(len(times), "launch")
    print(f"\nslowest {len(rows)} of {launches} ({total:.3f} ms on the device):")
    print(format_table(("#", "kernel", "ms", "share", "GFLOP/s", "GB/s", "from"), rows))


def run_roofline(args: argparse.Namespace) -> int:
    """Measure kernels and ceilings, print them and return exit code 0.

    Raises:
        ArtifactError, NoDeviceError, InputError, RuntimeFault: from loading or running the program.
    """
    device = runtime.choose_device(args.device)
    with runtime.load_program(args.path[0], device) as program:
        entry = args.entry or program.entries[0]
        inputs = inputs_for(program.entry_inputs(entry), args.inputs, args.seed)
        probe = CeilingProbe(device)
        ceilings = probe.measure()
        iterations = min(args.iters, MAX_ITERATIONS)
        profiles = []
        for _ in range(ROUNDS):
            profiles.append(program.profile(inputs, entry, iterations))
            ceilings = ceilings.best_of(probe.measure())
        weights = weight_bytes_of(program.manifest, entry)
        rows = make_rows(quietest(profiles), weights, ceilings)
        name = program.manifest.name
    if args.json:
        measured = {"artifact": name, "entry": entry, "device": device.info.name}
        print_json({**measured, **_roofline_json(ceilings, rows)})
    else:
        print(f"{name}, entry {entry}, on {device.info.name}")
        _print_rows(ceilings, rows)
    return 0


def _roofline_json(ceilings: Ceilings, rows: Sequence[RooflineRow]) -> dict[str, Any]:
    """Return ceilings, kernels and launches for ``--json``."""
    kernels = make_kernels(rows, ceilings)
    return {
        "ceilings": {
            "gflops": ceilings.gflops,
            "sgemm_gflops": ceilings.sgemm_gflops or None,
            "gbytes_per_s": {level.name: level.gbytes_per_s for level in ceilings.levels},
        },
        "kernels_ms": sum(row.ms for row in rows),
        "flagged": [kernel.name for kernel in kernels if kernel.flagged],
        "below_half_share": share_below(rows),
        "kernels": [asdict(kernel) for kernel in kernels],
        "launches": [asdict(row) for row in rows],
    }


def explain_excess(rows: Sequence[RooflineRow]) -> list[str]:
    """Return lines that explain rates over 100 %, or [] if there are none."""
    beyond = [row for row in rows if max(row.of_roofline, row.of_sgemm or 0.0) > 1.005]
    if not beyond:
        return []
    return [
        f"\nof roof or of sgemm over 100 %: {count_text(len(beyond), 'launch')}",
        "  operations are counted as the model defines them; Winograd's 3x3 convolutions multiply",
        "  16 times where the definition has 36, and a device can be faster than numpy's sgemm",
    ]


def _print_rows(ceilings: Ceilings, rows: Sequence[RooflineRow]) -> None:
    for line in describe(ceilings):
        print(f"  ceiling  {line}")
    kernels = make_kernels(rows, ceilings)
    cells = [
        (
            kernel.name,
            len(kernel.launches),
            kernel.ms,
            kernel.min_ms,
            f"{kernel.share:.1%}",
            kernel.flops / 1e6,
            kernel.bytes_moved / 1e6,
            round(kernel.gflops),
            round(kernel.gbytes_per_s),
            kernel.bound,
            f"{kernel.of_roofline:.0%}" + (" !" if kernel.flagged else ""),
            "-" if kernel.of_sgemm is None else f"{kernel.of_sgemm:.0%}",
            short_origin(kernel.origin),
        )
        for kernel in kernels
    ]
    header = ("kernel", "runs", "ms", "min", "share", "Mflop", "MB", "GFLOP/s", "GB/s", "bound")
    total_ms = sum(row.ms for row in rows)
    counts = f"{count_text(len(kernels), 'kernel')} in {count_text(len(rows), 'launch')}"
    print(f"\n{counts}, medians, {total_ms:.3f} ms together:")
    print(format_table((*header, "of roof", "of sgemm", "from"), cells))
    print("\n".join(["", _verdict(kernels, rows), *explain_excess(rows)]))


def _verdict(kernels: Sequence[KernelRow], rows: Sequence[RooflineRow]) -> str:
    flagged = [kernel for kernel in kernels if kernel.flagged]
    return (
        f"kernels over {FLAG_SHARE:.0%} of the frame and below {FLAG_ROOFLINE:.0%} of their "
        f"roofline (!): {len(flagged)}, {sum(kernel.share for kernel in flagged):.1%} of the "
        f"frame; all launches below {FLAG_ROOFLINE:.0%}, small ones too: {share_below(rows):.1%}"
    )


if __name__ == "__main__":  # the fresh process of `measure_load`
    with runtime.load_program(sys.argv[1], sys.argv[2] or None) as loaded:
        print(loaded.stats.load_ms)

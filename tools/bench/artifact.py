"""``modeld bench FILE``: whole runs of an artifact or an ONNX model, then each launch by itself.

``median_ms`` and the percentiles are of `Program.run` back to back, as the daemon calls it: inputs
written, kernels launched, outputs read. ``write_ms``, ``kernels_ms`` and ``read_ms`` are medians of
other runs, in which the device is idle between these phases. ``load_warm_ms`` and ``load_cold_ms``
are the loading of an artifact in a fresh process, with the kernel cache filled and empty, from the
file to ready for the first frame; of an ONNX model there is ``compile_s`` instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import runtime
from runtime.format.artifact import read_artifact
from runtime.origin import short_origin
from runtime.own_process import own_command
from runtime.quantities import count_text, flops_text, size_text
from tools.errors import ToolError
from tools.lib.json_output import print_json
from tools.lib.terminal import format_table
from tools.report.history import note_run
from tools.timing.program_inputs import inputs_for
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


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        UsageError: the file of inputs cannot be read. InputError, RuntimeFault: the artifact, the
            device or an input is not right. ToolError: the artifact does not load by itself.
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
    """Trace as many runs as were measured, within the trace's bounds; return how many."""
    from tools.timing.run_parts import phased_runs, trace_events, traceable_runs, write_trace

    spec = program.manifest.entry(entry)
    assert spec is not None  # it has been measured
    runs = traceable_runs(len(spec.launches), wanted)
    found = phased_runs(program, inputs, entry, runs, profiling=True)
    write_trace(args.trace, trace_events(found, program.stats.device, program.manifest, entry))
    return runs


def measure_load(artifact: Path, device: str | None, *, cold: bool) -> float:
    """Load an artifact in a fresh process; return the milliseconds from file to first frame.

    `cold` has empty caches, ours and the drivers', that are deleted afterwards.

    Raises:
        ToolError: the process failed; holds its last line.
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
            # Our own module; nothing goes through a shell.
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


if __name__ == "__main__":  # the fresh process of `measure_load`
    with runtime.load_program(sys.argv[1], sys.argv[2] or None) as loaded:
        print(loaded.stats.load_ms)

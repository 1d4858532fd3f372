"""``modeld bench``: time an artifact by its kernels; a model in other runtimes; bus, logs, daemon.

Example::

    modeld bench driving.pkl --iters 200
    modeld bench policy.pkl --profile --json --trace policy.json
    modeld bench driving.pkl --roofline
    modeld bench --against onnxruntime,openvino vision.onnx
    modeld bench --against file:before.pkl vision.onnx
    modeld bench driving.pkl --submission
    modeld bench driving.pkl --paced --beside busy,one-cpu
    modeld bench driving.pkl --paced --realtime --iters 300
    modeld bench --daemon 300 --model driving.pkl --monitoring dmonitoring.pkl
    modeld bench --host --model driving.pkl --iters 300
    modeld bench --start 5 --model driving.pkl
    modeld bench --bus --json
    modeld bench --log rlog.zst

Frames are random NV12 of 1928x1208 seen by a level camera, other inputs normal noise.
``median_ms`` is one whole run as the daemon does it: inputs written, kernels launched, outputs
read. ``load_warm_ms`` and ``load_cold_ms`` are the loading of the artifact in a fresh process, with
the kernel cache filled and empty, from the file to ready for the first frame.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import runtime
from runtime.artifact import read_artifact
from runtime.origin import short_origin
from runtime.own_process import own_command
from runtime.quantities import count_text, flops_text
from runtime.trace import MAX_EVENTS
from tools.errors import ToolError, UsageError
from tools.lib.bindings import add_bind
from tools.lib.constants import add_constant
from tools.lib.frame_inputs import make_frame_inputs
from tools.lib.history import add_history, note_run
from tools.lib.json_output import print_json
from tools.lib.table import format_size, format_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from runtime import KernelTime, Program, TensorSpec

# Option -> module that does it; imported only then, because each needs something else.
MODES = {
    "roofline": "tools.bench_roofline",
    "submission": "tools.bench_submission",
    "paced": "tools.bench_paced",
    "against": "tools.bench_against",
    "bus": "tools.bench_bus",
    "log": "tools.bench_log",
    "daemon": "tools.bench_daemon",
    "host": "tools.bench_host",
    "start": "tools.bench_start",
}
WARM_UP_RUNS = 5
SHOWN_KERNELS = 15  # without --profile
LOAD_TIMEOUT_S = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "path",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="artifact; with --against ONNX; --log: log",
    )
    parser.add_argument("--iters", type=int, default=100, metavar="N", help="timed runs (100)")
    parser.add_argument("--entry", help="entry point (the artifact's first)")
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument("--profile", action="store_true", help="every launch, also with --json")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a Chrome trace of the runs"
    )
    parser.add_argument(
        "--no-load", action="store_true", help="skip the two load times (a cold load compiles)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (0)")
    add_history(parser)
    modes = parser.add_argument_group("measure something else").add_mutually_exclusive_group()
    modes.add_argument(
        "--roofline", action="store_true", help="each kernel beside what the device can do"
    )
    modes.add_argument(
        "--paced", action="store_true", help="runs after pauses of 0, 5, 30 and 50 ms"
    )
    modes.add_argument(
        "--against",
        metavar="PEER[,PEER]",
        help="MODEL.onnx in onnxruntime, openvino, tinygrad, torch; file:OTHER: ours, another "
        "file; more files: the driving program",
    )
    modes.add_argument("--bus", action="store_true", help="latency and rate of the bus")
    modes.add_argument(
        "--log", action="store_true", help="reading a log (one of 100 000 events, made for it)"
    )
    modes.add_argument(
        "--daemon", type=float, metavar="SECONDS", help="the daemon process on a live bus"
    )
    modes.add_argument(
        "--host", action="store_true", help="what a frame costs the daemon besides its model"
    )
    modes.add_argument(
        "--start", type=int, metavar="STARTS", help="from start and from kill to first message"
    )
    modes.add_argument(
        "--submission",
        action="store_true",
        help="launches that the driver records beside the same ones enqueued one by one",
    )
    options = parser.add_argument_group("of these")
    options.add_argument("--threads", type=int, default=2, help="--against: of everybody (2)")
    options.add_argument(
        "--blocks", type=int, default=8, help="--against, --submission: blocks of 20 runs (8)"
    )
    add_bind(options)
    add_constant(options)
    options.add_argument(
        "--beside", metavar="WHAT[,WHAT]", help="--paced: also beside busy, model, one-cpu"
    )
    options.add_argument(
        "--realtime", action="store_true", help="--paced, --daemon: with real-time settings"
    )
    options.add_argument(
        "--seconds", type=float, metavar="S", help="--bus: of 10 000 messages a second (3)"
    )
    options.add_argument(
        "--model", type=Path, help="--daemon, --host, --start, --bus: driving artifact"
    )
    options.add_argument(
        "--monitoring", type=Path, help="--daemon: driver monitoring artifact, run beside it"
    )
    options.add_argument(
        "--camera", metavar="WxH", help="--daemon, --host: frame size (1928x1208, or what fits)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        UsageError: the arguments cannot work. RuntimeFault: the artifact or device is not right.
    """
    if args.against is None and (args.bind or args.constant):
        raise UsageError("--bind and --constant are for --against; an artifact has them built in")
    # A number of 0 was asked for too; its module says what it expects.
    given = (name for name in MODES if not any(getattr(args, name) is v for v in (None, False)))
    mode = next(given, None)
    if mode in (None, "roofline", "submission"):
        if len(args.path) != 1:
            raise UsageError(
                f"bench: expected one artifact, found {count_text(len(args.path), 'file')}"
            )
        if args.iters < 1:
            raise UsageError(f"--iters: expected 1 or more, found {args.iters}")
    if mode is None:
        return _run_artifact(args)
    if args.history is not None:
        raise UsageError(f"--history: expected times of an artifact, found --{mode}; leave one out")
    module = importlib.import_module(MODES[mode])
    code: int = module.run(args)
    return code


def _run_artifact(args: argparse.Namespace) -> int:
    path = args.path[0]
    with runtime.load_program(path, args.device) as program:
        entry = args.entry or program.entries[0]
        inputs = make_inputs(program.entry_inputs(entry), args.seed)
        result = measure(program, inputs, entry, args.iters)
        times = program.profile(inputs, entry, min(args.iters, 20))
        if args.trace:
            result["trace_runs"] = _write_trace(program, inputs, entry, args)
    result["load_warm_ms"] = result["load_cold_ms"] = None
    if not args.no_load:
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
            runs = f"{result['trace_runs']} of {count_text(args.iters, 'run')}"
            print(f"\ntrace: {args.trace}, {runs} (a trace has at most {MAX_EVENTS:,} launches)")
    return 0


def _write_trace(
    program: Program, inputs: Mapping[str, NDArray[Any]], entry: str, args: argparse.Namespace
) -> int:
    """Trace as many runs as were asked for, within the trace's bounds; return how many."""
    from runtime.trace import trace_events, traceable_runs, write_trace

    spec = program.manifest.entry(entry)
    assert spec is not None  # it has been measured
    runs = traceable_runs(len(spec.launches), args.iters)
    spans = program.spans(inputs, entry, runs)
    write_trace(args.trace, trace_events(spans, program.stats.device, program.manifest, entry))
    return runs


def make_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, NDArray[Any]]:
    """Return inputs for timing: any values will do that do not change the amount of work.

    Args:
        specs: what the entry takes.
        seed: of the generator; equal seeds give equal inputs.

    Returns:
        Frames of cameras: see `make_frame_inputs`; other uint8: uniform bytes; other floats:
        normal noise; other integers and booleans: 0 and 1, which are valid indices nearly
        everywhere.
    """
    generator = np.random.default_rng(seed)
    inputs = make_frame_inputs(specs, generator)
    for spec in specs:
        value: NDArray[Any]
        if spec.name in inputs:
            continue
        if spec.dtype == np.uint8:
            value = generator.integers(0, 256, spec.shape)
        elif spec.dtype.kind == "f":
            value = generator.standard_normal(spec.shape)
        else:
            value = generator.integers(0, 2, spec.shape)
        inputs[spec.name] = np.asarray(value, spec.dtype, order="C").reshape(spec.shape)
    return inputs


def measure(
    program: Program, inputs: Mapping[str, NDArray[Any]], entry: str, iterations: int
) -> dict[str, Any]:
    """Run an entry `iterations` times; return times in ms and its work by the manifest."""
    for _ in range(min(WARM_UP_RUNS, iterations)):
        program.run(inputs, entry)
    times_ms = np.empty(iterations)
    for index in range(iterations):
        started_ns = time.perf_counter_ns()
        program.run(inputs, entry)
        times_ms[index] = (time.perf_counter_ns() - started_ns) / 1e6
    manifest = program.manifest
    spec = manifest.entry(entry)
    assert spec is not None  # program.run would have refused it
    launches = [manifest.kernels[index] for index in spec.launches]
    median_ms = float(np.median(times_ms))
    return {
        "artifact": manifest.name,
        "entry": entry,
        "median_ms": median_ms,
        "p99_ms": float(np.percentile(times_ms, 99)),
        "min_ms": float(times_ms.min()),
        "kernels": len({(kernel.program, kernel.name) for kernel in launches}),
        "launches": len(launches),
        "submissions": program.submissions(entry),
        "bytes_moved": sum(kernel.bytes_moved for kernel in launches),
        "arena_peak_bytes": manifest.arena_size,
        "gflops": sum(kernel.flops for kernel in launches) / (median_ms * 1e6),
        "rss_mib": resident_mib(),
        "device": program.stats.device,
    }


def resident_mib() -> float:
    """Return this process's resident memory in MiB (Linux: VmRSS of /proc/self/status)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure_load(artifact: Path, device: str | None, *, cold: bool) -> float:
    """Load an artifact in a fresh process; return the milliseconds from file to first frame.

    Args:
        artifact: the file.
        device: as for `load_program`.
        cold: with empty caches, ours and the drivers', that are deleted afterwards.

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
                own_command("tools.bench_load", str(artifact), device or ""),
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
    if result["load_cold_ms"] is not None:
        load = f"{result['load_warm_ms']:.0f} ms warm, {result['load_cold_ms']:.0f} ms cold"
    times_text = (
        f"{result['median_ms']:.3f} ms median, {result['p99_ms']:.3f} ms p99, "
        f"{result['min_ms']:.3f} ms min"
    )
    memory_text = (
        f"{format_size(result['bytes_moved'])} moved, "
        f"{format_size(result['arena_peak_bytes'])} arena, {result['rss_mib']:.0f} MiB resident"
    )
    facts = {
        "run": times_text,
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

"""`modeld compile`: ONNX to a pre-scheduled artifact.

Example:
    modeld compile vision.onnx policy.onnx -o driving.pkl --camera 1928x1208 --camera 1344x760
    modeld compile --plain vision.onnx -o vision.pkl --no-binary --viz vision.html
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from cereal.frames import nv12_format
from scheduler import flags
from scheduler.compile import CompiledModel, compile_driving, compile_plain
from scheduler.trace import Recorder, observing
from scheduler.viz import write_page
from scheduler.warp import Camera
from tools.errors import UsageError
from tools.lib.outputs import check_outputs

# The road cameras of comma devices: full resolution, and the binned sensor of 2025.
DEFAULT_CAMERAS = ("1928x1208", "1344x760")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `modeld compile`."""
    parser.add_argument(
        "model", nargs="+", metavar="MODEL.onnx", help="vision and policy, or one model"
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT.pkl", help="artifact to write"
    )
    parser.add_argument(
        "--camera",
        action="append",
        metavar="WxH",
        help=f"camera size to compile for, repeatable (default: {' '.join(DEFAULT_CAMERAS)})",
    )
    parser.add_argument(
        "--plain", action="store_true", help="compile one model without driving conventions"
    )
    parser.add_argument(
        "--viz",
        type=Path,
        metavar="OUT.html",
        help="write a page with the passes, the kernel graph and the memory (also: VIZ=1)",
    )
    parser.add_argument("--device", help="OpenCL device, as `modeld devices` names it")
    parser.add_argument(
        "--no-binary", action="store_true", help="leave device binaries out: no device is needed"
    )


def parse_camera(text: str) -> Camera:
    """Return the padded NV12 layout of a camera size given as WxH.

    Raises:
        UsageError: the text is not two even sizes of at least 16 pixels.
    """
    width, _, height = text.lower().partition("x")
    sizes = [int(n) for n in (width, height) if n.isdecimal() and len(n) < 6]
    if len(sizes) != 2 or any(s % 2 or not 16 <= s <= 16384 for s in sizes):
        raise UsageError(
            f"--camera {text}: expected WxH, both even, 16 to 16384, such as 1928x1208"
        )
    layout = nv12_format(*sizes)
    return Camera(
        layout.width, layout.height, layout.stride, layout.uv_offset, layout.payload_bytes
    )


def _compile(args: argparse.Namespace) -> CompiledModel:
    if args.plain or len(args.model) == 1:
        if len(args.model) != 1:
            raise UsageError(f"--plain compiles exactly one model, found {len(args.model)}")
        if args.camera:
            raise UsageError(
                "--camera needs a vision and a policy model; a plain model has no camera"
            )
        return compile_plain(Path(args.model[0]))
    if len(args.model) != 2:
        raise UsageError(f"expected VISION.onnx and POLICY.onnx, found {len(args.model)} files")
    cameras = [parse_camera(text) for text in args.camera or DEFAULT_CAMERAS]
    return compile_driving(Path(args.model[0]), Path(args.model[1]), cameras)


def _compile_and_draw(args: argparse.Namespace) -> tuple[CompiledModel, Path | None]:
    """Compile; write the page that --viz or VIZ asks for (the option wins), and say where it is."""
    recorder = Recorder()
    wanted: Path | None = args.viz
    if wanted is None and flags.viz("") is None:
        return _compile(args), None
    with observing(recorder):
        compiled = _compile(args)
    path = wanted or flags.viz(compiled.manifest["name"])
    if path is not None:
        write_page(path, compiled.manifest, recorder.traces)
    return compiled, path


def _progress(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{what}: {done}/{total}", end=end, file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> int:
    """Compile and write; returns the exit code."""
    check_outputs({"-o": Path(args.output), "--viz": args.viz}, map(Path, args.model))
    started = time.perf_counter()
    compiled, drawn = _compile_and_draw(args)
    scheduled_s = time.perf_counter() - started
    if not args.no_binary:
        compiled = compiled.build(args.device, _progress)
    digest = compiled.write(args.output)
    manifest = compiled.manifest
    first = next(iter(manifest["entries"].values()))
    report = {
        "output": str(args.output),
        "sha256": digest,
        "entries": {n: len(e["launches"]) for n, e in manifest["entries"].items()},
        "kernels": compiled.kernels,
        "launches": len(first["launches"]),
        "gflop": round(sum(manifest["kernels"][i]["flops"] for i in first["launches"]) / 1e9, 3),
        "weight_bytes": len(compiled.data),
        "arena_bytes": manifest["arena_size"],
        "arena_unplanned_bytes": compiled.arena_unplanned,
        "schedule_s": round(scheduled_s, 2),
        "total_s": round(time.perf_counter() - started, 2),
    }
    if drawn is not None:
        report["viz"] = str(drawn)
    if args.json:
        print(json.dumps(report))
        return 0
    print(f"{args.output}: {report['kernels']} kernels, {report['gflop']} GFLOP, ", end="")
    print(f"{len(compiled.data) / 2**20:.1f} MiB of weights, ", end="")
    print(f"arena {manifest['arena_size'] / 2**20:.1f} MiB ", end="")
    print(f"({compiled.arena_unplanned / 2**20:.1f} MiB without reuse), {report['total_s']} s")
    for name, launches in report["entries"].items():
        print(f"  {name}: {launches} launches")
    if drawn is not None:
        print(f"  page: {drawn}")
    return 0

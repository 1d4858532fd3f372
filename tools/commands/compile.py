"""`modeld compile`: compile ONNX models to an artifact.

The models of a driving or driver monitoring system become one program, which the daemon runs. Any
other model becomes a plain artifact. The command schedules the kernels, adds a self-test and device
binaries, and prints sizes and the amount of work.

Example:
    modeld compile vision.onnx policy.onnx -o driving.pkl
    modeld compile supercombo.onnx -o driving.pkl --interface supercombo-2026
    modeld compile --plain vision.onnx -o vision.pkl --no-binary --viz vision.html
    modeld compile --plain model.onnx -o model.pkl --bind batch=2 --verify
    modeld compile vision.onnx policy.onnx -o driving.pkl --note commit=1a2b3c
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cereal.frames import FrameFormat, nv12_format
from runtime.errors import SelfTestError
from runtime.opencl.device import choose_device
from runtime.texts import count_text, flops_text, size_text
from scheduler.check.self_check import Report, verify, verify_driving
from scheduler.check.vectors import with_self_test
from scheduler.compile import (
    CompiledModel,
    CompileOptions,
    Tables,
    compile_driving,
    compile_monitoring,
    compile_plain,
)
from scheduler.context import FAST, FP32, HALVES, NUMERICS, WIDE, CompileContext
from scheduler.device.spec import spec_of
from scheduler.device.targets import AUTO, TARGETS, target_for
from scheduler.device.tuned_table import TunedTable, table_for
from scheduler.driving.facts import MONITORING, SUPERCOMBO, facts_of
from scheduler.driving.fit import known_model
from scheduler.driving.program import DEFAULT_CAPACITY
from scheduler.errors import SelfCheckError
from scheduler.flags import Flags
from scheduler.onnx_import import OnnxModel, load_model
from scheduler.passes.halves.precision import PRECISIONS
from scheduler.schedule_cache import EntryGraph
from scheduler.tuning.tune import Tuned, tune
from tools.adreno.cost import EntryCost, cost_of, lines, plain
from tools.adreno.toolchain import GPUS, find_toolchain
from tools.describe.compilation import (
    TargetReport,
    describe_check,
    describe_precision,
    describe_target,
    describe_tuning,
    target_report,
)
from tools.errors import ToolchainError, ToolchainMissingError, UsageError
from tools.lib.json_output import print_json
from tools.lib.model_options import (
    add_bind,
    add_constant,
    add_note,
    parse_bindings,
    with_constants,
    with_notes,
)
from tools.lib.options import above
from tools.lib.terminal import counted

# One day; a larger value is taken for a typing error.
MAX_TUNE_S = 86_400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `modeld compile`."""
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL.onnx",
        help="the one to three files of a driving model in any order, or one model",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT.pkl", help="artifact to write"
    )
    parser.add_argument(
        "--camera",
        action="append",
        metavar="WxH",
        help="size of the largest camera, repeatable; only needed for those larger than "
        "3840x2160, all smaller ones fit",
    )
    parser.add_argument(
        "--interface",
        metavar="NAME",
        help="interface of a driving or driver monitoring model, as `modeld make-model "
        "--list-interfaces` names it (default: detected from the models)",
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
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=FP32,
        help=f"fp16: store weights and intermediates as fp16, compute in float32 (default: {FP32})",
    )
    parser.add_argument(
        "--halves",
        choices=HALVES,
        default=WIDE,
        help="fp16 values of the model itself; wide: float32 until they are "
        f"stored, exact: rounded after every operation (default: {WIDE})",
    )
    parser.add_argument(
        "--numerics",
        choices=NUMERICS,
        default=FAST,
        help="order of sums; fast: the fastest one on the device, strict: "
        f"one order on every CPU, so that all compute the same bytes (default: {FAST})",
    )
    parser.add_argument(
        "--target",
        choices=TARGETS,
        default=AUTO,
        help="kind of device to compile for; auto: that of --device, cpu if there is none; "
        f"adreno also prints an estimate of its time on an Adreno 630 (default: {AUTO})",
    )
    parser.add_argument(
        "--tune",
        type=above("--tune", 0, MAX_TUNE_S),
        metavar="SECONDS",
        help="measure other loops than the heuristics choose, and keep faster ones for this "
        "device; the search starts nothing new after this time, excluding loading and compiling",
    )
    parser.add_argument("--device", help="OpenCL device, as `modeld devices` names it")
    add_bind(parser)
    add_constant(parser)
    add_note(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run the result on the device and compare it with onnxruntime, or onnx's "
        "evaluator; write nothing if it differs",
    )
    parser.add_argument(
        "--no-selftest",
        action="store_true",
        help="omit the self-test that `modeld selftest` and the daemon run",
    )
    parser.add_argument(
        "--no-binary", action="store_true", help="omit device binaries: no device is needed"
    )


def parse_camera(text: str) -> FrameFormat:
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
    return nv12_format(*sizes)


def _tables(args: argparse.Namespace, found: list[Tuned]) -> Tables | None:
    """Return the function that gives the compiler a table of measured loops.

    With --tune it searches on the device and appends the result to `found`. Otherwise it reads the
    stored tables, or is None with --no-binary.
    """
    if args.tune is None:
        if args.no_binary:
            return None
        info = choose_device(args.device).info
        return lambda _, context: table_for(context.spec.target, info.name, info.driver)
    device = choose_device(args.device)

    def search(entries: Mapping[str, EntryGraph], context: CompileContext) -> TunedTable:
        progress = partial(counted, "kernels tuned")
        found.append(tune(entries.values(), context, device, args.tune, progress))
        return found[-1].table

    return search


def _compile(args: argparse.Namespace, flags: Flags, found: list[Tuned]) -> CompiledModel:
    target = target_for(args.target, args.device)
    options: CompileOptions = {
        "precision": args.precision,
        "halves": args.halves,
        "numerics": args.numerics,
        "target": target,
        "tables": _tables(args, found),
        "flags": flags,
    }
    bind = parse_bindings(args.bind)
    models = [load_model(path) for path in args.model]
    kind = _kind(args, models)
    if kind == "plain":
        if len(models) != 1:
            raise UsageError(f"--plain compiles exactly one model, found {len(models)}")
        for option, given in (("--camera", args.camera), ("--interface", args.interface)):
            if given:
                raise UsageError(
                    f"{option} needs a whole driving or driver monitoring model; a plain model has "
                    f"no {option.removeprefix('--')}"
                )
        model, bind = with_constants(models[0], args.constant, bind)
        compiled = compile_plain(model, bind=bind, **options)
        return replace(compiled, notes=(*compiled.notes, *_notes_of_missing(args, model)))
    if bind or args.constant:
        raise UsageError(
            "--bind and --constant need a plain model (--plain); a driving program fixes all its "
            "inputs"
        )
    cameras = [parse_camera(text).payload_bytes for text in args.camera or ()]
    capacity = max([DEFAULT_CAPACITY, *cameras])
    if kind == "monitoring":
        (model,) = models
        return compile_monitoring(model, interface=args.interface, capacity=capacity, **options)
    return compile_driving(models, interface=args.interface, capacity=capacity, **options)


def _kind(args: argparse.Namespace, models: Sequence[OnnxModel]) -> str:
    """Return the kind of artifact to compile: "plain", "driving" or "monitoring"."""
    if args.plain:
        return "plain"
    if len(models) > 1:
        return "driving"
    role = facts_of(models[0]).role
    if role == MONITORING:
        return "monitoring"
    return "driving" if role == SUPERCOMBO or (args.interface and role) else "plain"


def _notes_of_missing(args: argparse.Namespace, model: OnnxModel) -> Iterator[str]:
    """Yield a note if one model of a pair was given without the other and without --plain."""
    known = known_model(model)
    if not args.plain and known is not None and known.is_half:
        yield (
            f"{model.name} is the {known.title}, compiled by itself (as with --plain); for a "
            "driving program give VISION.onnx POLICY.onnx"
        )


def _verify(args: argparse.Namespace, compiled: CompiledModel) -> list[Report]:
    """Compare the compiled model with a reference; raise SelfCheckError if they differ."""
    kind = compiled.manifest["kind"]
    models = [load_model(path) for path in args.model]
    options: CompileOptions = {
        "precision": args.precision,
        "halves": args.halves,
        "numerics": args.numerics,
        "target": target_for(args.target, args.device),
        "tables": _tables(argparse.Namespace(**{**vars(args), "tune": None}), []),
    }
    if kind == "driving":
        reports = verify_driving(compiled, models, options, args.device)
    elif kind == "monitoring":
        reports = [verify(compile_plain(models[0], **options), models[0], args.device)]
    else:
        model, _ = with_constants(models[0], args.constant, parse_bindings(args.bind))
        reports = [verify(compiled, model if args.constant else Path(args.model[0]), args.device)]
    failed = [f"{r.model}: {'; '.join(r.failures)}" for r in reports if r.failures]
    if failed:
        for line in describe_check(reports):
            print(line, file=sys.stderr)
        raise SelfCheckError(f"{'; '.join(failed)}; nothing was written")
    return reports


def _tested(args: argparse.Namespace, compiled: CompiledModel, *, keep: bool) -> CompiledModel:
    """Return the model with its self-test and device binaries, unless options omit them.

    Binaries are kept only if they pass the self-test; otherwise SelfCheckError is raised.
    """
    if not args.no_selftest:
        compiled = with_self_test(compiled, keep=keep)
    if args.no_binary:
        return compiled
    try:
        return compiled.build(args.device, counted)
    except SelfTestError as error:
        raise SelfCheckError(
            f"{error}; nothing was written; --no-selftest writes it anyway"
        ) from error


def _flags(args: argparse.Namespace) -> Flags:
    """Return the flags from environment variables; --viz takes precedence over VIZ."""
    flags = Flags.from_environment()
    if args.viz is None:
        return flags
    # With "./", a file named 0 or 1 is not mistaken for a switch.
    return replace(flags, viz=str(args.viz) if args.viz.is_absolute() else f"./{args.viz}")


def _target_costs(manifest: Mapping[str, Any]) -> list[TargetReport]:
    """Return the estimated cost of each entry point if the target reads images, such as Adreno."""
    spec = spec_of(manifest["target"]["name"])
    if spec.images is None:
        return []
    return [target_report(manifest, entry, spec) for entry in manifest["entries"]]


def run(args: argparse.Namespace) -> int:
    """Compile the models, write the artifact and return the exit code."""
    flags = _flags(args)
    started = time.perf_counter()
    tuned: list[Tuned] = []
    # Reject invalid notes before spending minutes on the compilation.
    with_notes({}, args.note)
    compiled = _compile(args, flags, tuned)
    _keep_lineage(compiled.manifest, args.note)
    drawn = flags.viz_path(compiled.manifest["name"])
    scheduled_s = time.perf_counter() - started
    compiled = _tested(args, compiled, keep=flags.schedule_cache)
    checks = _verify(args, compiled) if args.verify else []
    digests = compiled.write(args.output)
    report = {
        "output": str(args.output),
        "sha256": digests.artifact,
        "program_sha256": digests.program,
        "lineage": compiled.manifest.get("lineage", {}),
        "interface": compiled.manifest["metadata"].get("interface", {}).get("name"),
        **_sizes(compiled),
        "self_test_runs": len(compiled.manifest["self_test"].get("vectors", ())),
        "schedule_s": round(scheduled_s, 2),
        "total_s": round(time.perf_counter() - started, 2),
        "notes": list(compiled.notes),
    }
    if args.verify:
        report["verify"] = [check.plain() for check in checks]
    precision = compiled.manifest["metadata"].get("precision", {})
    if precision:
        report["precision"] = precision
    if drawn is not None:
        report["viz"] = str(drawn)
    if tuned:
        report["tune"] = tuned[-1].plain()
    costs, real = _target_costs(compiled.manifest), _compiled_cost(compiled.manifest)
    report |= {"target": [cost.plain() for cost in costs]} if costs else {}
    report |= {"adreno": plain(real)} if real is not None else {}
    for note in report["notes"]:
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        print_json(report)
        return 0
    _print_sizes(report, compiled.manifest["metadata"].get("interface", {}).get("reason", ""))
    lines_of_precision = describe_precision(precision, in_full=args.verbosity > 0)
    for line in (*lines_of_precision, *describe_check(checks)):
        print(f"  {line}")
    for text in map(describe_tuning, tuned):
        print(text)
    _print_costs(compiled.manifest, costs, real)
    if drawn is not None:
        print(f"  page: {drawn}")
    return 0


def _keep_lineage(manifest: dict[str, Any], notes: Sequence[str]) -> None:
    lineage = with_notes(manifest.get("lineage", {}), notes)
    if lineage:
        manifest["lineage"] = lineage


def _compiled_cost(manifest: Mapping[str, Any]) -> EntryCost | None:
    """Return the cost of the first entry from Mesa's compiler; None without that compiler."""
    if spec_of(manifest["target"]["name"]).images is None:
        return None
    try:
        return cost_of(manifest, None, find_toolchain(), GPUS[0], counted)
    except ToolchainMissingError:
        return None
    except ToolchainError as error:
        print(f"note: {error}", file=sys.stderr)
        return None


def _print_costs(
    manifest: Mapping[str, Any], costs: Sequence[TargetReport], real: EntryCost | None
) -> None:
    for cost in costs:
        print("\n".join(describe_target(cost, spec_of(manifest["target"]["name"]))))
    if real is not None:
        print(f"{real.entry} as Mesa compiles it for an Adreno {real.gpu.number}, not measured")
        print("\n".join(f"  {line}" for line in lines(real)))


def _sizes(compiled: CompiledModel) -> dict[str, Any]:
    manifest = compiled.manifest
    first = next(iter(manifest["entries"].values()))
    flops = sum(manifest["kernels"][i]["flops"] for i in first["launches"])
    return {
        "entries": {n: len(e["launches"]) for n, e in manifest["entries"].items()},
        "kernels": compiled.kernels,
        "launches": len(first["launches"]),
        "gflop": round(flops / 1e9, 3),
        "flops": flops,
        "weight_bytes": len(compiled.data),
        "halves": manifest["metadata"].get("halves"),
        "numerics": manifest["metadata"].get("numerics", FAST),
        "arena_bytes": manifest["arena_size"],
        "arena_unplanned_bytes": compiled.arena_unplanned,
    }


def _print_sizes(report: Mapping[str, Any], reason: str) -> None:
    print(f"{report['output']}: {count_text(report['kernels'], 'kernel')}, ", end="")
    print(
        f"{flops_text(report['flops'])}, {size_text(report['weight_bytes'])} of weights, ", end=""
    )
    print(f"activations {size_text(report['arena_bytes'])} ", end="")
    unplanned = size_text(report["arena_unplanned_bytes"])
    print(f"({unplanned} without buffer reuse), {report['total_s']} s")
    for name, launches in report["entries"].items():
        print(f"  {name}: {count_text(launches, 'launch')}")
    if report["halves"]:
        print(f"  fp16 values of the model: {report['halves']}")
    if report["numerics"] != FAST:
        print(f"  numerics: {report['numerics']}")
    print(f"  program {report['program_sha256'][:12]}, sha256 {report['sha256'][:12]}")
    if report["interface"]:
        print(f"  interface: {report['interface']}, {reason}")

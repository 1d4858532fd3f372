"""The options of ``modeld regress``, and which of them go together."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.behaviour.gates import add_gate_arguments
from tools.drives.open_drive import add_drive_arguments
from tools.errors import UsageError
from tools.lib.number_options import whole
from tools.regress.cluster import parse_address
from tools.regress.drive_list import parse_shard
from tools.report.history import add_history


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", type=Path, help="driving artifact")
    parser.add_argument(
        "--monitoring",
        type=Path,
        metavar="ARTIFACT",
        help="driver monitoring artifact that sees the drives' driver camera; driverStateV2 is "
        "kept and compared, too",
    )
    parser.add_argument(
        "--drives",
        nargs="+",
        required=True,
        metavar="DRIVE",
        help="drives, as modeld replay takes them; routes and ranges become segments",
    )
    parser.add_argument("--reference", type=Path, metavar="DIR", help="directory of references")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="OLD",
        help="judge another training in metres, by the old model's artifact, which plays the same "
        "drives, or by a directory of its references (instead of --reference)",
    )
    parser.add_argument(
        "--update", action="store_true", help="write references of all drives that ran well"
    )
    parser.add_argument("--reason", metavar="TEXT", help="why the change is right (with --update)")
    parser.add_argument(
        "--bit-exact", action="store_true", help="compare every bit; valid on one device only"
    )
    parser.add_argument("--no-timing", action="store_true", help="skip the timing gate")
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="ARTIFACT",
        help="compare speed with this artifact, measured in the same processes, instead of with "
        "the stored ratio (which is valid on one device only); with --explain the artifact that "
        "made the references",
    )
    parser.add_argument(
        "--baseline-tree",
        type=Path,
        metavar="DIR",
        help="checkout whose runtime runs the timed --baseline, to detect a slower runtime, too; "
        "uses the Python of its .venv if it has one",
    )
    parser.add_argument(
        "--prune",
        choices=("list", "remove"),
        help="run nothing: list or remove references that neither these drives nor this model "
        "use; name all drives of the directory",
    )
    _add_looking(parser)
    _add_telling(parser)
    _add_running(parser)
    add_gate_arguments(parser)
    add_drive_arguments(parser)


def _add_looking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--explain",
        action="store_true",
        help="explain why drives changed: inputs, then the program's states, then the first kernel "
        "that differs, with its ONNX nodes; by --baseline, by --onnx, or by both",
    )
    parser.add_argument(
        "--onnx",
        nargs="+",
        type=Path,
        metavar="ONNX",
        help="models that the artifact was made from, for the numpy interpreter (with --explain)",
    )
    parser.add_argument(
        "--bisect",
        nargs=2,
        type=Path,
        metavar=("A", "B"),
        help="instead of a regression: find whether weights, graph, code generation or driver make "
        "two artifacts differ on one drive; no --model, no --reference",
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        type=whole("--jobs"),
        metavar="N",
        help="concurrent drives, one process each (1 on a GPU; on a CPU 1 per 4 processors: "
        "one drive uses nearly all of them)",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="run one of N parts of the drives, I from 1; a drive's part depends on its name only",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="run the drives on a Dask cluster: tcp://HOST:PORT of its scheduler, or local[:N] for "
        "N workers here; drives need the same path on all workers",
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="keep results of finished drives here, and reuse existing ones",
    )
    add_history(parser)
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument("--tolerances", type=Path, metavar="TOML", help="see modeld compare")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="FIELD", help="see modeld compare"
    )


def _add_telling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reports")
    group.add_argument("--report", type=Path, metavar="HTML", help="a one-page report")
    group.add_argument("--junit", type=Path, metavar="XML", help="JUnit XML, a case for each drive")
    group.add_argument(
        "--markdown", type=Path, metavar="MD", help="Markdown, as for a page of a pull request"
    )
    group.add_argument(
        "--pictures",
        type=Path,
        metavar="DIR",
        help="the worst frames of drives that changed, as JPEG files; --markdown shows them",
    )
    group.add_argument(
        "--picture-url",
        metavar="URL",
        help="URL of the directory of --pictures (its name)",
    )
    group.add_argument(
        "--annotations",
        action="store_true",
        help="print failures as GitHub workflow commands on stderr",
    )


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: they contradict each other, or one is missing.
    """
    _check_sides(args)
    _check_accepting(args)
    if args.baseline_tree is not None:
        _check_tree(args)
    if args.monitoring is not None and args.explain:
        raise UsageError(
            "--explain: expected no --monitoring with it; it steps through the driving program "
            "alone, run it without"
        )
    if args.onnx is not None and not args.explain:
        raise UsageError("--onnx: expected --explain with it; nothing else reads the models")
    if args.cluster is not None:
        parse_address(args.cluster)
        if args.jobs is not None:
            raise UsageError("--jobs: expected no --cluster with it; its workers are counted there")
    if args.picture_url is not None and args.pictures is None:
        raise UsageError("--picture-url: expected --pictures with it; it is where they will be")


def _check_sides(args: argparse.Namespace) -> None:
    if args.model is None:
        raise UsageError(
            "--model: expected one, found none; it is required unless --bisect is given"
        )
    if args.reference is None and args.against is None:
        raise UsageError("--reference: expected one or --against, found neither; name one of them")
    if args.against is not None:
        _check_against(args)
    if args.prune is not None:
        _check_prune(args)
    if args.shard is not None:
        parse_shard(args.shard)


def _check_accepting(args: argparse.Namespace) -> None:
    if args.update and not (args.reason or "").strip():
        raise UsageError(
            "--update: expected --reason TEXT, found none; say why the change is right, it is "
            "kept with the references"
        )
    if args.reason is not None and not args.update:
        raise UsageError("--reason: expected --update with it; nothing is accepted without")
    if args.baseline is not None and args.no_timing and not args.explain:
        raise UsageError("--baseline: expected the timing gate, found --no-timing; choose one")


def _check_against(args: argparse.Namespace) -> None:
    others = ("reference", "update", "bit_exact", "explain", "baseline", "prune")
    given = [name for name in others if getattr(args, name)]
    if given:
        why = {
            "reference": "the other model is the reference",
            "update": "it accepts nothing; accept with --reference",
            "baseline": "the other artifact is the baseline",
        }
        option = f"--{given[0].replace('_', '-')}"
        reason = why.get(given[0], "it is about one model")
        raise UsageError(f"{option}: expected no --against with it; {reason}")


def _check_prune(args: argparse.Namespace) -> None:
    for name in ("update", "report", "junit", "markdown", "cluster", "shard", "explain"):
        if getattr(args, name):
            raise UsageError(f"--{name}: expected no --prune with it; nothing is judged")


def _check_tree(args: argparse.Namespace) -> None:
    if args.baseline is None or args.no_timing:
        raise UsageError("--baseline-tree: expected --baseline and the timing gate with it")
    if not (args.baseline_tree / "tools" / "regress").is_dir():
        raise UsageError(
            f"--baseline-tree: expected a checkout of modeld, found no tools/regress in "
            f"{args.baseline_tree}; name the directory that git made"
        )

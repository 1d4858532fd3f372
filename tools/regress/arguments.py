"""Declares the options of ``modeld regress``, and checks which of them can be combined."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.behaviour.gates import add_gate_arguments
from tools.drives.open_drive import add_drive_arguments
from tools.errors import UsageError
from tools.lib.options import refuse, whole
from tools.regress.cluster import parse_address
from tools.regress.job import parse_shard
from tools.report.history import add_history


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of the command."""
    parser.add_argument("--model", type=Path, help="driving artifact")
    parser.add_argument(
        "--monitoring",
        type=Path,
        metavar="ARTIFACT",
        help="driver monitoring artifact to run on the drives' driver camera; its driverStateV2 is "
        "compared, too",
    )
    parser.add_argument(
        "--drives",
        nargs="+",
        required=True,
        metavar="DRIVE",
        help="drives, in any form that modeld replay accepts; routes and ranges become segments",
    )
    parser.add_argument("--reference", type=Path, metavar="DIR", help="directory of references")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="OLD",
        help="compare with another model in metres: its artifact, which plays the same drives, or "
        "a directory of its references (instead of --reference)",
    )
    parser.add_argument(
        "--update", action="store_true", help="write references of all drives without errors"
    )
    parser.add_argument("--reason", metavar="TEXT", help="reason for the change (with --update)")
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
    _add_explain_arguments(parser)
    _add_report_arguments(parser)
    _add_run_arguments(parser)
    add_gate_arguments(parser)
    add_drive_arguments(parser)


def _add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--explain",
        action="store_true",
        help="explain why drives changed: inputs, then the program's states, then the first kernel "
        "that differs, with its ONNX nodes; needs --baseline, --onnx or both",
    )
    parser.add_argument(
        "--onnx",
        nargs="+",
        type=Path,
        metavar="ONNX",
        help="models from which the artifact was compiled, for the interpreter (with --explain)",
    )
    parser.add_argument(
        "--bisect",
        nargs=2,
        type=Path,
        metavar=("A", "B"),
        help="instead of a regression: find whether weights, graph, code generation or driver make "
        "two artifacts differ on one drive; no --model, no --reference",
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
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


def _add_report_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reports")
    group.add_argument("--report", type=Path, metavar="HTML", help="a one-page report")
    group.add_argument("--junit", type=Path, metavar="XML", help="JUnit XML, one case per drive")
    group.add_argument(
        "--markdown", type=Path, metavar="MD", help="Markdown, for example for a pull request"
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


# Rules for `refuse`, in this order. `check_arguments` checks the texts of options in between.
_REFERENCE_RULES = (
    ("!model", "expected one, found none; it is required unless --bisect is given"),
    ("!reference|against", "expected one or --against, found neither; name one of them"),
    ("reference against", "expected no --against with it; the other model is the reference"),
    (
        "update against",
        "expected no --against with it; it accepts nothing; accept with --reference",
    ),
    ("bit_exact|explain against", "expected no --against with it; it is about one model"),
    ("baseline against", "expected no --against with it; the other artifact is the baseline"),
    ("prune against", "expected no --against with it; it is about one model"),
    (
        "update|report|junit|markdown|cluster|shard|explain prune",
        "expected no --prune with it; nothing is judged",
    ),
)
_ACCEPTING_RULES = (
    (
        "update !why",
        (
            "expected --reason TEXT, found none; say why the change is right, it is kept with the "
            "references"
        ),
    ),
    ("reason !update", "expected --update as well; without it nothing is accepted"),
    ("baseline no_timing !explain", "expected the timing gate, found --no-timing; choose one"),
    ("baseline_tree !baseline", "expected --baseline and the timing gate with it"),
    ("baseline_tree no_timing", "expected --baseline and the timing gate with it"),
)
_EXPLAIN_RULES = (
    (
        "explain monitoring",
        (
            "expected no --monitoring with it; it steps through the driving program alone, run it "
            "without"
        ),
    ),
    ("onnx !explain", "expected --explain with it; nothing else reads the models"),
)
_RUN_RULES = (
    ("jobs cluster", "expected no --cluster with it; set the number of workers there"),
    ("picture_url !pictures", "expected --pictures as well; it is the URL of that directory"),
)


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse options that cannot be combined.

    Raises:
        UsageError: options contradict each other, or a required one is missing.
    """
    given = vars(args) | {"why": (args.reason or "").strip() or None}
    refuse(given, _REFERENCE_RULES)
    if args.shard is not None:
        parse_shard(args.shard)
    refuse(given, _ACCEPTING_RULES)
    tree = args.baseline_tree
    if tree is not None and not (tree / "tools" / "regress").is_dir():
        raise UsageError(
            f"--baseline-tree: expected a checkout of modeld, found no tools/regress in {tree}; "
            "name the directory that git made"
        )
    refuse(given, _EXPLAIN_RULES)
    if args.cluster is not None:
        parse_address(args.cluster)
    refuse(given, _RUN_RULES)

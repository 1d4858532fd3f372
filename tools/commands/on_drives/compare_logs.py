"""Compare two event logs field by field and in metres, or two closed-loop results.

LEFT is the reference. All output messages of the daemons are compared (modelV2, drivingModelData,
cameraOdometry, driverStateV2), from the first one that the left log marks valid: before
calibration, outputs are meaningless. A number differs if |a - b| > max(absolute, relative x
max(|a|, |b|)), with tolerances from a reviewed table. Texts, flags, enumerants, lengths of lists
and validity must be equal; NaN and infinity equal only themselves. Missing, extra, repeated and
reordered frames are reported, and so are fields that are within tolerance but shifted to one side.
Publishing times and measured durations are not compared.

If modelV2 differs, a table shows the effect on the drive: positions, headings and speeds of the
plan after 1, 2 and 4 s, curvature as lateral acceleration and drift, lane lines, edges and the lead
car. With --truth it also shows each log's distance from the truth of a rendered drive. Gates are
conditions on these metrics. Two .json files, results of modeld drive, are compared number by
number, and gates name their numbers.

Two directories that modeld replay -o wrote, one for each model, are compared log by log, by name,
with one verdict. Gates that begin with all. apply to all logs together. --table puts two or more
directories, logs or results side by side, without a verdict.

Example:
  modeld compare reference.rlog.zst new.rlog.zst
  modeld compare a.zst b.zst --html differences.html
  modeld compare a.zst b.zst --bit-exact --service modelV2
  modeld compare fp32.zst fp16.zst --gates-only --gate 'lateral_2s_max_m < 0.05'
  modeld compare o/old o/new --gates-only --gate 'all.lateral_2s_p99_m < 0.1'
  modeld compare --table o/first o/second o/third --truth drives
  modeld compare before.json after.json --gates-only --gate 'offset_p99_m < 0.7'
  modeld compare a.zst b.zst --ignore frameDropPerc --ignore 'modelV2.leadsV3*'
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tools.behaviour.difference import figure_names, largest_of
from tools.behaviour.drive_result import compare_results
from tools.behaviour.gates import add_gate_arguments, gates_of
from tools.behaviour.truth import read_truth
from tools.compare.compare import CompareOptions, compare_logs
from tools.compare.findings import describe_json, describe_text
from tools.compare.page import write_comparison
from tools.compare.tolerances import read_tolerances
from tools.errors import CompareError, UsageError
from tools.lib.json_output import print_json
from tools.lib.options import refuse, whole
from tools.regress.tell.candidates import Candidates, Results, candidates_of, results_of
from tools.regress.tell.sets import SetComparison, compare_directories
from tools.regress.tell.whole import all_figure_names
from tools.report.history import add_history, note_run
from tools.report.report_page import write_page

# File ending of closed-loop results.
RESULT = ".json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "left",
        metavar="LEFT",
        type=Path,
        help="event log, the reference; raw, .zst or .bz2; or .json; or a directory of logs",
    )
    parser.add_argument(
        "right", metavar="RIGHT", type=Path, help="event log that is compared with it"
    )
    parser.add_argument(
        "more", metavar="MORE", type=Path, nargs="*", help="further ones, with --table"
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="put all of them side by side in a table: metres, times, sizes; LEFT is the reference",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--service",
        action="append",
        metavar="NAME",
        help="compare this service, repeatable (the daemons' outputs)",
    )
    chosen.add_argument("--all", action="store_true", help="compare every service")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="FIELD",
        help="leave a field out, repeatable: modelV2.position.x, frameDropPerc, 'modelV2.leads*'",
    )
    parser.add_argument(
        "--tolerances",
        type=Path,
        metavar="FILE",
        help="TOML rows that come before the package's own (tools/compare/tolerances.toml)",
    )
    parser.add_argument(
        "--bit-exact", action="store_true", help="no tolerance: every bit that is compared counts"
    )
    parser.add_argument(
        "--uncalibrated", action="store_true", help="also compare frames before the calibration"
    )
    parser.add_argument(
        "--limit", type=whole("--limit"), default=20, metavar="N", help="findings to print (20)"
    )
    parser.add_argument("--html", type=Path, metavar="OUT", help="also write a page with plots")
    parser.add_argument(
        "--truth",
        type=Path,
        metavar="PATH",
        help="truth.npz of the drive, its directory, or the directory of all drives: also "
        "report the distance of each log from it",
    )
    add_history(parser)
    add_gate_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Compare and print the differences; return 0 if both sides agree, 1 if they differ.

    Raises:
        UsageError: the arguments contradict each other.
        LogError: a log cannot be read.
        CompareError: there is nothing to compare.
    """
    if args.table:
        return _show_table(args)
    if args.more:
        raise UsageError(f"{args.more[0]}: expected two logs, found more; --table takes several")
    is_directory = [path.is_dir() for path in (args.left, args.right)]
    if any(is_directory) and not all(is_directory):
        directory, log = sorted((args.left, args.right), key=Path.is_file)
        raise CompareError(
            f"{directory}: expected a log like {log}, found a directory; name two of a kind"
        )
    is_result = [path.suffix == RESULT for path in (args.left, args.right)]
    if any(is_result):
        return _compare_results(args, all(is_result))
    options = CompareOptions(
        services=args.service,
        all_services=args.all,
        tolerances=read_tolerances(args.tolerances, args.ignore, bit_exact=args.bit_exact),
        uncalibrated=args.uncalibrated,
        gates=gates_of(args, all_figure_names() if all(is_directory) else figure_names()),
    )
    if all(is_directory):
        return _compare_directories(args, options)
    truth = None if args.truth is None else read_truth(args.truth)
    comparison = compare_logs(args.left, args.right, replace(options, truth=truth))
    worst = largest_of(comparison.behaviour.rows)
    note_run(args, subject=_subject(args), device="", model="", figures=worst)
    if args.html:
        write_comparison(args.html, comparison)
    if args.json:
        print_json({**describe_json(comparison), "html": str(args.html) if args.html else None})
    else:
        print(describe_text(comparison, args.limit))
        if args.html:
            print(f"page: {args.html}")
    return 0 if comparison.passed else 1


def _subject(args: argparse.Namespace) -> str:
    return f"{args.left.name} and {args.right.name}"


def _show(args: argparse.Namespace, found: SetComparison | Candidates | Results) -> None:
    """Print the comparison, write its page, and add it to the history."""
    for subject, figures in found.to_history().items():
        note_run(args, subject=subject, device="", model="", figures=figures)
    if args.html:
        write_page(args.html, [found.page()])
    if args.json:
        print_json({**found.to_json(), "html": str(args.html) if args.html else None})
        return
    print(found.text())
    if args.html:
        print(f"page: {args.html}")


def _compare_directories(args: argparse.Namespace, options: CompareOptions) -> int:
    """Compare two directories of logs; return 0 if all agree, 1 if one differs."""
    comparison = compare_directories(args.left, args.right, options, args.truth)
    _show(args, comparison)
    return comparison.exit_code


def _show_table(args: argparse.Namespace) -> int:
    """Print models or results side by side; return 0."""
    of_two = "service|all|tolerances|bit_exact|uncalibrated|gates_only"
    refuse(vars(args), [(of_two, "expected no --table with it; a table judges nothing")])
    paths = [args.left, args.right, *args.more]
    are_results = {path.suffix == RESULT for path in paths}
    if are_results == {True}:
        if args.gate or args.gates or args.truth:
            raise UsageError("--gate: expected logs with it, found closed-loop results")
        _show(args, results_of(paths, args.ignore))
        return 0
    if len(are_results) > 1:
        raise UsageError(f"--table: expected logs or results ({RESULT}), found both")
    gates = gates_of(args, all_figure_names())
    _show(args, candidates_of(paths, gates, args.truth))
    return 0


def _compare_results(args: argparse.Namespace, are_both: bool) -> int:
    """Compare two closed-loop results; return 0 if they agree, 1 if they differ."""
    if not are_both:
        raise UsageError(
            f"{args.right}: expected two closed-loop results ({RESULT}) or two logs, found one of "
            "each"
        )
    of_logs = "service|all|tolerances|bit_exact|uncalibrated|truth"
    refuse(vars(args), [(of_logs, "expected two logs with it, found closed-loop results")])
    comparison = compare_results(args.left, args.right, gates_of(args, None), args.ignore)
    figures = {row.name: row.right for row in comparison.rows}
    note_run(args, subject=_subject(args), device="", model="", figures=figures)
    if args.html:
        write_page(args.html, [comparison.page()])
    if args.json:
        html = str(args.html) if args.html else None
        print_json({**comparison.to_json(), "html": html})
    else:
        print(comparison.text())
        if args.html:
            print(f"page: {args.html}")
    return 0 if comparison.passed else 1

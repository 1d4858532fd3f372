r"""Run recorded drives and compare what the model says with references; fail when it changed.

Each drive goes through the daemon's own code, as in modeld replay. Its messages are compared field
by field with what a reference holds (within the tolerances of modeld compare, or bit by bit with
--bit-exact), and so are the program's inputs, its launches, and its speed: the ratio to a fixed
workload that is measured beside it, so that a busy machine does not fail and a program that is
10 % slower does. A change is accepted by writing the references anew: --update --reason TEXT.
References are small files (about 1.4 KiB a frame) that belong into the repository.

What a change does to the drive is told in metres and seconds, and gates may be written in them.
With --gates-only they decide instead of tolerances, weights and launches: so another precision,
target or compiler is judged by what the car would do. What must be the same in any case (inputs,
frames, finite outputs) still fails.

Example:
  modeld regress --model driving.pkl --drives drive.mp4 --reference references --report out.html
  modeld regress --model driving.pkl --drives drive.mp4 --reference references --update \
    --reason "new policy model"
  modeld regress --model fp16.pkl --drives drive --reference references --no-timing --gates-only \
    --gate 'lateral_2s_max_m < 0.05' --gate 'lateral_acceleration_p99_mps2 < 0.05'
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cereal.errors import CerealError
from modeld.errors import ModeldError
from runtime.artifact import Artifact
from runtime.device import choose_device
from runtime.errors import RuntimeFault
from runtime.quantities import count_text
from scheduler.errors import SchedulerError
from tools.behaviour.arguments import add_gate_arguments, gates_of
from tools.behaviour.describe import behaviour_lines
from tools.behaviour.difference import figure_names
from tools.behaviour.truth import FILE_NAME, Truth, joined, read_truth
from tools.compare.compare import CompareOptions, compare_events
from tools.compare.tolerances import read_tolerances
from tools.drives.arguments import add_drive_arguments, drive_options
from tools.drives.open_drive import DriveOptions
from tools.drives.openpilot import segment_directories
from tools.errors import ToolError, UsageError
from tools.lib.json_output import print_json
from tools.lib.number_options import whole
from tools.playback.model import MONITORING, read_artifact_of, read_driving_artifact
from tools.regress.bisect import bisect
from tools.regress.cluster import parse_address, run_jobs_on_cluster
from tools.regress.explain import Beliefs, Explanation, explain
from tools.regress.job import Job, JobResult
from tools.regress.page import write_report
from tools.regress.pool import OnResult, WorkDirectory, run_jobs
from tools.regress.reference import ReferenceStore
from tools.regress.run import Plan, RunJobs, RunVerdict, default_processes, regress, work_directory
from tools.regress.verdict import SHOWN_CHANGES, Comparing, DriveVerdict

# Drives that are explained: causes repeat, and each takes two programs and a part of the drive.
EXPLAINED_DRIVES = 3


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
        "--update", action="store_true", help="write references of all drives that ran well"
    )
    parser.add_argument("--reason", metavar="TEXT", help="why the change is right (with --update)")
    parser.add_argument("--report", type=Path, metavar="HTML", help="also write a one-page report")
    parser.add_argument(
        "--bit-exact", action="store_true", help="every bit counts; holds on the same device only"
    )
    parser.add_argument("--no-timing", action="store_true", help="leave the timing gate out")
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="ARTIFACT",
        help="judge the speed by this artifact, measured in the same processes, instead of by "
        "the reference's ratio, which holds on one device only; with --explain the artifact that "
        "made the references",
    )
    _add_looking(parser)
    _add_running(parser)
    add_gate_arguments(parser)
    add_drive_arguments(parser)


def _add_looking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say why drives changed: inputs, then the program's states, then the first kernel "
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
        help="instead of a regression: which of weights, graph, code generation or driver makes "
        "two artifacts differ on one drive; no --model, no --reference",
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        type=whole("--jobs"),
        metavar="N",
        help="drives at a time, each in a process of its own (1 on a GPU; on a CPU 1 for each 4 "
        "processors: a single drive uses them all, another one fills its gaps only)",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="run the drives on a Dask cluster: tcp://HOST:PORT of its scheduler, or local[:N] for "
        "N workers here; drives have to lie under the same path on all workers",
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="keep results of finished drives here, and take up those that are there",
    )
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument("--tolerances", type=Path, metavar="TOML", help="see modeld compare")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="FIELD", help="see modeld compare"
    )


def run(args: argparse.Namespace) -> int:
    """Regress; return 0 where nothing changed, 1 where something did, else an error's code."""
    if args.bisect is not None:
        return _bisect(args)
    _check_arguments(args)
    plan = _make_plan(args)
    if args.cluster is not None:
        run_jobs_there: RunJobs = partial(run_jobs_on_cluster, args.cluster)
    else:
        run_jobs_there = partial(_run_jobs, args.jobs or default_processes(plan.info))
    with work_directory(args.work) as work:
        verdict = regress(plan, run_jobs_there, work, _progress(args))
        if args.report:
            write_report(args.report, plan, verdict)
    explanations = _explain(args, plan, verdict) if args.explain else []
    if args.json:
        report: dict[str, Any] = {"report": str(args.report) if args.report else None}
        if args.explain:
            report |= {"explanations": [one.to_json() for one in explanations]}
        print_json({**verdict.to_json(), **report})
    else:
        _print_verdict(args, verdict, explanations)
    return verdict.exit_code


def _explain(args: argparse.Namespace, plan: Plan, verdict: RunVerdict) -> list[Explanation]:
    """Return why the first drives changed."""
    onnx = None if args.onnx is None else tuple(args.onnx)
    held = Beliefs(plan.model, plan.device, plan.baseline, onnx)
    changed = [drive for drive in verdict.drives if drive.status == "changed"]
    found = []
    for drive in changed[:EXPLAINED_DRIVES]:
        try:
            found.append(explain(drive, plan.options, held))
        except (ToolError, ModeldError, RuntimeFault, SchedulerError, CerealError) as error:
            # The verdict stands, whatever keeps it from being explained.
            found.append(Explanation(drive.name, "unknown", (f"not explained: {error}",)))
    return found


def _bisect(args: argparse.Namespace) -> int:
    """Print what makes two artifacts differ; return 0 where they do not, else 1."""
    for name in ("model", "monitoring", "reference", "baseline", "onnx", "report", "cluster"):
        if getattr(args, name) is not None:
            raise UsageError(f"--bisect: expected no --{name} with it; A and B are all it takes")
    if args.update or args.explain or args.gate or args.gates or args.gates_only:
        raise UsageError("--bisect: expected neither --update nor --explain nor gates with it")
    if len(args.drives) != 1:
        raise UsageError(f"--drives: expected one drive with --bisect, found {len(args.drives)}")
    artifacts = args.bisect[0], args.bisect[1]
    found = bisect(artifacts, args.drives[0], drive_options(args), args.device)
    if args.json:
        print_json(found.to_json())
        return 0 if found.is_same else 1
    for fact in found.facts:
        print(f"{'differs' if fact.differs else 'same':8}{fact.about:16}{fact.text}")
    for experiment in found.experiments:
        print(f"{'same' if experiment.worst is None else 'differs':8}{experiment.text}")
    print(found.conclusion)
    return 0 if found.is_same else 1


def _check_arguments(args: argparse.Namespace) -> None:
    for name in ("model", "reference"):
        if getattr(args, name) is None:
            raise UsageError(f"--{name}: expected one, found none; only --bisect does without")
    if args.update and not (args.reason or "").strip():
        raise UsageError(
            "--update: expected --reason TEXT, found none; say why the change is right, it is "
            "kept with the references"
        )
    if args.reason is not None and not args.update:
        raise UsageError("--reason: expected --update with it; nothing is accepted without")
    if args.baseline is not None and args.no_timing and not args.explain:
        raise UsageError("--baseline: expected the timing gate, found --no-timing; choose one")
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


def _make_plan(args: argparse.Namespace) -> Plan:
    artifact: Artifact = read_driving_artifact(args.model)
    tolerances = read_tolerances(args.tolerances, args.ignore, bit_exact=args.bit_exact)
    options = CompareOptions(tolerances=tolerances)
    drives = replace(drive_options(args), split=True, driver_camera=args.monitoring is not None)
    monitoring = None
    if args.monitoring is not None:
        monitoring = args.monitoring, read_artifact_of(args.monitoring, MONITORING)
    return Plan(
        texts=args.drives,
        options=drives,
        model=args.model,
        artifact=artifact,
        device=args.device,
        info=choose_device(args.device).info,
        store=ReferenceStore(args.reference),
        how=Comparing(
            lambda left, right: compare_events(left, right, options, ("reference", "now")),
            args.bit_exact,
            gates_of(args, figure_names()),
            lambda drive: _truth_of(drive, drives),
        ),
        timing=not args.no_timing,
        baseline=args.baseline,
        reason=args.reason.strip() if args.update else None,
        command=_command_line(),
        monitoring=monitoring,
    )


def _truth_of(drive: str, options: DriveOptions) -> Truth | None:
    """Return the truth of a rendered drive; None for one that was recorded."""
    files = [place / FILE_NAME for place in segment_directories(drive, options)]
    found = [read_truth(file) for file in files if file.is_file()]
    return joined(found) if found else None


def _command_line() -> str:
    """Return what was typed, without the place of the program."""
    return shlex.join(["modeld", *sys.argv[1:]])


def _run_jobs(
    processes: int, jobs: Sequence[Job], work: WorkDirectory, on_result: OnResult
) -> list[JobResult]:
    return run_jobs(jobs, processes, work, on_result)


def _progress(args: argparse.Namespace) -> OnResult:
    """Return what says on a terminal that a drive is done; the verdicts come at the end."""
    is_silent = args.quiet or not sys.stderr.isatty()

    def show(position: int, result: JobResult) -> None:
        if not is_silent:
            name = result.drive.name if result.drive else f"drive {position + 1}"
            text = result.error or f"{result.measured.wall_s:.1f} s"
            print(f"{name}: {text}", file=sys.stderr)

    return show


def _print_verdict(
    args: argparse.Namespace, verdict: RunVerdict, explanations: Sequence[Explanation]
) -> None:
    width = max(len(drive.name) for drive in verdict.drives)
    for drive in verdict.drives:
        print(f"{drive.status:8}{drive.name:{width}}  {drive.summary}")
    for drive in verdict.drives:
        _print_changes(drive)
        _print_behaviour(drive)
    for explanation in explanations:
        print(f"why {explanation.drive} changed:")
        for line in explanation.lines:
            print(f"  {line}")
        print()
    for timing in verdict.timings:
        status = "passed" if timing.verdict.passed else "changed"
        print(f"{status:8}{timing.entry}  {timing.verdict.text}")
    for line in verdict.accepted:
        print(f"written  {line}")
    if args.report:
        print(f"report: {args.report}")
    print(_conclusion(args, verdict))


def _print_changes(drive: DriveVerdict) -> None:
    if not drive.changes:
        return
    print(f"\n{drive.name}:")
    for change in drive.changes[:SHOWN_CHANGES]:
        print(f"  {change.text}")
    if len(drive.changes) > SHOWN_CHANGES:
        print(f"  and {len(drive.changes) - SHOWN_CHANGES} more, see --report or --json")
    print()


def _print_behaviour(drive: DriveVerdict) -> None:
    """Print what a drive that is not as it was, or that has gates, would do."""
    if not (drive.changes or drive.meant or drive.behaviour.gates):
        return
    lines = behaviour_lines(drive.behaviour, ("reference", "now"))
    if lines:
        print(f"\n{drive.name}, " + "\n".join(lines) + "\n")


def _conclusion(args: argparse.Namespace, verdict: RunVerdict) -> str:
    """Return what the run means and what to do."""
    total = count_text(len(verdict.drives), "drive")
    failures = sum(drive.status == "failed" for drive in verdict.drives)
    if failures:
        return f"{failures} of {total} could not be judged"
    if args.update:
        return f"{count_text(len(verdict.accepted), 'reference')} written for {total}"
    changed = sum(drive.status == "changed" for drive in verdict.drives)
    slower = sum(not timing.verdict.passed for timing in verdict.timings)
    if not changed and not slower:
        return f"{total} passed"
    what = [f"{changed} of {total} changed"] if changed else []
    what += ["the program is slower"] if slower else []
    look = "" if args.report else "look at it with --report out.html, or "
    return f"{', '.join(what)}; {look}accept it with --update --reason TEXT if it is meant to be so"

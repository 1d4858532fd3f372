r"""Run recorded drives and compare the model's outputs with references; fail if they changed.

Each drive is played through the daemon's own code, as in modeld replay. Its messages are compared
field by field with a reference, within the tolerances of modeld compare, or bit by bit with
--bit-exact. The program's inputs, its launches and its speed are compared, too. Speed is the ratio
to a fixed workload measured in the same process: load on the machine cancels out, and a program
that is 10 % slower fails. Accept a change by rewriting the references: --update --reason TEXT.
References are small (about 1.4 KiB per frame) and should be committed.

The effect of a change on the drive is reported in metres and seconds, and gates can limit it. With
--gates-only, gates decide instead of tolerances, weights and launches, to judge another precision,
target or compiler by the car's behaviour. Differences that must never occur (inputs, frames, finite
outputs) still fail. A newly trained model has no reference: --against compares it with the old
model, in metres, and judges by gates. Gates whose names begin with all. apply to all drives
together, and to times and sizes: 'all.lateral_2s_p99_m < 0.1', 'all.artifact_ratio < 1.05'.

Example:
  modeld regress --model driving.pkl --drives drive.mp4 --reference references --report out.html
  modeld regress --model driving.pkl --drives drive.mp4 --reference references --update \
    --reason "new policy model"
  modeld regress --model new.pkl --against old.pkl --drives drives/* --gates model.gates
  modeld regress --model fp16.pkl --drives drive --reference references --no-timing --gates-only \
    --gate 'lateral_2s_max_m < 0.05' --gate 'lateral_acceleration_p99_mps2 < 0.05'
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cereal.errors import CerealError
from modeld.errors import ModeldError
from runtime.errors import RuntimeFault
from runtime.format.artifact import Artifact
from runtime.opencl.device import choose_device
from runtime.texts import count_text
from scheduler.errors import SchedulerError
from tools.behaviour.describe import behaviour_lines
from tools.behaviour.difference import largest_of
from tools.behaviour.gates import Gates, gates_of
from tools.behaviour.truth import FILE_NAME, Truth, joined, read_truth
from tools.command_files import attribute
from tools.compare.compare import CompareOptions, compare_events
from tools.compare.tolerances import read_tolerances
from tools.drives.open_drive import DriveOptions, drive_options
from tools.drives.openpilot import segment_directories
from tools.errors import ToolError, UsageError
from tools.lib.json_output import print_json
from tools.playback.model import MONITORING, read_artifact_of, read_driving_artifact
from tools.regress.arguments import add_arguments, check_arguments
from tools.regress.cluster import run_jobs_on_cluster
from tools.regress.explain.bisect import bisect
from tools.regress.explain.explain import ExplainSources, Explanation, explain
from tools.regress.job import Job, JobResult, parse_shard
from tools.regress.judge.reference import ReferenceStore
from tools.regress.judge.references import (
    against_directory,
    read_against,
    remove,
    unused_references,
)
from tools.regress.judge.verdict import SHOWN_CHANGES, Comparing, DriveVerdict
from tools.regress.pool import OnResult, WorkDirectory, run_jobs
from tools.regress.run import Plan, RunJobs, RunVerdict, default_processes, regress, work_directory
from tools.regress.run_facts import model_hash
from tools.regress.tell.page import write_report
from tools.regress.tell.pictures import write_pictures
from tools.regress.tell.summary import conclusion, error_lines, explain_timing, junit, markdown
from tools.regress.tell.whole import all_figure_names
from tools.report.history import note_run
from tools.report.report_page import write_page

__all__ = ["add_arguments", "run"]

# Maximum number of drives to explain. Causes repeat, and each explanation loads two programs and
# plays a part of the drive.
EXPLAINED_DRIVES = 3


def run(args: argparse.Namespace) -> int:
    """Run the drives; return 0 if nothing changed, 1 if a drive changed, else an error's code."""
    if args.bisect is not None:
        return _bisect(args)
    check_arguments(args)
    if args.prune is not None:
        return _prune(args)
    plan = _make_plan(args)
    if args.cluster is not None:
        run_jobs_there: RunJobs = partial(run_jobs_on_cluster, args.cluster)
    else:
        run_jobs_there = partial(_run_jobs, args.jobs or default_processes(plan.info))
    with work_directory(args.work) as work:
        verdict = regress(plan, run_jobs_there, work, _progress(args))
        _write_files(args, plan, verdict)
    _note(args, verdict)
    explanations = _explain(args, plan, verdict) if args.explain else []
    if args.json:
        report: dict[str, Any] = {"report": str(args.report) if args.report else None}
        if args.explain:
            report |= {"explanations": [one.to_json() for one in explanations]}
        print_json({**verdict.to_json(), **report})
    else:
        _print_verdict(args, verdict, explanations)
    if args.annotations:
        print("".join(f"{line}\n" for line in error_lines(verdict)), end="", file=sys.stderr)
    return verdict.exit_code


def _write_files(args: argparse.Namespace, plan: Plan, verdict: RunVerdict) -> None:
    """Write the requested report, JUnit file, pictures and Markdown summary."""
    if args.report:
        write_report(args.report, plan, verdict)
    if args.junit:
        write_page(args.junit, [junit(verdict)])
    pictures = write_pictures(args.pictures, verdict.drives, plan.options) if args.pictures else []
    if args.markdown:
        where = args.picture_url
        if where is None and args.pictures:
            where = os.path.relpath(args.pictures, args.markdown.parent)
        shown = [(drive, title, f"{where}/{name}") for drive, title, name in pictures]
        write_page(args.markdown, [markdown(verdict, shown)])


def _prune(args: argparse.Namespace) -> int:
    """List or remove references that are no longer used."""
    artifact = read_driving_artifact(args.model)
    models = [model_hash(artifact.manifest)]
    if args.monitoring is not None:
        beside = read_artifact_of(args.monitoring, MONITORING)
        models.append(model_hash(artifact.manifest, beside.manifest))
    store, options = ReferenceStore(args.reference), drive_options(args)
    options = replace(options, split=True, driver_camera=args.monitoring is not None)
    unused = unused_references(store, args.drives, options, models)
    if args.prune == "remove":
        with store.lock():
            remove(unused)
    if args.json:
        print_json({"unused": [str(path) for path in unused], "removed": args.prune == "remove"})
        return 0
    for path in unused:
        print(f"{'removed' if args.prune == 'remove' else 'unused'}  {path}")
    print(f"{count_text(len(unused), 'file')} that these drives and models do not use")
    return 0


def _note(args: argparse.Namespace, verdict: RunVerdict) -> None:
    """Add the largest differences of each drive and the timing to the history, if requested."""
    figures = {
        f"{drive.name}: largest difference": largest_of(drive.behaviour.rows)
        for drive in verdict.drives
        if drive.comparison is not None
    }
    slower = {f"time.{one.entry}_slower": one.verdict.slower for one in verdict.timings}
    figures |= {"timing gate": {name: one for name, one in slower.items() if one is not None}}
    device, model = verdict.environment.get("device", ""), verdict.model.get("sha256", "")
    for subject, of_subject in figures.items():
        if of_subject:
            note_run(args, subject=subject, device=device, model=model, figures=of_subject)


def _explain(args: argparse.Namespace, plan: Plan, verdict: RunVerdict) -> list[Explanation]:
    """Return explanations for the first changed drives and for failed timing gates."""
    onnx = None if args.onnx is None else tuple(args.onnx)
    sources = ExplainSources(plan.model, plan.device, plan.baseline, onnx)
    changed = [drive for drive in verdict.drives if drive.status == "changed"]
    found = []
    for drive in changed[:EXPLAINED_DRIVES]:
        try:
            found.append(explain(drive, plan.options, sources))
        except (ToolError, ModeldError, RuntimeFault, SchedulerError, CerealError) as error:
            # A failed explanation does not change the verdict.
            found.append(Explanation(drive.name, "unknown", (f"not explained: {error}",)))
    return [*found, *(explain_timing(one) for one in verdict.timings if not one.verdict.passed)]


def _bisect(args: argparse.Namespace) -> int:
    """Print the causes of a difference between two artifacts; return 0 if there is none, else 1."""
    names = ("model", "monitoring", "reference", "baseline", "onnx", "report", "cluster")
    for name in (*names, "against", "baseline-tree"):
        if getattr(args, attribute(name)) is not None:
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


def _make_plan(args: argparse.Namespace) -> Plan:
    artifact: Artifact = read_driving_artifact(args.model)
    tolerances = read_tolerances(args.tolerances, args.ignore, bit_exact=args.bit_exact)
    options = CompareOptions(tolerances=tolerances)
    drives = replace(drive_options(args), split=True, driver_camera=args.monitoring is not None)
    monitoring = None
    if args.monitoring is not None:
        monitoring = args.monitoring, read_artifact_of(args.monitoring, MONITORING)
    against = None if args.against is None else read_against(args.against)
    gates = gates_of(args, all_figure_names())
    # A newly trained model differs in all numbers, so only gates on its behaviour decide.
    gates = Gates(gates.all, gates.decide or against is not None)
    return Plan(
        texts=args.drives,
        options=drives,
        model=args.model,
        artifact=artifact,
        device=args.device,
        info=choose_device(args.device).info,
        store=ReferenceStore(args.reference or against_directory(args.against)),
        how=Comparing(
            lambda left, right: compare_events(left, right, options, ("reference", "now")),
            args.bit_exact,
            gates,
            lambda drive: _truth_of(drive, drives),
            against is not None,
        ),
        timing=not args.no_timing,
        baseline=against.path if against and against.artifact else args.baseline,
        baseline_tree=args.baseline_tree,
        reason=args.reason.strip() if args.update else None,
        command=_command_line(),
        monitoring=monitoring,
        against=against,
        shard=None if args.shard is None else parse_shard(args.shard),
    )


def _truth_of(drive: str, options: DriveOptions) -> Truth | None:
    """Return the ground truth of a rendered drive, or None for a recorded one."""
    files = [place / FILE_NAME for place in segment_directories(drive, options)]
    found = [read_truth(file) for file in files if file.is_file()]
    return joined(found) if found else None


def _command_line() -> str:
    """Return the command line, without the path of the program."""
    return shlex.join(["modeld", *sys.argv[1:]])


def _run_jobs(
    processes: int, jobs: Sequence[Job], work: WorkDirectory, on_result: OnResult
) -> list[JobResult]:
    return run_jobs(jobs, processes, work, on_result)


def _progress(args: argparse.Namespace) -> OnResult:
    """Return a callback that prints each finished drive on a terminal, without its verdict."""
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
    width = max((len(drive.name) for drive in verdict.drives), default=0)
    statuses = [*(one.status for one in verdict.drives), *(one.status for one in verdict.timings)]
    column = max(6, 0, *(len(status) for status in statuses)) + 2
    for drive in verdict.drives:
        print(f"{drive.status:{column}}{drive.name:{width}}  {drive.summary}")
    for drive in verdict.drives:
        _print_changes(drive)
        _print_behaviour(drive)
    for explanation in explanations:
        print(f"why {explanation.drive} changed:")
        for line in explanation.lines:
            print(f"  {line}")
        print()
    sides = verdict.against or "reference", "now"
    for line in verdict.whole.lines(sides):
        print(line)
    for timing in verdict.timings:
        print(f"{timing.status:{column}}{timing.entry}  {timing.verdict.text}")
        for line in timing.verdict.lines:
            print(f"{'':{column}}{line}")
    for line in verdict.accepted:
        print(f"{'written':{column}}{line}")
    if args.report:
        print(f"report: {args.report}")
    print(conclusion(verdict))


def _print_changes(drive: DriveVerdict) -> None:
    for warning in drive.comparison.warnings if drive.comparison else ():
        print(f"note    {drive.name}: {warning}")
    if not drive.changes:
        return
    print(f"\n{drive.name}:")
    for change in drive.changes[:SHOWN_CHANGES]:
        print(f"  {change.text}")
    if len(drive.changes) > SHOWN_CHANGES:
        print(f"  and {len(drive.changes) - SHOWN_CHANGES} more, see --report or --json")
    print()


def _print_behaviour(drive: DriveVerdict) -> None:
    """Print the effect on the car's behaviour if a drive changed or has gates."""
    if not (drive.changes or drive.meant or drive.behaviour.gates):
        return
    left = "the other" if drive.another_model else "reference"
    lines = behaviour_lines(drive.behaviour, (left, "now"))
    if lines:
        print(f"\n{drive.name}, " + "\n".join(lines) + "\n")

"""Runs a regression: plays and judges drives, optionally accepts the results, and judges the speed.

``modeld regress`` calls `regress` with a `Plan` and prints the `RunVerdict`. The timing gate
compares the program's execution time with a reference or a baseline.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from runtime.errors import RuntimeFault
from runtime.format.artifact import Artifact
from runtime.format.manifest import Manifest
from runtime.opencl.device import DeviceInfo
from runtime.texts import count_text
from tools.drives.open_drive import DriveOptions
from tools.errors import ToolError
from tools.regress.job import Job, JobResult, Shard, single_drives
from tools.regress.judge.reference import ReferenceStore
from tools.regress.judge.references import (
    Against,
    KeptReferences,
    PlayedReference,
    TimingReferences,
    accept_drive,
    accept_timing,
)
from tools.regress.judge.verdict import Comparing, DriveVerdict, References, failed, judge
from tools.regress.pool import OnResult, WorkDirectory
from tools.regress.run_facts import (
    code_digest,
    describe_checkout,
    describe_environment,
    device_class,
    model_hash,
    reference_class,
    who,
)
from tools.regress.tell.whole import Costs, WholeVerdict, costs_of, judge_whole, per_drive_gates
from tools.regress.time.timing import StoredTiming, TimingResult, TimingVerdict, judge_timing
from tools.regress.time.timing_frames import sample_frames, write_frames
from tools.regress.time.timing_sides import Measurement, Side, measure_timing
from tools.regress.timing_process import timed_device

# A program uses all processors by itself; a second process fills the gaps between its launches.
PROCESSORS_OF_A_JOB: Final = 4
# Key of a reference's provenance: the size of the artifact file.
ARTIFACT_BYTES: Final = "artifact bytes"
# The entry whose time is judged; "prepare" runs only on dropped frames.
RUN_ENTRY: Final = "run"

# Runs jobs: (jobs, store for results, called with each result) -> results in the jobs' order.
RunJobs = Callable[[Sequence[Job], WorkDirectory, OnResult], list[JobResult]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a regression."""

    texts: Sequence[str]  # drives, as the user named them
    options: DriveOptions  # options for opening them
    model: Path  # path of the artifact
    artifact: Artifact  # the checked artifact
    device: str | None  # name of the OpenCL device; None: the best
    info: DeviceInfo
    store: ReferenceStore
    how: Comparing  # how logs are compared
    timing: bool = True  # whether the speed is judged
    # Artifact to compare the speed with; None: the stored times.
    baseline: Path | None = None
    baseline_tree: Path | None = None  # checkout whose runtime runs the baseline; None: this one
    reason: str | None = None  # reason for accepting changes; None: nothing is accepted
    command: str = ""  # the command line, for provenance
    # Path and checked artifact of driver monitoring to run as well; None: there is none.
    monitoring: tuple[Path, Artifact] | None = None
    # Another model to compare with, in place of references of this one.
    against: Against | None = None
    shard: Shard | None = None  # run only the drives of this shard; None: all


@dataclass(frozen=True, slots=True)
class TimingOutcome:
    """The result of the timing gate for one entry."""

    entry: str  # entry of the program
    verdict: TimingVerdict  # the decision
    result: TimingResult | None = None  # the measurement; None if it failed
    reference: StoredTiming | None = None  # the stored measurement it was compared with

    @property
    def status(self) -> Literal["passed", "changed", "not judged", "failed"]:
        """``not judged``: there is nothing to compare with; ``failed``: nothing was measured."""
        if self.result is None:
            return "failed"
        if not self.verdict.passed:
            return "changed"
        return "passed" if self.verdict.slower is not None else "not judged"

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return {"status": self.status, **asdict(self)}


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The verdict on the whole regression."""

    drives: tuple[DriveVerdict, ...]  # one per drive, in the order given
    timings: tuple[TimingOutcome, ...] = ()  # one per timed entry
    accepted: tuple[str, ...] = ()  # one line per reference written
    environment: Mapping[str, str] = field(default_factory=dict)  # environment of this run
    model: Mapping[str, str] = field(default_factory=dict)  # facts on the artifact
    is_update: bool = False  # whether results were to be accepted
    whole: WholeVerdict = field(default_factory=WholeVerdict)  # verdict on all drives together
    against: str = ""  # name of the other model compared with; "" for references

    @property
    def exit_code(self) -> int:
        """0: passed or accepted; 1: something changed; else that of the first failed drive."""
        codes = [drive.exit_code for drive in self.drives if drive.status == "failed"]
        if codes:
            return codes[0] or 1
        if self.is_update:
            return 0
        changed = any(drive.status == "changed" for drive in self.drives)
        slower = any(not timing.verdict.passed for timing in self.timings)
        return 1 if changed or slower or not self.whole.holds else 0

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        return {
            "passed": self.exit_code == 0,
            "exit_code": self.exit_code,
            "model": dict(self.model),
            "environment": dict(self.environment),
            "drives": [drive.to_json() for drive in self.drives],
            "timing": [timing.to_json() for timing in self.timings],
            "against": self.against or None,
            "whole": self.whole.to_json(),
            "accepted": list(self.accepted),
        }


def regress(plan: Plan, run_jobs: RunJobs, work: WorkDirectory, on_result: OnResult) -> RunVerdict:
    """Run the drives and judge the results; accept them if the plan has a reason.

    `plan`: the settings. `run_jobs`: runs the jobs, on this machine or others. `work`: stores each
    result on arrival. `on_result`: called with each result.

    Raises:
        ToolError: references or results cannot be written; those already written are complete.
    """
    provenance = _provenance(plan)
    holding = plan.store.lock() if plan.reason is not None else contextlib.nullcontext()
    with holding:
        verdicts, accepted = _judge_drives(plan, run_jobs, work, on_result)
        timings = _judge_timings(plan, verdicts) if plan.timing else []
        if plan.reason is not None:
            for timing in timings:
                judged = timing.verdict, timing.result, timing.reference
                accepted += accept_timing(_timings(plan), timing.entry, judged, provenance)
    return RunVerdict(
        tuple(verdicts),
        tuple(timings),
        tuple(accepted),
        provenance,
        {
            "artifact": plan.model.name,
            "sha256": plan.artifact.sha256,
            "model": model_hash(plan.artifact.manifest),
            "device_class": reference_class(plan.info, *_manifests(plan)),
            **_monitoring_facts(plan),
        },
        is_update=plan.reason is not None,
        whole=_judge_whole(plan, verdicts, timings),
        against=plan.against.path.name if plan.against else "",
    )


def _manifests(plan: Plan) -> list[Manifest]:
    monitoring = [] if plan.monitoring is None else [plan.monitoring[1].manifest]
    return [plan.artifact.manifest, *monitoring]


def _monitoring_facts(plan: Plan) -> dict[str, str]:
    if plan.monitoring is None:
        return {}
    path, artifact = plan.monitoring
    return {"monitoring": path.name, "monitoring_sha256": artifact.sha256}


def default_processes(info: DeviceInfo) -> int:
    """Return the default number of concurrent drives on a device."""
    if info.kind != "cpu":
        return 1
    return max(1, len(os.sched_getaffinity(0)) // PROCESSORS_OF_A_JOB)


@contextlib.contextmanager
def work_directory(path: Path | None) -> Iterator[WorkDirectory]:
    """Open the user's directory for results, or a temporary one that is deleted after success.

    If the run is interrupted, a note is printed with the directory of the finished drives.
    """
    place = path or Path(tempfile.mkdtemp(prefix="modeld-regress-work-"))
    work = WorkDirectory(place)
    try:
        yield work
    except BaseException:
        kept = work.count()
        if kept:
            # For the user, who may have interrupted the run with Ctrl-C.
            print(
                f"modeld: {count_text(kept, 'finished drive')} kept; continue with --work {place}",
                file=sys.stderr,
            )
        elif path is None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if path is None:
        shutil.rmtree(place, ignore_errors=True)


def _judge_drives(
    plan: Plan, run_jobs: RunJobs, work: WorkDirectory, on_result: OnResult
) -> tuple[list[DriveVerdict], list[str]]:
    """Return the verdicts, and lines about the references written."""
    jobs, failures = _make_jobs(plan)
    own = [job for _, job in jobs]
    found = run_jobs([*own, *_other_jobs(plan, own)], work, on_result)
    results, others = found[: len(jobs)], found[len(jobs) :]
    verdicts: dict[int, DriveVerdict] = dict(failures)
    accepted: list[str] = []
    provenance = _provenance(plan)
    how = plan.how._replace(gates=per_drive_gates(plan.how.gates))
    for number, ((position, job), result) in enumerate(zip(jobs, results, strict=True)):
        references = _references(plan, others[number : number + 1], provenance)
        verdict = judge(job.drive, result, references, how)
        if plan.reason is not None and not result.error:
            verdict, line = accept_drive(plan.store, verdict, result, provenance)
            accepted += line
        verdicts[position] = verdict
    return [verdicts[position] for position in sorted(verdicts)], accepted


def _references(
    plan: Plan, other: Sequence[JobResult], provenance: Mapping[str, str]
) -> References:
    """Return the source of a drive's reference; `other` is the other model's result, if any."""
    if plan.against is None:
        return plan.store
    if plan.against.artifact is None:
        return KeptReferences(plan.store)
    size = str(plan.against.path.stat().st_size)
    facts = {**provenance, "artifact": plan.against.artifact.sha256, ARTIFACT_BYTES: size}
    return PlayedReference(other[0], plan.against.path.name, facts)


def _other_jobs(plan: Plan, jobs: Sequence[Job]) -> list[Job]:
    """Return the same jobs for the other model; run after ours, so that each model loads once."""
    other = plan.against
    if other is None or other.artifact is None:
        return []
    sha256 = other.artifact.sha256
    return [replace(job, artifact=other.path, artifact_sha256=sha256) for job in jobs]


def _judge_whole(
    plan: Plan, verdicts: Sequence[DriveVerdict], timings: Sequence[TimingOutcome]
) -> WholeVerdict:
    """Judge all drives together, if another model is compared or a gate asks for it.

    One side plays all drives before the other, so their times are not compared: the speed of the
    machine can change meanwhile. The timing gate measures both sides alternately.
    """
    asks = len(per_drive_gates(plan.how.gates).all) < len(plan.how.gates.all)
    judged = [one for one in verdicts if one.comparison and one.comparison.sides]
    if not judged or not (asks or plan.against):
        return WholeVerdict()
    names = [one.name for one in judged]
    sides = {
        one.name if names.count(one.name) == 1 else one.text: one.comparison.sides
        for one in judged
        if one.comparison and one.comparison.sides
    }
    played = [one.result.measured.execution_s for one in judged if one.result]
    now = costs_of(played, plan.model.stat().st_size)
    kept = {one.reference.provenance.get(ARTIFACT_BYTES) for one in judged if one.reference}
    before = costs_of([], int(kept.pop() or 0) or None) if len(kept) == 1 else Costs()
    slower = [one.verdict.slower for one in timings if one.verdict.slower is not None]
    return judge_whole(sides, (before, now), plan.how.gates, 1.0 + slower[0] if slower else None)


def _make_jobs(plan: Plan) -> tuple[list[tuple[int, Job]], list[tuple[int, DriveVerdict]]]:
    """Return the jobs, and verdicts on drives that cannot be run, with their positions."""
    jobs: list[tuple[int, Job]] = []
    failures: list[tuple[int, DriveVerdict]] = []
    code = code_digest()
    drives = single_drives(plan.texts, plan.options, plan.shard)
    for place, (drive, error) in enumerate(drives):
        if error is not None:
            failures.append((place, failed(drive, str(error), error.exit_code)))
            continue
        job = Job(drive, plan.options, plan.model, plan.artifact.sha256, code, plan.device)
        if plan.monitoring is not None:
            path, beside = plan.monitoring
            job = replace(job, monitoring=path, monitoring_sha256=beside.sha256)
        jobs.append((place, job))
    return jobs, failures


def _provenance(plan: Plan) -> dict[str, str]:
    environment = describe_environment(plan.info, plan.artifact.manifest)
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **describe_checkout(plan.store.directory),
        "artifact": plan.artifact.sha256,
        ARTIFACT_BYTES: str(plan.model.stat().st_size),
        "command": plan.command,
    }
    if plan.reason is not None:
        facts |= {"reason": plan.reason, "accepted by": who()}
    return {**facts, **environment}


def _judge_timings(plan: Plan, verdicts: Sequence[DriveVerdict]) -> list[TimingOutcome]:
    # The speed is the program's, not a drive's: one shard measures it, also one without drives.
    is_here = any(one.result and one.result.launches for one in verdicts)
    if plan.shard is not None:
        is_here = plan.shard.index == 1
    entries = [entry.name for entry in plan.artifact.manifest.entries if entry.name == RUN_ENTRY]
    others = {one.reference.key.model for one in verdicts if one.reference and one.another_model}
    model = others.pop() if len(others) == 1 else model_hash(plan.artifact.manifest)
    return [_judge_timing(plan, entry, model, verdicts) for entry in entries if is_here]


def _judge_timing(
    plan: Plan, entry: str, model: str, verdicts: Sequence[DriveVerdict]
) -> TimingOutcome:
    """Measure an entry and compare it with the stored times of `model`, a hash of the models."""
    drives = [
        (verdict.text, verdict.name) for verdict in verdicts if verdict.result and not verdict.error
    ]
    try:
        references = TimingReferences(plan.store.directory, model, device_class(plan.info))
        stored = references.find(timed_device(plan.info), entry)
        with tempfile.TemporaryDirectory(prefix="modeld-regress-frames-") as place:
            path = Path(place) / "frames.npz"
            write_frames(path, sample_frames(drives, plan.options, plan.model, plan.device, entry))
            baseline = None if plan.baseline is None else Side(plan.baseline, plan.baseline_tree)
            result = measure_timing(
                Measurement(Side(plan.model), baseline, entry, plan.device, path),
                stored,
                # Kernel times are stored with a new reference.
                with_kernels=plan.reason is not None,
            )
    except (ToolError, RuntimeFault) as error:
        return TimingOutcome(entry, TimingVerdict(False, None, str(error)))
    return TimingOutcome(entry, judge_timing(result, stored), result, stored)


def _timings(plan: Plan) -> TimingReferences:
    return TimingReferences(
        plan.store.directory, model_hash(plan.artifact.manifest), device_class(plan.info)
    )

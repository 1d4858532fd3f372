"""A whole regression: drives run, judged and, where asked for, accepted; and the timing gate.

Called by ``modeld regress``; prints nothing.
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
from typing import Any, Final

from runtime.artifact import Artifact
from runtime.device import DeviceInfo
from runtime.errors import RuntimeFault
from runtime.manifest import Manifest
from runtime.quantities import count_text
from tools.drives.open_drive import DriveOptions, expand_drives
from tools.errors import ToolError
from tools.regress.environment import (
    code_digest,
    describe_checkout,
    describe_environment,
    device_class,
    model_hash,
    reference_class,
    who,
)
from tools.regress.job import Job, JobResult
from tools.regress.packing import unpack
from tools.regress.pool import OnResult, WorkDirectory
from tools.regress.reference import Reference, ReferenceStore, make_reference
from tools.regress.timing import LIMIT, StoredTiming, TimingResult, TimingVerdict, judge_timing
from tools.regress.timing_frames import sample_frames, write_frames
from tools.regress.timing_process import timed_device
from tools.regress.timing_reference import TimingReferences
from tools.regress.timing_sides import Measurement, Side, measure_timing
from tools.regress.verdict import Comparing, DriveVerdict, failed, judge

# A program occupies all processors by itself; a second process fills the gaps between its launches.
PROCESSORS_OF_A_JOB: Final = 4
# The entry whose time is judged; "prepare" runs on dropped frames only.
RUN_ENTRY: Final = "run"

# Runs jobs wherever: (jobs, where results are kept, called as they come) -> results in order.
RunJobs = Callable[[Sequence[Job], WorkDirectory, OnResult], list[JobResult]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done.

    Attributes:
        texts: drives, as the user named them.
        options: how they are opened.
        model: path of the artifact.
        artifact: it, checked.
        device: OpenCL device by name; None: the best.
        info: that device.
        store: references.
        how: logs are compared.
        timing: the gate is asked for.
        baseline: artifact whose times are the reference; None: the stored ones are.
        baseline_tree: checkout whose runtime runs the baseline; None: this one.
        reason: why what changed is accepted; None: nothing is accepted.
        command: the command line, for provenance.
        monitoring: path of a driver monitoring artifact beside it, and it, checked; None: none.
    """

    texts: Sequence[str]
    options: DriveOptions
    model: Path
    artifact: Artifact
    device: str | None
    info: DeviceInfo
    store: ReferenceStore
    how: Comparing
    timing: bool = True
    baseline: Path | None = None
    baseline_tree: Path | None = None
    reason: str | None = None
    command: str = ""
    monitoring: tuple[Path, Artifact] | None = None


@dataclass(frozen=True, slots=True)
class TimingOutcome:
    """The timing gate on one entry.

    Attributes:
        entry: of the program.
        verdict: the decision.
        result: what was measured; None where that failed.
        reference: what it was compared with.
    """

    entry: str
    verdict: TimingVerdict
    result: TimingResult | None = None
    reference: StoredTiming | None = None


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The verdict on everything.

    Attributes:
        drives: one each, in the order in which they were named.
        timings: one for each entry that the drives use.
        accepted: one line for each reference that was written.
        environment: of this run.
        model: facts of the artifact.
    """

    drives: tuple[DriveVerdict, ...]
    timings: tuple[TimingOutcome, ...] = ()
    accepted: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, str] = field(default_factory=dict)
    is_update: bool = False

    @property
    def exit_code(self) -> int:
        """0 passed (or accepted), 1 something changed, else that of the first drive that failed."""
        codes = [drive.exit_code for drive in self.drives if drive.status == "failed"]
        if codes:
            return codes[0] or 1
        if self.is_update:
            return 0
        changed = any(drive.status == "changed" for drive in self.drives)
        slower = any(not timing.verdict.passed for timing in self.timings)
        return 1 if changed or slower else 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "passed": self.exit_code == 0,
            "exit_code": self.exit_code,
            "model": dict(self.model),
            "environment": dict(self.environment),
            "drives": [drive.to_json() for drive in self.drives],
            "timing": [asdict(timing) for timing in self.timings],
            "accepted": list(self.accepted),
        }


def regress(plan: Plan, run_jobs: RunJobs, work: WorkDirectory, on_result: OnResult) -> RunVerdict:
    """Run the drives and judge what came of them; accept it where the plan has a reason.

    Args:
        plan: see there.
        run_jobs: runs the jobs, on this machine or others.
        work: where results are kept as they come.
        on_result: called as they come.

    Raises:
        ToolError: references or results cannot be written; what was written before is whole.
    """
    provenance = _provenance(plan)
    holding = plan.store.lock() if plan.reason is not None else contextlib.nullcontext()
    with holding:
        verdicts, accepted = _judge_drives(plan, run_jobs, work, on_result)
        timings = _judge_timings(plan, verdicts) if plan.timing else []
        if plan.reason is not None:
            for timing in timings:
                accepted += _accept_timing(plan, timing, provenance)
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
    """Return how many drives are run at a time where nobody says."""
    if info.kind != "cpu":
        return 1
    return max(1, len(os.sched_getaffinity(0)) // PROCESSORS_OF_A_JOB)


@contextlib.contextmanager
def work_directory(path: Path | None) -> Iterator[WorkDirectory]:
    """Give a place for results: the user's, or one that is kept only if the run does not end.

    What interrupts the run gets a note that says where finished drives are.
    """
    place = path or Path(tempfile.mkdtemp(prefix="modeld-regress-work-"))
    work = WorkDirectory(place)
    try:
        yield work
    except BaseException:
        kept = work.count()
        if kept:
            # For people; whatever stopped us may have been their own Ctrl-C.
            print(
                f"modeld: {count_text(kept, 'finished drive')} kept; go on with --work {place}",
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
    jobs, failures = _make_jobs(plan)
    results = run_jobs([job for _, job in jobs], work, on_result)
    verdicts: dict[int, DriveVerdict] = dict(failures)
    accepted: list[str] = []
    provenance = _provenance(plan)
    for (position, job), result in zip(jobs, results, strict=True):
        verdict = judge(job.drive, result, plan.store, plan.how)
        if plan.reason is not None and not result.error:
            verdict, line = _accept(plan.store, verdict, result, provenance)
            accepted += line
        verdicts[position] = verdict
    return [verdicts[position] for position in sorted(verdicts)], accepted


def _make_jobs(plan: Plan) -> tuple[list[tuple[int, Job]], list[tuple[int, DriveVerdict]]]:
    """Return jobs and what cannot become one, each with its place in the order."""
    jobs: list[tuple[int, Job]] = []
    failures: list[tuple[int, DriveVerdict]] = []
    code = code_digest()
    for text in plan.texts:
        place = len(jobs) + len(failures)
        try:
            drives = expand_drives([text], plan.options)
        except ToolError as error:
            failures.append((place, failed(text, str(error), error.exit_code)))
            continue
        for drive in drives:
            job = Job(drive, plan.options, plan.model, plan.artifact.sha256, code, plan.device)
            if plan.monitoring is not None:
                path, beside = plan.monitoring
                job = replace(job, monitoring=path, monitoring_sha256=beside.sha256)
            jobs.append((len(jobs) + len(failures), job))
    return jobs, failures


def _provenance(plan: Plan) -> dict[str, str]:
    environment = describe_environment(plan.info, plan.artifact.manifest)
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **describe_checkout(),
        "artifact": plan.artifact.sha256,
        "command": plan.command,
    }
    if plan.reason is not None:
        facts |= {"reason": plan.reason, "accepted by": who()}
    return {**facts, **environment}


def _accept(
    store: ReferenceStore,
    verdict: DriveVerdict,
    result: JobResult,
    provenance: Mapping[str, str],
) -> tuple[DriveVerdict, list[str]]:
    """Write a reference where it says something new; return the verdict and a line about it."""
    assert result.drive is not None
    name, old = result.drive.name, verdict.reference
    if old is not None and (old.digest, old.launches, old.program) == (
        result.digest,
        result.launches,
        result.program,
    ):
        return verdict, []
    reference = make_reference(result, provenance)
    frames = unpack(result.outputs).frames
    if not frames.valid.any():
        text = (
            f"{name}: expected frames with valid outputs, found none; such a drive is no reference"
        )
        return failed(verdict.text, text, 1, result), []
    others = _other_models(store, reference)
    path = store.write(reference)
    line = f"{path.name}: {_what_was_accepted(verdict)}{others}"
    if verdict.status == "failed":
        # There was no reference to judge by; now there is one.
        count = len(frames.frame_id)
        verdict = DriveVerdict(
            verdict.text, "passed", count, identical=True, result=result, reference=reference
        )
    return verdict, [line]


def _what_was_accepted(verdict: DriveVerdict) -> str:
    if verdict.status == "failed":
        return "new"
    if verdict.changes:
        more = f", and {len(verdict.changes) - 1} more" if len(verdict.changes) > 1 else ""
        return f"accepted: {verdict.changes[0].text}{more}"
    return "accepted: differences within the tolerances"


def _other_models(store: ReferenceStore, reference: Reference) -> str:
    """Name the references of the same drive that another model left behind."""
    stale = [
        other.file_name
        for other in store.of_drive(reference.key.drive)
        if other.key.model != reference.key.model
    ]
    return f"; of other models remain {', '.join(stale)}" if stale else ""


def _judge_timings(plan: Plan, verdicts: Sequence[DriveVerdict]) -> list[TimingOutcome]:
    entries = {
        name: None
        for verdict in verdicts
        if verdict.result
        for name in verdict.result.launches
        if name == RUN_ENTRY
    }
    return [_judge_timing(plan, entry, verdicts) for entry in entries]


def _judge_timing(plan: Plan, entry: str, verdicts: Sequence[DriveVerdict]) -> TimingOutcome:
    drives = [
        (verdict.text, verdict.name) for verdict in verdicts if verdict.result and not verdict.error
    ]
    try:
        stored = _timings(plan).find(timed_device(plan.info), entry)
        with tempfile.TemporaryDirectory(prefix="modeld-regress-frames-") as place:
            path = Path(place) / "frames.npz"
            write_frames(path, sample_frames(drives, plan.options, plan.model, plan.device, entry))
            baseline = None if plan.baseline is None else Side(plan.baseline, plan.baseline_tree)
            result = measure_timing(
                Measurement(Side(plan.model), baseline, entry, plan.device, path),
                stored,
                # They are kept with the reference.
                with_kernels=plan.reason is not None,
            )
    except (ToolError, RuntimeFault) as error:
        return TimingOutcome(entry, TimingVerdict(False, None, str(error)))
    return TimingOutcome(entry, judge_timing(result, stored), result, stored)


def _timings(plan: Plan) -> TimingReferences:
    return TimingReferences(
        plan.store.directory, model_hash(plan.artifact.manifest), device_class(plan.info)
    )


def _accept_timing(plan: Plan, timing: TimingOutcome, provenance: Mapping[str, str]) -> list[str]:
    """Write what was measured where there was nothing, or where it is another speed.

    What is within the limit leaves the reference as it is: accepted time and again, a program
    could become slower without end.
    """
    if timing.result is None:
        return []
    slower = timing.verdict.slower
    is_same = timing.verdict.passed and slower is not None and slower > -LIMIT
    if timing.reference is not None and is_same:
        return []
    references = _timings(plan)
    references.write(timing.entry, timing.result, provenance)
    what = "new" if timing.reference is None else f"accepted: {timing.verdict.text}"
    return [f"{references.path.name}: {timing.entry}: {what}"]

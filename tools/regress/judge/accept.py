"""Accepts what a regression found: writes references and times, with who, when and why."""

from __future__ import annotations

from collections.abc import Mapping

from tools.regress.job import JobResult
from tools.regress.judge.packing import unpack
from tools.regress.judge.reference import Reference, ReferenceStore, make_reference
from tools.regress.judge.verdict import DriveVerdict, failed
from tools.regress.time.timing import LIMIT, StoredTiming, TimingResult, TimingVerdict
from tools.regress.time.timing_reference import TimingReferences


def accept_drive(
    store: ReferenceStore,
    verdict: DriveVerdict,
    result: JobResult,
    provenance: Mapping[str, str],
) -> tuple[DriveVerdict, list[str]]:
    """Write a reference where it says something new.

    `store`: gets it. `result`: what becomes the reference. `provenance`: of this run. The result is
    the verdict, which passes where there was no reference to judge by, and a line about what was
    written.

    Raises:
        ToolError: it cannot be written.
    """
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


def accept_timing(
    references: TimingReferences,
    entry: str,
    judged: tuple[TimingVerdict, TimingResult | None, StoredTiming | None],
    provenance: Mapping[str, str],
) -> list[str]:
    """Write what was measured where there was nothing, or where it is another speed.

    What is within the limit leaves the reference as it is: accepted time and again, a program
    could become slower without end.

    `references`: get it. `entry`: of the program. `judged`: the verdict, what was measured, and
    what that was compared with. `provenance`: of this run. The result is a line about what was
    written.

    Raises:
        ToolError: it cannot be written.
    """
    verdict, result, reference = judged
    if result is None:
        return []
    slower = verdict.slower
    is_same = verdict.passed and slower is not None and slower > -LIMIT
    if reference is not None and is_same:
        return []
    references.write(entry, result, provenance)
    what = "new" if reference is None else f"accepted: {verdict.text}"
    return [f"{references.path.name}: {entry}: {what}"]

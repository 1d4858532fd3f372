"""Compares the result of a drive with its reference, and finds what changed.

Causes come before effects: a drive whose inputs changed is not a matter of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.texts import count_text
from tools.behaviour.difference import BehaviourVerdict, Sides, judge_behaviour
from tools.behaviour.gates import Gates
from tools.behaviour.quantities import Behaviour, behaviour_of, true_behaviour
from tools.behaviour.truth import Truth
from tools.compare.findings import Comparison, Finding, short_number
from tools.errors import CompareError, ToolError
from tools.playback.outcome import FrameTable
from tools.regress.job import JobResult, Launches
from tools.regress.judge.frame_changes import (
    Change,
    ChangeKind,
    frame_changes,
    input_changes,
    strict_changes,
)
from tools.regress.judge.packing import Packed, unpack
from tools.regress.judge.reference import Reference, ReferenceKey, key_of
from tools.regress.run_facts import STRICT, ProgramFacts

Status = Literal["passed", "changed", "failed"]
# What a program of another precision, target or compiler has by right; gates may stand in for it.
PROGRAM_KINDS: Final[tuple[ChangeKind, ...]] = ("weights", "launches")
# What the lane change machine makes of a model's own answers: with another model it may differ.
ANSWERED_INPUT: Final = "desire"

# Changes in the text of one drive; all of them are in the report and in the JSON.
SHOWN_CHANGES = 8


def _no_truth(_drive: str) -> Truth | None:
    return None


class Comparing(NamedTuple):
    """How logs are compared, for all drives of a run."""

    # Takes the Events of the reference, and the new ones.
    compare: Callable[[Sequence[bytes], Sequence[bytes]], Comparison]
    bit_exact: bool = False  # every bit of every message counts
    gates: Gates = Gates()  # on what changes do to the drive
    # The truth of a drive, by what the user called it; None where nobody knows it; raises
    # `CompareError`.
    truth_of: Callable[[str], Truth | None] = _no_truth
    # The reference is of another model, whose numbers are others by right.
    another_model: bool = False


class References(Protocol):
    """Where the reference of a drive comes from."""

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the reference for what was run.

        Raises:
            ToolError: there is none; says why.
        """


@dataclass(frozen=True, slots=True)
class DriveVerdict:
    """The verdict on one drive."""

    text: str  # what the user called the drive
    status: Status  # ``failed``: it could not be judged
    frames: int = 0  # that the daemon took
    identical: bool = False  # every message has the bits that the reference's had
    changes: tuple[Change, ...] = ()  # causes first; empty where it passed
    meant: tuple[Change, ...] = ()  # changes that gates stand in for, and do not fail
    # Of the messages, with what it does to the drive; None where it could not be judged.
    comparison: Comparison | None = None
    error: str = ""  # one line, where it failed
    exit_code: int = 0  # that belongs to it
    result: JobResult | None = field(default=None, repr=False)  # what came of the run
    reference: Reference | None = field(default=None, repr=False)  # what it was compared with
    another_model: bool = False

    @property
    def name(self) -> str:
        """What the drive calls itself, else what the user called it."""
        return self.result.drive.name if self.result and self.result.drive else self.text

    @property
    def summary(self) -> str:
        """One line."""
        if self.status == "failed":
            # The drive's name stands before it.
            return self.error.removeprefix(f"{self.name}: ")
        count = count_text(self.frames, "frame")
        if self.status == "changed":
            return f"{count}, {count_text(len(self.changes), 'change')}"
        text = f"{count}, {'identical' if self.identical else 'within tolerance'}"
        gates = self.behaviour.gates
        held = f"{count_text(len(gates), 'gate')} held" if gates else ""
        if self.another_model:
            return ", ".join(one for one in (f"{count}, another model", held) if one)
        if self.meant:
            return f"{count}, {held}, overriding {count_text(len(self.meant), 'change')}"
        return f"{text}, {held}" if held else text

    @property
    def behaviour(self) -> BehaviourVerdict:
        """What it does to the drive."""
        return self.comparison.behaviour if self.comparison else BehaviourVerdict()

    def to_json(self) -> dict[str, Any]:
        """Return plain values: all that is known, but pictures."""
        measured = self.result.measured if self.result else None
        return {
            "drive": self.text,
            "name": self.name,
            "status": self.status,
            "summary": self.summary,
            "frames": self.frames,
            "identical": self.identical,
            "error": self.error or None,
            "changes": [asdict(change) for change in self.changes],
            "meant": [asdict(change) for change in self.meant],
            "comparison": _comparison_json(self.comparison),
            "digest": self.result.digest if self.result else None,
            "reference": {
                "key": asdict(self.reference.key),
                "digest": self.reference.digest,
                "provenance": dict(self.reference.provenance),
            }
            if self.reference
            else None,
            "environment": dict(measured.environment) if measured else None,
            "wall_s": measured.wall_s if measured else None,
            "peak_rss_bytes": measured.peak_rss_bytes if measured else None,
        }


def _comparison_json(comparison: Comparison | None) -> dict[str, Any] | None:
    """Return all but the curves, which are for plots."""
    if comparison is None:
        return None
    return {
        "frames": comparison.frames,
        "skipped": comparison.skipped,
        "messages": comparison.messages,
        "findings": [asdict(finding) for finding in comparison.findings],
        "statistics": [asdict(statistics) for statistics in comparison.statistics],
        "warnings": list(comparison.warnings),
        "behaviour": comparison.behaviour.to_json(),
    }


def failed(text: str, error: str, exit_code: int, result: JobResult | None = None) -> DriveVerdict:
    """Return the verdict on a drive that cannot be judged."""
    return DriveVerdict(text, "failed", error=error, exit_code=exit_code, result=result)


def judge(text: str, result: JobResult, references: References, how: Comparing) -> DriveVerdict:
    """Return the verdict on one drive.

    `text`: what the user called it. `result`: what came of it. `references`: where its reference
    comes from. `how`: they are compared.
    """
    if result.error or result.drive is None:
        return failed(text, result.error, result.exit_code, result)
    try:
        reference = references.find(key_of(result), result.drive.name)
        before, now = unpack(reference.outputs), unpack(result.outputs)
        messages = messages_to_compare(before, now)
        sides, notes = _sides(text, result, before.messages, messages, how)
        comparison = how.compare(before.messages, messages)
    except ToolError as error:
        return failed(text, str(error), error.exit_code, result)
    behaviour = judge_behaviour(sides, how.gates)
    notes += comparison.warnings
    comparison = replace(comparison, behaviour=behaviour, warnings=notes, sides=sides)
    failing = comparison.failing
    outputs = output_changes(failing)
    stood_in = output_changes([one for one in comparison.findings if one not in failing])
    program = _program_changes(reference, result, how)
    changes = [
        *_causes(reference, result, before.frames, now.frames, how),
        *([] if behaviour.decide else program),
        *outputs,
        *gate_changes(behaviour),
        *(bit_changes(before, now) if how.bit_exact else ()),
    ]
    return DriveVerdict(
        text,
        "changed" if changes else "passed",
        frames=len(now.frames.frame_id),
        identical=before.services == now.services
        and bool(np.array_equal(before.digests, now.digests)),
        changes=tuple(changes),
        meant=(*(program if behaviour.decide else ()), *stood_in),
        comparison=comparison,
        result=result,
        reference=reference,
        another_model=how.another_model,
    )


def _sides(
    text: str, result: JobResult, before: Sequence[bytes], now: Sequence[bytes], how: Comparing
) -> tuple[Sides, list[str]]:
    """Return what both models wanted, and notes: a truth of no use costs the errors alone."""
    truth: Behaviour | None = None
    notes = []
    try:
        found = how.truth_of(text)
        truth = None if found is None else true_behaviour(found)
    except CompareError as error:
        notes.append(f"compared without the truth: {error}")
    left, right = (behaviour_of(messages, result.speeds_mps) for messages in (before, now))
    return Sides(left, right, truth), notes


def _program_changes(reference: Reference, result: JobResult, how: Comparing) -> list[Change]:
    """Return what differs about the programs; gates may stand in for it."""
    # With strict numerics the bytes of the results say all, on whatever device they were computed.
    if result.device_class == STRICT and not how.another_model:
        return []
    # Another model has other weights by right.
    weights = [] if how.another_model else weight_changes(reference.program, result.program)
    return [*weights, *launch_changes(reference.launches, result.launches)]


def _causes(
    reference: Reference, result: JobResult, before: FrameTable, now: FrameTable, how: Comparing
) -> list[Change]:
    """Return what was otherwise before the program ran, and bytes that a strict one has to give."""
    if how.another_model:
        is_same = reference.key.interface == result.interface
        before, now = (_with_shared_inputs(table, is_same) for table in (before, now))
    causes = [*input_changes(before, now), *frame_changes(before, now)]
    if before.driver is not None and now.driver is not None:
        driver = before.driver, now.driver
        causes += [
            replace(one, text=f"driver camera: {one.text}")
            for one in (*input_changes(*driver), *frame_changes(*driver))
        ]
    is_strict = result.device_class == STRICT and not how.another_model
    return [*causes, *(strict_changes(before, now) if is_strict else ())]


def _with_shared_inputs(table: FrameTable, is_same_interface: bool) -> FrameTable:
    """Return a table with the inputs that two models have to have alike."""
    crc = table.input_crc if is_same_interface else {}
    shared = {name: column for name, column in crc.items() if name != ANSWERED_INPUT}
    return replace(table, input_crc=shared)


def messages_to_compare(before: Packed, now: Packed) -> list[bytes]:
    """Return the new messages; in the place of those that did not change at all the old ones.

    Both sides are rounded alike unless the table of tolerances changed since: then the same value
    may be another number on each side, and the digests know better.
    """
    messages = list(now.messages)
    for index in range(min(len(before.messages), len(messages))):
        is_same = before.services[index] == now.services[index]
        if is_same and before.digests[index] == now.digests[index]:
            messages[index] = before.messages[index]
    return messages


def weight_changes(before: ProgramFacts, now: ProgramFacts) -> list[Change]:
    """Return which weights of the same kernels have other bytes.

    Other kernels may want their weights packed otherwise; then nothing is said.
    """
    if before.kernels != now.kernels:
        return []
    names = [name for name in now.weights if before.weights.get(name) != now.weights[name]]
    if not names:
        return []
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    return [Change("weights", f"weight {names[0]} is not the reference's{more}")]


def launch_changes(before: Mapping[str, Launches], now: Mapping[str, Launches]) -> list[Change]:
    """Return which entries of the program launch more, fewer or other numbers of kernels."""
    changes = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old != new:
            text = f"entry {name}: {_size(old)} before, {_size(new)} now"
            changes.append(Change("launches", text))
    return changes


def output_changes(findings: Sequence[Finding]) -> list[Change]:
    """Return findings of the comparison as changes, worst first."""
    changes = []
    for finding in findings:
        place = f"{finding.service}.{finding.field}" if finding.field else finding.service
        frames = count_text(finding.frames, "frame")
        if finding.kind in ("value", "nonfinite", "length", "type", "shift"):
            at = finding.worst_place or finding.field
            text = (
                f"{place}: {finding.kind} in {frames} from {finding.first_frame} on, worst at "
                f"frame {finding.worst_frame} {at}: {short_number(finding.left)} before, "
                f"{short_number(finding.right)} now ({finding.limit})"
            )
        else:
            text = f"{place}: {finding.kind} in {frames}, first at {finding.first_frame}"
        changes.append(Change("outputs", text, finding.frames, finding.first_frame))
    return changes


def gate_changes(behaviour: BehaviourVerdict) -> list[Change]:
    """Return the gates that do not hold, each with its quantity's worst frame."""
    frames = {row.quantity: row.spread.frame for row in behaviour.rows}
    changes = []
    for gate in behaviour.gates:
        if not gate.holds:
            named = [name for name in frames if gate.name.startswith(f"{name}_")]
            frame = frames[max(named, key=len)] if named else -1
            at = f" (largest difference in frame {frame})" if frame >= 0 else ""
            changes.append(Change("gate", f"gate failed: {gate.text}{at}", first_frame=frame))
    return changes


def bit_changes(before: Packed, now: Packed) -> list[Change]:
    """Return which services have messages whose bits are not those that the reference's had."""
    changes = []
    for service in sorted({*before.services, *now.services}):
        old, new = _digests_of(before, service), _digests_of(now, service)
        count = min(len(old), len(new))
        differs = old[:count] != new[:count]
        if differs.any():
            first = int(np.argmax(differs))
            text = (
                f"{service}: {int(differs.sum())} of {count_text(count, 'message')} differ in "
                f"their bits, from message {first} on"
            )
            changes.append(Change("bits", text, int(differs.sum()), first))
    return changes


def _digests_of(packed: Packed, service: str) -> NDArray[np.uint32]:
    return packed.digests[np.array([name == service for name in packed.services], np.bool_)]


def _size(size: Launches | None) -> str:
    if size is None:
        return "none"
    return f"{count_text(size.launches, 'launch')} of {size.kernels} kernels"

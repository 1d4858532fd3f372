"""Compares the result of a drive with its reference and lists the changes.

The changes are ordered from cause to effect: inputs, handling of frames, the program, its outputs,
and gates. A gate is a condition on a metric of the drive, such as the largest lateral offset. If a
drive's inputs changed, its kernels need no explanation.
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
# Changes that a different precision, target or compiler always causes; gates can override them.
PROGRAM_KINDS: Final[tuple[ChangeKind, ...]] = ("weights", "launches")
# An input computed from the model's own outputs, so another model can change it.
ANSWERED_INPUT: Final = "desire"

# Maximum number of changes in the text about one drive; report and JSON contain all.
SHOWN_CHANGES = 8


def _no_truth(_drive: str) -> Truth | None:
    return None


class Comparing(NamedTuple):
    """How logs are compared, for all drives of a run."""

    # Compares the reference's Events with the new ones.
    compare: Callable[[Sequence[bytes], Sequence[bytes]], Comparison]
    bit_exact: bool = False  # whether every bit of every message counts
    gates: Gates = Gates()  # gates on the effect on the drive
    # Ground truth of a drive, by the user's text for it; None if unknown. Raises `CompareError`.
    truth_of: Callable[[str], Truth | None] = _no_truth
    # Whether the reference is of another model, so that all numbers may differ.
    another_model: bool = False


class References(Protocol):
    """A source of references."""

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the reference with the given key.

        Raises:
            ToolError: there is no such reference; the message has the reason.
        """


@dataclass(frozen=True, slots=True)
class DriveVerdict:
    """The verdict on one drive."""

    text: str  # the drive as the user named it
    status: Status  # ``failed``: it could not be judged
    frames: int = 0  # number of frames that the daemon processed
    identical: bool = False  # whether every message has the same bits as in the reference
    changes: tuple[Change, ...] = ()  # changes, causes first; empty if it passed
    meant: tuple[Change, ...] = ()  # changes that gates override, so that they do not fail
    # Comparison of the messages, with the effect on the drive; None if it could not be judged.
    comparison: Comparison | None = None
    error: str = ""  # error in one line, if it failed
    exit_code: int = 0  # exit code of the error
    result: JobResult | None = field(default=None, repr=False)  # result of the run
    reference: Reference | None = field(default=None, repr=False)  # the reference used
    another_model: bool = False

    @property
    def name(self) -> str:
        """The drive's own name, or the user's text if it is unknown."""
        return self.result.drive.name if self.result and self.result.drive else self.text

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if self.status == "failed":
            # The caller prints the drive's name before it.
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
        """The effect on the drive."""
        return self.comparison.behaviour if self.comparison else BehaviourVerdict()

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain values, without pictures."""
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
    """Return the comparison without the curves, which are for plots."""
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

    `text`: the drive as the user named it. `result`: the result of its run. `references`: the
    source of its reference. `how`: how they are compared.
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
    overridden = output_changes([one for one in comparison.findings if one not in failing])
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
        meant=(*(program if behaviour.decide else ()), *overridden),
        comparison=comparison,
        result=result,
        reference=reference,
        another_model=how.another_model,
    )


def _sides(
    text: str, result: JobResult, before: Sequence[bytes], now: Sequence[bytes], how: Comparing
) -> tuple[Sides, list[str]]:
    """Return both behaviours with the truth, and notes; an unusable truth is only noted."""
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
    """Return the differences between the programs, which gates can override."""
    # With strict numerics the output bytes decide, and they are the same on every device.
    if result.device_class == STRICT and not how.another_model:
        return []
    # The weights of another model always differ.
    weights = [] if how.another_model else weight_changes(reference.program, result.program)
    return [*weights, *launch_changes(reference.launches, result.launches)]


def _causes(
    reference: Reference, result: JobResult, before: FrameTable, now: FrameTable, how: Comparing
) -> list[Change]:
    """Return differences in inputs and frames, and in the output bytes of strict programs."""
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
    """Return the table with only those inputs that two models must have in common."""
    crc = table.input_crc if is_same_interface else {}
    shared = {name: column for name, column in crc.items() if name != ANSWERED_INPUT}
    return replace(table, input_crc=shared)


def messages_to_compare(before: Packed, now: Packed) -> list[bytes]:
    """Return the new messages, replaced by the old ones if their exact content is equal.

    Both sides are rounded equally unless the table of tolerances has changed since. Then equal
    values can be rounded differently, but their digests are still equal.
    """
    messages = list(now.messages)
    for index in range(min(len(before.messages), len(messages))):
        is_same = before.services[index] == now.services[index]
        if is_same and before.digests[index] == now.digests[index]:
            messages[index] = before.messages[index]
    return messages


def weight_changes(before: ProgramFacts, now: ProgramFacts) -> list[Change]:
    """Return the weights of the same kernels that have different bytes.

    If the kernels differ, they can pack weights differently, so nothing is reported.
    """
    if before.kernels != now.kernels:
        return []
    names = [name for name in now.weights if before.weights.get(name) != now.weights[name]]
    if not names:
        return []
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    return [Change("weights", f"weight {names[0]} is not the reference's{more}")]


def launch_changes(before: Mapping[str, Launches], now: Mapping[str, Launches]) -> list[Change]:
    """Return the entries of the program whose number of launches or kernels differs."""
    changes = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old != new:
            text = f"entry {name}: {_size(old)} before, {_size(new)} now"
            changes.append(Change("launches", text))
    return changes


def output_changes(findings: Sequence[Finding]) -> list[Change]:
    """Return the findings of a comparison as changes, in the same order."""
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
    """Return the gates that fail, each with the worst frame of its quantity."""
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
    """Return the services with messages whose bits differ from the reference's."""
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

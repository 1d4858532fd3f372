"""Explains why a drive changed: checks inputs first, then states, then kernels in launch order.

The drive is played again with the judged artifact and the reference artifact on the same inputs.
The first frame whose results differ is repeated launch by launch from equal states, to find the
first kernel whose result differs, with its ONNX nodes. Given the ONNX models, the numpy interpreter
decides which of the two is right, or replaces a missing reference artifact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from runtime.format.manifest import BufferSpec
from runtime.texts import count_text
from scheduler.debug.kernel_table import KernelTable
from tools.drives.open_drive import DriveOptions
from tools.errors import ToolError
from tools.playback.model import LoadedModel, load_model
from tools.regress.explain.launch_values import (
    INTERPRETER_ROUNDING,
    ROUNDING,
    Difference,
    LaunchReader,
    Value,
    align,
    compare_arrays,
    difference,
    interpret,
)
from tools.regress.explain.lockstep import Case, play_until
from tools.regress.judge.frame_changes import Change
from tools.regress.judge.verdict import DriveVerdict
from tools.regress.run_facts import kernel_texts

Cause = Literal["input", "frames", "kernel", "after", "speed", "unknown"]

SHOWN_NODES: Final = 6
# A frame id beyond the end of every drive, and a limit that any difference exceeds.
NO_FRAME: Final = 1 << 62
ANY_BIT: Final = -1.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one drive's change."""

    drive: str
    # Location of the first difference: an input, the set of frames, a kernel, or after the program;
    # ``unknown`` if it was not found.
    cause: Cause
    lines: tuple[str, ...]  # the explanation for the user
    frame: int = -1  # id of the first affected frame, -1 if unknown
    kernel: str = ""  # name of the first kernel that differs; "" if none does
    nodes: tuple[str, ...] = ()  # ONNX nodes of this kernel
    largest: float = 0.0  # largest difference in its result

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExplainSources:
    """The artifacts and models for an explanation."""

    model: Path  # the judged artifact
    device: str | None = None  # OpenCL device to run on; None: the best
    baseline: Path | None = None  # the artifact that made the reference; None if not given
    # ONNX models from which the artifact was compiled; None if not given.
    onnx: tuple[Path, ...] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The first kernel whose result differs."""

    value: Value  # its result
    other: Value  # the result it was compared with
    apart: Difference  # the difference between them
    skipped: tuple[Value, ...]  # results of earlier launches that had no counterpart


def explain(verdict: DriveVerdict, options: DriveOptions, sources: ExplainSources) -> Explanation:
    """Explain why a drive changed.

    `verdict`: the verdict on the drive. `options`: options for opening it. `sources`: artifacts and
    models.

    Raises:
        ToolError: the drive, an artifact or a model cannot be used.
    """
    inputs = _of_kind(verdict.changes, "input")
    frames = _of_kind(verdict.changes, "frames")
    outputs = _of_kind(verdict.changes, "outputs")
    first = min((change.first_frame for change in (*outputs, *inputs, *frames)), default=-1)
    lines: list[str] = []
    cause: Cause = "unknown"
    if inputs and inputs[0].first_frame <= first:
        cause = "input"
        lines += [change.text for change in inputs if change.first_frame == inputs[0].first_frame]
    elif frames and frames[0].first_frame <= first:
        cause = "frames"
        lines.append(f"{frames[0].text}: the drive's reader or the daemon used different frames")
    else:
        lines.append("all inputs of the program equal the reference's, up to this frame")
    if sources.baseline is None and sources.onnx is None:
        artifact = verdict.reference.provenance.get("artifact", "") if verdict.reference else ""
        made = f" (the reference was made by artifact {artifact[:12]})" if artifact else ""
        lines.append(
            f"kernels were not compared: use --baseline ARTIFACT{made}, or give the models that "
            "were compiled with --onnx VISION.onnx POLICY.onnx ..."
        )
        return Explanation(verdict.name, cause, tuple(lines), first)
    with load_model(sources.model, sources.device) as ours:
        if sources.baseline is None:
            return _explain_with_interpreter(verdict, options, sources, ours, (cause, lines, first))
        with load_model(sources.baseline, sources.device) as theirs:
            lines += _other_baseline(verdict, theirs)
            # If no frame is known because only bits differ, stop at the first differing bit.
            stop = (first, ROUNDING) if first >= 0 else (NO_FRAME, ANY_BIT)
            case = play_until(verdict.text, options, ours, theirs.program, stop)
            if case is None:
                return Explanation(verdict.name, cause, (*lines, _missing_frame(first)), first)
            return _explain_with_baseline(
                verdict, sources, (ours, theirs), case, (cause, lines, first)
            )


def _of_kind(changes: Sequence[Change], *kinds: str) -> list[Change]:
    return [change for change in changes if change.kind in kinds and change.first_frame >= 0]


def _missing_frame(frame: int) -> str:
    if frame < 0:
        return "both artifacts give the same bits in all frames of this run"
    return f"frame {frame} does not occur in this run, so kernels were not compared"


def _other_baseline(verdict: DriveVerdict, theirs: LoadedModel) -> list[str]:
    made = verdict.reference.provenance.get("artifact", "") if verdict.reference else ""
    if not made or made == theirs.artifact.sha256:
        return []
    given = theirs.artifact.sha256[:12]
    return [f"note: the reference was made by artifact {made[:12]}, --baseline is {given}"]


def _explain_with_baseline(
    verdict: DriveVerdict,
    sources: ExplainSources,
    models: tuple[LoadedModel, LoadedModel],
    case: Case,
    before: tuple[Cause, list[str], int],
) -> Explanation:
    cause, lines, first = before
    if not case.parts:
        lines.append(
            f"given these inputs, both artifacts give the same bits up to frame "
            f"{case.frame_id}, so the kernels are not the cause"
        )
        if cause == "unknown":
            fields = ", ".join(_fields(verdict))
            lines.append(
                "the cause is after the program, in parsing or filtering outputs or in filling "
                f"messages: {fields}"
            )
            cause = "after"
        return Explanation(verdict.name, cause, tuple(lines), first)
    names = ", ".join(part.name for part in case.parts)
    lines.append(
        f"frame {case.frame_id}, {case.entry}: states are the same before it; after it differ "
        f"{names}"
    )
    ours, theirs = models
    readers = [LaunchReader(model.program, case.entry) for model in models]
    other = _run(readers[1], case)
    found = _first_difference(_run(readers[0], case), other, models, case.entry)
    if found is None:
        lines.append("no result that both artifacts have differs")
        return Explanation(verdict.name, cause, tuple(lines), case.frame_id)
    reason = _reason(found, ours, theirs, case, _suspects(found, readers[0].table))
    lines += _describe(found, len(readers[0].table.launches), reason)
    if sources.onnx is not None:
        lines.append(_interpreter_verdict(sources.onnx, ours, case, found))
    return _explanation_of(verdict, "kernel", lines, case, found)


def _explain_with_interpreter(
    verdict: DriveVerdict,
    options: DriveOptions,
    sources: ExplainSources,
    ours: LoadedModel,
    before: tuple[Cause, list[str], int],
) -> Explanation:
    cause, lines, first = before
    assert sources.onnx is not None
    case = play_until(verdict.text, options, ours, None, (max(first, 0), ROUNDING))
    if case is None:
        return Explanation(verdict.name, cause, (*lines, _missing_frame(first)), first)
    reader = LaunchReader(ours.program, case.entry)
    values = _run(reader, case)
    expected = interpret(sources.onnx, ours.artifact.manifest, case.entry, case.inputs, case.states)
    pairs = align(values, expected)
    skipped: list[Value] = []
    for value in values:
        other = pairs.get((value.launch, value.position))
        apart = difference(value, other) if other is not None else None
        if other is None or apart is None:
            skipped.append(value)
        elif apart.exceeds(INTERPRETER_ROUNDING):
            found = Found(value, other, apart, tuple(skipped))
            lines += _describe(found, len(reader.table.launches), "")
            return _explanation_of(verdict, "kernel", lines, case, found)
    alike = len(values) - len(skipped)
    lines.append(
        f"frame {case.frame_id}: {alike} of {count_text(len(values), 'result')} of kernels are "
        "equal to the numpy interpreter's, up to rounding"
        + (f"; {_skipped_text(skipped)}" if skipped else "")
    )
    if alike > len(values) // 2 and cause == "unknown":
        lines.append(
            "so this program computes its models correctly; the change is in the models, in the "
            "program's states before this frame, or after the program"
        )
    return Explanation(verdict.name, cause, tuple(lines), first)


def _run(reader: LaunchReader, case: Case) -> list[Value]:
    """Run the frame from the states that the judged program had before it."""
    reader.stepper.set_states(case.states)
    return [value for values in reader.run(case.inputs) for value in values]


def _first_difference(
    ours: Sequence[Value],
    theirs: Sequence[Value],
    models: tuple[LoadedModel, LoadedModel],
    entry: str,
) -> Found | None:
    """Return the first result with a real difference or changed weights, else any first one."""
    pairs = align(ours, theirs)
    skipped: list[Value] = []
    rounded: Found | None = None
    for value in ours:
        other = pairs.get((value.launch, value.position))
        apart = difference(value, other) if other is not None else None
        if other is None or apart is None:
            skipped.append(value)
            continue
        if not apart.elements:
            continue
        found = Found(value, other, apart, tuple(skipped))
        launches = value.launch, other.launch
        if apart.exceeds(ROUNDING) or _changed_weights(models, entry, launches):
            return found
        rounded = rounded or found
    return rounded


def _describe(found: Found, launches: int, reason: str) -> list[str]:
    value = found.value
    nodes = ", ".join(value.nodes[:SHOWN_NODES]) or "no ONNX node"
    more = len(value.nodes) - SHOWN_NODES
    lines = [
        f"first kernel that differs: {value.kernel}, launch {value.launch} of {launches}, nodes "
        f"{nodes}" + (f" and {more} more" if more > 0 else ""),
        found.apart.text,
    ]
    if set(found.other.nodes) != set(value.nodes):
        theirs = ", ".join(found.other.nodes[:SHOWN_NODES])
        lines.append(f"its nearest counterpart, with other kernel boundaries, covers {theirs}")
    if found.skipped:
        lines.append(_skipped_text(found.skipped))
    return [*lines, reason] if reason else lines


def _skipped_text(values: Sequence[Value]) -> str:
    shown = ", ".join(f"{value.kernel} ({', '.join(value.nodes[:2])})" for value in values[:3])
    more = f" and {len(values) - 3} more" if len(values) > 3 else ""
    return (
        f"{count_text(len(values), 'result')} before it without counterpart, not compared: "
        f"{shown}{more}"
    )


def _suspects(found: Found, table: KernelTable) -> list[Value]:
    """Return the results without counterpart that the differing kernel reads."""
    launch = table.launches[found.value.launch]
    producers = {table.values[index].producer for index in launch.reads}
    return [value for value in found.skipped if value.launch in producers]


def _reason(
    found: Found, ours: LoadedModel, theirs: LoadedModel, case: Case, suspects: Sequence[Value]
) -> str:
    value, other = found.value, found.other
    texts = [kernel_texts(model.artifact.manifest) for model in (ours, theirs)]
    if texts[0].get(value.kernel) != texts[1].get(other.kernel):
        return f"its source differs: {other.kernel} before, {value.kernel} now"
    launches = value.launch, other.launch
    changed = _changed_weights((ours, theirs), case.entry, launches)
    if changed:
        return f"its source is the same; its weights differ: {changed[0]}"
    if suspects:
        value = suspects[0]
        return (
            "its source and its weights are the same, but it reads a result without counterpart: "
            f"the change begins in {value.kernel}, launch {value.launch}, nodes "
            f"{', '.join(value.nodes[:SHOWN_NODES])}"
        )
    return (
        "its source and its weights are the same: its inputs differ by rounding, it runs in "
        "another place, or the driver compiles it differently (see --bisect)"
    )


def _changed_weights(
    models: tuple[LoadedModel, LoadedModel], entry: str, launches: tuple[int, int]
) -> list[str]:
    """Return one clause for each weight that differs between two launches of the same kernel."""
    import numpy as np

    sides = []
    for model, launch in zip(models, launches, strict=True):
        manifest = model.artifact.manifest
        spec = manifest.entry(entry)
        assert spec is not None
        kernel = manifest.kernels[spec.launches[launch]]
        weights = [manifest.buffers[i] for i in kernel.args if manifest.buffers[i].kind == "weight"]
        sides.append([(weight, _content(model, weight)) for weight in weights])
    if len(sides[0]) != len(sides[1]):
        return []
    found = []
    for (weight, one), (like, other) in zip(*sides, strict=True):
        if one == other or weight.dtype != like.dtype or len(one) != len(other):
            continue
        apart = compare_arrays(np.frombuffer(one, weight.dtype), np.frombuffer(other, like.dtype))
        found.append(f"{weight.name} {weight.dtype}{list(weight.shape)}, {apart.text}")
    return found


def _content(model: LoadedModel, spec: BufferSpec) -> bytes:
    return bytes(model.artifact.data[spec.offset : spec.offset + spec.payload_bytes])


def _interpreter_verdict(
    onnx: tuple[Path, ...], ours: LoadedModel, case: Case, found: Found
) -> str:
    """Return which of the two results agrees with the numpy interpreter, as a sentence."""
    try:
        expected = interpret(onnx, ours.artifact.manifest, case.entry, case.inputs, case.states)
    except ToolError as error:
        return f"the numpy interpreter was not used: {error}"
    key = found.value.launch, found.value.position
    right = align([found.value], expected).get(key)
    sides = [difference(one, right) for one in (found.value, found.other)] if right else []
    if not sides or None in sides:
        return "the numpy interpreter has no such result: its kernel boundaries differ"
    now, before = (side is not None and not side.exceeds(INTERPRETER_ROUNDING) for side in sides)
    agreement: Mapping[tuple[bool, bool], str] = {
        (True, True): "with both, up to rounding",
        (True, False): "with this artifact, not with the reference artifact",
        (False, True): "with the reference artifact, not with this one",
        (False, False): "with neither",
    }
    return f"the numpy interpreter agrees {agreement[now, before]}"


def _explanation_of(
    verdict: DriveVerdict, cause: Cause, lines: Sequence[str], case: Case, found: Found
) -> Explanation:
    value = found.value
    return Explanation(
        verdict.name,
        cause,
        tuple(lines),
        case.frame_id,
        value.kernel,
        value.nodes,
        found.apart.largest,
    )


def _fields(verdict: DriveVerdict) -> list[str]:
    findings = verdict.comparison.findings if verdict.comparison else ()
    return [f"{finding.service}.{finding.field}" for finding in findings[:4]]

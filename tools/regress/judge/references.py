"""References that a run is judged by: those of another model, those accepted, those to remove.

A retrained model has other numbers everywhere. `modeld regress --against` judges what it does to
the drives instead, by references of the other model: played just now, or kept by somebody who
accepted that one. Accepting writes references and times, with who, when and why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from runtime.files.user_file import read_given, whole_file
from runtime.format.artifact import Artifact
from tools.drives.open_drive import DriveOptions, open_drive
from tools.errors import ReferenceFormatError, RegressionReferenceError, ToolError
from tools.lib.json_output import json_text
from tools.playback.model import read_driving_artifact
from tools.regress.job import JobResult, single_drives
from tools.regress.judge.packing import unpack
from tools.regress.judge.reference import (
    SHORT,
    Reference,
    ReferenceKey,
    ReferenceStore,
    make_reference,
)
from tools.regress.judge.verdict import DriveVerdict, failed
from tools.regress.time.timing import (
    LIMIT,
    Interval,
    LaunchTime,
    StoredTiming,
    TimingResult,
    TimingVerdict,
)

# 1 held no frames and no launches: what it measured were random inputs.
TIMING_FORMAT: Final = 2
TIMING_ENDING: Final = ".timing.json"
MAX_TIMING_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Against:
    """The other model."""

    path: Path  # its artifact, or a directory of its references
    artifact: Artifact | None = None  # the checked artifact; None for a directory


def read_against(path: Path) -> Against:
    """Return what a user named.

    Raises:
        ToolError, RuntimeFault: it is no driving artifact, and no directory.
    """
    return Against(path) if path.is_dir() else Against(path, read_driving_artifact(path))


def against_directory(path: Path) -> Path:
    """Return the directory of references, or where the artifact lies."""
    return path if path.is_dir() else path.parent


class PlayedReference:
    """The reference of one drive that the other model played just now.

    `result`: what came of it. `name`: of the other model, for messages. `provenance`: of this run.
    """

    def __init__(self, result: JobResult, name: str, provenance: Mapping[str, str]) -> None:
        self._result, self._name, self._provenance = result, name, provenance

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the reference.

        Raises:
            RegressionReferenceError: the other model could not play the drive, or another one.
        """
        if self._result.error:
            raise RegressionReferenceError(f"by {self._name}: {self._result.error}")
        reference = make_reference(self._result, self._provenance)
        if reference.key.drive != key.drive:
            raise RegressionReferenceError(
                f"{drive_name}: expected the same drive for both models, found that it was changed "
                "while they played it; run again"
            )
        return reference


class KeptReferences:
    """References of one other model in a directory."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the only reference of a drive that is of another model, on the same devices.

        Raises:
            ToolError: there is none, or there are several.
        """
        found = [
            one
            for one in self._store.of_drive(key.drive)
            if one.key.model != key.model and one.key.device_class == key.device_class
        ]
        if len(found) == 1:
            return found[0]
        place = f"{drive_name}: expected one reference of another model in {self._store.directory}"
        if found:
            names = ", ".join(one.file_name for one in found)
            raise RegressionReferenceError(
                f"{place}, found {len(found)} ({names}); remove those that nobody uses, or name "
                "the other model's artifact: --against OLD.pkl"
            )
        raise RegressionReferenceError(
            f"{place} for this drive and {key.device_class}, found none; name the other model's "
            "artifact: --against OLD.pkl"
        )


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


class TimingReferences:
    """The timing gate's measurements of one model on one class of devices, as they were accepted.

    Times belong to a program and a device, not to a drive: one JSON file beside the drives' holds
    one measurement for each device and entry, since a ratio holds for one device only.

    `directory`: of the references. `model`: hash of the models. `device_class`: see
    `tools.regress.run_facts.device_class`.

    Raises:
        ReferenceFormatError: the file is damaged or of another format.
    """

    def __init__(self, directory: Path, model: str, device_class: str) -> None:
        self.path = directory / f"{model[:SHORT]}.{device_class}{TIMING_ENDING}"
        self._model, self._device_class = model, device_class
        self._found: dict[str, dict[str, Any]] = self._read()

    def find(self, device: str, entry: str) -> StoredTiming | None:
        """Return what was measured on a device, None where nothing was."""
        kept = self._found.get(device, {}).get(entry)
        if kept is None:
            return None
        try:
            read = {
                "ratio": _interval(kept["ratio"]),
                "frames": {name: _interval(value) for name, value in kept["frames"].items()},
                "launches": tuple(
                    LaunchTime(str(kernel), tuple(nodes), float(ratio))
                    for kernel, nodes, ratio in kept["launches"]
                ),
            }
            return StoredTiming(**{**kept, **read})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from error

    def devices(self) -> list[str]:
        """Return the devices that something was measured on."""
        return sorted(self._found)

    def write(self, entry: str, result: TimingResult, provenance: Mapping[str, str]) -> None:
        """Keep a measurement beside those of other devices and entries; the file stays whole.

        Raises:
            ToolError: it cannot be written.
        """
        stored = StoredTiming(
            result.ratio,
            result.clock,
            result.model_ms,
            result.waiting,
            dict(provenance),
            {frame.name: frame.ratio for frame in result.frames},
            result.kernels.launches if result.kernels is not None else (),
        )
        self._found.setdefault(result.device, {})[entry] = asdict(stored)
        content = {
            "format": TIMING_FORMAT,
            "model": self._model,
            "device_class": self._device_class,
            "devices": self._found,
        }
        text = json_text(content, indent=1) + "\n"
        try:
            with whole_file(self.path) as file:
                file.write(text.encode())
        except OSError as error:
            raise ToolError(
                f"{self.path}: the timing reference cannot be written: {error.strerror or error}; "
                "what was there before is as it was"
            ) from error

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(read_given(self.path, MAX_TIMING_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from error
        if not isinstance(content, dict) or not isinstance(content.get("devices"), dict):
            raise self._damaged("no object with devices")
        if content.get("format") != TIMING_FORMAT:
            raise ReferenceFormatError(
                f"{self.path}: expected timings of format {TIMING_FORMAT}, found "
                f"{content.get('format')!r}; delete it and rewrite it with --update"
            )
        devices: dict[str, dict[str, Any]] = content["devices"]
        return devices

    def _damaged(self, how: str) -> ReferenceFormatError:
        return ReferenceFormatError(
            f"{self.path}: expected timings of references, found {how}; get it again from the "
            "repository, or delete it and rewrite it with --update"
        )


def _interval(kept: Mapping[str, Any]) -> Interval:
    return Interval(**{**kept, "samples": tuple(kept["samples"])})


def unused_references(
    store: ReferenceStore, texts: Sequence[str], options: DriveOptions, models: Sequence[str]
) -> list[Path]:
    """Return the files that no regression of these drives and models reads.

    References of other devices and interfaces stay: another machine may read them. What is no
    reference, and what is damaged, stays too.

    `store`: the directory. `texts`: all drives that are judged by it, as the user named them.
    `options`: how they are opened. `models`: hashes of all models that are judged by it.

    Raises:
        ToolError: a drive cannot be opened; then nobody knows which reference is its own.
    """
    identities = set()
    for text, error in single_drives(texts, options):
        if error is not None:
            raise error
        drive = open_drive(text, options)
        identities.add(drive.info.identity)
        drive.close()
    unused = [
        path
        for path, reference in store.files()
        if reference.key.drive not in identities or reference.key.model not in models
    ]
    short = {model[:SHORT] for model in models}
    times = sorted(store.directory.glob(f"*{TIMING_ENDING}"))
    return unused + [path for path in times if path.name.split(".")[0] not in short]


def remove(paths: Sequence[Path]) -> None:
    """Remove files.

    Raises:
        ToolError: one cannot be removed; those before it are.
    """
    for path in paths:
        try:
            path.unlink()
        except OSError as error:
            raise ToolError(f"{path}: cannot be removed: {error.strerror}") from error

"""Finds references of another model, accepts new references, and lists unused ones.

A retrained model has different numbers everywhere. `modeld regress --against` judges its effect on
the drives instead. It uses the other model's references, either from playing the drives now or from
a directory. Accepting a result writes references and times, with author, date and reason.
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

# Format 1 had no frames and no launches; its times were measured on random inputs.
TIMING_FORMAT: Final = 2
TIMING_ENDING: Final = ".timing.json"
MAX_TIMING_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Against:
    """The other model of `--against`."""

    path: Path  # its artifact, or a directory of its references
    artifact: Artifact | None = None  # the checked artifact; None for a directory


def read_against(path: Path) -> Against:
    """Return the other model that the user named.

    Raises:
        ToolError, RuntimeFault: the path is neither a driving artifact nor a directory.
    """
    return Against(path) if path.is_dir() else Against(path, read_driving_artifact(path))


def against_directory(path: Path) -> Path:
    """Return the directory of references, or the one that contains the artifact."""
    return path if path.is_dir() else path.parent


class PlayedReference:
    """The reference of one drive, as the other model has just played it.

    `result`: the result of that run. `name`: the other model, for messages. `provenance`: of this
    run.
    """

    def __init__(self, result: JobResult, name: str, provenance: Mapping[str, str]) -> None:
        self._result, self._name, self._provenance = result, name, provenance

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the reference.

        Raises:
            RegressionReferenceError: the other model could not play the drive, or the drive changed
                meanwhile.
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
    """The references of one other model in a directory."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the only reference of a drive by another model, on the same device class.

        Raises:
            ToolError: there is no such reference, or there are several.
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
                f"{place}, found {len(found)} ({names}); remove unused ones, or name "
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
    """Write a reference for a result that differs from the stored one.

    `store`: the directory. `verdict`: the verdict on the drive. `result`: the new reference.
    `provenance`: provenance of this run. Return the verdict, which passes if there was no reference
    before, and a line about the file written.

    Raises:
        ToolError: the file cannot be written.
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
        # The failure was a missing reference, which now exists.
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
    """Return a note on references of the same drive by other models, or an empty string."""
    stale = [
        other.file_name
        for other in store.of_drive(reference.key.drive)
        if other.key.model != reference.key.model
    ]
    return f"; references of other models remain: {', '.join(stale)}" if stale else ""


def accept_timing(
    references: TimingReferences,
    entry: str,
    judged: tuple[TimingVerdict, TimingResult | None, StoredTiming | None],
    provenance: Mapping[str, str],
) -> list[str]:
    """Store a time if there is none yet or if the speed has changed.

    A time within the limit leaves the reference unchanged. Otherwise repeated acceptance could make
    a program slower without end.

    `references`: the stored times. `entry`: entry of the program. `judged`: the verdict, the
    measurement, and the reference it was compared with. `provenance`: provenance of this run.
    Return a line about the file written.

    Raises:
        ToolError: the file cannot be written.
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
    """The accepted measurements of the timing gate, for one model and device class.

    Times belong to a program and a device, not to a drive. One JSON file in the directory of
    references has one measurement per device and entry, since a ratio is valid on one device only.

    `directory`: directory of the references. `model`: hash of the models. `device_class`: see
    `tools.regress.run_facts.device_class`.

    Raises:
        ReferenceFormatError: the file is damaged or has another format.
    """

    def __init__(self, directory: Path, model: str, device_class: str) -> None:
        self.path = directory / f"{model[:SHORT]}.{device_class}{TIMING_ENDING}"
        self._model, self._device_class = model, device_class
        self._found: dict[str, dict[str, Any]] = self._read()

    def find(self, device: str, entry: str) -> StoredTiming | None:
        """Return the stored measurement of a device and entry, or None."""
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
        """Return the devices that have measurements."""
        return sorted(self._found)

    def write(self, entry: str, result: TimingResult, provenance: Mapping[str, str]) -> None:
        """Store a measurement, keeping those of other devices and entries; the write is atomic.

        Raises:
            ToolError: the file cannot be written.
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
                "the previous file is unchanged"
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

    References of other devices and interfaces are not unused, since another machine may read them.
    Other files and damaged ones are ignored.

    `store`: the directory. `texts`: all drives that are judged by it, as the user named them.
    `options`: options for opening them. `models`: hashes of all models that are judged by it.

    Raises:
        ToolError: a drive cannot be opened, so its reference is unknown.
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
        ToolError: a file cannot be removed; earlier ones are removed already.
    """
    for path in paths:
        try:
            path.unlink()
        except OSError as error:
            raise ToolError(f"{path}: cannot be removed: {error.strerror}") from error

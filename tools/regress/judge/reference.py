"""Reference files: the messages of a drive as they were when somebody accepted them.

One file for each drive, model and class of devices, format in docs/formats/regression-reference.md.
A directory of them is meant to be part of a repository.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from runtime.files.user_file import read_given, whole_file
from tools.errors import ReferenceFormatError, RegressionReferenceError, ToolError
from tools.lib.json_output import json_text
from tools.regress.job import DriveName, JobResult, Launches
from tools.regress.run_facts import ProgramFacts

FORMAT: Final = 1
MAGIC: Final = b"modeld-regression-reference\n"
ENDING: Final = ".reference"
# Digits of hashes in names of files: enough to tell apart, short enough to read.
SHORT: Final = 12
# Bins of the histogram of execution times.
BINS: Final = 48
# More than two hours, at 1.4 KiB a frame.
MAX_BYTES: Final = 256 << 20
_LENGTHS: Final = struct.Struct("<II")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReferenceKey:
    """What a reference is of."""

    drive: str  # identity of the drive
    model: str  # hash of the ONNX models
    device_class: str  # see `environment.reference_class`
    interface: str  # of the model


@dataclass(frozen=True, slots=True)
class Histogram:
    """Execution times of the frames."""

    start_ms: float  # left edge of the first bin
    step_ms: float  # width of a bin
    counts: tuple[int, ...]  # frames in each; the last one also has all beyond
    median_ms: float  # of the frames


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference."""

    key: ReferenceKey
    drive: DriveName  # the drive, for people
    digest: str  # sha256 of what `outputs` holds
    launches: Mapping[str, Launches]  # entry -> its size
    program: ProgramFacts  # digests of its kernels and weights
    execution: Histogram  # execution times when it was made; for people, nothing is judged by them
    provenance: Mapping[str, str]  # date, commit, command, reason, who accepted it, environment
    outputs: bytes  # messages and frame table, see `packing.unpack`

    @property
    def file_name(self) -> str:
        """Name of its file: the same for the same key."""
        return file_name(self.key, self.drive.name)


def key_of(result: JobResult) -> ReferenceKey:
    """Return the key under which a result is compared and kept."""
    assert result.drive is not None
    return ReferenceKey(result.drive.identity, result.model, result.device_class, result.interface)


def file_name(key: ReferenceKey, drive_name: str) -> str:
    """Return the name of a reference's file."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", drive_name).strip("-")[-40:].strip("-") or "drive"
    return readable + _key_part(key)


def _key_part(key: ReferenceKey) -> str:
    return f".{key.drive[:SHORT]}.{key.model[:SHORT]}.{key.device_class}{ENDING}"


def make_reference(result: JobResult, provenance: Mapping[str, str]) -> Reference:
    """Return the reference that a result would become."""
    assert result.drive is not None
    return Reference(
        key=key_of(result),
        drive=result.drive,
        digest=result.digest,
        launches=result.launches,
        program=result.program,
        execution=histogram(result.measured.execution_s),
        provenance=dict(provenance),
        outputs=result.outputs,
    )


def histogram(execution_s: tuple[float, ...]) -> Histogram:
    """Return the histogram of the frames in which the model ran."""
    times = sorted(1e3 * value for value in execution_s if value > 0.0)
    if not times:
        return Histogram(0.0, 1.0, (), 0.0)
    low, high = times[0], times[min(len(times) - 1, int(0.995 * len(times)))]
    step = round(max((high - low) / (BINS - 1), 0.01), 4)
    counts = [0] * BINS
    for value in times:
        counts[min(BINS - 1, int((value - low) / step))] += 1
    return Histogram(round(low, 3), step, tuple(counts), round(times[len(times) // 2], 3))


def to_bytes(reference: Reference) -> bytes:
    """Return the file's content."""
    header = {
        "format": FORMAT,
        "key": asdict(reference.key),
        "drive": asdict(reference.drive),
        "digest": reference.digest,
        "launches": {name: asdict(size) for name, size in reference.launches.items()},
        "program": asdict(reference.program),
        "execution": asdict(reference.execution),
        "provenance": dict(reference.provenance),
    }
    text = json_text(header, indent=1).encode()
    content = MAGIC + _LENGTHS.pack(len(text), len(reference.outputs)) + text + reference.outputs
    return content + hashlib.sha256(content).digest()


def from_bytes(data: bytes, path: Path) -> Reference:
    """Return what `to_bytes` was given.

    `data`: content of a file. `path`: of it, for messages.

    Raises:
        ReferenceFormatError: it is no reference, damaged, or of another format.
    """
    start = len(MAGIC) + _LENGTHS.size
    if not data.startswith(MAGIC):
        raise ReferenceFormatError(
            f"{path}: expected a regression reference, found something else; rewrite it with "
            "--update"
        )
    if len(data) < start:
        raise _damaged(path, f"it ends after {len(data)} bytes")
    header_bytes, output_bytes = _LENGTHS.unpack_from(data, len(MAGIC))
    end = start + header_bytes + output_bytes
    header = _header(data[start : start + header_bytes], path)
    if len(data) != end + 32:
        raise _damaged(path, f"it has {len(data)} bytes instead of {end + 32}")
    if hashlib.sha256(data[:end]).digest() != data[end:]:
        raise _damaged(path, "its digest does not match")
    try:
        return Reference(
            key=_made(ReferenceKey, header["key"]),
            drive=_made(DriveName, header["drive"]),
            digest=str(header["digest"]),
            launches={
                str(name): _made(Launches, size) for name, size in header["launches"].items()
            },
            program=_made(ProgramFacts, header["program"]),
            execution=_made(Histogram, header["execution"]),
            provenance={str(name): str(text) for name, text in header["provenance"].items()},
            outputs=data[start + header_bytes : end],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _header(text: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is no JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    if header.get("format") != FORMAT:
        raise ReferenceFormatError(
            f"{path}: expected a reference of format {FORMAT}, found format "
            f"{header.get('format')!r}; rewrite it with --update"
        )
    return header


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return a dataclass of plain values; lists of JSON become tuples again."""
    return kind(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
    )


def _damaged(path: Path, how: str) -> ReferenceFormatError:
    return ReferenceFormatError(
        f"{path}: expected a whole reference, found that {how}; it is damaged: get it again from "
        "the repository, or rewrite it with --update"
    )


class ReferenceStore:
    """A directory of references.

    `directory`: where they are; may be missing as long as nothing is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the reference of a key.

        `key`: of what was run. `drive_name`: for messages.

        Raises:
            RegressionReferenceError: there is none; says which part of the key differs from what
                there is. Or it is damaged.
        """
        path = self._path(key)
        if path is None:
            raise RegressionReferenceError(_explain(key, drive_name, self.all(), self.directory))
        try:
            data = read_given(path, MAX_BYTES)
        except OSError as error:
            raise RegressionReferenceError(
                f"{path}: expected a readable reference, found: {error.strerror}"
            ) from error
        reference = from_bytes(data, path)
        if reference.key != key:
            raise RegressionReferenceError(_explain(key, drive_name, [reference], self.directory))
        return reference

    def all(self) -> list[Reference]:
        """Return the references of the directory that can be read, by name of the file."""
        return [reference for _, reference in self.files()]

    def files(self, pattern: str = f"*{ENDING}") -> list[tuple[Path, Reference]]:
        """Return them with their files."""
        found = []
        for path in sorted(self.directory.glob(pattern)):
            with contextlib.suppress(OSError, ReferenceFormatError):
                found.append((path, from_bytes(read_given(path, MAX_BYTES), path)))
        return found

    def of_drive(self, identity: str) -> list[Reference]:
        """Return those of one drive, of any model and device."""
        found = self.files(f"*.{identity[:SHORT]}.*{ENDING}")
        return [reference for _, reference in found if reference.key.drive == identity]

    def write(self, reference: Reference) -> Path:
        """Write a reference in the place of that with its key; whole, or not at all.

        Raises:
            ToolError: it cannot be written.
        """
        path = self._path(reference.key) or self.directory / reference.file_name
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(to_bytes(reference))
        except OSError as error:
            raise ToolError(
                f"{path}: the reference cannot be written: {error.strerror or error}; what was "
                "there before is as it was"
            ) from error
        return path

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory alone for writing.

        Raises:
            ToolError: another run holds it, or it cannot be made.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ToolError(
                f"{self.directory}: expected a directory for references, found: {error.strerror}"
            ) from error
        try:
            try:
                # On the directory itself: no file is left behind in a repository.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ToolError(
                    f"{self.directory}: expected to write references alone, found another run "
                    "that writes here; wait for it"
                ) from error
            yield
        finally:
            os.close(descriptor)

    def _path(self, key: ReferenceKey) -> Path | None:
        """Return the file of a key, whatever the drive was called when it was written."""
        return next(iter(sorted(self.directory.glob(f"*{_key_part(key)}"))), None)


def _explain(key: ReferenceKey, drive_name: str, found: list[Reference], directory: Path) -> str:
    """Return which part of the key differs from the nearest reference, and what there is."""
    advice = "write a first one with: --update --reason TEXT"
    if not found:
        return f"{drive_name}: expected a reference in {directory}, found none at all; {advice}"

    def differences(other: Reference) -> list[str]:
        return [
            item.name
            for item in fields(key)
            if getattr(key, item.name) != getattr(other.key, item.name)
        ]

    def distance(other: Reference) -> tuple[bool, int]:
        is_same_drive = other.key.drive == key.drive or other.drive.name == drive_name
        return not is_same_drive, len(differences(other))

    nearest = min(found, key=distance)
    if distance(nearest)[0]:
        names = ", ".join(sorted({reference.drive.name for reference in found})[:4])
        return (
            f"{drive_name}: expected a reference of this drive in {directory}, found "
            f"{len(found)} of others ({names}); {advice}"
        )
    if not differences(nearest):
        return (
            f"{drive_name}: expected its reference in {directory} under its own name, found it in "
            f"another file; rename that to {file_name(key, nearest.drive.name)}"
        )
    if "model" in differences(nearest):
        advice = "judge one model against the other with: --against OLD.pkl"
    else:
        advice = f"if it is meant to be another one, {advice}"
    parts = []
    for name in differences(nearest):
        theirs, ours = (_short(getattr(one, name)) for one in (nearest.key, key))
        parts.append(f"{_WHAT[name]} {theirs} instead of {ours}")
    return (
        f"{drive_name}: expected a reference with the same key in {directory}, found one with "
        f"{' and '.join(parts)}; {advice}"
    )


_WHAT: Final = {
    "drive": "another content of the drive,",
    "model": "another model,",
    "device_class": "another class of devices,",
    "interface": "another interface,",
}


def _short(value: str) -> str:
    return value[:SHORT] if re.fullmatch(r"[0-9a-f]{64}", value) else value

"""Reads and writes reference files: the messages of a drive as a maintainer accepted them.

There is one file per drive, model and device class; docs/formats/regression-reference.md has the
format. A directory of references is usually committed to a repository.
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
# Hash digits in file names: unique enough, and short enough to read.
SHORT: Final = 12
# Bins of the histogram of execution times.
BINS: Final = 48
# Maximum size of a file to read: more than two hours of driving, at 1.4 KiB per frame.
MAX_BYTES: Final = 256 << 20
_LENGTHS: Final = struct.Struct("<II")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReferenceKey:
    """The key of a reference; results are compared with the reference of the same key."""

    drive: str  # identity of the drive
    model: str  # hash of the ONNX models
    device_class: str  # see `run_facts.reference_class`
    interface: str  # interface of the model


@dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of the frames' execution times."""

    start_ms: float  # left edge of the first bin
    step_ms: float  # width of a bin
    counts: tuple[int, ...]  # number of frames per bin; the last bin has no upper limit
    median_ms: float  # median of the frames


@dataclass(frozen=True, slots=True)
class Reference:
    """The contents of one reference file."""

    key: ReferenceKey
    drive: DriveName  # the drive, for the user
    digest: str  # sha256 of the content of `outputs`
    launches: Mapping[str, Launches]  # entry -> its size
    program: ProgramFacts  # digests of the program's kernels and weights
    execution: Histogram  # execution times of the run, for information only
    provenance: Mapping[str, str]  # date, commit, command, reason, author, environment
    outputs: bytes  # messages and frame table, see `packing.unpack`

    @property
    def file_name(self) -> str:
        """The file name, which depends on key and drive name."""
        return file_name(self.key, self.drive.name)


def key_of(result: JobResult) -> ReferenceKey:
    """Return the key under which a result is compared and stored."""
    assert result.drive is not None
    return ReferenceKey(result.drive.identity, result.model, result.device_class, result.interface)


def file_name(key: ReferenceKey, drive_name: str) -> str:
    """Return the name of a reference's file."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", drive_name).strip("-")[-40:].strip("-") or "drive"
    return readable + _key_part(key)


def _key_part(key: ReferenceKey) -> str:
    return f".{key.drive[:SHORT]}.{key.model[:SHORT]}.{key.device_class}{ENDING}"


def make_reference(result: JobResult, provenance: Mapping[str, str]) -> Reference:
    """Return a result as a reference."""
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
    """Parse the content of a reference file; the inverse of `to_bytes`.

    `data`: content of the file. `path`: path of the file, for messages.

    Raises:
        ReferenceFormatError: the data is not a reference, is damaged, or has another format.
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
        raise _damaged(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    if header.get("format") != FORMAT:
        raise ReferenceFormatError(
            f"{path}: expected a reference of format {FORMAT}, found format "
            f"{header.get('format')!r}; rewrite it with --update"
        )
    return header


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return a dataclass from plain values; JSON lists become tuples."""
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

    `directory`: its path; it can be missing until a reference is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the reference of a key.

        `key`: key of the result. `drive_name`: display name, for messages.

        Raises:
            RegressionReferenceError: there is no such reference, or it is damaged. The message
                has the nearest reference and the parts of the key that differ.
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
        """Return all readable references in the directory, by file name."""
        return [reference for _, reference in self.files()]

    def files(self, pattern: str = f"*{ENDING}") -> list[tuple[Path, Reference]]:
        """Return the readable references with their paths."""
        found = []
        for path in sorted(self.directory.glob(pattern)):
            with contextlib.suppress(OSError, ReferenceFormatError):
                found.append((path, from_bytes(read_given(path, MAX_BYTES), path)))
        return found

    def of_drive(self, identity: str) -> list[Reference]:
        """Return the references of one drive, for any model and device."""
        found = self.files(f"*.{identity[:SHORT]}.*{ENDING}")
        return [reference for _, reference in found if reference.key.drive == identity]

    def write(self, reference: Reference) -> Path:
        """Write a reference atomically, replacing the one with the same key.

        Raises:
            ToolError: the file cannot be written.
        """
        path = self._path(reference.key) or self.directory / reference.file_name
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(to_bytes(reference))
        except OSError as error:
            raise ToolError(
                f"{path}: the reference cannot be written: {error.strerror or error}; "
                "the previous file is unchanged"
            ) from error
        return path

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory for writing by this process only.

        Raises:
            ToolError: another run has locked it, or it cannot be created.
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
                # The lock is on the directory itself, so no lock file remains in a repository.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ToolError(
                    f"{self.directory}: expected exclusive access, found another run "
                    "that writes here; wait for it"
                ) from error
            yield
        finally:
            os.close(descriptor)

    def _path(self, key: ReferenceKey) -> Path | None:
        """Return the file of a key, for any drive name."""
        return next(iter(sorted(self.directory.glob(f"*{_key_part(key)}"))), None)


def _explain(key: ReferenceKey, drive_name: str, found: list[Reference], directory: Path) -> str:
    """Return a message with the nearest reference and the parts of the key that differ."""
    advice = "write a first one with: --update --reason TEXT"
    if not found:
        return f"{drive_name}: expected a reference in {directory}, found none; {advice}"

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
        advice = f"if the difference is intended, {advice}"
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

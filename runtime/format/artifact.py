"""Reads and writes artifact files, the compiler's output and the runtime's input.

Layout: a protocol 5 pickle of plain data (the manifest), zeros up to the next page, then the data
(weights and reset values). A file is read completely into private memory and checked there, so
later changes of the file have no effect. docs/formats/artifact.md describes the format. This module
uses no device and does not import pyopencl.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtime.errors import ArtifactError
from runtime.files.user_file import FileChangedError, PrivateCopy, whole_file
from runtime.format.manifest import FORMAT, MAX_BYTES, Manifest, check_identity, parse_manifest
from runtime.format.plainpickle import PlainPickleError, decode, encode

PAGE: Final = 4096
MAX_HEADER_BYTES: Final = 64 << 20
# Most manifests are shorter (2 MB for the driving models). Longer ones are read in a second step.
_USUAL_HEADER_BYTES: Final = 4 << 20
_ZERO_DIGEST: Final = "0" * 64
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class Digests(NamedTuple):
    """The sha256 digests of an artifact, in hexadecimal."""

    artifact: str  # digest of the manifest, which contains the data's digest; identifies the file
    program: str  # see `program_digest`; the same for all files with this program


@dataclass(frozen=True, slots=True)
class Artifact:
    """A checked artifact. It keeps the memory of `data` alive."""

    manifest: Manifest
    data: memoryview  # read-only bytes: weights and reset values, page-aligned in the file
    path: Path | None  # None if it was made in memory; it then has no digests
    sha256: str  # digest of the manifest, which contains the digest of the data
    program_sha256: str  # see `program_digest`


def write_artifact(
    path: str | os.PathLike[str], manifest: Mapping[str, Any], data: bytes | memoryview
) -> Digests:
    """Write an artifact atomically and return its digests.

    The file replaces an existing one, and appears complete or not at all. A symbolic link is
    followed. The manifest (docs/formats/artifact.md) consists of builtin types; its `sha256` and
    `data_size` are replaced. `data` holds weights and reset values, and every offset in the
    manifest is relative to its start.

    Raises:
        ArtifactError: the manifest is not valid (nothing is written), the target is not a regular
            file, or it cannot be written.
    """
    target = Path(path)
    header, digests = _encode_header(manifest, data)
    padding = b"\0" * (-len(header) % PAGE)
    try:
        with whole_file(target) as file:
            file.write(header + padding)
            file.write(data)
    except OSError as error:
        raise ArtifactError(f"{target}: cannot write: {error.strerror or error}") from error
    return digests


def _encode_header(manifest: Mapping[str, Any], data: bytes | memoryview) -> tuple[bytes, Digests]:
    size = memoryview(data).nbytes
    known = {"manifest": _ZERO_DIGEST, "data": hashlib.sha256(data).hexdigest()}
    parse_manifest(_with_digests(manifest, known, size))
    try:
        known["program"] = program_digest(_with_digests(manifest, known, size))
        unsigned = encode(_with_digests(manifest, known, size))
        digest = hashlib.sha256(unsigned).hexdigest()
        header = encode(_with_digests(manifest, {**known, "manifest": digest}, size))
    except PlainPickleError as error:
        raise ArtifactError(str(error)) from error
    if len(header) > MAX_HEADER_BYTES:
        raise ArtifactError(
            f"the manifest takes {len(header)} bytes, at most {MAX_HEADER_BYTES} allowed"
        )
    return header, Digests(digest, known["program"])


def _with_digests(
    raw: Mapping[str, Any], digests: Mapping[str, str], data_size: int
) -> dict[str, Any]:
    """Return a shallow copy of `raw` with `sha256` and `data_size` filled in."""
    return {**raw, "data_size": data_size, "sha256": dict(digests)}


def program_digest(raw: Mapping[str, Any]) -> str:
    """Return the sha256 of an artifact's computation, in hexadecimal.

    Two compilations of a model for the same kind of device have the same digest, although a driver
    produces different binaries each time. It leaves out binaries with their device and driver, and
    `lineage`, which describes the model's origin. The manifest `raw` must have the digest of the
    data, so the weights are included. Raises PlainPickleError if `raw` is not plain data.
    """
    program = {key: value for key, value in raw.items() if key != "lineage"}
    program["programs"] = [{**one, "binary": b""} for one in raw["programs"]]
    program["target"] = {**raw["target"], "device": "", "driver": ""}
    program["sha256"] = {"data": raw["sha256"]["data"]}
    return hashlib.sha256(encode(program)).hexdigest()


def from_memory(manifest: Mapping[str, Any], data: bytes | memoryview) -> Artifact:
    """Return an artifact made in memory; raise ArtifactError if its manifest is not valid.

    `sha256` and `data_size` are filled in.
    """
    view = memoryview(data).cast("B").toreadonly()
    raw = _with_digests(manifest, {"manifest": _ZERO_DIGEST, "data": _ZERO_DIGEST}, view.nbytes)
    return Artifact(parse_manifest(raw), view, None, "", "")


def read_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Read and check an artifact file: its structure, every range, and both digests.

    The checked bytes are a private, read-only copy, so changing the file during or after reading
    cannot produce an artifact that does not match its digests. Raises ArtifactError: one line that
    names the file and the first problem.
    """
    where = Path(path)
    try:
        with PrivateCopy(where, MAX_HEADER_BYTES + MAX_BYTES) as copy:
            return _read_copy(copy, where)
    except FileNotFoundError:
        raise ArtifactError(
            f"{where}: no such file; expected an artifact made by `modeld compile`"
        ) from None
    except FileChangedError:
        raise ArtifactError(
            f"{where}: the file became shorter while it was read; copy it to a temporary name "
            "first, then rename it"
        ) from None
    except OSError as error:
        raise ArtifactError(f"{where}: cannot read: {error.strerror or error}") from error
    except (ArtifactError, PlainPickleError) as error:
        # No view of the copy survives a failure, so its memory is released immediately.
        raise ArtifactError(f"{where}: {error}") from None


def is_artifact(start: bytes) -> bool:
    """Return whether `start`, the first 64 bytes of a file, can be the start of an artifact."""
    return start[:2] == b"\x80\x05"


def _read_copy(copy: PrivateCopy, path: Path) -> Artifact:
    if copy.size == 0:
        raise ArtifactError("the file is empty, expected an artifact")
    if copy.size > MAX_HEADER_BYTES + MAX_BYTES:
        raise ArtifactError(f"{copy.size} bytes is too large for an artifact")
    raw, header_size = _decode_header(copy)
    memory = copy.memory
    check_identity(raw)
    digest = _check_manifest_digest(raw, memory[:header_size])
    manifest = parse_manifest(raw)
    # Artifacts of older versions, which do not store this digest, get the same one.
    program = raw["sha256"].get("program") or program_digest(raw)
    start = header_size + (-header_size % PAGE)
    expected = start + manifest.data_size
    if copy.size != expected:
        problem = "truncated" if copy.size < expected else "followed by other data"
        raise ArtifactError(
            f"the file is {problem}: {copy.size} bytes, expected {expected}; copy it again"
        )
    copy.wait(start)
    if any(memory[header_size:start]):
        raise ArtifactError("the padding after the manifest is not zero: the file is damaged")
    found = hashlib.sha256()
    with memoryview(memory) as view:
        for first, last in copy.pieces(start):
            found.update(view[first:last])
    if found.hexdigest() != raw["sha256"]["data"]:
        raise ArtifactError(
            "the data does not match its sha256: the file is damaged, copy it again"
        )
    copy.protect()
    return Artifact(manifest, memoryview(memory).toreadonly()[start:], path, digest, program)


def _decode_header(copy: PrivateCopy) -> tuple[Any, int]:
    """Return the manifest and its size in bytes, decoded before the whole file has been read."""
    usual = min(copy.size, _USUAL_HEADER_BYTES)
    copy.wait(usual)
    if not is_artifact(copy.memory[:64]):
        raise ArtifactError(
            "not a modeld artifact (it does not start with a protocol 5 pickle); modeld compile "
            "makes one of ONNX files"
        )
    try:
        try:
            return decode(copy.memory, usual)
        except PlainPickleError:
            longest = min(copy.size, MAX_HEADER_BYTES)
            if longest == usual:
                raise
            copy.wait(longest)
            return decode(copy.memory, longest)
    except PlainPickleError as error:
        raise ArtifactError(f"the manifest is damaged or not plain data: {error}") from None


def _check_manifest_digest(raw: dict[str, Any], header: bytes) -> str:
    """Check the manifest's digest and return it.

    The writer hashed the header with zeros in place of this digest's 64 hex digits, which occur
    a second time only in a forgery.
    """
    digests = raw.get("sha256")
    if type(digests) is not dict or any(
        type(digests.get(key)) is not str or not _DIGEST.fullmatch(digests[key])
        for key in ("manifest", "data", *(["program"] if "program" in digests else []))
    ):
        raise ArtifactError(
            "manifest.sha256: expected the hex digests 'manifest' and 'data', and maybe 'program'"
        )
    digest: str = digests["manifest"]
    unsigned = header.replace(digest.encode(), _ZERO_DIGEST.encode())
    if hashlib.sha256(unsigned).hexdigest() != digest:
        raise ArtifactError(
            "the manifest does not match its sha256: the file is damaged, copy it again"
        )
    return digest


__all__ = [
    "FORMAT",
    "Artifact",
    "Digests",
    "from_memory",
    "is_artifact",
    "program_digest",
    "read_artifact",
    "write_artifact",
]

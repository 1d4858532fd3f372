"""Checks the files and directories that a command line names, before the command begins.

The kind of a file is detected from its first bytes, never from its name. The role of an argument
specifies the accepted kinds, the largest size and the error to raise. Readers still check the
content, but need not handle pipes, devices and huge files.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from cereal.log_codec import codec_of
from runtime.files.user_file import NotAFileError, open_given, target_of, what_is
from runtime.texts import size_text
from tools.errors import FileKindError, ToolError, UsageError

MIB = 1 << 20
GIB = 1 << 30

# Kind of file -> its name in messages; "" is an unknown kind.
NOUNS: Final = {
    "artifact": "an artifact",
    "onnx": "an ONNX model",
    "log": "an event log",
    "video": "a video",
    "picture": "a picture",
    "zip": "a ZIP archive",
    "array": "a single NumPy array",
    "packed": "a compressed archive",
    "program": "a program",
    "document": "a PDF document",
    "recording": "a recording for a viewer (MCAP, rerun)",
    "json": "JSON",
    "text": "text",
    "": "data of an unknown kind",
}
# Kinds that are always detected: a file of unknown kind is none of them.
SURE: Final = frozenset({"artifact", "onnx", "zip", "json", "text"})
# PROTO 5, the first opcode of the manifest's pickle.
_ARTIFACT: Final = b"\x80\x05"
# Tags (field << 3 | wire type 2) of the possible second fields of an ONNX model: strings, graph,
# opset imports.
_AFTER_IR_VERSION: Final = {(field << 3) | 2 for field in (2, 3, 4, 6, 7, 8, 14)}
_MAX_SEGMENTS: Final = 512
# Size of the largest segment table of an Event, and of the root pointer after it.
START_BYTES: Final = 4 * (1 + _MAX_SEGMENTS) + 4 + 8
# MP4 and QuickTime; Matroska; AVI; MPEG-TS, -PS; H.264 and HEVC (beginning with a parameter set or
# delimiter); ASF; FLV; Ogg; IVF; Y4M.
_VIDEO: Final = (
    rb".{4}(ftyp|moov|mdat|wide)|\x1a\x45\xdf\xa3|RIFF.{4}AVI |G.{187}G|\0\0\x01\xba|"
    rb"\0?\0\0\x01[\x09\x0b\x27\x40\x42\x44\x46\x67]|\x30\x26\xb2\x75|FLV\x01|OggS|DKIF|YUV4MPEG2 "
)
_MAGICS: Final = tuple(
    (kind, re.compile(magic, re.DOTALL))
    for kind, magic in (
        ("video", _VIDEO),
        ("picture", rb"\x89PNG|\xff\xd8\xff|GIF8|BM.{4}\0{4}|RIFF.{4}WEBP"),
        ("zip", rb"PK(\x03\x04|\x05\x06)"),
        ("array", rb"\x93NUMPY"),
        ("packed", rb"\x1f\x8b|\xfd7zXZ|7z\xbc\xaf|.{257}ustar"),
        ("program", rb"\x7fELF"),
        ("document", rb"%PDF"),
        ("recording", rb"\x89MCAP0|RRF"),
    )
)
_TEXT_CONTROLS: Final = frozenset("\t\n\r\f\x1b")


def kind_of(path: Path) -> str:
    """Return the kind of a file: ``artifact``, ``onnx`` or ``log``.

    Raises:
        FileKindError: The file cannot be read, or is of another kind.
    """
    start = start_of(path)
    kind = kind_of_start(start)
    if kind in ("artifact", "onnx", "log"):
        return kind
    raise FileKindError(
        f"{path}: expected an artifact, an ONNX model or an event log, found {described(start)}"
    )


def described(start: bytes) -> str:
    """Return a description, with an article, of a file with these first bytes."""
    kind = kind_of_start(start)
    if not start:
        return "an empty file"
    return NOUNS[kind] + ("" if kind else f" (it begins with {start[:8].hex(' ')})")


def start_of(path: Path) -> bytes:
    """Return the first bytes of a regular file, enough to detect its kind.

    Raises:
        FileKindError: It is not a regular file, or cannot be read.
    """
    try:
        with open_given(path) as file:
            return file.read(START_BYTES)
    except OSError as error:
        raise FileKindError(f"{path}: cannot read: {error.strerror or error}") from error


def kind_of_start(start: bytes) -> str:
    """Return the kind of a file with these first bytes, one of `NOUNS`; "" if it is unknown."""
    if start.startswith(_ARTIFACT):
        return "artifact"
    if codec_of(start) != "none":
        return "log"
    found = next((kind for kind, magic in _MAGICS if magic.match(start)), None)
    if found is not None:
        return found
    # ModelProto field 1 (ir_version), a small varint, followed by another known field.
    if len(start) > 2 and start[0] == 0x08 and start[1] < 0x40 and start[2] in _AFTER_IR_VERSION:
        return "onnx"
    if _begins_like_an_event(start):
        return "log"
    return _kind_of_text(start)


def _kind_of_text(start: bytes) -> str:
    """Return ``json`` or ``text`` for printable UTF-8, possibly cut within a character; else ""."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)
    except UnicodeDecodeError:
        return ""
    if not text or any(c < " " and c not in _TEXT_CONTROLS for c in text):
        return ""
    # A "[" can also begin a table of TOML.
    return "json" if text.lstrip().startswith("{") else "text"


def _begins_like_an_event(start: bytes) -> bool:
    """Return whether this is a Cap'n Proto message with a structure as its root.

    Its layout is: number of segments - 1, their sizes in words, then a struct pointer.
    """
    segments = int.from_bytes(start[:4], "little") + 1
    table = 4 * (1 + segments)
    table += -table % 8
    if segments > _MAX_SEGMENTS or len(start) < table + 8 or start[4:8] == bytes(4):
        return False
    # The pointer is to a structure or, indirectly, to one in another segment.
    return start[table] & 3 in (0, 2) and start[table : table + 8] != bytes(8)


@dataclass(frozen=True, slots=True)
class Role:
    """The requirements for a file or directory named by an argument.

    Attributes:
        noun: The expected thing with an article, for messages.
        kinds: The accepted kinds of `NOUNS`; empty: only a directory is accepted. A file of unknown
            kind is accepted, and left to the reader, unless all kinds are `SURE`.
        error: The error to raise otherwise.
        may_be_missing: Whether the command handles a missing file itself.
        advice: The end of error messages.
    """

    noun: str
    kinds: frozenset[str] = frozenset()
    error: type[ToolError] = FileKindError
    max_bytes: int | None = None
    may_be_directory: bool = False
    may_be_missing: bool = False
    may_be_empty: bool = False
    advice: str = "check the path"


def check_named(where: str, path: Path, role: Role) -> None:
    """Check a file or directory against its role, reading only the first bytes.

    `where` is the option with a space, for messages, or "".

    Raises:
        ToolError: The role's error; names the path, the expected and the found thing.
    """
    found = _mismatch(path, role)
    if found:
        raise role.error(f"{where}{path}: expected {role.noun}, found {found}; {role.advice}")


def what_is_at(path: Path) -> str:
    """Return a description, with an article, of the thing at a path; open regular files only."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        return _missing(path, error)
    if not stat.S_ISREG(status.st_mode):
        return what_is(status.st_mode)
    if not os.access(path, os.R_OK, effective_ids=True):
        return "a file that you may not read"
    return described(start_of(path))


def _mismatch(path: Path, role: Role) -> str:
    """Return a description of the thing at a path if it does not fit the role, else ""."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        return "" if is_missing and role.may_be_missing else _missing(path, error)
    if stat.S_ISDIR(status.st_mode):
        is_wanted = role.may_be_directory or not role.kinds
        return _unreadable(path, os.R_OK | os.X_OK) if is_wanted else what_is(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or not role.kinds:
        return what_is_at(path)
    return _unreadable(path, os.R_OK) or _content_mismatch(path, status.st_size, role)


def _unreadable(path: Path, rights: int) -> str:
    return "" if os.access(path, rights, effective_ids=True) else "one that you may not read"


def _content_mismatch(path: Path, size: int, role: Role) -> str:
    """Return a description of a regular file if its kind or size does not fit the role, else ""."""
    if not size and role.may_be_empty:
        return ""
    start = start_of(path)
    kind = kind_of_start(start)
    if kind not in role.kinds and (kind or not size or role.kinds <= SURE):
        return described(start)
    if role.max_bytes is not None and size > role.max_bytes:
        return f"{size_text(size)}, more than {size_text(role.max_bytes)}"
    return ""


def _missing(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        is_link = path.is_symlink()
        return f"a link to {path.readlink()}, which is not there" if is_link else "no such file"
    return f"nothing ({getattr(error, 'strerror', None) or error})"


class _Place(NamedTuple):
    """The identity of a file or directory, independent of its name."""

    device: int
    inode: int


def check_outputs(
    files: Mapping[str, Path | None],
    inputs: Mapping[str, Iterable[Path]],
    directories: Mapping[str, Path | None] | None = None,
) -> None:
    """Check that outputs can be written and do not overwrite inputs or each other.

    Hard and symbolic links, ``..`` and directories that do not exist yet are resolved.

    Args:
        files: Files to write, by option.
        inputs: Files and directories to read, by option.
        directories: Directories to write files in, by option. Missing ones will be created. One
            that the same option also reads is accepted.

    Raises:
        UsageError: A file has no name or no writable directory, is a directory or a device, or is
            named twice; a directory is something else, or can be neither written nor created; or
            an output is an input or is inside one.
    """
    found = _places(inputs)
    given = {option: path for option, path in (directories or {}).items() if path is not None}
    made = {option: _check_input(option, path, found) for option, path in given.items()}
    targets: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        _check_place(option, path, made.values())
        target = _check_input(option, path, found)
        if target in targets:
            raise UsageError(
                f"{option} {path}: expected another file than {targets[target]}, found the same; "
                "choose another name"
            )
        targets[target] = option
    for option, path in given.items():
        _check_directory(option, path)


def tree(path: Path) -> Iterator[Path]:
    """Yield a file, or a directory and all files and directories in it."""
    yield path
    if os.path.isdir(path):  # noqa: PTH112 - of any name, too long ones as well
        yield from path.rglob("*")


def _places(inputs: Mapping[str, Iterable[Path]]) -> dict[_Place, dict[str, Path]]:
    """Return, for each input, the options that read it and the paths that they name it by."""
    found: dict[_Place, dict[str, Path]] = {}
    for option, paths in inputs.items():
        for path in paths:
            place = _place(path)
            if place is not None:
                found.setdefault(place, {}).setdefault(option, path)
    return found


def _check_input(option: str, path: Path, inputs: Mapping[_Place, Mapping[str, Path]]) -> Path:
    """Return the resolved path of an output.

    Raises UsageError if it is an input of another option, or inside one.
    """
    target = Path(os.path.realpath(path))
    for at in (target, *target.parents):
        place = _place(at)
        readers = {} if place is None else inputs.get(place, {})
        source = next((one for reader, one in readers.items() if reader != option), None)
        if source is None:
            continue
        if at == target:
            raise UsageError(
                f"{option} {path}: expected another file than the input {source}, found the same, "
                "which would be lost; choose another name"
            )
        raise UsageError(
            f"{option} {path}: expected a place outside the input {source}, found one inside, "
            "where it would be taken for a part of it; choose another directory"
        )
    return target


def _place(path: Path) -> _Place | None:
    try:
        status = path.stat()
    except (OSError, ValueError):  # it does not exist, or access is denied
        return None
    return _Place(status.st_dev, status.st_ino)


def _check_directory(option: str, path: Path) -> None:
    """Raise UsageError if a path is not a directory, or can be neither written nor created."""
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    try:
        is_directory = stat.S_ISDIR(there.stat().st_mode)
        _ = path.is_dir()  # raises OSError if the name is too long
    except OSError as error:
        raise UsageError(
            f"{option} {path}: expected a directory, found {what_is_at(path)}; choose another one"
        ) from error
    if not is_directory:
        at = "" if there == path else f" at {there}"
        raise UsageError(
            f"{option} {path}: expected a directory, found {what_is_at(there)}{at}; choose another "
            "one"
        )
    _check_writable(option, path, there)


def _check_writable(option: str, path: Path, directory: Path) -> None:
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(
            f"{option} {path}: expected a directory that can be written, found {directory}; "
            "choose another one"
        )


def _check_place(option: str, path: Path, made: Iterable[Path]) -> None:
    if not path.name:
        raise UsageError(f"{option} {path}: expected the name of a file, found none; give one")
    try:
        target = target_of(path)
    except NotAFileError as error:
        raise UsageError(f"{option} {path}: {error.strerror}") from error
    except NotADirectoryError:
        target = path
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {error.strerror}") from error
    if not target.parent.is_dir():
        if any(Path(os.path.realpath(target)).is_relative_to(one) for one in made):
            return
        raise UsageError(
            f"{option} {path}: expected its directory to exist, found none; "
            f"make it with: mkdir -p {target.parent}"
        )
    _check_writable(option, path, target.parent)

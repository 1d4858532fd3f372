"""The kind of a file, detected from its first bytes and never from its name."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Final

from cereal.log_codec import codec_of
from runtime.files.user_file import open_given
from tools.errors import FileKindError

# What a file of each kind is called in messages; "" is a kind that is not known.
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
# Kinds that are never mistaken: what begins otherwise is no such file.
SURE: Final = frozenset({"artifact", "onnx", "zip", "json", "text"})
# PROTO 5, the first opcode of the manifest's pickle.
_ARTIFACT: Final = b"\x80\x05"
# Tags (field << 3 | wire type 2) of the fields that may follow: strings, graph, opset imports.
_AFTER_IR_VERSION: Final = {(field << 3) | 2 for field in (2, 3, 4, 6, 7, 8, 14)}
_MAX_SEGMENTS: Final = 512
# Of the largest table of segments, and the pointer to the root behind it.
START_BYTES: Final = 4 * (1 + _MAX_SEGMENTS) + 4 + 8
# MP4 and QuickTime; Matroska; AVI; MPEG-TS, -PS; H.264 and HEVC (a parameter set or delimiter
# comes first); ASF; FLV; Ogg; IVF; Y4M.
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
    """Return ``artifact``, ``onnx`` or ``log``.

    Raises:
        FileKindError: the file cannot be read, or begins like none of them.
    """
    start = start_of(path)
    kind = kind_of_start(start)
    if kind in ("artifact", "onnx", "log"):
        return kind
    raise FileKindError(
        f"{path}: expected an artifact, an ONNX model or an event log, found {described(start)}"
    )


def described(start: bytes) -> str:
    """Return what a file is that begins so, with an article."""
    kind = kind_of_start(start)
    if not start:
        return "an empty file"
    return NOUNS[kind] + ("" if kind else f" (it begins with {start[:8].hex(' ')})")


def start_of(path: Path) -> bytes:
    """Return the first bytes of an ordinary file, enough to tell its kind.

    Raises:
        FileKindError: it is no ordinary file, or cannot be read.
    """
    try:
        with open_given(path) as file:
            return file.read(START_BYTES)
    except OSError as error:
        raise FileKindError(f"{path}: cannot read: {error.strerror or error}") from error


def kind_of_start(start: bytes) -> str:
    """Return the kind of a file that begins so, one of `NOUNS`; "" is one that is not known."""
    if start.startswith(_ARTIFACT):
        return "artifact"
    if codec_of(start) != "none":
        return "log"
    found = next((kind for kind, magic in _MAGICS if magic.match(start)), None)
    if found is not None:
        return found
    # ModelProto field 1 (ir_version), a small varint, and then field 2 (producer_name), 7 or 8.
    if len(start) > 2 and start[0] == 0x08 and start[1] < 0x40 and start[2] in _AFTER_IR_VERSION:
        return "onnx"
    if _begins_like_an_event(start):
        return "log"
    return _kind_of_text(start)


def _kind_of_text(start: bytes) -> str:
    """Return ``json``, ``text`` or "": UTF-8, perhaps cut off inside a character, and printable."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)
    except UnicodeDecodeError:
        return ""
    if not text or any(c < " " and c not in _TEXT_CONTROLS for c in text):
        return ""
    # A list may as well be a table of TOML.
    return "json" if text.lstrip().startswith("{") else "text"


def _begins_like_an_event(start: bytes) -> bool:
    """A Cap'n Proto message: segment count - 1, sizes in words, then a struct pointer."""
    segments = int.from_bytes(start[:4], "little") + 1
    table = 4 * (1 + segments)
    table += -table % 8
    if segments > _MAX_SEGMENTS or len(start) < table + 8 or start[4:8] == bytes(4):
        return False
    # A pointer to a structure, or to one in another segment.
    return start[table] & 3 in (0, 2) and start[table : table + 8] != bytes(8)

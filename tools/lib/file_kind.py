"""What kind a file is, told from its first bytes and never from its name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cereal.log_codec import codec_of
from tools.errors import InspectError

# PROTO 5, the first opcode of the manifest's pickle.
_ARTIFACT: Final = b"\x80\x05"
# Tags (field << 3 | wire type 2) of the fields that may follow: strings, graph, opset imports.
_AFTER_IR_VERSION: Final = {(field << 3) | 2 for field in (2, 3, 4, 6, 7, 8, 14)}
_MAX_SEGMENTS: Final = 512
# Of the largest table of segments, and the pointer to the root behind it.
_START_BYTES: Final = 4 * (1 + _MAX_SEGMENTS) + 4 + 8


def kind_of(path: Path) -> str:
    """Return ``artifact``, ``onnx`` or ``log``.

    Raises:
        InspectError: the file cannot be read, or begins like none of them.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise InspectError(f"{path}: expected a file, found something else")
    try:
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except OSError as error:
        raise InspectError(f"{path}: cannot read: {error.strerror or error}") from error
    if start.startswith(_ARTIFACT):
        return "artifact"
    if codec_of(start) != "none":
        return "log"
    # ModelProto field 1 (ir_version), a small varint, and then field 2 (producer_name), 7 or 8.
    if len(start) > 2 and start[0] == 0x08 and start[1] < 0x40 and start[2] in _AFTER_IR_VERSION:
        return "onnx"
    if _begins_like_an_event(start):
        return "log"
    raise InspectError(
        f"{path}: expected an artifact, an ONNX model or an event log; "
        f"it begins with {start[:8].hex(' ') or 'nothing'}"
    )


def _begins_like_an_event(start: bytes) -> bool:
    """A Cap'n Proto message: segment count - 1, sizes in words, then a struct pointer."""
    segments = int.from_bytes(start[:4], "little") + 1
    table = 4 * (1 + segments)
    table += -table % 8
    if segments > _MAX_SEGMENTS or len(start) < table + 8 or start[4:8] == bytes(4):
        return False
    # A pointer to a structure, or to one in another segment.
    return start[table] & 3 in (0, 2) and start[table : table + 8] != bytes(8)

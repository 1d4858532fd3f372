"""Which kind a file is, by the rules of the formats: what commands and the reader of logs go by."""

import bz2
import struct
from pathlib import Path

import pytest
from backports import zstd

from cereal.log_codec import codec_of
from tests.tools.messages import event_of
from tools.errors import FileKindError
from tools.lib.named_file import kind_of

EVENT = event_of("carState", 5, vEgo=1.0)
SKIPPABLE = b"\x2a\x4d\x18" + struct.pack("<I", 4) + bytes(4)
SEGMENTS = struct.pack("<II", 511, 1) + struct.pack("<511I", *[0] * 511) + bytes(4)

KINDS = {
    "zstd": (zstd.compress(EVENT), "log", "zstd"),
    "skippable, first": (b"\x50" + SKIPPABLE + zstd.compress(EVENT), "log", "zstd"),
    "skippable, last": (b"\x5f" + SKIPPABLE + zstd.compress(EVENT), "log", "zstd"),
    "none of the skippable": (b"\x60" + SKIPPABLE, None, "none"),
    "bzip2": (bz2.compress(EVENT), "log", "bz2"),
    "text": (b"BZhello", None, "none"),
    "plain": (EVENT, "log", "none"),
    "most segments": (SEGMENTS + b"\x02" + bytes(7), "log", "none"),
    "no root": (SEGMENTS + bytes(8), None, "none"),
    "artifact": (b"\x80\x05}", "artifact", "none"),
    "onnx": (b"\x08\x08\x12\x06abcdef", "onnx", "none"),
    "nothing": (b"", None, "none"),
}


@pytest.mark.parametrize(("content", "kind", "codec"), KINDS.values(), ids=KINDS)
def test_kinds_are_told_by_content(
    content: bytes, kind: str | None, codec: str, tmp_path: Path
) -> None:
    path = tmp_path / "drive.mp4"  # whatever it is called
    path.write_bytes(content)
    assert codec_of(content) == codec
    if kind is None:
        with pytest.raises(FileKindError, match="expected an artifact, an ONNX model or an event"):
            kind_of(path)
    else:
        assert kind_of(path) == kind

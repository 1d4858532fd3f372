"""The codecs of log files: zstd, bzip2 or none, recognised by the first bytes."""

import operator
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from cereal.errors import MissingCodecError

Codec = Literal["zstd", "bz2", "none"]

# A zstd file may begin with skippable frames, whose last half-byte is free (RFC 8878, 3.1.2).
_MAGICS: Final[tuple[tuple[Codec, re.Pattern[bytes]], ...]] = (
    ("zstd", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)),
    ("bz2", re.compile(rb"BZh[1-9]")),
)

ZSTD_LEVEL: Final = 10
"""The level of logs on the device: smaller files than the default 3, still fast."""
# That level's window for content of unknown length; explicit, because the header has it.
_WINDOW_LOG: Final = 22

# Magic, descriptor, window; then either the number of a dictionary or the size of the content.
_HEADER: Final = struct.Struct("<4sBBI")
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_WINDOW: Final = (_WINDOW_LOG - 10) << 3
_HAS_DICTIONARY: Final = 0x03
_HAS_SIZE: Final = 0x80
_LARGEST_SIZE: Final = 0xFFFF_FFFF
# The header that the library writes has neither.
_BEHIND_HEADER: Final = operator.itemgetter(slice(_HEADER.size - 4, None))


def codec_of(start: bytes) -> Codec:
    """Return how a log is compressed that begins with these bytes, four of them at least."""
    return next((codec for codec, magic in _MAGICS if magic.match(start)), "none")


def import_zstd(path: Path) -> Any:
    """Import zstd for the log at `path`, or raise MissingCodecError.

    The device image lacks it, as only the tools need it.
    """
    try:
        # Imported here because the import itself is what may be missing.
        from backports import zstd
    except ImportError as error:
        raise MissingCodecError(
            f"{path}: expected the package backports.zstd for zstd logs, got none; "
            'install it with: pip install "modeld[replay]"'
        ) from error
    return zstd


class ZstdFrame:
    """One zstd frame that is written piece by piece and says how long its content is.

    Readers that decompress in one call take the size from the frame's header, and it is known only
    at the end. Until then its four bytes hold the number of a dictionary, 0, which means that there
    is none (RFC 8878, 3.1.1.1.3); `finish` puts the size there. Content of 4 GiB or more has none.

    Each step is one call into C: an interrupt between compressing and writing would leave a hole
    that makes the rest unreadable. The file must be empty; it holds this frame only. All methods
    raise OSError if it cannot be written.
    """

    def __init__(self, file: BinaryIO, zstd: Any) -> None:
        self._file = file
        self._modes = zstd.ZstdCompressor
        parameter = zstd.CompressionParameter
        self._compressor = zstd.ZstdCompressor(
            options={parameter.compression_level: ZSTD_LEVEL, parameter.window_log: _WINDOW_LOG}
        )
        self._compressor.compress(b"")  # from here on its header is that of an unknown size
        self._size: int | None = 0
        self._has_begun = False
        file.write(_HEADER.pack(_MAGIC, _HAS_DICTIONARY, _WINDOW, 0))

    def write(self, data: bytes) -> None:
        """Append content."""
        # After an interrupt of the next line the size is unknown.
        size, self._size = self._size, None
        self._step(self._compressor.compress, data)
        self._size = None if size is None else size + len(data)

    def end_block(self) -> None:
        """Let all content so far be decompressed, when the file is flushed."""
        self._step(self._compressor.flush, self._modes.FLUSH_BLOCK)

    def finish(self) -> None:
        """End the frame and flush the file, which stays open."""
        self._step(self._compressor.flush, self._modes.FLUSH_FRAME)
        self._file.flush()
        if self._size is not None and self._size <= _LARGEST_SIZE:
            header = _HEADER.pack(_MAGIC, _HAS_SIZE, _WINDOW, self._size)
            os.pwrite(self._file.fileno(), header, 0)

    def _step(self, call: Callable[[Any], bytes], argument: object) -> None:
        output = map(call, (argument,))
        # By the file itself, which knows what an interrupted step has written.
        self._has_begun = self._has_begun or self._file.tell() > _HEADER.size
        self._file.writelines(output if self._has_begun else map(_BEHIND_HEADER, output))

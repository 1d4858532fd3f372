"""The codecs of log files: zstd, bzip2 or none, recognized from the first bytes of the file.

`ZstdFrame` writes zstd so that readers can decompress a log in one call.
"""

import operator
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from cereal.errors import MissingCodecError

Codec = Literal["zstd", "bz2", "none"]

# A zstd file can begin with skippable frames. Their magic number has 16 values (RFC 8878, 3.1.2).
_MAGICS: Final[tuple[tuple[Codec, re.Pattern[bytes]], ...]] = (
    ("zstd", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)),
    ("bz2", re.compile(rb"BZh[1-9]")),
)

ZSTD_LEVEL: Final = 10
"""The compression level of logs on the device: still fast, with smaller files than level 3."""
# The window size of that level for content of unknown length. `ZstdFrame` writes it in the header.
_WINDOW_LOG: Final = 22

# The header: magic number, descriptor and window, then a dictionary ID or the size of the content.
_HEADER: Final = struct.Struct("<4sBBI")
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_WINDOW: Final = (_WINDOW_LOG - 10) << 3
_HAS_DICTIONARY: Final = 0x03
_HAS_SIZE: Final = 0x80
_LARGEST_SIZE: Final = 0xFFFF_FFFF
# The library's header ends after the window: it has neither a dictionary ID nor a content size.
_AFTER_HEADER: Final = operator.itemgetter(slice(_HEADER.size - 4, None))


def codec_of(start: bytes) -> Codec:
    """Return the codec of a log that begins with `start`, which has at least four bytes."""
    return next((codec for codec, magic in _MAGICS if magic.match(start)), "none")


def import_zstd(path: Path) -> Any:
    """Import zstd for the log at `path`; raise MissingCodecError if it is not installed.

    Only the tools need it, so the device image does not include it.
    """
    try:
        # Imported here because the package may be missing.
        from backports import zstd
    except ImportError as error:
        raise MissingCodecError(
            f"{path}: expected the package backports.zstd for zstd logs, got none; "
            'install it with: pip install "modeld[replay]"'
        ) from error
    return zstd


class ZstdFrame:
    """A zstd frame that is written piece by piece and whose header states the content's size.

    Readers that decompress in one call need the size from the header, but it is known only at the
    end. Until then the four bytes of the size hold the dictionary ID 0, which means no dictionary
    (RFC 8878, 3.1.1.1.3). `finish` replaces them with the size, unless the content has 4 GiB or
    more.

    Compressing and writing happen in one C call, because an interrupt between the two would drop
    data and make the rest unreadable. The file must be empty, and holds only this frame. All
    methods raise OSError if the file cannot be written.
    """

    def __init__(self, file: BinaryIO, zstd: Any) -> None:
        self._file = file
        self._modes = zstd.ZstdCompressor
        parameter = zstd.CompressionParameter
        self._compressor = zstd.ZstdCompressor(
            options={parameter.compression_level: ZSTD_LEVEL, parameter.window_log: _WINDOW_LOG}
        )
        self._compressor.compress(b"")  # makes the library write a header without a size
        self._size: int | None = 0
        self._has_begun = False
        file.write(_HEADER.pack(_MAGIC, _HAS_DICTIONARY, _WINDOW, 0))

    def write(self, data: bytes) -> None:
        """Append content."""
        # The size stays unknown if the next line is interrupted.
        size, self._size = self._size, None
        self._step(self._compressor.compress, data)
        self._size = None if size is None else size + len(data)

    def end_block(self) -> None:
        """Make all content written so far decompressible once the file is flushed."""
        self._step(self._compressor.flush, self._modes.FLUSH_BLOCK)

    def finish(self) -> None:
        """End the frame and flush the file, but leave it open."""
        self._step(self._compressor.flush, self._modes.FLUSH_FRAME)
        self._file.flush()
        if self._size is not None and self._size <= _LARGEST_SIZE:
            header = _HEADER.pack(_MAGIC, _HAS_SIZE, _WINDOW, self._size)
            os.pwrite(self._file.fileno(), header, 0)

    def _step(self, call: Callable[[Any], bytes], argument: object) -> None:
        output = map(call, (argument,))
        # The file's position shows whether an interrupted step has written the library's header.
        self._has_begun = self._has_begun or self._file.tell() > _HEADER.size
        self._file.writelines(output if self._has_begun else map(_AFTER_HEADER, output))

"""Reads logs: files that hold Events (the bus's messages) back to back, usually compressed.

The codec is detected from the file's first bytes. For a log that is truncated or damaged, the
functions yield the Events before that point and warn with its position.
"""

import bz2
import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from cereal.errors import LogError, MessageError
from cereal.log_codec import codec_of, import_zstd
from cereal.schema import message_size, read_event

# Maximum number of bytes of decompressed data in one piece.
_CHUNK: Final = 1 << 20
# Bytes to read at once. Smaller, because the decompressor copies all bytes after a stream's end.
_COMPRESSED_CHUNK: Final = 1 << 17


class LogTruncatedWarning(UserWarning):
    """The log is truncated or damaged; the message says where, and how many events were read."""


OnDefect = Callable[[str], None]
"""Called with the one-line description of a log's defect, instead of a warning."""


def read_log(path: str | Path, on_defect: OnDefect | None = None) -> Iterator[Any]:
    """Yield a reader for each Event of a log file, in file order.

    The file is read piece by piece, so memory holds only one piece and what the caller keeps. An
    Event with a complete frame but a damaged root is left out, and counted in a warning at the end.
    Damage deeper inside shows when that field is read; see `cereal.schema.reading`.

    A truncated or damaged log gives a LogTruncatedWarning after the Events before that byte. With
    `on_defect`, it is called in the reading thread instead, because catching warnings in one thread
    affects all. Raises LogError if the file cannot be read, is not a log, or its codec is not
    installed.
    """
    left_out = 0
    offset = first = 0
    for data in read_log_bytes(path, on_defect):
        try:
            event = read_event(data)
        except MessageError:
            first = first if left_out else offset
            left_out += 1
        else:
            yield event
        offset += len(data)
    if left_out:
        _report(
            f"{path}: left out {left_out} events whose content is damaged, the first at byte "
            f"{first} of the content",
            on_defect,
        )


def read_log_bytes(
    path: str | Path,
    on_defect: OnDefect | None = None,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """Yield the bytes of each Event of a log file; otherwise the same as `read_log`.

    About once per MiB it calls `on_read` with the number of file bytes read so far.
    """
    content = _Content(Path(path), on_read)
    splitter = MessageSplitter()
    for piece in content.pieces():
        yield from splitter.feed(piece)
        if splitter.error is not None:
            if splitter.count == 0:
                raise LogError(
                    f"{path}: expected a log, got {splitter.error}; give an rlog or qlog file"
                ) from splitter.error
            content.defect = "is damaged"
            break
    if splitter.pending_bytes and content.defect is None:
        content.defect = "ends inside a message"
    if content.defect is not None:
        if content.is_plain:
            content.file_offset = splitter.offset
        where = f"byte {splitter.offset} of its content"
        if content.file_offset is not None:
            where += f" (byte {content.file_offset} of the file)"
        _report(
            f"{path}: the log {content.defect} at {where}; kept the {splitter.count} events "
            "before it",
            on_defect,
        )


def _report(defect: str, on_defect: OnDefect | None) -> None:
    if on_defect is not None:
        on_defect(defect)
    else:
        # Attribute the warning to the caller of the generator.
        warnings.warn(defect, LogTruncatedWarning, stacklevel=3)


def log_content(path: str | Path) -> Iterator[bytes]:
    """Yield the decompressed content of a log file in pieces of at most about 1 MiB.

    It ends silently where the file is truncated or its compressed data is damaged. Raises LogError
    if the file cannot be read or its codec is not installed.
    """
    return _Content(Path(path)).pieces()


class MessageSplitter:
    """Splits a stream of bytes, fed in pieces of any size, into messages.

    `count` and `offset` are the number of messages returned so far and their total bytes. `error`
    is the reason that there is no message at `offset`; after an error nothing more is returned.
    """

    def __init__(self) -> None:
        self.offset = 0
        self.count = 0
        self.error: MessageError | None = None
        self._pending = bytearray()
        self._needed = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes received of a message that is still incomplete."""
        return len(self._pending)

    def feed(self, piece: bytes) -> list[bytes]:
        """Add the next bytes; return the messages that they complete.

        At most one message (64 MiB) is kept incomplete: a larger announced size is an error.
        """
        pending = self._pending
        pending += piece
        if self.error is not None or len(pending) < self._needed:
            return []
        messages: list[bytes] = []
        available = len(pending)
        start = 0
        self._needed = 0
        # A view, because a slice of the bytearray would be copied twice.
        with memoryview(pending) as view:
            while start < available:
                try:
                    size = message_size(view, start)
                except MessageError as error:
                    self.error = error
                    break
                if size is None:
                    break
                end = start + size
                if end > available:
                    self._needed = size
                    break
                messages.append(view[start:end].tobytes())
                start = end
        del pending[:start]
        self.offset += start
        self.count += len(messages)
        return messages


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Content:
    """The decompressed bytes of a log file.

    If they end early, `defect` is the reason and `file_offset` the position in the file.
    """

    def __init__(self, path: Path, on_read: Callable[[int], None] | None = None) -> None:
        self.defect: str | None = None
        self.file_offset: int | None = None
        self.is_plain = False
        self._path = path
        self._on_read = on_read

    def pieces(self) -> Iterator[bytes]:
        """Yield pieces of at most about 1 MiB."""
        try:
            with self._path.open("rb") as file:
                codec = codec_of(file.read(4))
                file.seek(0)
                self.is_plain = codec == "none"
                content = self._decompressed(file, codec)
                if self.is_plain:
                    content = iter(lambda: file.read(_CHUNK), b"")
                for piece in content:
                    if self._on_read is not None:
                        self._on_read(file.tell())
                    yield piece
        except OSError as error:
            raise LogError(
                f"{self._path}: expected a readable log, got {error.strerror or error}; "
                "check the path"
            ) from error

    def _decompressed(self, file: BinaryIO, codec: str) -> Iterator[bytes]:
        """Yield the content of all compressed streams of the file, in order."""
        start = 0
        is_first = True
        while True:
            stream = _Stream(file, start, self._decompressor(codec))
            try:
                for piece in stream.pieces():
                    is_first = False
                    yield piece
            except _StreamError as error:
                # The failed call dropped what it had decoded before the damage. Decode it again.
                if piece := self._before_damage(file, start, codec, stream):
                    is_first = False
                    yield piece
                if is_first:
                    raise LogError(
                        f"{self._path}: expected {codec} data, got {error}; the file is damaged"
                    ) from error
                self.defect = f"has damaged {codec} data"
                return
            if not stream.is_whole:
                self.defect = f"breaks off inside its {codec} data"
                self.file_offset = file.tell()
                return
            start = stream.end
            file.seek(start)
            if not file.read(1):
                return

    def _before_damage(self, file: BinaryIO, start: int, codec: str, failed: "_Stream") -> bytes:
        """Return the output of a stream that precedes the damage and `failed` did not yield.

        It feeds the decompressor byte by byte, so that no call receives the damage together with
        intact data.
        """
        stream = _Stream(file, start, self._decompressor(codec), slow_from=failed.chunk_start)
        skipped = failed.produced
        kept = bytearray()
        with contextlib.suppress(_StreamError):
            for piece in stream.pieces():
                kept += piece[skipped:]
                skipped = max(0, skipped - len(piece))
        self.file_offset = stream.position
        return bytes(kept)

    def _decompressor(self, codec: str) -> tuple[_Decompressor, tuple[type[Exception], ...]]:
        if codec == "bz2":
            return bz2.BZ2Decompressor(), (OSError, ValueError)
        zstd = import_zstd(self._path)
        return zstd.ZstdDecompressor(), (zstd.ZstdError,)


class _StreamError(Exception):
    """The compressed data is damaged."""


class _Stream:
    """One compressed stream from byte `start` of the file, read bytewise from `slow_from` on."""

    def __init__(
        self,
        file: BinaryIO,
        start: int,
        decompressor: tuple[_Decompressor, tuple[type[Exception], ...]],
        slow_from: int | None = None,
    ) -> None:
        self.produced = 0
        self.position = start
        self.chunk_start = start
        self._file = file
        self._decompressor, self._defects = decompressor
        self._slow_from = slow_from
        file.seek(start)

    @property
    def is_whole(self) -> bool:
        """Whether the end of the stream was reached."""
        return self._decompressor.eof

    @property
    def end(self) -> int:
        """The position in the file after the stream."""
        return self.position - len(self._decompressor.unused_data)

    def pieces(self) -> Iterator[bytes]:
        """Yield the decompressed data; raise _StreamError if it is damaged."""
        while not self._decompressor.eof:
            compressed = b""
            if self._decompressor.needs_input:
                is_slow = self._slow_from is not None and self.position >= self._slow_from
                compressed = self._file.read(1 if is_slow else _COMPRESSED_CHUNK)
                if not compressed:
                    return
                self.chunk_start = self.position
                self.position += len(compressed)
            try:
                piece = self._decompressor.decompress(compressed, _CHUNK)
            except self._defects as error:
                raise _StreamError(str(error)) from error
            if piece:
                self.produced += len(piece)
                yield piece

"""Logs: Events one after the other in a file, compressed as a whole.

The codec is taken from the file's ending when writing and from its first bytes when reading.
"""

import bz2
import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self

from cereal.errors import LogError, MessageError
from cereal.schema import message_size, read_event

_BZ2_MAGIC: Final = b"BZh"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_LEVEL: Final = 10  # what logs are stored with on the device: smaller than 3, still fast
_CHUNK: Final = 1 << 20
# As many links as Linux follows; characters of a name that temporary files show.
_MAX_LINKS: Final = 40
_MAX_PREFIX: Final = 40


class LogTruncatedWarning(UserWarning):
    """The log ends inside a message or inside its compressed data; what came before was read."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class LogWriter:
    """Writes a log that exists in full or not at all.

    Writes beside the target and renames on `close`; when the `with` block ends by an exception,
    nothing is left and an older file of that name stays as it was.

    Args:
        path: Target; ".zst" and ".bz2" compress, any other ending does not. A symbolic link is
            followed.

    Raises:
        LogError: the target is a directory, a device or a stream, its directory cannot be written,
            or the codec is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._target = _target_of(self._path)
        name = f".{self._target.name[:_MAX_PREFIX]}.{os.getpid()}.part"
        self._temporary = self._target.with_name(name)
        self._file: BinaryIO | None = None
        try:
            self._file = self._open(self._temporary)
        except OSError as error:
            raise LogError(
                f"{self._path}: expected to write beside it, got {error.strerror}; "
                "check the directory"
            ) from error

    def write(self, data: bytes) -> None:
        """Append the bytes of one Event, `event.to_bytes()`.

        Raises:
            LogError: the bytes are not exactly one framed message, the log is closed, or the disk
                is full (nothing is left then).
        """
        if self._file is None:
            raise LogError(f"{self._path}: expected an open log, got a closed one; make another")
        try:
            size = message_size(data)
        except MessageError as error:
            raise LogError(f"{self._path}: {error}") from error
        if size != len(data):
            raise LogError(
                f"{self._path}: expected one whole message, got {len(data)} bytes of which the "
                f"frame announces {size}; write each Event by itself"
            )
        try:
            self._file.write(data)
        except OSError as error:
            self.discard()
            raise LogError(
                f"{self._path}: expected to write {len(data)} bytes, got {error.strerror}; "
                "free some disk space"
            ) from error

    def close(self) -> None:
        """Finish the file and put it in its place."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
            descriptor = os.open(self._temporary, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._temporary.replace(self._target)
        except OSError as error:
            self._temporary.unlink(missing_ok=True)
            raise LogError(
                f"{self._path}: expected to finish the log, got {error.strerror}; "
                "free some disk space"
            ) from error

    def discard(self) -> None:
        """Drop what was written."""
        if self._file is None:
            return
        file, self._file = self._file, None
        # Closing writes what is buffered, which fails again where the disk is full.
        with contextlib.suppress(OSError):
            file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _open(self, path: Path) -> Any:
        if self._path.suffix == ".zst":
            return _zstd(self._path).open(path, "wb", level=_ZSTD_LEVEL)
        if self._path.suffix == ".bz2":
            return bz2.open(path, "wb")
        return path.open("wb")


def read_log(path: str | Path) -> Iterator[Any]:
    """Yield a reader for each Event of a log file, in the order of the file.

    Reads the file piece by piece: memory holds one piece and what the caller keeps.

    Args:
        path: The file; zstd, bz2 and plain are told apart by their first bytes.

    Warns:
        LogTruncatedWarning: the log is cut off or damaged from some byte on; what precedes it was
            yielded.

    Raises:
        LogError: the file cannot be read, is no log, or its codec is not installed.
    """
    for data in read_log_bytes(path):
        yield read_event(data)


def read_log_bytes(path: str | Path) -> Iterator[bytes]:
    """Yield the bytes of each Event of a log file; otherwise as `read_log`."""
    content = _Content(Path(path))
    pending = bytearray()
    offset = 0
    count = 0
    for piece in content.pieces():
        pending += piece
        start = 0
        while content.defect is None:
            try:
                size = message_size(pending, start)
            except MessageError as error:
                if count == 0:
                    raise LogError(
                        f"{path}: expected a log, got {error}; give an rlog or qlog file"
                    ) from error
                content.defect = "is damaged"
                break
            if size is None or start + size > len(pending):
                break
            yield bytes(pending[start : start + size])
            count += 1
            start += size
        del pending[:start]
        offset += start
        if content.defect is not None:
            break
    if pending and content.defect is None:
        content.defect = "ends inside a message"
    if content.defect is not None:
        warnings.warn(
            f"{path}: the log {content.defect} at byte {offset} of its content; kept the {count} "
            "events before it",
            LogTruncatedWarning,
            stacklevel=2,
        )


class _Content:
    """The decompressed bytes of a log file; `defect` says why they ended early, if they did."""

    def __init__(self, path: Path) -> None:
        self.defect: str | None = None
        self._path = path

    def pieces(self) -> Iterator[bytes]:
        """Yield pieces of at most about 1 MiB."""
        try:
            with self._path.open("rb") as file:
                magic = file.read(4)
                file.seek(0)
                if magic.startswith(_BZ2_MAGIC):
                    yield from self._decompressed(file, "bz2")
                elif magic == _ZSTD_MAGIC:
                    yield from self._decompressed(file, "zstd")
                else:
                    while piece := file.read(_CHUNK):
                        yield piece
        except OSError as error:
            raise LogError(
                f"{self._path}: expected a readable log, got {error.strerror or error}; "
                "check the path"
            ) from error

    def _decompressed(self, file: BinaryIO, codec: str) -> Iterator[bytes]:
        """Decompress all streams that follow each other in the file."""
        decompressor, defects = self._decompressor(codec)
        compressed = b""
        is_first = True
        while True:
            if decompressor.eof:
                compressed = decompressor.unused_data or file.read(_CHUNK)
                if not compressed:
                    return
                decompressor, defects = self._decompressor(codec)
            elif decompressor.needs_input:
                compressed = file.read(_CHUNK)
                if not compressed:
                    self.defect = f"breaks off inside its {codec} data"
                    return
            try:
                piece = decompressor.decompress(compressed, _CHUNK)
            except defects as error:
                if is_first:
                    raise LogError(
                        f"{self._path}: expected {codec} data, got {error}; the file is damaged"
                    ) from error
                self.defect = f"has damaged {codec} data"
                return
            compressed = b""
            if piece:
                is_first = False
                yield piece

    def _decompressor(self, codec: str) -> tuple[_Decompressor, tuple[type[Exception], ...]]:
        if codec == "bz2":
            return bz2.BZ2Decompressor(), (OSError, ValueError)
        zstd = _zstd(self._path)
        return zstd.ZstdDecompressor(), (zstd.ZstdError,)


def _target_of(path: Path) -> Path:
    """Follow symbolic links: what replaces a file by renaming would replace the link."""
    # A link in /proc is an open file of a process: /dev/stdout leads there.
    parents = [Path(os.path.realpath(link.parent)) for link in (path, *_links(path))]
    is_stream = any(parent.is_relative_to("/proc") for parent in parents)
    target = Path(os.path.realpath(path))
    # What is a link still leads in circles.
    if is_stream or target.is_symlink() or (target.exists() and not target.is_file()):
        raise LogError(
            f"{path}: expected an ordinary file, found a directory, device, stream or a link that "
            "leads nowhere; name a file"
        )
    return target


def _links(path: Path) -> Iterator[Path]:
    """Yield what a path leads to, link by link; one that leads in circles ends."""
    for _ in range(_MAX_LINKS):
        if not path.is_symlink():
            return
        path = Path(os.path.realpath(path.parent)) / path.readlink()
        yield path


def _zstd(path: Path) -> Any:
    """Import the zstd module: only the tools need it, so the device image does not carry it."""
    try:
        # Imported here because the import itself is what may be missing.
        from backports import zstd
    except ImportError as error:
        raise LogError(
            f"{path}: expected the package backports.zstd for zstd logs, got none; "
            'install it with: pip install "modeld[replay]"'
        ) from error
    return zstd

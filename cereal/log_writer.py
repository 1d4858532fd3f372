"""Writes logs, either atomically (`LogWriter`) or growing in place (`GrowingLogWriter`).

Both writers receive Events (the bus's messages) one by one, choose the codec by the file name's
ending, and follow symbolic links.
"""

import bz2
import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, Self, cast

from cereal.clock import Clock, MonotonicClock
from cereal.errors import LogError, MessageError
from cereal.log_codec import ZstdFrame, import_zstd
from cereal.schema import message_size

FLUSH_INTERVAL_NS: Final = 500_000_000
"""Interval of flushing a growing log: 0.5 s, so that a crash under load loses less than 1 s."""

# The number of links that Linux follows, and the name's characters kept in temporary file names.
_MAX_LINKS: Final = 40
_MAX_PREFIX: Final = 40


class LogSink(Protocol):
    """A receiver of Events."""

    def write(self, data: bytes) -> None:
        """Append one Event; raise LogError if it is not one framed message or cannot be written."""
        ...

    def close(self) -> None:
        """Finish the log; raise LogError if that fails. A second call does nothing."""
        ...

    def discard(self) -> None:
        """Abort the log, as `with` does when its block raises an exception. Never raises."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


_NO_SPACE: Final = "free some disk space"


class _Writer:
    """The parts that both writers share: the check of their input, and `with`."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._target = _target_of(self._path)

    def close(self) -> None:
        raise NotImplementedError

    def discard(self) -> None:
        raise NotImplementedError

    def _error(self, expected: str, error: OSError, advice: str = _NO_SPACE) -> LogError:
        return LogError(f"{self._path}: expected {expected}, got {error.strerror}; {advice}")

    def _check(self, data: bytes, *, is_open: bool) -> None:
        if not is_open:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class LogWriter(_Writer):
    """Writes a log that exists completely or not at all.

    Writes a temporary file next to the target and renames it on `close`. If the `with` block
    raises, nothing is left and an older file of that name is unchanged. The endings ".zst" and
    ".bz2" compress. Raises LogError if the target is a directory, a device or a stream, its
    directory cannot be written, or the codec is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        name = f".{self._target.name[:_MAX_PREFIX]}.{os.getpid()}.part"
        self._temporary = self._target.with_name(name)
        zstd = import_zstd(self._path) if self._path.suffix == ".zst" else None
        self._file: BinaryIO | None = None
        try:
            self._file = self._open(self._temporary)
            self._frame = None if zstd is None else ZstdFrame(self._file, zstd)
        except OSError as error:
            raise self._error("to write beside it", error, "check the directory") from error

    def write(self, data: bytes) -> None:
        """Append the bytes of one Event, `event.to_bytes()`.

        Raises LogError if `data` is not exactly one framed message, the log is closed, or the disk
        is full, which discards the log.
        """
        self._check(data, is_open=self._file is not None)
        assert self._file is not None
        try:
            (self._frame or self._file).write(data)
        except OSError as error:
            self.discard()
            raise self._error(f"to write {len(data)} bytes", error) from error

    def close(self) -> None:
        """Finish the file and rename it to the target."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            if self._frame is not None:
                self._frame.finish()
            file.close()
            descriptor = os.open(self._temporary, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._temporary.replace(self._target)
        except OSError as error:
            self._temporary.unlink(missing_ok=True)
            raise self._error("to finish the log", error) from error

    def discard(self) -> None:
        """Delete everything written so far."""
        if self._file is None:
            return
        file, self._file = self._file, None
        # Closing writes buffered data, which fails again if the disk is full.
        with contextlib.suppress(OSError):
            file.close()
        self._temporary.unlink(missing_ok=True)

    def _open(self, path: Path) -> BinaryIO:
        if self._path.suffix == ".bz2":
            return cast("BinaryIO", bz2.open(path, "wb"))
        return path.open("wb")


class GrowingLogWriter(_Writer):
    """Writes a log that exists from the start and can be read while it grows.

    An Event can be read from the file at most `flush_interval_ns` after it was written, so a
    killed process loses no more than that. `write` flushes when that is due by the clock; a thread
    flushes when no further Event follows, unless `has_timer` is false. The file is locked against
    other writers, and its old content is lost. The ending ".zst" compresses; ".bz2" is refused,
    because it cannot be flushed.

    Raises:
        LogError: the target is not a regular file, ends in ".bz2", cannot be written, is being
            written by another process, or the codec is not installed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        flush_interval_ns: int = FLUSH_INTERVAL_NS,
        has_timer: bool = True,
    ) -> None:
        super().__init__(path)
        zstd = self._codec()
        self._clock = clock or MonotonicClock()
        self._flush_interval_ns = flush_interval_ns
        self._unflushed_since_ns: int | None = None
        self._failure: LogError | None = None
        self._lock = threading.Lock()
        self._has_unflushed = threading.Event()
        self._is_ended = threading.Event()
        self._file: BinaryIO | None = self._open()
        self._frame = None if zstd is None else ZstdFrame(self._file, zstd)
        # A daemon thread, so that a program that forgets to close does not hang at exit.
        self._timer = threading.Thread(target=self._flush_in_time, name="log-flush", daemon=True)
        if has_timer:
            self._timer.start()

    def write(self, data: bytes) -> None:
        """Append the bytes of one Event, `event.to_bytes()`.

        Raises LogError if `data` is not exactly one framed message, the log is closed, or the disk
        is full, which closes the log and keeps everything flushed.
        """
        with self._lock:
            self._raise_failure()
            self._check(data, is_open=self._file is not None)
            assert self._file is not None
            try:
                (self._frame or self._file).write(data)
                now_ns = self._clock.now_ns()
                if self._unflushed_since_ns is None:
                    self._unflushed_since_ns = now_ns
                    self._has_unflushed.set()
                if now_ns - self._unflushed_since_ns >= self._flush_interval_ns:
                    self._flush(self._file)
            except OSError as error:
                self._fail(error)
            self._raise_failure()

    def flush(self) -> None:
        """Make every Event so far readable from the file.

        Raises LogError if the disk is full, which closes the log and keeps everything flushed.
        """
        with self._lock:
            self._flush_if_open()
            self._raise_failure()

    def close(self) -> None:
        """Finish the file; a second call does nothing."""
        with self._lock:
            if self._file is not None:
                try:
                    if self._frame is not None:
                        self._frame.finish()
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    self._release()
                except OSError as error:
                    self._fail(error)
        if self._timer.is_alive():
            self._timer.join()
        self._raise_failure()

    def discard(self) -> None:
        """Finish the file: a growing log keeps its content."""
        # The caller is already handling another error.
        with contextlib.suppress(LogError):
            self.close()

    def _flush_in_time(self) -> None:
        while True:
            self._has_unflushed.wait()
            self._is_ended.wait(self._flush_interval_ns * 1e-9)
            with self._lock:
                if self._file is None:
                    return
                self._flush_if_open()

    def _flush_if_open(self) -> None:
        if self._file is None or self._unflushed_since_ns is None:
            return
        try:
            self._flush(self._file)
        except OSError as error:
            self._fail(error)

    def _flush(self, file: BinaryIO) -> None:
        if self._frame is not None:
            self._frame.end_block()
        file.flush()
        self._has_unflushed.clear()
        self._unflushed_since_ns = None

    def _fail(self, error: OSError) -> None:
        """Close the file as it is; the next call of a public method raises the error."""
        self._release()
        advice = f"{_NO_SPACE} (what was flushed before is kept)"
        self._failure = self._error("to write the log", error, advice)
        self._failure.__cause__ = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _release(self) -> None:
        file, self._file = self._file, None
        self._is_ended.set()
        self._has_unflushed.set()
        if file is not None:
            # Closing writes buffered data, which fails again if the disk is full.
            with contextlib.suppress(OSError):
                file.close()

    def _codec(self) -> Any:
        """Return the compression module, or None for an uncompressed log."""
        if self._path.suffix == ".bz2":
            raise LogError(
                f"{self._path}: expected a log that can grow, .zst or plain, got .bz2, which "
                "cannot be flushed; choose another ending"
            )
        return import_zstd(self._path) if self._path.suffix == ".zst" else None

    def _open(self) -> BinaryIO:
        try:
            # Not truncated until it is locked, because another process may be writing it.
            descriptor = os.open(self._target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._error("to write it", error, "check the directory") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            return os.fdopen(descriptor, "wb")
        except OSError as error:
            os.close(descriptor)
            advice = "another process is writing this log: choose another name"
            raise self._error("to be the only one to write it", error, advice) from error


def _target_of(path: Path) -> Path:
    """Follow symbolic links, because renaming a file over a link would replace the link."""
    # A link in /proc is an open file of a process; /dev/stdout leads there.
    parents = [Path(os.path.realpath(link.parent)) for link in (path, *_links(path))]
    is_stream = any(parent.is_relative_to("/proc") for parent in parents)
    target = Path(os.path.realpath(path))
    # A path that is still a link is part of a cycle.
    if is_stream or target.is_symlink() or (target.exists() and not target.is_file()):
        raise LogError(
            f"{path}: expected an ordinary file, found a directory, device, stream or a link that "
            "leads nowhere; name a file"
        )
    return target


def _links(path: Path) -> Iterator[Path]:
    """Yield the paths that `path` leads to, link by link, at most `_MAX_LINKS` of them."""
    for _ in range(_MAX_LINKS):
        if not path.is_symlink():
            return
        path = Path(os.path.realpath(path.parent)) / path.readlink()
        yield path

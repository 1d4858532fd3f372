"""Writing logs: in full or not at all, or growing under their own name.

Both writers take Events one by one, compress by the ending of the name and follow links.
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
"""How often a growing log is flushed: twice a second, so that a second is kept under load too."""

# As many links as Linux follows; characters of a name that temporary files show.
_MAX_LINKS: Final = 40
_MAX_PREFIX: Final = 40


class LogSink(Protocol):
    """A receiver of Events."""

    def write(self, data: bytes) -> None:
        """Append one Event; raise LogError if it is not one framed message or cannot be written."""
        ...

    def close(self) -> None:
        """Finish the log, or raise LogError; a second call does nothing."""
        ...

    def discard(self) -> None:
        """Give up: what `with` does when its block ends by an exception. Never raises."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


_NO_SPACE: Final = "free some disk space"


class _Writer:
    """The common parts of both writers: the check of their input, and `with`."""

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
    """Writes a log that exists in full or not at all.

    Writes beside the target and renames on `close`; when the `with` block ends by an exception,
    nothing is left and an older file of that name stays as it was. The endings ".zst" and ".bz2"
    compress. A symbolic link is followed. Raises LogError if the target is a directory, a device or
    a stream, its directory cannot be written, or the codec is not installed.
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

        Raises LogError if they are not exactly one framed message, the log is closed, or the disk
        is full (nothing is left then).
        """
        self._check(data, is_open=self._file is not None)
        assert self._file is not None
        try:
            (self._frame or self._file).write(data)
        except OSError as error:
            self.discard()
            raise self._error(f"to write {len(data)} bytes", error) from error

    def close(self) -> None:
        """Finish the file and put it in its place."""
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
        """Drop what was written."""
        if self._file is None:
            return
        file, self._file = self._file, None
        # Closing writes what is buffered, which fails again where the disk is full.
        with contextlib.suppress(OSError):
            file.close()
        self._temporary.unlink(missing_ok=True)

    def _open(self, path: Path) -> BinaryIO:
        if self._path.suffix == ".bz2":
            return cast("BinaryIO", bz2.open(path, "wb"))
        return path.open("wb")


class GrowingLogWriter(_Writer):
    """Writes a log that is there from the start and can be read while it grows.

    At most `flush_interval_ns` after an Event was written it can be read from the file, so that a
    killed process loses no more than that. A thread flushes when no further Event comes, unless
    `has_timer` is false. Another writer of the same file is refused as long as this one lives. The
    file's former content is lost. The ending ".zst" compresses; ".bz2" cannot grow. A symbolic link
    is followed. `write` asks the clock whether a flush is due.

    Raises:
        LogError: the target is no ordinary file, ends in ".bz2", cannot be written, is being
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
        # A daemon: a program that forgets to close must not hang when it ends.
        self._timer = threading.Thread(target=self._flush_in_time, name="log-flush", daemon=True)
        if has_timer:
            self._timer.start()

    def write(self, data: bytes) -> None:
        """Append the bytes of one Event, `event.to_bytes()`.

        Raises LogError if they are not exactly one framed message, the log is closed, or the disk
        is full; the log is closed then and keeps what was flushed.
        """
        with self._lock:
            self._tell_error()
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
            self._tell_error()

    def flush(self) -> None:
        """Make every Event so far readable from the file.

        If the disk is full, raises LogError, and closes the log, which keeps what was flushed.
        """
        with self._lock:
            self._flush_if_open()
            self._tell_error()

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
        self._tell_error()

    def discard(self) -> None:
        """Finish the file: what a growing log holds is kept."""
        # The caller is already handling an error of its own.
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
        """Close the file where it stands; the next to ask is told."""
        self._release()
        advice = f"{_NO_SPACE} (what was flushed before is kept)"
        self._failure = self._error("to write the log", error, advice)
        self._failure.__cause__ = error

    def _tell_error(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _release(self) -> None:
        file, self._file = self._file, None
        self._is_ended.set()
        self._has_unflushed.set()
        if file is not None:
            # Closing writes what is buffered, which fails again where the disk is full.
            with contextlib.suppress(OSError):
                file.close()

    def _codec(self) -> Any:
        """Return the module that compresses, None for none."""
        if self._path.suffix == ".bz2":
            raise LogError(
                f"{self._path}: expected a log that can grow, .zst or plain, got .bz2, which "
                "cannot be flushed; choose another ending"
            )
        return import_zstd(self._path) if self._path.suffix == ".zst" else None

    def _open(self) -> BinaryIO:
        try:
            # Not truncated before it is locked: another process may be writing it.
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
    """Follow symbolic links: what replaces a file by renaming would replace the link."""
    # A link in /proc is an open file of a process: /dev/stdout leads there.
    parents = [Path(os.path.realpath(link.parent)) for link in (path, *_links(path))]
    is_stream = any(parent.is_relative_to("/proc") for parent in parents)
    target = Path(os.path.realpath(path))
    # A path that is still a link leads in circles.
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

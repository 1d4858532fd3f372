"""Writes the service's log to stderr, one line per record, in a thread of its own.

Logging never blocks the loop: a record is formatted and put in a bounded queue. If the reader of
stderr stalls or its disk is full, records are dropped, and their number is logged once writing
works again (see docs/adr/0089-service-log-and-settings.md).
"""

import logging
import os
import queue
import select
import sys
import threading
import time
import warnings
from contextlib import ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

from cereal.clock import Clock, MonotonicClock
from modeld.service.log_format import (
    Entry,
    Format,
    JsonFormat,
    Kind,
    RateLimit,
    TextFormat,
    entry_of,
    journal_reads,
)

logger: Final = logging.getLogger(__name__)

# Size of the queue in records. With at most MAX_MESSAGE characters each, it holds a few MB.
CAPACITY: Final = 1024
# Part of the queue that is reserved for warnings and errors.
RESERVED: Final = 256
# A pipe that is ready accepts at least a page without blocking (pipe(7), PIPE_BUF).
CHUNK_BYTES: Final = 4096
# Longest wait for a pipe before the writer checks whether it should end.
POLL_MS: Final = 100
# Interval in which the writer checks for ended periods of the rate limit and retries failed writes.
TICK_S: Final = 0.5
# Longest wait for the writer when the log is closed.
CLOSE_S: Final = 1.0

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMATS: Final = ("text", "json")


class _Output(Protocol):
    """The destination of log lines."""

    def write(self, data: bytes) -> int:
        """Write without blocking; return the number of bytes written.

        Raises OSError, or ValueError if the output is closed.
        """


class _Descriptor:
    """A file descriptor. It has no buffer and no lock, which could block Python's shutdown."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._poll = select.poll()
        self._poll.register(number, select.POLLOUT)

    def write(self, data: bytes) -> int:
        # Poll also returns on an error, which the write then raises. The descriptor must not be
        # made non-blocking, because other processes share it.
        if not self._poll.poll(POLL_MS):
            return 0
        return os.write(self._number, data[:CHUNK_BYTES])


class _Stream:
    """A text stream without a file descriptor, as in tests."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        self._stream.write(data.decode())
        self._stream.flush()
        return len(data)


class _Writer(threading.Thread):
    """The thread that writes the queued entries."""

    def __init__(self, output: _Output, form: Format, clock: Clock) -> None:
        super().__init__(name="log", daemon=True)
        self._output = output
        self._form = form
        self._clock = clock
        self._limit = RateLimit()
        # A SimpleQueue's put never blocks and is reentrant, so signal handlers can log.
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._deadline_ns: int | None = None
        self._midline = False
        self._reported = 0
        self._dropped = 0
        self._failed = 0

    @property
    def lost(self) -> int:
        """Number of records that could not be written."""
        return self._dropped + self._failed

    def put(self, kind: Kind, entry: Entry) -> None:
        """Queue an entry, or count it as lost if the queue is full. Never blocks."""
        with self._lock:
            admitted: Entry | None = entry
            if entry.level > logging.DEBUG:
                admitted = self._limit.admit(kind, entry, self._clock.now_ns())
            if admitted is None:
                return
            room = CAPACITY if entry.level >= logging.WARNING else CAPACITY - RESERVED
            if self._queue.qsize() < room:
                self._queue.put(admitted)
            else:
                self._dropped += 1

    def close(self) -> None:
        """Write the queued entries, for at most ``CLOSE_S``."""
        self._deadline_ns = time.monotonic_ns() + int(CLOSE_S * 1e9)
        self._queue.put(None)
        # Do not wait longer, because a write can hang forever.
        self.join(CLOSE_S)

    def run(self) -> None:
        """Write entries until the log is closed."""
        ended = False
        while not ended and not self._expired():
            try:
                entry = self._queue.get(timeout=TICK_S)
            except queue.Empty:
                self._write_rest(self._clock.now_ns())
                continue
            if entry is None:
                ended = True
                self._write_rest(None)
            else:
                self._write(entry)
                if self._queue.empty():
                    self._log_lost()

    def _write_rest(self, now_ns: int | None) -> None:
        """Write the suppressed entries up to `now_ns` and the number of lost records."""
        with self._lock:
            over = self._limit.ended(now_ns)
        for entry in over:
            self._write(entry)
        self._log_lost()

    def _write(self, entry: Entry) -> None:
        if not self._try(entry):
            self._failed += 1

    def _log_lost(self) -> None:
        lost = self.lost
        if lost > self._reported:
            text = f"{lost - self._reported} log records lost: they could not be written in time"
            now_s = datetime.now(UTC).timestamp()
            if self._try(Entry(now_s, logging.WARNING, __name__, text)):
                self._reported = lost

    def _try(self, entry: Entry) -> bool:
        """Write the lines of an entry; return whether all were written."""
        try:
            data = "".join(f"{line}\n" for line in self._form.lines(entry)).encode()
            if self._midline:
                # The previous line was cut off by a full disk.
                data = b"\n" + data
            while data and not self._expired():
                count = self._output.write(data)
                if count:
                    self._midline = data[count - 1 : count] != b"\n"
                    data = data[count:]
        except Exception:  # noqa: BLE001 -- a thread that ends would take all later records along
            return False
        return not data

    def _expired(self) -> bool:
        return self._deadline_ns is not None and time.monotonic_ns() > self._deadline_ns


class _Handler(logging.Handler):
    """Passes records to the writer.

    A statement that logs several kinds of records names the kind: ``extra={"kind": name}``.
    """

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        name = str(getattr(record, "kind", ""))
        kind = (record.pathname, record.lineno, str(record.msg), name)
        self._writer.put(kind, entry_of(record))

    def close(self) -> None:
        """Write the queued records. ``logging.shutdown`` also calls this."""
        self._writer.close()
        super().close()


class ServiceLog:
    """The log of a service; a context manager.

    In its block, it replaces all handlers of the root logger that write to the stream. It also logs
    the messages that Python itself would print: warnings, exceptions that end threads, and
    exceptions in destructors.

    Args:
        format: One of ``FORMATS``.
        level: Minimum level, one of ``LEVELS``.
        stream: Stream for the lines; None: stderr. If it has a file descriptor, lines are written
            to that directly, without the stream's buffer.
        tracebacks: Show exceptions in several lines, as Python does; in text only. Otherwise the
            record's line has their innermost calls.
        clock: Clock for the periods of the rate limit; None: the monotonic clock.
    """

    def __init__(
        self,
        *,
        format: str = "text",  # noqa: A002 -- its name everywhere
        level: str = "info",
        stream: TextIO | None = None,
        tracebacks: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._level = LEVELS[level]
        self._stream = sys.stderr if stream is None else stream
        output, journal = _output_of(self._stream)
        form = JsonFormat(journal) if format == "json" else TextFormat(journal, tracebacks)
        self._writer = _Writer(output, form, clock or MonotonicClock())
        self._restore = ExitStack()

    @property
    def lost(self) -> int:
        """Number of records that could not be written so far, without suppressed ones."""
        return self._writer.lost

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._restore.callback(root.setLevel, root.level)
        # Keep other handlers of the root logger, which a program that embeds the daemon may have.
        for other in [h for h in root.handlers if getattr(h, "stream", None) is self._stream]:
            root.removeHandler(other)
            self._restore.callback(root.addHandler, other)
        self._restore.callback(setattr, warnings, "showwarning", warnings.showwarning)
        self._restore.callback(setattr, threading, "excepthook", threading.excepthook)
        self._restore.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
        handler = _Handler(self._writer)
        self._writer.start()
        # Callbacks run in reverse: first no new records are accepted, then queued ones are written.
        self._restore.callback(handler.close)
        self._restore.callback(root.removeHandler, handler)
        root.addHandler(handler)
        root.setLevel(self._level)
        warnings.showwarning = _log_warning
        threading.excepthook = _log_thread_end
        sys.unraisablehook = _log_unraisable
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore.close()


def _output_of(stream: TextIO) -> tuple[_Output, bool]:
    """Return the output for a stream, and whether the journal reads it."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return _Stream(stream), False
    return _Descriptor(number), journal_reads(number)


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    del file, line
    logger.warning("%s: %s (%s:%d)", category.__name__, message, filename, lineno)


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = "" if ended.thread is None else ended.thread.name
        logger.error("thread %r ended by an exception", name, exc_info=ended.exc_value)


def _log_unraisable(found: "sys.UnraisableHookArgs") -> None:
    where = found.err_msg or "exception ignored"
    logger.error("%s in %r", where, found.object, exc_info=found.exc_value)

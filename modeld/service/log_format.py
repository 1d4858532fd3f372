"""Formats the service's log records as text or JSON lines, and limits repeated ones.

`entry_of` copies a `logging` record to an `Entry`, which the writer's thread formats later.
`RateLimit` suppresses records of a kind that is logged too often, and counts them.
"""

import json
import logging
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Final, Protocol

# Longest message, in characters. Longer ones are truncated, so they cannot fill the queue.
MAX_MESSAGE: Final = 3000
# Number of innermost calls shown for an exception in one line.
MAX_FRAMES: Final = 6

# Levels of syslog(3). The prefix "<N>" of a line gives its level to the journal, see sd-daemon(3).
_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
_DEBUG_PRIORITY: Final = 7


@dataclass(frozen=True, slots=True)
class Entry:
    """A log record in the writer's queue. It holds no references to objects of the program."""

    created_s: float  # Unix time, for display only
    level: int
    name: str  # name of the logger
    message: str  # message with its arguments filled in
    exception: traceback.TracebackException | None = None  # calls without local variables


def entry_of(record: logging.LogRecord) -> Entry:
    """Return the entry of a record. Arguments that do not fit the message do not raise."""
    try:
        message = record.getMessage()
    except Exception as error:  # noqa: BLE001 -- whatever an argument's __str__ raises
        # Do not show the arguments: one of them may be the one that raises.
        message = f"{record.msg!s} (arguments do not fit: {type(error).__name__})"
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}... ({len(message)} characters)"
    exception = None
    if record.exc_info and record.exc_info[1] is not None:
        # Reading source files can be slow, so the writer's thread looks up their lines.
        exception = traceback.TracebackException.from_exception(
            record.exc_info[1], lookup_lines=False, compact=True
        )
    return Entry(record.created, record.levelno, record.name, message, exception)


class Format(Protocol):
    """Formats entries as lines."""

    def lines(self, entry: Entry) -> Iterator[str]:
        """Yield the lines of an entry without line ends; more than one only for a traceback."""


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Text lines such as ``2026-11-22T22:50:01.123Z I modeld.daemon: running``."""

    journal: bool = False  # omit the time, which the journal adds, and prefix the level as ``<6>``
    # Show exceptions in several lines, as Python does. Otherwise the record's own line has the
    # innermost calls.
    tracebacks: bool = False

    def lines(self, entry: Entry) -> Iterator[str]:
        """Yield the lines of an entry, all printable."""
        level = logging.getLevelName(entry.level)[:1]
        prefix = f"<{_priority(entry.level)}>" if self.journal else ""
        time = "" if self.journal else f"{_time(entry.created_s)} "
        message = entry.message
        if entry.exception is not None and not self.tracebacks:
            message += f": {_one_line(entry.exception)}"
        yield f"{prefix}{time}{level} {entry.name}: {_printable(message)}"
        if entry.exception is not None and self.tracebacks:
            for part in entry.exception.format():
                for line in part.splitlines():
                    yield f"{prefix}  {_printable(line)}"


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """``{"time": ..., "level": "info", "logger": ..., "message": ..., "exception": ...}``."""

    journal: bool = False  # prefix the level for the journal, as ``<6>``

    def lines(self, entry: Entry) -> Iterator[str]:
        """Yield the JSON object of an entry in one line of ASCII."""
        fields = {
            "time": _time(entry.created_s),
            "level": logging.getLevelName(entry.level).lower(),
            "logger": entry.name,
            "message": entry.message,
        }
        if entry.exception is not None:
            fields["exception"] = "".join(entry.exception.format()).rstrip("\n")
        prefix = f"<{_priority(entry.level)}>" if self.journal else ""
        yield prefix + json.dumps(fields)


def journal_reads(descriptor: int) -> bool:
    """Return whether a descriptor is the stream to the journal opened by the service manager.

    ``JOURNAL_STREAM`` has the stream's device and inode, see systemd.exec(5). They differ if the
    descriptor was redirected.
    """
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


def _time(created_s: float) -> str:
    text = datetime.fromtimestamp(created_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _priority(level: int) -> int:
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG_PRIORITY)


def _printable(text: str) -> str:
    """Return one line of text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _one_line(exception: traceback.TracebackException) -> str:
    """Return ``KeyError: 'x' (at daemon.py:12 step, process.py:80 run)``, innermost call first."""
    what = "".join(exception.format_exception_only()).strip()
    calls = [
        f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in list(exception.stack)[: -MAX_FRAMES - 1 : -1]
    ]
    return f"{what} (at {', '.join(calls)})" if calls else what


# --- Rate limit for records of one kind -------------------------------------------------------

# Maximum number of records of one kind per period. At 20 Hz, a lasting fault is logged once a
# second on average instead of 20 times; its first half second is complete.
MOST: Final = 10
PERIOD_NS: Final = 10_000_000_000
# Maximum number of kinds counted separately. The bound limits memory if a program logs ever new
# texts.
MAX_KINDS: Final = 512

# The kind of a record: file, line, message without arguments, and an optional name, or "".
Kind = tuple[str, int, str, str]


@dataclass(slots=True)
class _Window:
    start_ns: int
    shown: int = 0
    suppressed: int = 0
    last: Entry | None = None


@dataclass(slots=True)
class RateLimit:
    """Limits the number of records per kind, so one kind cannot crowd out another.

    At most `most` records of a kind are shown in a period, which begins with the first of them.
    """

    most: int = MOST
    period_ns: int = PERIOD_NS
    _windows: dict[Kind, _Window] = field(default_factory=dict)

    def admit(self, kind: Kind, entry: Entry, now_ns: int) -> Entry | None:
        """Return the entry, or None to suppress it.

        The first entry after suppressed ones gets a note with their number.
        """
        window = self._windows.get(kind)
        if window is None or now_ns - window.start_ns >= self.period_ns:
            entry = _noted(entry, 0 if window is None else window.suppressed, "%d suppressed")
            self._windows.pop(kind, None)  # the newest window must be last
            self._windows[kind] = window = _Window(now_ns)
            if len(self._windows) > MAX_KINDS:
                del self._windows[next(iter(self._windows))]
        elif window.shown >= self.most:
            window.suppressed += 1
            window.last = entry
            return None
        window.shown += 1
        return entry

    def ended(self, now_ns: int | None = None) -> list[Entry]:
        """Return the last suppressed entry of each kind whose period is over at `now_ns`.

        With None, return those of all kinds.
        """
        found: list[Entry] = []
        for window in self._windows.values():
            over = now_ns is None or now_ns - window.start_ns >= self.period_ns
            if over and window.last is not None:
                found.append(_noted(window.last, window.suppressed, "last of %d suppressed"))
                window.last, window.suppressed = None, 0
        return found


def _noted(entry: Entry, count: int, note: str) -> Entry:
    return replace(entry, message=f"{entry.message} ({note % count})") if count else entry

"""Lines of the service's log, as text or JSON, and the limit on repeated ones."""

import json
import logging
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Final, Protocol

# Characters of a message; a longer one is a defect of its writer, and must not fill the queue.
MAX_MESSAGE: Final = 3000
# Innermost calls of an exception that are named in one line.
MAX_FRAMES: Final = 6

# Levels of syslog(3) that sd-daemon(3) reads from the beginning of a line as "<N>".
_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
_DEBUG_PRIORITY: Final = 7


@dataclass(frozen=True, slots=True)
class Entry:
    """A record that waits for its writer; holds no object of the program."""

    created_s: float  # wall clock, seconds since 1970; only ever shown
    level: int
    name: str  # of the logger
    message: str  # with its arguments filled in
    exception: traceback.TracebackException | None = None  # with its calls, without their variables


def entry_of(record: logging.LogRecord) -> Entry:
    """Return what of a record is shown; arguments that do not fit their message are shown too."""
    try:
        message = record.getMessage()
    except Exception as error:  # noqa: BLE001 -- whatever an argument's __str__ raises
        # The arguments are not shown: one of them may be what cannot be.
        message = f"{record.msg!s} (arguments do not fit: {type(error).__name__})"
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}... ({len(message)} characters)"
    exception = None
    if record.exc_info and record.exc_info[1] is not None:
        # The writer's thread looks up lines of source: files may be slow.
        exception = traceback.TracebackException.from_exception(
            record.exc_info[1], lookup_lines=False, compact=True
        )
    return Entry(record.created, record.levelno, record.name, message, exception)


class Format(Protocol):
    """Makes the lines of an entry."""

    def lines(self, entry: Entry) -> Iterator[str]:
        """Yield one line, without its end; several for a whole traceback."""


@dataclass(frozen=True, slots=True)
class TextFormat:
    """``2026-11-22T22:50:01.123Z I modeld.daemon: running``.

    The journal has the time itself, and takes the level from ``<6>`` in front. Tracebacks show
    exceptions as Python does, in several lines; without, the innermost calls stand in the record's
    own line.
    """

    journal: bool = False
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
    """``{"time": ..., "level": "info", "logger": ..., "message": ..., "exception": ...}``.

    The journal takes the level from ``<6>`` in front, and keeps the rest.
    """

    journal: bool = False

    def lines(self, entry: Entry) -> Iterator[str]:
        """Yield the object of an entry in one line of ASCII."""
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
    """Whether a descriptor is the stream to the journal that the service manager has opened.

    ``JOURNAL_STREAM`` is its device and inode, see systemd.exec(5); a descriptor that was
    redirected since has others.
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
    """Return one line of text; control characters, which a terminal would obey, are spelled."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _one_line(exception: traceback.TracebackException) -> str:
    """Return ``KeyError: 'x' (at daemon.py:12 step, process.py:80 run)``, the innermost first."""
    what = "".join(exception.format_exception_only()).strip()
    calls = [
        f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in list(exception.stack)[: -MAX_FRAMES - 1 : -1]
    ]
    return f"{what} (at {', '.join(calls)})" if calls else what


# --- Limit on records of one kind from one place ----------------------------------------------

# At 20 Hz a fault that lasts gives 1 line a second instead of 20, and its first half second whole.
MOST: Final = 10
PERIOD_NS: Final = 10_000_000_000
# Most kinds that are counted apart; a place whose texts are all different must not fill the memory.
MAX_KINDS: Final = 512

# File, line, text without its arguments, and the writer's own name of the kind, "" without one.
Kind = tuple[str, int, str, str]


@dataclass(slots=True)
class _Window:
    start_ns: int
    shown: int = 0
    suppressed: int = 0
    last: Entry | None = None


@dataclass(slots=True)
class RateLimit:
    """Counts records by kind; each kind has its own allowance, so that none starves another.

    At most `most` of a kind are shown in a period, which begins with its first record.
    """

    most: int = MOST
    period_ns: int = PERIOD_NS
    _windows: dict[Kind, _Window] = field(default_factory=dict)

    def admit(self, kind: Kind, entry: Entry, now_ns: int) -> Entry | None:
        """Return the entry, with the number suppressed before it, or None to suppress it."""
        window = self._windows.get(kind)
        if window is None or now_ns - window.start_ns >= self.period_ns:
            entry = _noted(entry, 0 if window is None else window.suppressed, "%d suppressed")
            self._windows.pop(kind, None)  # the newest stand last
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
        """Return each kind's last suppressed entry whose period is over at `now_ns`; None: all."""
        found: list[Entry] = []
        for window in self._windows.values():
            over = now_ns is None or now_ns - window.start_ns >= self.period_ns
            if over and window.last is not None:
                found.append(_noted(window.last, window.suppressed, "last of %d suppressed"))
                window.last, window.suppressed = None, 0
        return found


def _noted(entry: Entry, count: int, note: str) -> Entry:
    return replace(entry, message=f"{entry.message} ({note % count})") if count else entry

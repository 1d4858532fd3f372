"""Limit on records of the service's log: so many of one kind from one place in some seconds."""

from dataclasses import dataclass, field, replace
from typing import Final

from modeld.log_format import Entry

# At 20 Hz a fault that lasts gives 1 line a second instead of 20, and its first half second whole.
MOST: Final = 10
PERIOD_NS: Final = 10_000_000_000
# Kinds that are told apart; a place whose texts are all different must not fill the memory.
MAX_KINDS: Final = 512

# File, line, text without its arguments, and what the writer itself calls the kind, "" without one.
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

    Attributes:
        most: Records of one kind that are shown in a period.
        period_ns: Length of a period, which begins with its first record.
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
        """Return the last entry of each kind that was suppressed and that no other followed.

        Args:
            now_ns: Only kinds whose period is over then; None: all.
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

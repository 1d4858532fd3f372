"""Judges whether a service keeps its rate. Used by `pubsub` only."""

from collections import deque
from typing import Final

_TOLERANCE: Final = 0.2
_LONG_WINDOW_S: Final = 10
_SHORT_WINDOW_S: Final = 1
_SHORTEST_INTERVAL_NS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


class FrequencyTracker:
    """Average rate of arrival over 10 s and over 1 s, against the bounds of the service.

    `bounds_hz` has the lowest and highest right average rate, with 20 % of slack. An owner that
    looks `update_hz` times a second cannot see more than one message per look, unless `is_polled`:
    then it looks when this service has a message. At 60 updates a second a service of 100 Hz is
    right from 24 to 72 Hz; at 100 updates one of 20 Hz from 16 to 24 Hz.
    """

    def __init__(self, frequency_hz: float, update_hz: float, *, is_polled: bool) -> None:
        seen_hz = max(min(frequency_hz, update_hz), 1.0)
        low_hz = high_hz = seen_hz
        if not is_polled:
            high_hz = min(seen_hz, update_hz)
            if frequency_hz >= 2 * update_hz:
                low_hz = update_hz
            elif update_hz < 2 * frequency_hz:
                # Close rates beat: in the worst phase every other message falls on a seen one.
                low_hz = seen_hz / 2
        self.bounds_hz = (low_hz * (1 - _TOLERANCE), high_hz * (1 + _TOLERANCE))
        self._long = _Window(int(_LONG_WINDOW_S * seen_hz))
        self._short = _Window(int(_SHORT_WINDOW_S * seen_hz))
        self._last_ns: int | None = None

    def record(self, now_ns: int) -> None:
        """Note that a message came at `now_ns`."""
        if self._last_ns is not None:
            self._long.append(now_ns - self._last_ns)
            self._short.append(now_ns - self._last_ns)
        self._last_ns = now_ns

    def is_ok(self) -> bool:
        """Return whether either average is within the bounds; False before the second message."""
        return self._is_within(self._long) or self._is_within(self._short)

    def _is_within(self, window: "_Window") -> bool:
        mean_ns = window.mean_ns()
        if mean_ns is None:
            return False
        low_hz, high_hz = self.bounds_hz
        return low_hz <= _NS_PER_S / max(mean_ns, _SHORTEST_INTERVAL_NS) <= high_hz


class _Window:
    """The last `length` intervals and their exact sum."""

    def __init__(self, length: int) -> None:
        self._intervals_ns: deque[int] = deque(maxlen=length)
        self._sum_ns = 0

    def append(self, interval_ns: int) -> None:
        if len(self._intervals_ns) == self._intervals_ns.maxlen:
            self._sum_ns -= self._intervals_ns[0]
        self._intervals_ns.append(interval_ns)
        self._sum_ns += interval_ns

    def mean_ns(self) -> float | None:
        count = len(self._intervals_ns)
        return self._sum_ns / count if count else None

"""Clocks: the system's monotonic clock, and a manual one for replay and tests.

Code receives its clock as an argument and never uses a global one, so a replay needs no patching.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in nanoseconds. Only differences between times are meaningful."""

    def now_ns(self) -> int:
        """Return the current time, ns."""
        ...

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Wait until `now_ns()` is at least `deadline_ns`; return immediately if it already is."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC: the clock of `logMonoTime` and of the cameras' timestamps."""

    def now_ns(self) -> int:
        """Return the time since boot, ns."""
        return time.monotonic_ns()

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep until the deadline; the system may add its timer slack (about 50 us)."""
        remaining_ns = deadline_ns - time.monotonic_ns()
        if remaining_ns > 0:
            time.sleep(remaining_ns * 1e-9)


class ManualClock:
    """A clock that advances only when told to, for replay and tests."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Return the time set last, ns."""
        return self._now_ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Set the time to the deadline without waiting; a deadline in the past changes nothing."""
        self._now_ns = max(self._now_ns, deadline_ns)

    def advance_ns(self, delta_ns: int) -> None:
        """Advance by `delta_ns`; raise ValueError if it is negative."""
        if delta_ns < 0:
            raise ValueError(
                f"manual clock: expected a step of at least 0 ns, got {delta_ns}; "
                "monotonic time never runs back"
            )
        self._now_ns += delta_ns

    def set_ns(self, now_ns: int) -> None:
        """Set the time to `now_ns`, which may be earlier: a replay can start a second drive."""
        self._now_ns = now_ns

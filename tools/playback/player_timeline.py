"""Maps recorded times to the clock: one line through an anchor, moved at jumps.

Played time is recorded time with jumps taken out: it always goes on, see ``player_stamps``.
"""

from __future__ import annotations


class Timeline:
    """Maps played time to the clock and back.

    The line is one tuple, replaced as a whole: another thread may map while it is moved.

    Args:
        speed: seconds of the drive per second of the clock.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._anchor: tuple[int, int] | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is an anchor."""
        return self._anchor is not None

    def set(self, played_ns: int, clock_ns: int) -> None:
        """Let `played_ns` be due at `clock_ns`."""
        self._anchor = (played_ns, clock_ns)

    def clear(self) -> None:
        """Forget the anchor: the next event begins anew."""
        self._anchor = None

    def delay(self, delta_ns: int) -> None:
        """Let everything be due `delta_ns` later."""
        played_ns, clock_ns = self._set_anchor()
        self._anchor = (played_ns, clock_ns + delta_ns)

    def due_ns(self, played_ns: int) -> int:
        """Return the clock's time at which `played_ns` is due."""
        anchor_ns, clock_ns = self._set_anchor()
        return clock_ns + self.clock_span_ns(played_ns - anchor_ns)

    def played_ns(self, clock_ns: int) -> int:
        """Return what is due at `clock_ns`."""
        anchor_ns, at_ns = self._set_anchor()
        return anchor_ns + round((clock_ns - at_ns) * self._speed)

    def clock_span_ns(self, played_ns: int) -> int:
        """Return how long a span of played time takes on the clock."""
        return round(played_ns / self._speed)

    def _set_anchor(self) -> tuple[int, int]:
        assert self._anchor is not None, "events are due only after the first one"
        return self._anchor

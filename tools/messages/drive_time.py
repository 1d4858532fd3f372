"""The time of a drive: when in the drive, and where in its route, an event of a log lies.

A drive's time is 0 at its log's first event that is neither ``initData`` nor ``sentinel``, with
which each segment begins. ``initData`` carries the time at which its route began, which places the
log in the route. If these two are minutes early they count as of the moment that they stand at. If
the clock goes back, because the machine was restarted, the time goes on from the newest one before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from cereal.log_reader import read_log
from cereal.schema import member_name

NS_PER_S: Final = 1_000_000_000
ORIGIN: Final = "initData"
MARKS: Final = (ORIGIN, "sentinel")
# Logs are written as messages arrive; neighbours are known to differ by a fraction of a second.
BOOT_NS: Final = 5 * NS_PER_S
_LARGEST_NS: Final = 2**64 - 1


class Boot(NamedTuple):
    """A moment of the drive at which the clock went back, and by how much."""

    time_ns: int
    back_ns: int


class DriveTime:
    """Takes the events of a log in their order; of a log that follows another, go on with it.

    Attributes:
        route_ns: ``logMonoTime`` of the first initData, at which the route began; None without one.
        start_ns: ``logMonoTime`` at time 0; None before it is known.
        span_ns: the newest time, so how long the drive is; never negative.
        boots: where the clock went back.
    """

    def __init__(self) -> None:
        self.route_ns: int | None = None
        self.start_ns: int | None = None
        self.span_ns = 0
        self.boots: list[Boot] = []
        self._zero_ns = 0

    def take(self, service: str | None, mono_time_ns: int) -> int:
        """Return the time of the next event in ns; below 0 where it should stand before the first.

        `service` is the name of its Event member, None if unknown.
        """
        if service == ORIGIN and self.route_ns is None:
            self.route_ns = mono_time_ns
        if self.start_ns is None:
            if service in MARKS:
                return 0
            self.start_ns = self._zero_ns = mono_time_ns
        back_ns = self.span_ns - self.of(mono_time_ns)
        if back_ns > BOOT_NS:
            if service in MARKS:
                return self.span_ns
            self.boots.append(Boot(self.span_ns, back_ns))
            self._zero_ns -= back_ns
        time_ns = self.of(mono_time_ns)
        self.span_ns = max(self.span_ns, time_ns)
        return time_ns

    def of(self, mono_time_ns: int) -> int:
        """Return the time at which the clock shows or showed this, after the newest start, ns."""
        return mono_time_ns - self._zero_ns

    def place_ns(self, time_ns: int) -> int:
        """Return a time of the drive on the clock of its first event, as a rule ``logMonoTime``."""
        return min(max(0, time_ns + (self.start_ns or 0)), _LARGEST_NS)

    def follow(self, events: Iterable[Any]) -> Iterator[tuple[str | None, int, Any]]:
        """Yield member, time in ns and reader of each Event; `start_ns` is known by then.

        What stands before the first event that says the time is held back until that one comes.
        """
        held: list[tuple[str | None, Any]] = []
        for event in events:
            service = member_name(event)
            time_ns = self.take(service, event.logMonoTime)
            if self.start_ns is None:
                held.append((service, event))
                continue
            yield from self._released(held)
            yield service, time_ns, event
        if held:  # there is nothing else
            self.start_ns = self._zero_ns = held[0][1].logMonoTime
            yield from self._released(held)

    def _released(
        self, held: list[tuple[str | None, Any]]
    ) -> Iterator[tuple[str | None, int, Any]]:
        for service, event in held:
            time_ns = self.of(event.logMonoTime)
            yield service, time_ns if abs(time_ns) <= BOOT_NS else 0, event
        held.clear()

    @property
    def route_from_s(self) -> float | None:
        """Where in its route the log begins; None without initData."""
        if self.route_ns is None or self.start_ns is None:
            return None
        return max(0, self.start_ns - self.route_ns) / NS_PER_S

    def as_json(self) -> dict[str, Any]:
        """Return the drive's time as plain values, in seconds."""
        return {
            "duration_s": self.span_ns / NS_PER_S,
            "route_from_s": self.route_from_s,
            "clock_went_back": [
                {"at_s": boot.time_ns / NS_PER_S, "by_s": boot.back_ns / NS_PER_S}
                for boot in self.boots
            ],
        }

    def text(self) -> str:
        """Return how long the drive is, where it lies in its route, and whether the clock jumped.

        As in ``9.000 s, from 60.000 s of its route on``; then what `notes` says.
        """
        parts = [f"{self.span_ns / NS_PER_S:.3f} s"]
        if self.route_from_s is not None:
            parts[0] += f", from {self.route_from_s:.3f} s of its route on"
        return "; ".join(parts + self.notes())

    def notes(self) -> list[str]:
        """Return a line for each time that the clock went back."""
        return [
            f"the clock went back by {boot.back_ns / NS_PER_S:.3f} s "
            f"at {boot.time_ns / NS_PER_S:.3f} s"
            for boot in self.boots
        ]


logger = logging.getLogger(__name__)


def read_log_events(path: Path) -> Iterator[Any]:
    """Yield the events of a log; a cut or damaged log is a warning, not a traceback.

    Raises:
        LogError: the file cannot be read or is no log.
    """
    return read_log(path, logger.warning)

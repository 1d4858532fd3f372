"""Moments in which the machine itself stood still, told by a process that does nothing else.

A virtual machine is paused now and then by its host, and a machine without memory stops everybody:
what is late then is late for all, and nobody's broken promise. It is counted in the report.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

BEAT_S = 0.02
# Far beyond what a scheduler does to a process that sleeps: a tenth of a second is five beats.
LONGEST_BEAT_NS = 150_000_000

# Nothing of ours is imported, no thread beside it: what keeps this process from running is not us.
_SCRIPT = f"""
import os, sys, time
before = time.monotonic_ns()
while os.getppid() != 1:
    time.sleep({BEAT_S})
    now = time.monotonic_ns()
    if now - before > {LONGEST_BEAT_NS}:
        print(before, now, flush=True)
    before = now
"""


class Standstill(NamedTuple):
    """From the last beat before it to the first one after it, ns of the monotonic clock."""

    start_ns: int
    end_ns: int


class Heart:
    """A process that beats; started when made."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SCRIPT], stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> list[Standstill]:
        """End it; return when it could not beat."""
        self._process.terminate()
        text, _ = self._process.communicate()
        return [Standstill(*map(int, line.split())) for line in text.splitlines()]


def stood_still_ns(standstills: Sequence[Standstill], start_ns: int, end_ns: int) -> int:
    """Return for how much of a span of time the machine stood still."""
    return sum(max(0, min(end_ns, s.end_ns) - max(start_ns, s.start_ns)) for s in standstills)

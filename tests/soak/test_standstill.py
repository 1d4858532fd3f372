"""Pauses of the machine are told apart from pauses of the daemon."""

from __future__ import annotations

import os
import signal
import time

from tests.soak.standstill import LONGEST_BEAT_NS, Heart, Standstill, stood_still_ns


def test_a_process_that_is_stopped_misses_its_beats() -> None:
    heart = Heart()
    time.sleep(0.5)
    stopped_ns = time.monotonic_ns()
    os.kill(heart.pid, signal.SIGSTOP)
    time.sleep(0.6)
    os.kill(heart.pid, signal.SIGCONT)
    resumed_ns = time.monotonic_ns()
    time.sleep(0.2)
    longest = max(heart.stop(), key=lambda one: one.end_ns - one.start_ns)
    # It may have been about to beat, and then beats late on a busy machine: but not by much more.
    assert longest.start_ns < resumed_ns
    assert longest.end_ns >= resumed_ns - LONGEST_BEAT_NS
    assert stood_still_ns([longest], stopped_ns, resumed_ns) > 400_000_000


def test_only_the_part_within_counts() -> None:
    standstills = [Standstill(100, 200), Standstill(300, 350)]
    assert stood_still_ns(standstills, 0, 1000) == 150
    assert stood_still_ns(standstills, 150, 320) == 70
    assert stood_still_ns(standstills, 200, 300) == 0
    assert stood_still_ns([], 0, 1000) == 0

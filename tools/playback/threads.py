"""Priorities of the player's threads: decoding yields to everybody, playing to nobody.

Prefetching can wait; the daemon and the thread that hands frames over cannot.
Linux counts priorities by thread, and threads inherit them: a decoder's own threads are those of
the thread that opened it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from tools.drives.drive import Drive, DriveInfo, Moment
from tools.playback.prefetch import prefetch

# setpriority(2): -20 first to 19 last. Nobody waits for the decoder as long as moments are queued;
# the lowest priority of all would let it starve beside a busy machine.
DECODER_NICE: Final = 10
# Only with a privilege (CAP_SYS_NICE, or a limit that allows it); without it stays as it is.
PLAYER_NICE: Final = -10
# Python's default lets a thread that computes keep others waiting for 5 ms.
SWITCH_INTERVAL_S: Final = 0.5e-3


class YieldingDrive:
    """A drive whose moments are decoded at low priority: that of whichever thread iterates.

    `drive`: stays the caller's.
    """

    def __init__(self, drive: Drive) -> None:
        self._drive = drive

    @property
    def info(self) -> DriveInfo:
        """What is known of it."""
        return self._drive.info

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the moments from number `first` on; lowers the calling thread's priority."""
        yield_to_others()
        yield from self._drive.moments(first)

    def close(self) -> None:
        """Do nothing: the drive is the caller's."""


def read_yielding(drive: Drive) -> Callable[[int], AbstractContextManager[Iterator[Moment]]]:
    """Return what opens the drive's moments from a number on, prefetched at low priority."""
    yielding = YieldingDrive(drive)
    return lambda first: prefetch(yielding, first)


def yield_to_others() -> None:
    """Lower the calling thread's priority for good."""
    _set_nice(DECODER_NICE)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            # 0 is the calling thread. Batch: does not preempt others when it wakes up.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def hurry() -> None:
    """Raise the calling thread's priority where that is allowed."""
    _set_nice(PLAYER_NICE)


@contextmanager
def punctual() -> Iterator[None]:
    """Within, the calling thread runs before others where that is allowed."""
    interval_s = sys.getswitchinterval()
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    hurry()
    try:
        yield
    finally:
        _set_nice(before)
        sys.setswitchinterval(interval_s)


def _set_nice(value: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), value)

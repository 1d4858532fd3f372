"""Threads of the player: one prefetches the moments of a drive, and each has its priority.

Decoding overlaps inference and yields to everybody; the daemon and the thread that hands frames
over yield to nobody. Linux counts priorities by thread, and threads inherit them: a decoder's own
threads are those of the thread that opened it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from tools.drives.drive import KEPT_MOMENTS, Drive, DriveInfo, Moment

# Held at once: those in the queue, one that waits for a place in it, one in use, and the drive
# writes to the buffers of the next one. Together they stay below what a drive keeps.
DEPTH: Final = 4
assert DEPTH + 3 <= KEPT_MOMENTS
# setpriority(2): -20 first to 19 last. Nobody waits for the decoder as long as moments are queued;
# the lowest priority of all would let it starve beside a busy machine.
DECODER_NICE: Final = 10
# Only with a privilege (CAP_SYS_NICE, or a limit that allows it); without it stays as it is.
PLAYER_NICE: Final = -10
# Python's default lets a thread that computes keep others waiting for 5 ms.
SWITCH_INTERVAL_S: Final = 0.5e-3


@dataclass(frozen=True, slots=True)
class _End:
    """Stands behind the last moment; `error` is what the drive raised instead of another one."""

    error: BaseException | None


class _Queue:
    """A bounded queue of moments that either end can close.

    Made of queues that Python implements in C: Ctrl-C between the lines of a lock written in Python
    would leave it taken, and the other thread waiting for ever.
    """

    def __init__(self, depth: int) -> None:
        self._moments: SimpleQueue[Moment | _End] = SimpleQueue()
        # One token for each moment that may be appended.
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._is_stopped = False

    def put(self, moment: Moment) -> bool:
        """Append when there is room; False when nobody reads any more."""
        self._room.get()
        if self._is_stopped:
            return False
        self._moments.put(moment)
        return True

    def finish(self, error: BaseException | None) -> None:
        """Say that no more moments come, and why if it is not the end of the drive."""
        self._moments.put(_End(error))

    def stop(self) -> None:
        """Say that nobody reads any more."""
        self._is_stopped = True
        self._room.put(None)

    def get(self) -> Moment | None:
        """Return the next moment, None at the end.

        Raises:
            BaseException: what the drive raised, once, after the moments that precede it.
        """
        moment = self._moments.get()
        if not isinstance(moment, _End):
            self._room.put(None)
            return moment
        self._moments.put(_End(None))
        if moment.error is not None:
            raise moment.error
        return None


@contextmanager
def prefetch(drive: Drive, first: int = 0, *, depth: int = DEPTH) -> Iterator[Iterator[Moment]]:
    """Read a drive in a thread; at most `depth` moments wait to be taken.

    ``with prefetch(drive) as moments:`` iterates like ``drive.moments()``. What the drive raises is
    raised where its moment would have come. When the block ends, the thread has ended.

    `drive`: an open drive; nobody else uses it within the block. `first`: number of the first
    moment. `depth`: 1 to ``DEPTH``.

    Raises:
        ToolError: within the block, from the iterator: what the drive raised.
    """
    assert 1 <= depth <= DEPTH
    queue = _Queue(depth)
    # A daemon, so that an interrupt between its start and the block below keeps no process alive.
    thread = threading.Thread(
        target=_read, args=(drive, first, queue), name="drive-prefetch", daemon=True
    )
    thread.start()
    try:
        yield iter(queue.get, None)
    finally:
        queue.stop()
        thread.join()


def _read(drive: Drive, first: int, queue: _Queue) -> None:
    moments = drive.moments(first)
    error: BaseException | None = None
    try:
        for moment in moments:
            if not queue.put(moment):
                break
    except BaseException as raised:  # noqa: BLE001 - raised again in the thread that plays
        error = raised
    finally:
        # A generator left to the collector would close its files in some other thread, later.
        close = getattr(moments, "close", None)
        if close is not None:
            close()
        queue.finish(error)


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

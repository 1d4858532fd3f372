"""Prefetches the moments of a drive in a thread, and sets the priorities of playback threads.

A moment is one frame of the main camera with the messages since the previous one.
Decoding overlaps inference and has a low priority. The daemon and the thread that publishes frames
have a high one. On Linux each thread has its own priority, which the threads it creates inherit: a
decoder's threads have that of the thread that opened it.
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

# Maximum number of queued moments. In addition, one waits for room in the queue, one is in use, and
# the drive fills the buffers of the next one. Together they must not exceed the moments that a
# drive keeps.
DEPTH: Final = 4
assert DEPTH + 3 <= KEPT_MOMENTS
# For setpriority(2), from -20 (first) to 19 (last). Playback does not wait for the decoder while
# moments are queued, but at the lowest priority the decoder would starve on a busy machine.
DECODER_NICE: Final = 10
# Needs CAP_SYS_NICE or a limit that allows it; otherwise the priority stays unchanged.
PLAYER_NICE: Final = -10
# By default, a computing Python thread can make others wait for 5 ms.
SWITCH_INTERVAL_S: Final = 0.5e-3


@dataclass(frozen=True, slots=True)
class _End:
    """Marks the end of the moments; `error` is the drive's error if it ended early."""

    error: BaseException | None


class _Queue:
    """A bounded queue of moments that either end can close.

    It consists of queues that Python implements in C. If Ctrl-C interrupted a lock written in
    Python, the lock would stay taken and the other thread would wait forever.
    """

    def __init__(self, depth: int) -> None:
        self._moments: SimpleQueue[Moment | _End] = SimpleQueue()
        # One token for each moment that can be appended.
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._is_stopped = False

    def put(self, moment: Moment) -> bool:
        """Append a moment when there is room; return False if the reader has stopped."""
        self._room.get()
        if self._is_stopped:
            return False
        self._moments.put(moment)
        return True

    def finish(self, error: BaseException | None) -> None:
        """Mark the end of the moments, with the error that ended them early, if any."""
        self._moments.put(_End(error))

    def stop(self) -> None:
        """Mark that the reader has stopped."""
        self._is_stopped = True
        self._room.put(None)

    def get(self) -> Moment | None:
        """Return the next moment, None at the end.

        Raises:
            BaseException: the drive's error, once, after the moments that precede it.
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
    """Read a drive in a thread, at most `depth` moments ahead.

    ``with prefetch(drive) as moments:`` iterates like ``drive.moments()``, including the errors of
    the drive. The thread ends with the block.

    `drive`: an open drive, not used by others within the block. `first`: number of the first
    moment. `depth`: 1 to ``DEPTH``.

    Raises:
        ToolError: raised by the iterator, within the block, if the drive raised it.
    """
    assert 1 <= depth <= DEPTH
    queue = _Queue(depth)
    # A daemon thread does not keep the process alive if an interrupt occurs before the `try` below.
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
    """Put the moments of a drive into a queue; runs in the prefetching thread."""
    moments = drive.moments(first)
    error: BaseException | None = None
    try:
        for moment in moments:
            if not queue.put(moment):
                break
    except BaseException as raised:  # noqa: BLE001 - raised again in the thread that plays
        error = raised
    finally:
        # Left to the garbage collector, a generator would close its files later, in another thread.
        close = getattr(moments, "close", None)
        if close is not None:
            close()
        queue.finish(error)


class YieldingDrive:
    """A drive that lowers the priority of the thread that iterates over its moments.

    `drive`: the underlying drive, which the caller closes.
    """

    def __init__(self, drive: Drive) -> None:
        self._drive = drive

    @property
    def info(self) -> DriveInfo:
        """The description of the drive."""
        return self._drive.info

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Lower the calling thread's priority; yield the moments from number `first` on."""
        yield_to_others()
        yield from self._drive.moments(first)

    def close(self) -> None:
        """Do nothing, because the drive belongs to the caller."""


def read_yielding(drive: Drive) -> Callable[[int], AbstractContextManager[Iterator[Moment]]]:
    """Return a function that prefetches the moments from a number on, at low priority."""
    yielding = YieldingDrive(drive)
    return lambda first: prefetch(yielding, first)


def yield_to_others() -> None:
    """Lower the calling thread's priority permanently."""
    _set_nice(DECODER_NICE)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            # 0 is the calling thread. A batch thread does not preempt others when it wakes up.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def hurry() -> None:
    """Raise the calling thread's priority if that is allowed."""
    _set_nice(PLAYER_NICE)


@contextmanager
def punctual() -> Iterator[None]:
    """Raise the calling thread's priority within the block if that is allowed."""
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

"""A thread prefetches the moments of a drive, so that decoding overlaps inference.

``with prefetch(drive) as moments:`` iterates like ``drive.moments()``. What the drive raises is
raised where its moment would have come. When the block ends, for whatever reason, the thread has
ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from tools.drives.drive import KEPT_MOMENTS, Drive, Moment

# Held at once: those in the queue, one that waits for a place in it, one in use, and the drive
# writes to the buffers of the next one. Together they stay below what a drive keeps.
DEPTH = 4
assert DEPTH + 3 <= KEPT_MOMENTS


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

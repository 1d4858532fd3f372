"""A log written beside the model: a thread compresses while the next frame is on the device.

The caller hands over the events of a moment at once. What fails in the thread is raised where the
caller comes next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

# Moments that wait to be written; more than a slow disk needs, and a few MiB.
DEPTH = 32


class LogThread:
    """Calls `write` for each event, in order, in a thread of its own.

    Use it as a context: the block ends when everything is written, and by an exception at once.

    Args:
        write: takes the bytes of one event.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._pending: list[bytes] = []
        # Queues that Python implements in C: Ctrl-C between the lines of a lock written in Python
        # would leave it taken, and both threads waiting for ever. `_room` has a token for each
        # entry that may be appended.
        self._queue: SimpleQueue[Sequence[bytes] | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(DEPTH):
            self._room.put(None)
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def record(self, data: bytes) -> None:
        """Take one event; it is handed over by the next `flush`."""
        self._pending.append(data)

    def flush(self) -> None:
        """Hand over what was recorded; waits where the thread is far behind.

        Raises:
            BaseException: what `write` raised of an earlier event.
        """
        self._check()
        if self._pending:
            self._room.get()
            pending, self._pending = self._pending, []
            self._queue.put(pending)

    def __enter__(self) -> LogThread:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        else:
            self._is_abandoned = True
        self._queue.put(None)
        self._thread.join()
        if kind is None:
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        while (events := self._queue.get()) is not None:
            self._room.put(None)
            # After an error the queue is emptied all the same: nobody must wait for a place.
            if self._is_abandoned or self._error is not None:
                continue
            try:
                for data in events:
                    self._write(data)
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                self._error = error
                self._is_abandoned = True

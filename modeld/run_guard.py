"""Marks when the model runs, so that another thread can give up a run that does not come back.

A run lies in calls of the driver that nothing can interrupt. It is not ended, it is left behind:
its thread learns so when the call returns, if it ever does, and touches nothing any more
(ADR 0086).
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from modeld.errors import RunAbandonedError
from modeld.loop_state import LoopState


class RunGuard:
    """The present run of a loop's model.

    Args:
        state: Of the loop; ``running_ns`` is kept here.
    """

    def __init__(self, state: LoopState) -> None:
        self._state = state
        self._turn = 0
        # Held for a comparison and an assignment only: neither side ever waits for the other.
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around a run.

        Raises:
            RunAbandonedError: The run was given up; its thread must end.
        """
        turn = self._turn
        self._state.running_ns = time.monotonic_ns()
        try:
            yield
        finally:
            with self._lock:
                abandoned = self._turn != turn
                if not abandoned:
                    self._state.running_ns = 0
            if abandoned:
                raise RunAbandonedError

    def abandon(self, began_ns: int) -> bool:
        """Give up the run that began then; False if it has come to its end meanwhile."""
        with self._lock:
            if began_ns == 0 or self._state.running_ns != began_ns:
                return False
            self._turn += 1
            self._state.running_ns = 0
            return True

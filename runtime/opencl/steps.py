"""Steps of a run: a step is one kernel launch, or many launches that the driver has recorded.

sum, double_it, add_weight    ->    one step, whose recording contains these three launches
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from runtime.opencl.binding import cl
from runtime.opencl.recording_api import RecordingError

logger = logging.getLogger(__name__)


class Step(Protocol):
    """A part of a run. Errors call it `name`. It enqueues `submissions` commands."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def submissions(self) -> int: ...  # noqa: D102

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event | None:
        """Enqueue the step; return the event of a single launch.

        Raises pyopencl.Error or RecordingError if the device refuses.
        """


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel whose arguments are set already, and its index space."""

    name: str  # name of the kernel
    kernel: cl.Kernel
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    submissions: ClassVar[int] = 1

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        """Launch the kernel; raise pyopencl.Error if the device refuses.

        The arguments were set when the kernel was bound, so this is a single call.
        """
        return cl.enqueue_nd_range_kernel(queue, self.kernel, self.global_size, self.local_size)


class Recording(Protocol):
    """Launches that a driver has recorded, made by a `runtime.opencl.recording.Recorder`.

    It belongs to one queue. A replay enqueues `submissions` commands.
    """

    @property
    def submissions(self) -> int: ...  # noqa: D102

    def replay(self) -> None:
        """Enqueue all launches, in order.

        Raises RecordingError if the driver refuses, or cannot apply a `change`.
        """

    def change(self, launch: int, position: int, memory: cl.MemoryObject) -> None:
        """Replace the memory of an argument, from the next replay on.

        `launch` and `position` count from 0. The memory must stay allocated while it is in use.
        Raises RecordingError if the driver cannot change arguments.
        """

    def release(self) -> None:
        """Release the recording, which is not used again."""


class Recorded:
    """Recorded launches as one step.

    If the driver refuses a changed argument, they are enqueued one by one from then on. Any other
    failure of a replay is an error.
    """

    def __init__(self, launches: Sequence[Launch], recording: Recording) -> None:
        self.name = f"{launches[0].name} .. {launches[-1].name}, recorded"
        self.launches = tuple(launches)
        self._recording: Recording | None = recording
        # Whether changed arguments have not been replayed successfully yet.
        self._untried = False

    @property
    def submissions(self) -> int:
        """Number of commands that one run enqueues."""
        return len(self.launches) if self._recording is None else self._recording.submissions

    def enqueue(self, queue: cl.CommandQueue) -> None:
        """Replay the recording; raise pyopencl.Error or RecordingError if the device refuses."""
        if self._recording is not None:
            try:
                self._recording.replay()
            except RecordingError as error:
                # If the driver refuses a change, the run continues with single launches. That is
                # safe only for a recording of one command: of several, some are perhaps enqueued.
                whole = self._recording.submissions == 1
                if self._untried:
                    self.give_up(error)
                if not (self._untried and whole):
                    raise
            else:
                self._untried = False
                return
        for launch in self.launches:
            launch.enqueue(queue)

    def change(self, launch: int, position: int, memory: cl.MemoryObject) -> None:
        """Replace the memory of an argument from the next run on; the kernel has it already."""
        if self._recording is None:
            return
        try:
            self._recording.change(launch, position, memory)
            self._untried = True
        except RecordingError as error:
            self.give_up(error)

    def give_up(self, reason: Exception) -> None:
        """Launch one by one from now on, and log that once."""
        logger.warning(
            "%s: %s launches are enqueued one by one now: %s", self.name, len(self.launches), reason
        )
        self.release()

    def release(self) -> None:
        """Release the recording."""
        if self._recording is not None:
            self._recording.release()
            self._recording = None

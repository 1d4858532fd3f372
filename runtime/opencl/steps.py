"""Steps of a run: a launch, or many that the driver holds as one command.

sum, double_it, add_weight    ->    one step, whose recording has these three launches
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
    """A part of a run. Errors call it `name`; it is `submissions` commands."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def submissions(self) -> int: ...  # noqa: D102

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event | None:
        """Enqueue it; return the event of a single launch.

        Raises pyopencl.Error or RecordingError if the device refuses.
        """


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its arguments set once, and its index space."""

    name: str
    kernel: cl.Kernel
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    submissions: ClassVar[int] = 1

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        """Launch the kernel; raise pyopencl.Error if the device refuses.

        Arguments were set when it was bound, so this is one call.
        """
        return cl.enqueue_nd_range_kernel(queue, self.kernel, self.global_size, self.local_size)


class Recording(Protocol):
    """Launches that a driver holds; made by a `runtime.opencl.recording.Recorder` for one queue.

    A replay is `submissions` commands.
    """

    @property
    def submissions(self) -> int: ...  # noqa: D102

    def replay(self) -> None:
        """Enqueue all launches, in order.

        Raises RecordingError if the driver refuses, or cannot give a launch what `change` asked
        for.
        """

    def change(self, launch: int, position: int, memory: cl.MemoryObject) -> None:
        """Give an argument of a launch, counted from 0, other memory from the next replay on.

        The memory must stay while it is in use. Raises RecordingError if the driver cannot change
        it.
        """

    def release(self) -> None:
        """Give it back; it is not used again."""


class Recorded:
    """Launches as one step; if the driver fails to replay it, one by one as before."""

    def __init__(self, launches: Sequence[Launch], recording: Recording) -> None:
        self.name = f"{launches[0].name} .. {launches[-1].name}, recorded"
        self.launches = tuple(launches)
        self._recording: Recording | None = recording
        # Whether the driver was asked to change arguments and has not run with them yet.
        self._untried = False

    @property
    def submissions(self) -> int:
        """How many commands a run enqueues for it."""
        return len(self.launches) if self._recording is None else self._recording.submissions

    def enqueue(self, queue: cl.CommandQueue) -> None:
        """Replay the recording; raise pyopencl.Error or RecordingError if the device refuses."""
        if self._recording is not None:
            try:
                self._recording.replay()
            except RecordingError as error:
                # A refused change costs the recording, not the run; anything else is a fault, as is
                # the refusal of a part behind which others have been enqueued.
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
        """Give a launch other memory from the next run on; its kernel has it already."""
        if self._recording is None:
            return
        try:
            self._recording.change(launch, position, memory)
            self._untried = True
        except RecordingError as error:
            self.give_up(error)

    def give_up(self, reason: Exception) -> None:
        """Launch one by one from now on, and say so, once."""
        logger.warning(
            "%s: %s launches are enqueued one by one now: %s", self.name, len(self.launches), reason
        )
        self.release()

    def release(self) -> None:
        """Give the recording back."""
        if self._recording is not None:
            self._recording.release()
            self._recording = None

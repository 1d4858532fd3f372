"""The daemon's own loop driven frame by frame, on an in-memory bus with an injected clock.

Nothing is patched: ``modeld.daemon.Daemon`` gets a memory transport, a manual clock and a memory
frame source. Called by ``tools.replay``; knows nothing of videos or files.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cereal.clock import ManualClock
from cereal.frames import Frame, FrameFormat, MemoryFrameSource
from cereal.pubsub import PubMaster
from cereal.transport import MemoryTransport
from modeld.config import Config
from modeld.daemon import Daemon, StepResult
from modeld.driving_model import DrivingProgram
from tools.lib.drive_log import OUTPUT_SERVICES
from tools.lib.drive_messages import (
    DRIVE_SERVICES,
    START_NS,
    DriveMessages,
    FrameClock,
    Mounting,
)
from tools.lib.telemetry import CarSample
from tools.lib.video import write_planes

# Outputs are stamped this long after the frame's end, so that the log does not depend on the
# machine; read-out and this together stay below the shortest frame interval.
PROCESSING_NS = 10_000_000


class ReplaySession:
    """One drive through the daemon.

    Args:
        config: settings of the daemon, with the camera's intrinsics.
        program: a driving artifact's program, state at reset.
        layout: layout of the frames.
        mounting: what the camera's messages say.
        record: takes the bytes of every event, inputs and outputs, in time order.
    """

    def __init__(
        self,
        config: Config,
        program: DrivingProgram,
        layout: FrameFormat,
        mounting: Mounting,
        record: Callable[[bytes], None],
    ) -> None:
        transport = MemoryTransport()
        self._clock = ManualClock(START_NS)
        self._source = MemoryFrameSource(layout)
        self.daemon = Daemon(config, program, transport, self._clock, self._source)
        self._publisher = PubMaster(DRIVE_SERVICES, transport, self._clock)
        self._outputs = [transport.subscriber(name) for name in OUTPUT_SERVICES]
        self._messages = DriveMessages(mounting)
        self._record = record
        self._layout = layout
        self._frame_clock = FrameClock()
        # One buffer for all frames: the daemon is done with a frame when its step returns.
        self._data = np.zeros(layout.size, np.uint8)

    def warm_up(self) -> None:
        """Run once on zeros and reset, so that the first frame is timed like the others."""
        self.daemon.model.warm_up()

    def step(
        self,
        frame_id: int,
        time_s: float,
        planes: tuple[NDArray[np.uint8], NDArray[np.uint8]],
        car: CarSample,
    ) -> StepResult | None:
        """Offer one frame to the daemon and record what came of it.

        Args:
            frame_id: consecutive from 0.
            time_s: capture time from the start of the drive; frames that follow each other faster
                than the daemon can tell apart are moved later.
            planes: luma (h, w) and interleaved chroma (h/2, w), uint8; copied.
            car: the car at that time.

        Returns:
            What the daemon did; None when it did not take the frame.
        """
        times = self._frame_clock.stamp(frame_id, time_s)
        self._clock.set_ns(times.sof_ns)
        for service, data in self._messages.for_frame(times, car):
            self._publisher.send(service, data)
            self._record(data)
        self._clock.set_ns(times.eof_ns + PROCESSING_NS)
        write_planes(*planes, self._data, self._layout)
        self._source.push(
            Frame(self._data, self._layout, times.frame_id, times.sof_ns, times.eof_ns)
        )
        result = self.daemon.step()
        for output in self._outputs:
            while (message := output.receive()) is not None:
                self._record(message)
        return result

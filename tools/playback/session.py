"""Runs the daemons' own loops moment by moment, on an in-memory bus with a manual clock.

A moment is one frame of the main camera with the messages since the previous one.
Nothing is patched: ``modeld.daemon.Daemon`` and ``modeld.monitoring.Monitoring`` receive a memory
transport, a manual clock and frame sources that are filled here. This module does not access files;
``tools.playback.run_drive`` uses it. ADR 0013 explains which messages precede a frame and how
outputs are stamped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cereal.clock import ManualClock
from cereal.frames import DEFAULT_SLOTS, Frame, FrameFormat, MemoryFrameSource
from cereal.schema import read_event
from cereal.services import members_of
from cereal.transport import MemoryTransport, Publisher
from modeld.daemon import PUBLICATIONS, Daemon, StepResult
from modeld.model.driving_model import DrivingProgram
from modeld.monitoring import (
    PUBLICATION,
    Monitoring,
    MonitoringProgram,
    MonitoringStep,
    try_monitoring,
)
from modeld.service.config import Config
from modeld.startup import DRIVER_STREAM, ROAD_STREAM, WIDE_STREAM
from modeld.vehicle.inputs import DEMO_CAR, SUBSCRIPTIONS, CarParameters, read_car_parameters
from tools.drives.drive import DriveInfo, Message, Moment

# Outputs are stamped this long after their newest input, so that the log does not depend on the
# machine's speed. It is less than any camera's frame interval, so outputs precede the next frame.
PROCESSING_NS = 10_000_000
# The cameras that the daemon reads. The first of these that a drive has is the main camera.
DAEMON_STREAMS = (ROAD_STREAM, WIDE_STREAM)


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs that process a drive, in their reset state."""

    driving: DrivingProgram | None = None  # program of a driving artifact, or None
    monitoring: MonitoringProgram | None = None  # program of a driver monitoring artifact, or None

    @property
    def publications(self) -> tuple[str, ...]:
        """The services that the programs publish; recorded messages of these are left out."""
        driving = () if self.driving is None else PUBLICATIONS
        return driving if self.monitoring is None else (*driving, PUBLICATION)


class PlaybackSource(MemoryFrameSource):
    """The frames of one camera as the daemon would find them in its ring, in the same process.

    Frames are used in the drive's own buffers, which the drive refills after a moment. If a frame
    is still needed then, because the daemon waits for the other camera, `keep` copies it.

    `conflate`: if true, only the newest frame is delivered, as for the main camera. Otherwise
    frames are delivered in order, as many as a ring holds.
    """

    def __init__(self, layout: FrameFormat, *, conflate: bool) -> None:
        super().__init__(layout)
        self._frames: deque[Frame] = deque(maxlen=1 if conflate else DEFAULT_SLOTS)
        self._last: Frame | None = None
        self._own: set[int] = set()

    def push(self, frame: Frame) -> None:
        """Append a frame; its data are used in place.

        Raises:
            FrameError: the frame has another layout.
        """
        # Pushes a copy of the record, because `keep` replaces its data and the record is the
        # drive's.
        super().push(replace(frame))

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame or None, without waiting, because nobody pushes meanwhile."""
        frame = super().receive(timeout_ms)
        if frame is not None:
            self._last = frame
        return frame

    def keep(self) -> None:
        """Copy the frames that a later moment can use: unreceived ones and the last received."""
        frames = [*self._frames, *([self._last] if self._last is not None else [])]
        for frame in frames:
            if id(frame) not in self._own:
                frame.data = frame.data.copy()
        self._own = {id(frame) for frame in frames}

    def forget(self) -> None:
        """Drop the last received frame, because the daemon is done with it."""
        self._last = None
        self._own &= {id(frame) for frame in self._frames}


class PlaybackSession:
    """Plays one drive to the daemons.

    `config`: settings of both daemons; the cameras are those of the drive. `programs`: determines
    which daemons run. `record`: receives the bytes of every event, recorded and new, in the order
    of their stamps.
    """

    def __init__(
        self,
        config: Config,
        programs: Programs,
        info: DriveInfo,
        record: Callable[[bytes], None],
    ) -> None:
        transport, self._clock = MemoryTransport(), ManualClock()
        # Recorded services can be thinned out or missing.
        config = replace(config, cameras=info.cameras, simulation=True)
        self.daemon: Daemon | None = None  # None without a driving program
        self.monitoring: Monitoring | None = None  # None without a monitoring program
        # Result of monitoring in the last step; None if it processed no frame.
        self.monitored: MonitoringStep | None = None
        self._programs = programs
        self._sources = _make_sources(info.formats, programs)
        if programs.driving is not None:
            road, wide = (self._sources.get(name) for name in DAEMON_STREAMS)
            self.daemon = Daemon(config, programs.driving, transport, self._clock, road, wide)
            self.daemon.car = car_of(info)
        if programs.monitoring is not None:
            camera = self._sources[DRIVER_STREAM]
            self.monitoring = Monitoring(
                config, programs.monitoring, transport, self._clock, camera
            )
        # By Event member, because older recordings can have another member on the same service.
        self._publishers: dict[str, Publisher] = {
            member: publisher
            for name in SUBSCRIPTIONS
            for publisher in [transport.publisher(name)]
            for member in members_of(name)
        }
        self._outputs = {name: transport.subscriber(name) for name in programs.publications}
        self._record = record
        self._unwritten: list[bytes] = []
        self._stamp_ns = 0

    def warm_up(self) -> None:
        """Run once on zeros and reset, so that the first frame is timed like the others."""
        if self.daemon is not None:
            self.daemon.model.warm_up()
        if self._programs.monitoring is not None:
            try_monitoring(self._programs.monitoring)

    def reset(self) -> None:
        """Reset the driving program to its initial state."""
        if self.daemon is not None:
            self.daemon.model.reset()

    def step(self, moment: Moment) -> StepResult | None:
        """Pass one moment to the daemons and record their outputs.

        `moment`: the next moment; its frames can be reused after the call. Returns the daemon's
        result, or None if it did not process a frame. `monitored` is the result of driver
        monitoring.
        """
        self.monitored = None
        for message in moment.messages:
            self._take(message)
        frames = [
            (self._sources[name], frame)
            for name, frame in moment.frames.items()
            if name in self._sources
        ]
        if not frames:
            return None
        self._set_clock(moment, [frame for _, frame in frames])
        for source, frame in frames:
            source.push(frame)
        result = None
        if self.daemon is not None and any(name in moment.frames for name in DAEMON_STREAMS):
            result = self.daemon.step()
        if self.monitoring is not None and DRIVER_STREAM in moment.frames:
            self.monitored = self.monitoring.step()
        for output in self._outputs.values():
            while (data := output.receive()) is not None:
                self._unwritten.append(data)
        for name, source in self._sources.items():
            if (self.monitored if name == DRIVER_STREAM else result) is not None:
                source.forget()
            source.keep()
        return result

    @property
    def answers(self) -> tuple[bytes, ...]:
        """The daemons' outputs for the last step, which `record` receives later."""
        return tuple(self._unwritten)

    def finish(self) -> None:
        """Record the outputs for the last frame; call it after the last moment."""
        for data in self._unwritten:
            self._record(data)
        self._unwritten.clear()

    def close(self) -> None:
        """Close the bus. The programs remain the caller's."""
        for loop in (self.daemon, self.monitoring):
            if loop is not None:
                loop.close()
        for publisher in set(self._publishers.values()):
            publisher.close()

    def _take(self, message: Message) -> None:
        """Pass a message to the bus and the log, unless a daemon publishes its service itself."""
        if message.service in self._outputs:
            return
        publisher = self._publishers.get(message.service)
        if publisher is not None:
            publisher.send(message.read_as)
        if self._unwritten and message.mono_time_ns > self._stamp_ns:
            self.finish()
        self._record(message.data)

    def _set_clock(self, moment: Moment, frames: list[Frame]) -> None:
        """Set the clock so that outputs are later than their inputs in any drive."""
        newest_ns = max(frame.timestamp_eof_ns for frame in frames)
        if moment.messages:
            newest_ns = max(newest_ns, moment.messages[-1].mono_time_ns)
        # The previous frame's outputs precede those of this one.
        self.finish()
        self._stamp_ns = newest_ns + PROCESSING_NS
        self._clock.set_ns(self._stamp_ns)


def car_of(info: DriveInfo) -> CarParameters:
    """Return the drive's car, or a default one if it is unknown."""
    if info.car_params is None:
        return DEMO_CAR
    return read_car_parameters(read_event(info.car_params).carParams)


def _make_sources(
    formats: Mapping[str, FrameFormat], programs: Programs
) -> dict[str, PlaybackSource]:
    """Make the sources of the cameras that the daemons read; each one's first is the main one."""
    watched = (
        (programs.driving, DAEMON_STREAMS),
        (programs.monitoring, (DRIVER_STREAM,)),
    )
    return {
        name: PlaybackSource(formats[name], conflate=position == 0)
        for program, streams in watched
        if program is not None
        for position, name in enumerate(name for name in streams if name in formats)
    }

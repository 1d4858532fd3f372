"""The daemons' own loops driven moment by moment, on an in-memory bus with an injected clock.

Nothing is patched: ``modeld.daemon.Daemon`` and ``modeld.monitoring.Monitoring`` get a memory
transport, a manual clock and frame sources that are filled by hand. Called by
``tools.playback.run_drive``; knows nothing of files. What is visible to a frame, and how outputs
are stamped: ADR 0013.
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

# Outputs are stamped this long after what they were made from, so that the log does not depend on
# the machine. Less than the interval of any camera: they precede the next frame's state.
PROCESSING_NS = 10_000_000
# The cameras that the daemon watches; the first one that a drive has is the main camera.
DAEMON_STREAMS = (ROAD_STREAM, WIDE_STREAM)


@dataclass(frozen=True, slots=True)
class Programs:
    """What a drive is played to; state at reset."""

    driving: DrivingProgram | None = None  # of a driving artifact; None: no driving model runs
    monitoring: MonitoringProgram | None = None  # of a driver monitoring artifact; None: none runs

    @property
    def publications(self) -> tuple[str, ...]:
        """The services that they make; recorded ones are left out."""
        driving = () if self.driving is None else PUBLICATIONS
        return driving if self.monitoring is None else (*driving, PUBLICATION)


class PlaybackSource(MemoryFrameSource):
    """Frames of one camera as the daemon would find them in its ring, without a process beside it.

    Frames are used where the drive decoded them. One that is still needed when the moment is over
    (the daemon waits for the other camera) is copied by `keep`, because the drive fills its
    buffers again.

    `conflate`: only the newest frame is delivered, as to the main camera's reader; else they come
    in order, as many as a ring holds.
    """

    def __init__(self, layout: FrameFormat, *, conflate: bool) -> None:
        super().__init__(layout)
        self._frames: deque[Frame] = deque(maxlen=1 if conflate else DEFAULT_SLOTS)
        self._last: Frame | None = None
        self._own: set[int] = set()

    def push(self, frame: Frame) -> None:
        """Append a frame; its data are used in place.

        Raises:
            FrameError: it has another layout.
        """
        # Its own record: what keeps it replaces the data, and the drive's record is the drive's.
        super().push(replace(frame))

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame, or None at once: nobody pushes while we wait."""
        frame = super().receive(timeout_ms)
        if frame is not None:
            self._last = frame
        return frame

    def keep(self) -> None:
        """Copy what may be used in a later moment: frames not received, and the last received."""
        frames = [*self._frames, *([self._last] if self._last is not None else [])]
        for frame in frames:
            if id(frame) not in self._own:
                frame.data = frame.data.copy()
        self._own = {id(frame) for frame in frames}

    def forget(self) -> None:
        """Let go of the frame received last; the daemon is done with it."""
        self._last = None
        self._own &= {id(frame) for frame in self._frames}


class PlaybackSession:
    """One drive through the daemons.

    `config`: settings of both; the cameras are taken from the drive. `programs`: which daemons
    there are. `record`: takes the bytes of every event, recorded and new, in the order of their
    stamps.
    """

    def __init__(
        self,
        config: Config,
        programs: Programs,
        info: DriveInfo,
        record: Callable[[bytes], None],
    ) -> None:
        transport, self._clock = MemoryTransport(), ManualClock()
        # Recorded services may be thinned out, or not be there at all.
        config = replace(config, cameras=info.cameras, simulation=True)
        self.daemon: Daemon | None = None  # None without a driving program
        self.monitoring: Monitoring | None = None  # None without a monitoring program
        # What monitoring did in the last step; None: it took no frame.
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
        # By Event member: recordings of other generations carry another one on the same service.
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
        """Leave the driving program as if nothing had been."""
        if self.daemon is not None:
            self.daemon.model.reset()

    def step(self, moment: Moment) -> StepResult | None:
        """Hand one moment to the daemons and record what came of it.

        `moment`: the next one; its frames may be used again after the call. The result is what the
        daemon did; None when it did not take a frame. `monitored` has the same of driver
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
        """What the daemons said of the frames of the last step; `record` has it later."""
        return tuple(self._unwritten)

    def finish(self) -> None:
        """Record what the last frame gave; call it after the last moment."""
        for data in self._unwritten:
            self._record(data)
        self._unwritten.clear()

    def close(self) -> None:
        """Give up the bus; the programs stay the caller's."""
        for loop in (self.daemon, self.monitoring):
            if loop is not None:
                loop.close()
        for publisher in set(self._publishers.values()):
            publisher.close()

    def _take(self, message: Message) -> None:
        """Hand a message to the bus, and to the log as recorded, unless a daemon says it itself."""
        if message.service in self._outputs:
            return
        publisher = self._publishers.get(message.service)
        if publisher is not None:
            publisher.send(message.read_as)
        if self._unwritten and message.mono_time_ns > self._stamp_ns:
            self.finish()
        self._record(message.data)

    def _set_clock(self, moment: Moment, frames: list[Frame]) -> None:
        """Outputs are later than all that they were made from, whatever the drive's stamps."""
        newest_ns = max(frame.timestamp_eof_ns for frame in frames)
        if moment.messages:
            newest_ns = max(newest_ns, moment.messages[-1].mono_time_ns)
        # What an earlier frame gave precedes what this one gives.
        self.finish()
        self._stamp_ns = newest_ns + PROCESSING_NS
        self._clock.set_ns(self._stamp_ns)


def car_of(info: DriveInfo) -> CarParameters:
    """Return the drive's car, or a common one where it does not say."""
    if info.car_params is None:
        return DEMO_CAR
    return read_car_parameters(read_event(info.car_params).carParams)


def _make_sources(
    formats: Mapping[str, FrameFormat], programs: Programs
) -> dict[str, PlaybackSource]:
    """Make the sources of the cameras that the daemons watch; the first of each is the main one."""
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

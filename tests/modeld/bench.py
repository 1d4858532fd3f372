"""The daemon with a scripted program and cameras, and the rest of the car on the same bus."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from cereal.cameras import RingCameras
from cereal.clock import ManualClock
from cereal.frames import (
    Frame,
    FrameFormat,
    FrameRingReader,
    FrameRingWriter,
    MemoryFrameSource,
    nv12_format,
)
from cereal.pubsub import PubMaster
from cereal.schema import new_event, read_event
from cereal.transport import MemoryTransport
from modeld.daemon import PUBLICATIONS, Daemon, StepResult
from modeld.service.config import Config
from modeld.startup import LateCamera
from modeld.vehicle.cameras import Camera, DeviceCameras
from modeld.vehicle.inputs import SUBSCRIPTIONS
from tests.modeld.fake_program import SMALL, FakeProgram, make_interface
from tests.support.built import built
from tests.support.waiting import until

# Fixtures of pytest, by names that fit into a line.
Log: TypeAlias = pytest.LogCaptureFixture
Patch: TypeAlias = pytest.MonkeyPatch
MS = 1_000_000
START_NS = 1_000 * MS
CAMERAS = DeviceCameras(Camera(64, 32, 90.0), Camera(64, 32, 45.0))
BINNED = nv12_format(1344, 760)
# A driver who nudges the wheel to the left.
NUDGE = {"vEgo": 20.0, "steeringPressed": True, "steeringTorque": 1.0}


def eventually(holds: Callable[[], object]) -> None:
    """Wait for what another thread or process does."""
    assert until(holds, 30.0, pause_s=0.005), "it never became true"


def frame_of(frame_id: int, sof_ns: int | None = None, form: FrameFormat = SMALL) -> Frame:
    """A frame filled with its id, 50 ms after the previous one unless told otherwise."""
    start_ns = frame_id * 50 * MS if sof_ns is None else sof_ns
    data = np.full(form.size, frame_id % 256, np.uint8)
    return Frame(data, form, frame_id, start_ns, start_ns + 15 * MS)


def car_event(name: str = "A CAR", delay_s: float = 0.25, steer_s: float = 0.0) -> Any:
    """What the stack says of the car."""
    event = new_event("carParams", mono_time_ns=1)
    event.carParams.carFingerprint = name
    event.carParams.longitudinalActuatorDelay = delay_s
    event.carParams.steerActuatorDelay = steer_s
    return event


def car_parameter(event: Any) -> bytes:
    """The same as a parameter: the structure itself, framed, without an Event around it."""
    data: bytes = event.carParams.as_reader().as_builder().to_bytes()
    return data


def small_artifacts() -> Path:
    """The directory of artifacts that compute next to nothing, for all tests: see `built`.

    Driving models a and b, of which b fails at its 1000th frame, one of monitoring, a plain one.
    """

    def make(place: Path) -> None:
        # The compiler is loaded by who builds, not by each test of the daemon.
        from tests.runtime import tiny
        from tests.tools.small_monitoring import write_small_monitoring
        from tests.tools.tiny_driving import write_tiny_driving

        write_tiny_driving(place / "a.pkl", (64, 32))
        write_tiny_driving(place / "b.pkl", (64, 32), bad_frame=1000)
        write_small_monitoring(place / "m.pkl")
        tiny.write(place / "plain.pkl")

    return built("small-artifacts", make)


def check_fields(message: Any, expected: Mapping[str, Any]) -> None:
    """Compare fields by their paths; numbers as float32, those of an enumeration by name."""
    for path, value in expected.items():
        found = message
        for part in path.split("."):
            found = found[int(part)] if part.isdigit() else getattr(found, part)
        if isinstance(value, str):
            assert str(found) == value, path
        elif isinstance(value, bytes):
            assert found == value, path
        else:
            numbers = np.array(found if np.isscalar(found) else list(found), np.float32)
            np.testing.assert_array_equal(numbers, np.asarray(value, np.float32), path)


class Car:
    """The bus of a car on a clock set by hand; `said` are the events about the last frame."""

    program: FakeProgram  # of a daemon that is stepped

    def __init__(self, now_ns: int = START_NS) -> None:
        self.clock = ManualClock(now_ns)
        self.transport = MemoryTransport()
        self.received = {name: self.transport.subscriber(name) for name in PUBLICATIONS}
        self.bus = PubMaster(SUBSCRIPTIONS, self.transport, self.clock)
        self.said: dict[str, Any] = {}

    def send(self, service: str, **values: Any) -> None:
        event = self.bus.new(service)
        event.valid = True
        for name, value in values.items():
            setattr(getattr(event, service), name, value)
        self.bus.send(service, event)

    def calibrate(self, device: str = "", sensor: str = "") -> None:
        """Say that the cameras look straight ahead, and of which device they are."""
        if device:
            self.send("deviceState", deviceType=device)
            self.send("roadCameraState", sensor=sensor)
        self.send("liveCalibration", rpyCalib=[0.0, 0.0, 0.0])

    def hear(self) -> dict[str, Any]:
        """Take what was published of one frame; nothing if there is nothing."""
        data = {name: subscriber.receive(0) for name, subscriber in self.received.items()}
        self.said = {name: read_event(value) for name, value in data.items() if value is not None}
        return self.said

    @property
    def model(self) -> Any:
        return self.said["modelV2"].modelV2

    @property
    def brief(self) -> Any:
        return self.said["drivingModelData"].drivingModelData

    @property
    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """Of the last run."""
        return self.program.calls[-1][1]

    @property
    def valid(self) -> list[bool]:
        """Whether each event of the last frame is valid."""
        return [event.valid for event in self.said.values()]


class Bench(Car):
    """A daemon that is stepped frame by frame; its cameras are in memory.

    Without a program its model is that of August 2025; settings are those of the configuration.
    """

    def __init__(
        self,
        program: FakeProgram | None = None,
        *,
        form: FrameFormat = SMALL,
        wide: bool = True,
        fallback: FakeProgram | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.program = program or FakeProgram()
        self.form = form
        self.road, self.wide = MemoryFrameSource(form), MemoryFrameSource(form)
        self.daemon = Daemon(
            Config(**{"cameras": CAMERAS, **settings}),
            self.program,
            self.transport,
            self.clock,
            self.road,
            self.wide if wide else None,
            fallback=fallback,
        )

    def frame_of(self, frame_id: int) -> Frame:
        return frame_of(frame_id, form=self.form)

    def offer(self, road: Frame, wide: Frame) -> StepResult | None:
        """One iteration with these frames, 50 ms later; hears what is published."""
        self.clock.advance_ns(50 * MS)
        self.road.push(road)
        self.wide.push(wide)
        result = self.daemon.step()
        self.hear()
        return result

    def step(self, frame_id: int) -> StepResult:
        result = self.offer(self.frame_of(frame_id), self.frame_of(frame_id))
        assert result is not None
        return result


class RingBench(Car):
    """A daemon whose cameras are rings; ids of the wide one are 1000 higher.

    There is room for frames of another layout. If the wide camera is late, the daemon looks for it.
    """

    def __init__(
        self,
        directory: Path,
        form: FrameFormat = BINNED,
        *,
        room: FrameFormat | None = None,
        late: bool = False,
        cameras: DeviceCameras | None = None,
    ) -> None:
        super().__init__(now_ns=1)
        self.program = FakeProgram(make_interface(), (room or form).payload_bytes)
        self.directory = directory
        self.form = form
        self.writers: dict[str, FrameRingWriter] = {}
        for stream in ("road",) if late else ("road", "wideRoad"):
            self.open(stream)
        self.road = FrameRingReader("cams", "road", conflate=True, directory=directory)
        self.wide: FrameRingReader | LateCamera
        if late:
            rings = RingCameras("cams", directory=directory)
            self.wide = LateCamera(rings, "wideRoad", now_ns=self.clock.now_ns)
        else:
            self.wide = FrameRingReader("cams", "wideRoad", conflate=False, directory=directory)
        # A short wait: three of 34 ms are as good as three of 100 for a dead camera.
        self.config = Config(frame_timeout_ms=34, cameras=cameras)
        self.is_late = late
        self.start()
        self.frame_id = 0
        self.told: tuple[str, str] | None = None

    def start(self, fallback: FakeProgram | None = None) -> None:
        self.daemon = Daemon(
            self.config,
            self.program,
            self.transport,
            self.clock,
            self.road,
            None if self.is_late else self.wide,
            late_wide=self.wide if self.is_late else None,
            fallback=fallback,
        )

    def open(self, stream: str, form: FrameFormat | None = None) -> None:
        self.writers[stream] = FrameRingWriter(
            "cams", stream, form or self.form, count=3, directory=self.directory
        )

    def reopen(self, form: FrameFormat, *streams: str) -> None:
        """The cameras come back, or these of them, with frames of another layout."""
        for stream in streams or ("road", "wideRoad"):
            self.writers.pop(stream).close()
            self.open(stream, form)

    def close(self) -> None:
        for end in (self.road, self.wide, *self.writers.values()):
            end.close()

    def keep_calibrated(self, device: str = "tizi", sensor: str = "os04c10") -> None:
        """Calibrate now and with each fifth frame."""
        self.told = (device, sensor)
        self.calibrate(device, sensor)

    def steps(self, count: int) -> list[tuple[int, int, tuple[str, ...]] | None]:
        """One frame of every living camera, so many times.

        Returns:
            frameId, frameIdExtra and the reasons why that is not valid, of what came of each.
        """
        found: list[tuple[int, int, tuple[str, ...]] | None] = []
        for _ in range(count):
            self.frame_id += 1
            if self.told is not None and self.frame_id % 5 == 0:
                self.calibrate(*self.told)
            start_ns = self.frame_id * 50 * MS
            self.clock.set_ns(start_ns + 20 * MS)
            # The wide camera first: its frame is there when the road camera's wakes the daemon.
            for stream, ahead in (("wideRoad", 1000), ("road", 0)):
                if stream in self.writers:
                    self.writers[stream].next_buffer()[:] = self.frame_id % 256
                    self.writers[stream].publish(
                        self.frame_id + ahead, start_ns, start_ns + 10 * MS
                    )
            del self.program.calls[:-1]  # each holds two frames
            self.daemon.step()
            if not self.hear():
                found.append(None)
                continue
            reasons = self.daemon.state.reasons
            assert self.valid == [not reasons] * 3
            found.append((self.model.frameId, self.model.frameIdExtra, reasons))
        return found

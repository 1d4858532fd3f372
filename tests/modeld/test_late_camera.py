"""The wide camera of a car that is not there when the daemon starts: missed, marked, taken."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.clock import ManualClock
from cereal.errors import FrameError
from cereal.frames import FrameFormat, FrameRingReader, FrameRingWriter, nv12_format
from cereal.pubsub import PubMaster
from cereal.schema import read_event
from cereal.transport import MemoryTransport
from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config
from modeld.daemon import Daemon
from modeld.inputs import SUBSCRIPTIONS
from modeld.late_camera import LateCamera
from modeld.loop_state import Fault
from tests.modeld.fake_program import FakeProgram, make_interface

MS = 1_000_000
BINNED, NEO = nv12_format(1344, 760), nv12_format(1164, 874)
CONFIGURED = DeviceCameras(Camera(1344, 760, 910.0), Camera(1344, 760, 455.0))
LOST = ("wide camera lost",)


class Car:
    """The rings of a car that has only its road camera, and a daemon that looks for the other."""

    def __init__(self, directory: Path, form: FrameFormat, cameras: DeviceCameras | None) -> None:
        self.directory = directory
        self.form = form
        self.writers: dict[str, FrameRingWriter] = {}
        self.open("road")
        self.road = FrameRingReader("cams", "road", conflate=True, directory=directory)
        self.clock, self.transport = ManualClock(1), MemoryTransport()
        self.late = LateCamera("cams", "wideRoad", directory=directory, now_ns=self.clock.now_ns)
        self.bus = PubMaster(SUBSCRIPTIONS, self.transport, self.clock)
        self.models = self.transport.subscriber("modelV2")
        self.program = FakeProgram(make_interface(), max(BINNED.payload_bytes, NEO.payload_bytes))
        self.daemon = Daemon(
            Config(frame_timeout_ms=34, cameras=cameras),
            self.program,
            self.transport,
            self.clock,
            self.road,
            late_wide=self.late,
        )
        self.frame_id = 0
        self.told: tuple[str, str] | None = None

    def open(self, stream: str) -> None:
        self.writers[stream] = FrameRingWriter(
            "cams", stream, self.form, count=3, directory=self.directory
        )

    def close(self) -> None:
        self.road.close()
        self.late.close()
        for writer in self.writers.values():
            writer.close()

    def calibrate(self, device: str = "tizi", sensor: str = "os04c10") -> None:
        for service, name, value in (
            ("deviceState", "deviceType", device),
            ("roadCameraState", "sensor", sensor),
            ("liveCalibration", "rpyCalib", [0.0, 0.0, 0.0]),
        ):
            event = self.bus.new(service)
            setattr(getattr(event, service), name, value)
            self.bus.send(service, event)
        self.told = (device, sensor)

    def steps(self, count: int) -> list[tuple[int, tuple[str, ...]]]:
        """(frameIdExtra, reasons) of each of the next frames, every one of which is answered."""
        found = []
        for _ in range(count):
            self.frame_id += 1
            if self.told is not None and self.frame_id % 5 == 0:
                self.calibrate(*self.told)
            start_ns = self.frame_id * 50 * MS
            self.clock.set_ns(start_ns + 20 * MS)
            for stream in ("wideRoad", "road"):
                if stream in self.writers:
                    self.writers[stream].next_buffer()[:] = self.frame_id
                    # Ids of its own, so that one tells which camera a frame is of.
                    own = 1000 if stream == "wideRoad" else 0
                    self.writers[stream].publish(self.frame_id + own, start_ns, start_ns + 10 * MS)
            del self.program.calls[:-1]
            self.daemon.step()
            data = self.models.receive(0)
            assert data is not None
            event, reasons = read_event(data), self.daemon.state.reasons
            assert event.valid is (not reasons)
            assert event.modelV2.frameId == self.frame_id
            found.append((event.modelV2.frameIdExtra, reasons))
        return found

    def transform(self) -> Any:
        return self.program.calls[-1][1]["wide_transform"][0, 0]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Car]]:
    cars: list[Car] = []

    def begin(form: FrameFormat = BINNED, cameras: DeviceCameras | None = None) -> Car:
        cars.append(Car(tmp_path, form, cameras))
        return cars[-1]

    yield begin
    for car in cars:
        car.close()


@pytest.mark.parametrize("cameras", [None, CONFIGURED])
def test_a_car_that_has_a_wide_camera_is_never_valid_without(
    make: Callable[..., Car], cameras: DeviceCameras | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    car = make(cameras=cameras)
    ((_, before),) = car.steps(1)
    assert before[0].startswith("no ")
    car.calibrate()
    # The first frame with a calibration, too; 12 s of them.
    assert car.steps(240) == [(frame_id, LOST) for frame_id in range(2, 242)]
    assert car.daemon.state.faults[Fault.CAMERA_LOST] == 1
    said = [text for text in caplog.messages if text.startswith("extra camera lost: it was not")]
    assert len(said) == 2  # when it was noticed, and after ten seconds
    assert caplog.messages.count("not valid: wide camera lost") == 1
    inputs = car.program.calls[-1][1]
    np.testing.assert_array_equal(inputs["road_frame"], inputs["wide_frame"])
    road_px = 1141.5 if cameras is None else 910.0
    assert car.transform() == pytest.approx(road_px / 455)


@pytest.mark.parametrize("cameras", [None, CONFIGURED])
def test_a_wide_camera_that_comes_late_is_used_within_a_second(
    make: Callable[..., Car], cameras: DeviceCameras | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    car = make(cameras=cameras)
    car.calibrate()
    car.steps(30)
    car.open("wideRoad")
    found = car.steps(60)
    first = next(index for index, (extra, _) in enumerate(found) if extra > 1000)
    # The look, and the first frame after it.
    assert first <= 21
    assert found[:first] == [(frame_id, LOST) for frame_id in range(31, 31 + first)]
    assert found[first:] == [(1000 + frame_id, ()) for frame_id in range(31 + first, 91)]
    assert any(text.startswith("extra camera is back after ") for text in caplog.messages)
    wide_px = 425.25 if cameras is None else 455.0
    assert car.transform() == pytest.approx(wide_px / 455)


def test_a_wide_camera_that_comes_before_the_calibration_is_there_with_it(
    make: Callable[..., Car],
) -> None:
    car = make()
    car.steps(3)
    car.open("wideRoad")
    car.calibrate()
    found = car.steps(6)
    assert found[0] == (4, LOST)
    assert found[2:] == [(1000 + frame_id, ()) for frame_id in range(6, 10)]


@pytest.mark.parametrize("cameras", [None, DeviceCameras(Camera(1164, 874, 910.0), None)])
def test_a_device_with_one_camera_is_valid_with_it(
    make: Callable[..., Car], cameras: DeviceCameras | None, caplog: pytest.LogCaptureFixture
) -> None:
    car = make(NEO, cameras)
    car.calibrate("neo", "unknown")
    assert car.steps(60) == [(frame_id, ()) for frame_id in range(1, 61)]
    # Nobody looks for what the device does not have.
    car.open("wideRoad")
    assert car.steps(30) == [(frame_id, ()) for frame_id in range(61, 91)]
    assert not [text for text in caplog.messages if "extra camera" in text]


def test_looks_are_a_second_apart(tmp_path: Path) -> None:
    clock = ManualClock(5)
    late = LateCamera("cams", "wideRoad", directory=tmp_path, now_ns=clock.now_ns)
    with pytest.raises(FrameError, match="wideRoad of 'cams'"):
        _ = late.format
    assert late.receive(1000) is None
    writer = FrameRingWriter("cams", "wideRoad", BINNED, count=3, directory=tmp_path)
    clock.advance_ns(999 * MS)
    assert late.receive(0) is None
    assert not late.is_intact()
    clock.advance_ns(MS)
    assert late.receive(0) is None  # found; only what comes from now on is its frame
    assert late.format == BINNED
    writer.next_buffer()
    writer.publish(7, 1, 2)
    frame = late.receive(0)
    assert frame is not None
    assert frame.frame_id == 7
    assert late.is_intact()
    late.close()
    writer.close()


def test_a_ring_that_cannot_be_read_is_looked_at_again(tmp_path: Path) -> None:
    ring = tmp_path / "frames_cams_wideRoad"
    ring.write_bytes(b"no ring")
    clock = ManualClock(5)
    late = LateCamera("cams", "wideRoad", directory=tmp_path, now_ns=clock.now_ns)
    assert late.receive(0) is None
    ring.unlink()
    writer = FrameRingWriter("cams", "wideRoad", BINNED, count=3, directory=tmp_path)
    clock.advance_ns(1000 * MS)
    assert late.receive(0) is None
    writer.next_buffer()
    writer.publish(7, 1, 2)
    assert late.receive(0) is not None
    late.close()
    writer.close()

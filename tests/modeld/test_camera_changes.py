"""Cameras that die, come back, or come back as others: the daemon on real rings."""

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.clock import ManualClock
from cereal.frames import FrameFormat, FrameRingReader, FrameRingWriter, nv12_format
from cereal.pubsub import PubMaster
from cereal.schema import read_event
from cereal.transport import MemoryTransport
from modeld.config import Config
from modeld.daemon import Daemon
from modeld.inputs import SUBSCRIPTIONS
from tests.modeld.fake_program import FakeProgram, make_interface

MS = 1_000_000
BINNED = nv12_format(1344, 760)
FULL = nv12_format(2688, 1520)
UNPADDED = FrameFormat(1344, 760, 1344, 1344 * 760, 1344 * 760 * 3 // 2)
CAMERAS = {"road": BINNED, "wideRoad": BINNED}


class Rings:
    """The camera process, the rest of the car, and a daemon with a scripted program."""

    def __init__(self, directory: Path, room_for: FrameFormat) -> None:
        self.directory = directory
        self.writers: dict[str, FrameRingWriter] = {}
        for stream, form in CAMERAS.items():
            self.open(stream, form)
        self.readers = [
            FrameRingReader("cams", stream, conflate=stream == "road", directory=directory)
            for stream in CAMERAS
        ]
        self.clock, self.transport = ManualClock(1), MemoryTransport()
        self.car = PubMaster(SUBSCRIPTIONS, self.transport, self.clock)
        self.models = self.transport.subscriber("modelV2")
        self.program = FakeProgram(make_interface(), room_for.payload_bytes)
        # A short wait: three of 34 ms are as good as three of 100 for a dead camera.
        config = Config(frame_timeout_ms=34)
        self.daemon = Daemon(config, self.program, self.transport, self.clock, *self.readers)
        self.frame_id = 0

    def open(self, stream: str, form: FrameFormat) -> None:
        self.writers[stream] = FrameRingWriter(
            "cams", stream, form, count=3, directory=self.directory
        )

    def close(self, stream: str) -> None:
        self.writers.pop(stream).close()

    def tell_sensor(self, sensor: str) -> None:
        state = self.car.new("roadCameraState")
        state.roadCameraState.sensor = sensor
        self.car.send("roadCameraState", state)

    def calibrate(self, sensor: str = "os04c10") -> None:
        self.tell_sensor(sensor)
        device = self.car.new("deviceState")
        device.deviceState.deviceType = "tizi"
        self.car.send("deviceState", device)
        message = self.car.new("liveCalibration")
        message.liveCalibration.rpyCalib = [0.0, 0.0, 0.0]
        self.car.send("liveCalibration", message)

    def step(self) -> tuple[int, int, bool] | None:
        """One frame of every living camera; (frameId, frameIdExtra, valid) of what comes of it."""
        self.frame_id += 1
        start_ns = self.frame_id * 50 * MS
        self.clock.set_ns(start_ns + 20 * MS)
        # The wide camera first: its frame is there when the road camera's wakes the daemon.
        for stream in ("wideRoad", "road"):
            if stream in self.writers:
                self.writers[stream].next_buffer()[:] = self.frame_id
                self.writers[stream].publish(self.frame_id, start_ns, start_ns + 10 * MS)
        del self.program.calls[:-1]  # each holds two frames
        self.daemon.step()
        data = self.models.receive(0)
        if data is None:
            return None
        event = read_event(data)
        return event.modelV2.frameId, event.modelV2.frameIdExtra, event.valid

    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        return self.program.calls[-1][1]


@pytest.fixture
def rings(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rings]:
    made = Rings(tmp_path, getattr(request, "param", BINNED))
    yield made
    for reader in made.readers:
        reader.close()
    for writer in made.writers.values():
        writer.close()


def test_lost_wide_camera_is_gone_on_without_and_marked(
    rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    rings.calibrate()
    assert [rings.step() for _ in range(2)] == [(1, 1, True), (2, 2, True)]
    rings.close("wideRoad")
    with caplog.at_level(logging.WARNING):
        found = [rings.step() for _ in range(20)]
    # Waiting, then one frame that only enters the history after those that were waited through.
    first = next(index for index, one in enumerate(found) if one is not None)
    assert first <= 20 - 8
    assert found[first:] == [(index + 3, index + 3, False) for index in range(first, 20)]
    assert sum("extra camera lost" in text for text in caplog.messages) == 1
    # The road frame in both places, each cut by the matrix of its view.
    inputs = rings.inputs()
    np.testing.assert_array_equal(inputs["road_frame"], inputs["wide_frame"])
    assert inputs["road_transform"][0, 0] == pytest.approx(1141.5 / 910)
    assert inputs["wide_transform"][0, 0] == pytest.approx(1141.5 / 455)

    rings.open("wideRoad", BINNED)
    found = [rings.step() for _ in range(6)]
    assert found[2:] == [(index, index, True) for index in range(25, 29)]
    assert rings.inputs()["wide_transform"][0, 0] == pytest.approx(425.25 / 455)


def test_lost_road_camera_is_waited_for_and_said(
    rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    rings.calibrate()
    assert rings.step() == (1, 1, True)
    rings.close("road")
    with caplog.at_level(logging.WARNING):
        assert [rings.step() for _ in range(5)] == [None] * 5
    assert [text.split(" within ")[0] for text in caplog.messages] == [
        "no frame from the road camera"
    ]
    rings.open("road", BINNED)
    found = [rings.step() for _ in range(6)]
    assert found[-1] == (12, 12, True)


def reopen(rings: Rings, form: FrameFormat) -> None:
    for stream in CAMERAS:
        rings.close(stream)
        rings.open(stream, form)


@pytest.mark.parametrize("rings", [FULL], indirect=True)
def test_cameras_that_come_back_with_another_size_are_followed(rings: Rings) -> None:
    rings.calibrate()
    assert rings.step() == (1, 1, True)
    reopen(rings, FULL)
    # The same sensor, so the last calibration holds for the other readout too.
    found = [rings.step() for _ in range(6)]
    assert found[-1] == (7, 7, True)
    inputs = rings.inputs()
    assert list(inputs["road_geometry"]) == [2688, 1520, FULL.stride, FULL.uv_offset]
    assert inputs["road_frame"].shape == (FULL.payload_bytes,)
    assert inputs["road_transform"][0, 0] == pytest.approx(2648 * 2 / 3 / 910)
    assert inputs["wide_transform"][0, 0] == pytest.approx(850.5 / 455)


@pytest.mark.parametrize("rings", [FULL], indirect=True)
def test_road_and_wide_camera_may_differ_in_size(rings: Rings) -> None:
    rings.calibrate()
    rings.close("wideRoad")
    rings.open("wideRoad", FULL)
    found = [rings.step() for _ in range(6)]
    assert found[-1] == (6, 6, True)
    inputs = rings.inputs()
    assert list(inputs["road_geometry"][:2]) == [1344, 760]
    assert list(inputs["wide_geometry"][:2]) == [2688, 1520]
    assert inputs["road_transform"][0, 0] == pytest.approx(1141.5 / 910)
    assert inputs["wide_transform"][0, 0] == pytest.approx(850.5 / 455)


@pytest.mark.parametrize("rings", [FULL], indirect=True)
def test_size_of_another_sensor_is_invalid_until_the_next_calibration(
    rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    rings.calibrate()
    assert rings.step() == (1, 1, True)
    reopen(rings, nv12_format(1928, 1208))
    with caplog.at_level(logging.WARNING):
        found = [rings.step() for _ in range(6)]
    assert found[-1] == (7, 7, False)
    assert not rings.inputs()["road_transform"].any()
    (said,) = [text for text in caplog.messages if "not valid" in text]
    assert "got 1928x1208" in said
    rings.calibrate("ox03c10")
    assert rings.step() == (8, 8, True)
    assert rings.inputs()["road_transform"][0, 0] == pytest.approx(2648 / 910)


def test_frames_that_are_too_large_are_said_once_and_waited_out(
    rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    rings.calibrate()
    assert rings.step() == (1, 1, True)
    reopen(rings, FULL)
    with caplog.at_level(logging.ERROR):
        assert [rings.step() for _ in range(8)] == [None] * 8
    (said,) = [text for text in caplog.messages if "frames not used" in text]
    assert "--camera 2688x1520" in said
    reopen(rings, BINNED)
    found = [rings.step() for _ in range(6)]
    assert found[-1] == (15, 15, True)


@pytest.mark.parametrize("rings", [FULL], indirect=True)
def test_a_fallback_that_the_new_cameras_are_too_large_for_is_done_without(
    rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(frame_timeout_ms=34)
    safe = FakeProgram(make_interface(), BINNED.payload_bytes)
    rings.daemon.close()
    rings.daemon = Daemon(
        config, rings.program, rings.transport, rings.clock, *rings.readers, fallback=safe
    )
    rings.calibrate()
    assert [rings.step() for _ in range(2)] == [(1, 1, True), (2, 2, True)]
    before = rings.daemon.take_over
    assert before is not None
    reopen(rings, FULL)
    with caplog.at_level(logging.ERROR):
        found = [rings.step() for _ in range(6)]
    assert found[-1] == (8, 8, True)
    assert rings.daemon.take_over is None
    (said,) = [text for text in caplog.messages if "fallback model not usable" in text]
    assert "--camera 2688x1520" in said
    assert rings.daemon.state.problems == (said,)


def test_unpadded_frames_give_the_program_the_same_pixels(rings: Rings) -> None:
    rings.calibrate()
    assert rings.step() == (1, 1, True)
    reopen(rings, UNPADDED)
    found = [rings.step() for _ in range(6)]
    assert found[-1] == (7, 7, True)
    inputs = rings.inputs()
    assert list(inputs["road_geometry"]) == [1344, 760, 1344, 1344 * 760]
    np.testing.assert_array_equal(inputs["road_frame"], np.full(UNPADDED.size, 7, np.uint8))


def test_damaged_calibration_does_not_end_the_loop(
    rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    message = rings.car.new("liveCalibration")
    message.liveCalibration.rpyCalib = [0.0, 0.0, 0.0]
    data = bytearray(message.to_bytes())
    place = data.index(struct.pack("<I", 3 << 3 | 4)) - 4  # of the pointer to 3 float32
    data[place : place + 4] = struct.pack("<I", (1 << 20) << 2 | 1)
    rings.calibrate()
    rings.step()
    rings.car.send("liveCalibration", bytes(data))
    with caplog.at_level(logging.ERROR):
        assert rings.step() == (2, 2, False)
    assert "calibration not used" in caplog.text
    rings.calibrate()
    assert rings.step() == (3, 3, True)

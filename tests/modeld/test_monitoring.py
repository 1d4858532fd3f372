import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cereal.clock import ManualClock
from cereal.frames import Frame, FrameFormat, nv12_format
from cereal.pubsub import PubMaster
from cereal.schema import read_event
from cereal.transport import MemoryTransport
from modeld.config import Config
from modeld.driver_camera import driver_transform, find_driver_camera
from modeld.errors import ModelInterfaceError
from modeld.monitoring import Monitoring, MonitoringStep, try_monitoring
from tests.modeld.monitoring_program import METADATA_2025, ScriptedProgram

TICI, BINNED = nv12_format(1928, 1208), nv12_format(1344, 760)


class Source:
    """A camera whose next frame is set by hand, and which may be overwritten meanwhile."""

    def __init__(self) -> None:
        self.format = TICI
        self.next: Frame | None = None
        self.intact = True

    def receive(self, timeout_ms: int) -> Frame | None:
        assert timeout_ms == 100
        frame, self.next = self.next, None
        return frame

    def is_intact(self) -> bool:
        return self.intact

    def close(self) -> None:
        """Nothing is held."""


class Bench:
    """The loop with a scripted program, and the rest of the car on the same bus."""

    def __init__(self, config: Config | None = None, capacity: int = TICI.payload_bytes) -> None:
        self.program = ScriptedProgram(METADATA_2025, capacity)
        self.clock = ManualClock(1_000_000_000)
        self.transport = MemoryTransport()
        self.received = self.transport.subscriber("driverStateV2")
        self.car = PubMaster(["liveCalibration"], self.transport, self.clock)
        self.camera = Source()
        self.monitoring = Monitoring(
            config or Config(), self.program, self.transport, self.clock, self.camera
        )

    def calibrate(self, *angles: float) -> None:
        event = self.car.new("liveCalibration")
        event.liveCalibration.rpyCalib = list(angles)
        self.car.send("liveCalibration", event)

    def step(self, frame_id: int, form: FrameFormat = TICI) -> MonitoringStep | None:
        data = np.full(form.size, frame_id % 256, np.uint8)
        self.camera.next = Frame(data, form, frame_id, 0, 0)
        return self.monitoring.step()

    def event(self) -> Any:
        data = self.received.receive(0)
        return None if data is None else read_event(data)


def test_without_a_frame_nothing_happens() -> None:
    bench = Bench()
    assert bench.monitoring.step() is None
    assert bench.event() is None
    assert bench.program.calls == []


def test_a_frame_gives_a_valid_message_without_any_calibration() -> None:
    bench = Bench()
    assert bench.step(5) == MonitoringStep(5, published=True, valid=True)
    event = bench.event()
    assert event.valid
    assert event.logMonoTime == 1_000_000_000
    assert event.driverStateV2.frameId == 5
    assert event.driverStateV2.leftDriverData.faceProb == 0.5
    assert event.driverStateV2.rawPredictions == b""
    assert bench.event() is None
    (call,) = bench.program.calls
    assert call["calib"].tolist() == [[0.0, 0.0, 0.0]]
    assert call["driver_geometry"].tolist() == [1928, 1208, 2048, 2048 * 1216]
    assert call["driver_frame"].size == TICI.payload_bytes
    assert (call["driver_frame"] == 5).all()
    np.testing.assert_array_equal(
        call["driver_transform"], driver_transform(find_driver_camera(1928, 1208))
    )


def test_the_last_usable_calibration_is_kept() -> None:
    bench = Bench()
    bench.calibrate(0.0625, -0.125, 0.03125)
    bench.step(0)
    bench.step(1)
    for unusable in ((), (1.0, 2.0), (float("nan"), 0.0, 0.0), (0.0, 1.5, 0.0)):
        bench.calibrate(*unusable)
        bench.step(2)
    bench.calibrate(0.03125, 0.0, 0.0)
    bench.step(3)
    kept = [0.0625, -0.125, 0.03125]
    seen = [call["calib"][0].tolist() for call in bench.program.calls]
    assert seen == [kept] * 6 + [[0.03125, 0.0, 0.0]]


def test_missing_frame_ids_do_not_matter() -> None:
    bench = Bench()
    for frame_id in (1, 9, 3):
        bench.step(frame_id)
        assert bench.event().driverStateV2.frameId == frame_id


def test_times_are_those_of_the_clock() -> None:
    bench = Bench()
    bench.program.on_run = lambda: bench.clock.advance_ns(20_000_000)
    bench.step(0)
    state = bench.event().driverStateV2
    assert state.gpuExecutionTime == pytest.approx(0.02)
    assert state.modelExecutionTime == pytest.approx(0.02)


def test_the_raw_vector_is_sent_where_it_is_asked_for() -> None:
    bench = Bench(Config(send_raw_predictions=True))
    bench.program.output[0, :] = np.arange(596)
    bench.program.output[0, 6:12] = bench.program.output[0, 47:53] = 0
    bench.step(0)
    raw = np.frombuffer(bench.event().driverStateV2.rawPredictions, np.float32)
    np.testing.assert_array_equal(raw, bench.program.output[0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_output_that_is_not_finite_reports_nobody(
    value: float, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.program.output[0, 12] = 9.0
    bench.step(0)
    assert bench.event().driverStateV2.leftDriverData.faceProb > 0.9
    bench.program.output[0, 300] = value
    assert bench.step(1) == MonitoringStep(1, published=True, valid=False)
    event = bench.event()
    assert not event.valid
    assert event.driverStateV2.frameId == 1
    assert event.driverStateV2.leftDriverData.faceProb == 0.0
    assert "frame 1 are not finite" in caplog.text
    bench.program.output[0, 300] = 0.0
    bench.step(2)
    assert bench.event().valid


def test_a_frame_that_was_overwritten_is_marked(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.camera.intact = False
    bench.step(4)
    assert not bench.event().valid
    assert "frame 4 was overwritten" in caplog.text


def test_the_camera_may_come_back_with_another_size() -> None:
    bench = Bench()
    unpadded = FrameFormat(1344, 760, 1344, 1344 * 760, 1344 * 760 * 3 // 2)
    for frame_id, form in enumerate((TICI, BINNED, unpadded, TICI)):
        bench.step(frame_id, form)
        assert bench.event().valid
    geometries = [call["driver_geometry"].tolist() for call in bench.program.calls]
    assert geometries[1:3] == [[1344, 760, 1408, 1081344], [1344, 760, 1344, 1344 * 760]]
    assert geometries[3] == geometries[0]
    sizes = [call["driver_frame"].size for call in bench.program.calls]
    assert sizes[1:3] == [BINNED.payload_bytes, 1344 * 760 * 3 // 2]
    scales = [call["driver_transform"][0, 0] for call in bench.program.calls]
    assert scales == pytest.approx([1.0, 0.75, 0.75, 1.0])


def test_a_camera_that_is_too_large_is_named_and_waited_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(capacity=BINNED.payload_bytes)
    assert bench.step(0) == MonitoringStep(0, published=False, valid=False)
    assert bench.event() is None
    assert "compile it with --camera 1928x1208" in caplog.text
    bench.step(1, BINNED)
    assert bench.event().driverStateV2.frameId == 1


@pytest.mark.parametrize(
    ("form", "cut", "said"),
    [
        (TICI, 1, "driver camera, frame 0: expected at least 3727360 bytes"),
        (replace(BINNED, width=1343), 0, "expected even sides"),
        (replace(BINNED, uv_offset=1408 * 759), 0, "chroma after the luma rows"),
    ],
)
def test_a_frame_that_cannot_be_what_it_says_is_not_given_to_the_device(
    form: FrameFormat, cut: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    data = np.zeros(form.payload_bytes - cut, np.uint8)
    bench.camera.next = Frame(data, form, 0, 0, 0)
    assert bench.monitoring.step() == MonitoringStep(0, published=False, valid=False)
    assert bench.program.calls == []
    assert said in caplog.text
    bench.step(1)
    assert bench.event().valid


@pytest.mark.parametrize(
    ("angles", "said"),
    [([0.05] * 5000, "got 5000 values"), ([0.0, math.nan, 0.0], "nan"), ([], "got 0 values")],
)
def test_why_a_calibration_is_not_used_is_logged_now_and_then(
    angles: list[float], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    for frame_id in range(40):
        bench.calibrate(*angles)
        bench.step(frame_id)
    (text,) = [text for text in caplog.messages if "calibration not used" in text]
    assert "liveCalibration.rpyCalib: expected 3 finite angles" in text
    assert said in text
    assert len(text) < 300
    bench.clock.advance_ns(10_000_000_000)
    bench.calibrate(*angles)
    bench.step(40)
    assert f"{text} (10.0 s, 41 times)" in caplog.messages


def test_warm_up_checks_the_output() -> None:
    bench = Bench()
    try_monitoring(bench.program)
    assert bench.program.calls[0]["driver_frame"].size == bench.program.capacity
    bench.program.output = np.zeros((1, 595), np.float32)
    with pytest.raises(ModelInterfaceError, match=r"expected float32 \(1, 596\), got float32"):
        try_monitoring(bench.program)


def test_an_artifact_without_interface_is_refused() -> None:
    program = ScriptedProgram(METADATA_2025, 64)
    program.metadata = {}
    with pytest.raises(ModelInterfaceError, match=r"metadata\.interface"):
        Monitoring(Config(), program, MemoryTransport(), ManualClock(0), Source())


def test_the_loop_ends_when_it_is_told() -> None:
    bench = Bench()
    stop = threading.Event()
    bench.program.on_run = stop.set
    bench.camera.next = Frame(np.zeros(TICI.size, np.uint8), TICI, 0, 0, 0)
    bench.monitoring.run_forever(stop)
    assert len(bench.program.calls) == 1
    bench.monitoring.close()

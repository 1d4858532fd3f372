"""The driver monitoring loop, frame by frame, and the view of the driver's camera."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cereal.clock import ManualClock
from cereal.frames import Frame, FrameFormat, nv12_format
from cereal.pubsub import PubMaster
from cereal.schema import read_event
from cereal.transport import MemoryTransport
from modeld.errors import ModelInterfaceError
from modeld.monitoring import Monitoring, MonitoringStep, try_monitoring
from modeld.service.config import Config
from modeld.state.loop_state import Fault
from modeld.vehicle.cameras import driver_transform, find_driver_camera
from tests.modeld.bench import Log
from tests.modeld.fake_program import TICI
from tests.modeld.monitoring_program import METADATA_2025, MonitoringProgram

BINNED = nv12_format(1344, 760)


class Source:
    """A camera whose next frame is set by hand, and which may be overwritten meanwhile."""

    def __init__(self) -> None:
        self.format = TICI
        self.next: Frame | None = None
        self.intact = True
        self.on_wait: Callable[[], None] = lambda: None

    def receive(self, timeout_ms: int) -> Frame | None:
        assert timeout_ms == 100
        self.on_wait()
        frame, self.next = self.next, None
        return frame

    def is_intact(self) -> bool:
        return self.intact

    def close(self) -> None:
        """Nothing is held."""


class Driver:
    """The loop with a scripted program, and the rest of the car on the same bus."""

    def __init__(self, capacity: int = TICI.payload_bytes, **settings: Any) -> None:
        self.program = MonitoringProgram(METADATA_2025, capacity)
        self.clock = ManualClock(1_000_000_000)
        self.transport = MemoryTransport()
        self.received = self.transport.subscriber("driverStateV2")
        self.car = PubMaster(["liveCalibration"], self.transport, self.clock)
        self.camera = Source()
        ends = (self.transport, self.clock, self.camera)
        self.monitoring = Monitoring(Config(**settings), self.program, *ends)
        self.event: Any = None

    def calibrate(self, *angles: float) -> None:
        event = self.car.new("liveCalibration")
        event.liveCalibration.rpyCalib = list(angles)
        self.car.send("liveCalibration", event)

    def step(
        self, frame_id: int, form: FrameFormat = TICI, size: int | None = None
    ) -> MonitoringStep | None:
        data = np.full(size or form.size, frame_id % 256, np.uint8)
        self.camera.next = Frame(data, form, frame_id, 0, 0)
        return self.iterate()

    def iterate(self) -> MonitoringStep | None:
        result = self.monitoring.step()
        data = self.received.receive(0)
        self.event = None if data is None else read_event(data)
        return result

    def seen(self, name: str) -> list[Any]:
        return [inputs[name] for _, inputs in self.program.calls]


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_a_frame_gives_a_valid_message_without_any_calibration(driver: Driver) -> None:
    assert driver.iterate() is None
    assert driver.received.receive(0) is None
    assert driver.program.calls == []
    assert driver.step(5) == MonitoringStep(5, published=True, valid=True)
    event, state = driver.event, driver.event.driverStateV2
    assert (event.valid, event.logMonoTime) == (True, 1_000_000_000)
    assert (state.frameId, state.leftDriverData.faceProb) == (5, 0.5)
    assert state.rawPredictions == b""
    assert driver.received.receive(0) is None
    ((_, call),) = driver.program.calls
    assert call["calib"].tolist() == [[0.0, 0.0, 0.0]]
    assert call["driver_geometry"].tolist() == [1928, 1208, 2048, 2048 * 1216]
    np.testing.assert_array_equal(call["driver_frame"], np.full(TICI.payload_bytes, 5, np.uint8))
    expected = driver_transform(find_driver_camera(1928, 1208))
    np.testing.assert_array_equal(call["driver_transform"], expected)
    loop = driver.monitoring.state
    assert (loop.frames, loop.published, loop.valid, loop.frame_id) == (1, 1, 1, 5)
    assert loop.awaiting_ns == 0


def test_the_last_usable_calibration_is_kept(driver: Driver) -> None:
    driver.calibrate(0.0625, -0.125, 0.03125)
    driver.step(0)
    driver.step(1)
    for unusable in ((), (1.0, 2.0), (float("nan"), 0.0, 0.0), (0.0, 1.5, 0.0)):
        driver.calibrate(*unusable)
        driver.step(2)
    driver.calibrate(0.03125, 0.0, 0.0)
    driver.step(3)
    seen = [calib[0].tolist() for calib in driver.seen("calib")]
    assert seen == [[0.0625, -0.125, 0.03125]] * 6 + [[0.03125, 0.0, 0.0]]


def test_missing_ids_do_not_matter_and_times_are_those_of_the_clock(driver: Driver) -> None:
    driver.program.on_run = lambda: driver.clock.advance_ns(20_000_000)
    for frame_id in (1, 9, 3):
        driver.step(frame_id)
        state = driver.event.driverStateV2
        assert state.frameId == frame_id
        assert state.gpuExecutionTime == pytest.approx(0.02)
        assert state.modelExecutionTime == pytest.approx(0.02)


def test_the_raw_vector_is_sent_where_it_is_asked_for() -> None:
    driver = Driver(send_raw_predictions=True)
    driver.program.output[0, :] = np.arange(596)
    driver.program.output[0, 6:12] = driver.program.output[0, 47:53] = 0
    driver.step(0)
    raw = np.frombuffer(driver.event.driverStateV2.rawPredictions, np.float32)
    np.testing.assert_array_equal(raw, driver.program.output[0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_output_that_is_not_finite_reports_nobody(
    driver: Driver, value: float, caplog: Log
) -> None:
    driver.program.output[0, 12] = 9.0
    driver.step(0)
    assert driver.event.driverStateV2.leftDriverData.faceProb > 0.9
    driver.program.output[0, 300] = value
    assert driver.step(1) == MonitoringStep(1, published=True, valid=False)
    state = driver.event.driverStateV2
    assert (driver.event.valid, state.frameId, state.leftDriverData.faceProb) == (False, 1, 0.0)
    assert "frame 1 are not finite" in caplog.text
    driver.program.output[0, 300] = 0.0
    driver.step(2)
    assert driver.event.valid


def test_a_frame_that_was_overwritten_is_marked(driver: Driver, caplog: Log) -> None:
    driver.camera.intact = False
    driver.step(4)
    assert not driver.event.valid
    assert "frame 4 was overwritten" in caplog.text


def test_what_is_wrong_around_the_model_is_counted_and_said(driver: Driver, caplog: Log) -> None:
    faults = driver.monitoring.state.faults
    assert driver.iterate() is None
    driver.step(0)
    driver.car.send("liveCalibration", b"garbage!" * 4)
    driver.step(256)
    assert (faults[Fault.NO_FRAME], faults[Fault.MESSAGE_REJECTED]) == (1, 1)
    assert caplog.messages[0] == "no frame from the driver camera within 100 ms"
    assert caplog.messages[-1].startswith("liveCalibration: message rejected: ")
    # The same picture for a second; ids go on.
    for second in range(2, 20):
        driver.step(256 * second)
        assert driver.event.valid
    driver.step(256 * 20)
    assert not driver.event.valid
    (reason,) = driver.monitoring.state.reasons
    assert reason.startswith("driver camera: the same picture since ")
    assert faults[Fault.FRAME_FROZEN] == 1
    driver.step(256 * 21 + 1)
    assert driver.event.valid


def test_the_camera_may_come_back_with_another_size(driver: Driver) -> None:
    unpadded = FrameFormat(1344, 760, 1344, 1344 * 760, 1344 * 760 * 3 // 2)
    for frame_id, form in enumerate((TICI, BINNED, unpadded, TICI)):
        driver.step(frame_id, form)
        assert driver.event.valid
    geometries = [geometry.tolist() for geometry in driver.seen("driver_geometry")]
    assert geometries[1:3] == [[1344, 760, 1408, 1081344], [1344, 760, 1344, 1344 * 760]]
    assert geometries[3] == geometries[0]
    sizes = [frame.size for frame in driver.seen("driver_frame")]
    assert sizes[1:3] == [BINNED.payload_bytes, 1344 * 760 * 3 // 2]
    scales = [matrix[0, 0] for matrix in driver.seen("driver_transform")]
    assert scales == pytest.approx([1.0, 0.75, 0.75, 1.0])


@pytest.mark.parametrize(
    ("room", "form", "cut", "said"),
    [
        (BINNED, TICI, 0, "compile it with --camera 1928x1208"),
        (TICI, TICI, 1, "driver camera, frame 0: expected at least 3727360 bytes"),
    ],
)
def test_a_frame_that_cannot_be_used_is_named_and_not_given_to_the_device(
    room: FrameFormat, form: FrameFormat, cut: int, said: str, caplog: Log
) -> None:
    driver = Driver(room.payload_bytes)
    unused = MonitoringStep(0, published=False, valid=False)
    assert driver.step(0, form, form.payload_bytes - cut) == unused
    assert driver.received.receive(0) is None
    assert (driver.event, driver.program.calls) == (None, [])
    assert said in caplog.text
    driver.step(1, room)
    assert (driver.event.valid, driver.event.driverStateV2.frameId) == (True, 1)


def test_why_a_calibration_is_not_used_is_logged_now_and_then(driver: Driver, caplog: Log) -> None:
    angles = [0.05] * 5000
    for frame_id in range(40):
        driver.calibrate(*angles)
        driver.step(frame_id)
    (text,) = [text for text in caplog.messages if "calibration not used" in text]
    assert "liveCalibration.rpyCalib: expected 3 finite angles, got 5000 values" in text
    assert len(text) < 300
    driver.clock.advance_ns(10_000_000_000)
    driver.calibrate(*angles)
    driver.step(40)
    assert f"{text} (10.0 s, 41 times)" in caplog.messages


def test_warm_up_checks_the_output(driver: Driver) -> None:
    try_monitoring(driver.program)
    assert driver.seen("driver_frame")[0].size == driver.program.capacity_bytes
    driver.program.output = np.zeros((1, 595), np.float32)
    with pytest.raises(ModelInterfaceError, match=r"expected float32 \(1, 596\), got float32"):
        try_monitoring(driver.program)


def test_an_artifact_without_interface_is_refused() -> None:
    program = MonitoringProgram(METADATA_2025, 64)
    program.metadata = {}
    with pytest.raises(ModelInterfaceError, match=r"metadata\.interface"):
        Monitoring(Config(), program, MemoryTransport(), ManualClock(0), Source())


def test_the_loop_ends_when_it_is_told(driver: Driver) -> None:
    stop = threading.Event()
    driver.program.on_run = stop.set
    driver.camera.next = Frame(np.zeros(TICI.size, np.uint8), TICI, 0, 0, 0)
    driver.monitoring.run_forever(stop)
    assert len(driver.program.calls) == 1
    driver.monitoring.close()


@pytest.mark.parametrize("waits", [1, 3])
def test_a_wait_that_ends_with_the_loop_misses_no_frame(driver: Driver, waits: int) -> None:
    stop, seen = threading.Event(), iter(range(waits))
    driver.camera.on_wait = lambda: stop.set() if next(seen) == waits - 1 else None
    driver.monitoring.run_forever(stop)
    assert driver.monitoring.state.faults.get(Fault.NO_FRAME, 0) == waits - 1


@pytest.mark.parametrize(
    ("size", "scale", "known"),
    [
        ((1928, 1208), 1.0, True),
        ((1344, 760), 0.75, True),
        ((2688, 1520), 1.5, True),
        ((816, 612), 650 / 567, True),
        # One that is not known has the usual field of view.
        ((964, 604), 0.5, False),
        ((1928, 604), 1.0, False),
    ],
)
def test_the_middle_of_the_view_sees_the_middle_of_any_camera(
    size: tuple[int, int], scale: float, known: bool, caplog: Log
) -> None:
    # The middle of the reference camera is at 720, 356 of the view, whose focal length is 567.
    x, y = size[0] / 2 - 720 * scale, size[1] / 2 - 356 * scale
    found = driver_transform(find_driver_camera(*size))
    assert found.dtype == np.float32
    expected = np.array([[scale, 0, x], [0, scale, y], [0, 0, 1]])
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert (f"{size[0]}x{size[1]} is not known" in caplog.text) is not known

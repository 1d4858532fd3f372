"""Cameras that die, come late, come back, or come back as others: the daemon on real rings."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.cameras import RingCameras
from cereal.clock import ManualClock
from cereal.errors import FrameError
from cereal.frames import FrameFormat, FrameRingWriter, nv12_format
from modeld.startup import LateCamera
from modeld.state.loop_state import Fault
from modeld.vehicle.cameras import Camera, DeviceCameras
from tests.modeld.bench import BINNED, MS, Log, RingBench
from tests.modeld.fake_program import TICI, FakeProgram

FULL, NEO = nv12_format(2688, 1520), nv12_format(1164, 874)
UNPADDED = FrameFormat(1344, 760, 1344, 1344 * 760, 1344 * 760 * 3 // 2)
LOST = ("wide camera lost",)
Make = Callable[..., RingBench]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a car with both cameras, or with the road camera and a daemon that looks for both."""
    made: list[RingBench] = []

    def begin(form: FrameFormat = BINNED, **options: Any) -> RingBench:
        made.append(RingBench(tmp_path, form, **options))
        return made[-1]

    yield begin
    for bench in made:
        bench.close()


@pytest.fixture
def rings(make: Make) -> RingBench:
    """Both cameras, calibrated, after their first frame; there is room for larger ones."""
    bench = make(room=FULL)
    bench.calibrate("tizi", "os04c10")
    assert bench.steps(1) == [(1, 1001, ())]
    return bench


def test_lost_wide_camera_is_gone_on_without_and_marked(rings: RingBench, caplog: Log) -> None:
    assert rings.steps(1) == [(2, 1002, ())]
    rings.writers.pop("wideRoad").close()
    found = rings.steps(20)
    # Waiting, then one frame that only enters the history after those that were waited through.
    first = next(index for index, one in enumerate(found) if one is not None)
    assert first <= 20 - 8
    assert found[first:] == [(index + 3, index + 3, LOST) for index in range(first, 20)]
    assert sum("extra camera lost" in text for text in caplog.messages) == 1
    # The road frame in both places, each cut by the matrix of its view.
    inputs = rings.inputs
    np.testing.assert_array_equal(inputs["road_frame"], inputs["wide_frame"])
    assert inputs["road_transform"][0, 0] == pytest.approx(1141.5 / 910)
    assert inputs["wide_transform"][0, 0] == pytest.approx(1141.5 / 455)
    rings.open("wideRoad")
    assert rings.steps(6)[2:] == [(index, 1000 + index, ()) for index in range(25, 29)]
    assert rings.inputs["wide_transform"][0, 0] == pytest.approx(425.25 / 455)


@pytest.mark.parametrize(
    ("form", "streams", "road_px", "wide_px"),
    [
        # The same sensor, so the last calibration holds for the other readout too.
        (FULL, ("road", "wideRoad"), 2648 * 2 / 3, 850.5),
        (FULL, ("wideRoad",), 1141.5, 850.5),
        # The program is given the same pixels.
        (UNPADDED, ("road", "wideRoad"), 1141.5, 425.25),
    ],
)
def test_cameras_that_come_back_with_another_layout_are_followed(
    rings: RingBench, form: FrameFormat, streams: tuple[str, ...], road_px: float, wide_px: float
) -> None:
    rings.reopen(form, *streams)
    assert rings.steps(6)[-1] == (7, 1007, ())
    for name, stream, focal_px, view_px in (
        ("road", "road", road_px, 910),
        ("wide", "wideRoad", wide_px, 455),
    ):
        own = form if stream in streams else BINNED
        geometry = rings.inputs[f"{name}_geometry"].tolist()
        assert geometry == [own.width, own.height, own.stride, own.uv_offset]
        frame = rings.inputs[f"{name}_frame"]
        np.testing.assert_array_equal(frame, np.full(own.payload_bytes, 7, np.uint8))
        matrix = rings.inputs[f"{name}_transform"]
        assert matrix[0, 0] == pytest.approx(focal_px / view_px)


def test_size_of_another_sensor_is_invalid_until_the_next_calibration(
    rings: RingBench, caplog: Log
) -> None:
    rings.reopen(TICI)
    last = rings.steps(6)[-1]
    assert last is not None
    assert last[:2] == (7, 1007)
    (reason,) = last[2]
    assert "got 1928x1208" in reason
    assert not rings.inputs["road_transform"].any()
    assert [text for text in caplog.messages if "not valid" in text] == [f"not valid: {reason}"]
    rings.calibrate("tizi", "ox03c10")
    assert rings.steps(1) == [(8, 1008, ())]
    assert rings.inputs["road_transform"][0, 0] == pytest.approx(2648 / 910)


def test_a_fallback_that_the_new_cameras_are_too_large_for_is_done_without(
    make: Make, caplog: Log
) -> None:
    rings = make(room=FULL)
    rings.daemon.close()
    rings.start(FakeProgram(capacity_bytes=BINNED.payload_bytes))
    rings.calibrate("tizi", "os04c10")
    assert rings.steps(2) == [(1, 1001, ()), (2, 1002, ())]
    before = rings.daemon.take_over
    assert before is not None
    rings.reopen(FULL)
    assert rings.steps(6)[-1] == (8, 1008, ())
    assert rings.daemon.take_over is None
    (said,) = [text for text in caplog.messages if "fallback model not usable" in text]
    assert "--camera 2688x1520" in said
    assert rings.daemon.state.problems == (said,)


def test_damaged_calibration_does_not_end_the_loop(rings: RingBench, caplog: Log) -> None:
    message = rings.bus.new("liveCalibration")
    message.liveCalibration.rpyCalib = [0.0, 0.0, 0.0]
    data = bytearray(message.to_bytes())
    place = data.index(struct.pack("<I", 3 << 3 | 4)) - 4  # of the pointer to 3 float32
    data[place : place + 4] = struct.pack("<I", (1 << 20) << 2 | 1)
    rings.bus.send("liveCalibration", bytes(data))
    (answer,) = rings.steps(1)
    assert answer is not None
    assert answer[:2] == (2, 1002)
    assert len(answer[2]) == 1
    assert "calibration not used" in caplog.text
    rings.calibrate("tizi", "os04c10")
    assert rings.steps(1) == [(3, 1003, ())]


# --- a wide camera that is not there when the daemon starts: missed, marked, taken ------------

CONFIGURED = DeviceCameras(Camera(1344, 760, 910.0), Camera(1344, 760, 455.0))


@pytest.mark.parametrize(("cameras", "road_px"), [(None, 1141.5), (CONFIGURED, 910.0)])
def test_a_car_that_has_a_wide_camera_is_never_valid_without(
    make: Make, cameras: DeviceCameras | None, road_px: float, caplog: Log
) -> None:
    car = make(late=True, cameras=cameras)
    (before,) = car.steps(1)
    assert before is not None
    assert before[2][0].startswith("no ")
    car.keep_calibrated()
    # The first frame with a calibration, too; 12 s of them.
    assert car.steps(240) == [(frame_id, frame_id, LOST) for frame_id in range(2, 242)]
    assert car.daemon.state.faults[Fault.CAMERA_LOST] == 1
    said = [
        text for text in caplog.messages if text.startswith("extra camera lost: it was missing")
    ]
    assert len(said) == 2  # when it was noticed, and after ten seconds
    assert caplog.messages.count("not valid: wide camera lost") == 1
    np.testing.assert_array_equal(car.inputs["road_frame"], car.inputs["wide_frame"])
    assert car.inputs["wide_transform"][0, 0] == pytest.approx(road_px / 455)


@pytest.mark.parametrize(("cameras", "wide_px"), [(None, 425.25), (CONFIGURED, 455.0)])
def test_a_wide_camera_that_comes_late_is_used_within_a_second(
    make: Make, cameras: DeviceCameras | None, wide_px: float, caplog: Log
) -> None:
    car = make(late=True, cameras=cameras)
    car.keep_calibrated()
    car.steps(30)
    car.open("wideRoad")
    found = car.steps(60)
    first = next(index for index, answer in enumerate(found) if answer and answer[1] > 1000)
    # The look, and the first frame after it.
    assert first <= 21
    assert found[:first] == [(frame_id, frame_id, LOST) for frame_id in range(31, 31 + first)]
    assert found[first:] == [(n, 1000 + n, ()) for n in range(31 + first, 91)]
    assert any(text.startswith("extra camera resumed after ") for text in caplog.messages)
    assert car.inputs["wide_transform"][0, 0] == pytest.approx(wide_px / 455)


def test_a_wide_camera_that_comes_before_the_calibration_is_there_with_it(make: Make) -> None:
    car = make(late=True)
    car.steps(3)
    car.open("wideRoad")
    car.keep_calibrated()
    found = car.steps(6)
    assert found[0] == (4, 4, LOST)
    assert found[2:] == [(frame_id, 1000 + frame_id, ()) for frame_id in range(6, 10)]


@pytest.mark.parametrize("cameras", [None, DeviceCameras(Camera(1164, 874, 910.0), None)])
def test_a_device_with_one_camera_is_valid_with_it(
    make: Make, cameras: DeviceCameras | None, caplog: Log
) -> None:
    car = make(NEO, late=True, cameras=cameras)
    car.keep_calibrated("neo", "unknown")
    assert car.steps(60) == [(frame_id, frame_id, ()) for frame_id in range(1, 61)]
    # Nobody looks for what the device does not have.
    car.open("wideRoad")
    assert car.steps(30) == [(frame_id, frame_id, ()) for frame_id in range(61, 91)]
    assert not [text for text in caplog.messages if "extra camera" in text]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(5)


@pytest.fixture
def late(tmp_path: Path, clock: ManualClock) -> Iterator[LateCamera]:
    camera = LateCamera(RingCameras("cams", directory=tmp_path), "wideRoad", now_ns=clock.now_ns)
    yield camera
    camera.close()


def test_looks_are_a_second_apart(late: LateCamera, clock: ManualClock, tmp_path: Path) -> None:
    # Nothing, or what cannot be read, is looked at again.
    ring = tmp_path / "frames_cams_wideRoad"
    ring.write_bytes(b"no ring")
    with pytest.raises(FrameError, match="wideRoad of 'cams'"):
        _ = late.format
    assert late.receive(1000) is None
    ring.unlink()
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
    writer.close()

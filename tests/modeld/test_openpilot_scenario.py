"""openpilot's own test of its modeld, against our process: real cameras, real bus.

Once with frame rings and ZeroMQ, and once as openpilot has it: VisionIPC and rings of messages.

Unpadded frames of both cameras come as soon as the last ones are answered, and nothing of the car
but its parameters: no calibration, so everything is published, and marked invalid. A model that
runs after drops gets a calibration too, or validity would say nothing of the drops.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.clock import MonotonicClock
from cereal.frame_ring import nv12_unpadded
from cereal.frames import FrameRingWriter
from cereal.pubsub import PubMaster
from cereal.schema import read_event
from cereal.transport import MsgqTransport, Transport, ZmqTransport
from cereal.visionipc import VisionIpcServer
from modeld.daemon import PUBLICATIONS
from tests.cereal.shared import own_rings
from tests.modeld.bench import car_event, car_parameter
from tests.modeld.daemon_process import DaemonProcess
from tests.support.built import example_artifact

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]
FORMAT = nv12_unpadded(1928, 1208)
FRAME_NS = 50_000_000
FRAMES, FRAMES_WITH_DROPS = 499, 49
CAMERAS = {"roadCameraState": "road", "wideRoadCameraState": "wideRoad"}
ANSWER_MS = 5000
Camera = tuple[Callable[[], NDArray[np.uint8]], Callable[[int, int, int], None]]
# Upstream waits 5 s for what must not come; the ids of what comes next tell the same.
SILENCE_MS = 300


@pytest.fixture(scope="module")
def pictures() -> list[NDArray[np.uint8]]:
    """Frames of noise, no two of them alike."""
    numbers = np.random.default_rng(1)
    return [numbers.integers(0, 256, FORMAT.size, np.uint8) for _ in range(12)]


class Car:
    """Cameras and bus beside the daemon's process.

    Attributes:
        cameras: Of each stream, what gives a buffer, and what sends it.
    """

    def __init__(
        self, process: DaemonProcess, pictures: list[NDArray[np.uint8]], resources: ExitStack
    ) -> None:
        self.process = process
        self.pictures = pictures
        self.cameras = _cameras(process, resources)
        shared = process.prefix
        self.transport: Transport = (
            MsgqTransport(prefix=shared) if shared else ZmqTransport(process.bus)
        )
        resources.callback(self.transport.close)
        services = (*CAMERAS, "deviceState", "liveCalibration")
        self.states = PubMaster(services, self.transport, MonotonicClock())
        process.wait_for("running")
        self.outputs = {name: self.transport.subscriber(name) for name in PUBLICATIONS}
        # Sockets of ZeroMQ do not tell when they are connected; they try each half second at least.
        time.sleep(1.0)

    def send(self, frame_id: int, *cameras: str) -> None:
        sof_ns, eof_ns = frame_id * FRAME_NS, (frame_id + 1) * FRAME_NS
        for camera in cameras or CAMERAS:
            event = self.states.new(camera)
            event.valid = True
            state = getattr(event, camera)
            state.frameId, state.timestampSof, state.timestampEof = frame_id, sof_ns, eof_ns
            self.states.send(camera, event)
            buffer, publish = self.cameras[CAMERAS[camera]]
            shift = 3 if camera.startswith("wide") else 0
            buffer()[...] = self.pictures[(frame_id + shift) % len(self.pictures)]
            publish(frame_id, sof_ns, eof_ns)

    def calibrate(self) -> None:
        """Say which device it is, and that it looks straight ahead."""
        device, calibration = self.states.new("deviceState"), self.states.new("liveCalibration")
        device.valid = calibration.valid = True
        device.deviceState.deviceType = "tici"
        calibration.liveCalibration.rpyCalib = [0.0, 0.0, 0.0]
        self.states.send("deviceState", device)
        self.states.send("liveCalibration", calibration)

    def answer(self, wait_ms: int = ANSWER_MS) -> dict[str, Any] | None:
        """The three events of the next frame; None if nothing comes."""
        found: dict[str, Any] = {}
        for name in PUBLICATIONS:
            data = self.outputs[name].receive(ANSWER_MS if found else wait_ms)
            if data is None:
                assert not found, name
                return None
            found[name] = read_event(data)
        return found

    def drops(self, seed: int, *, calibrated: bool = False) -> Iterator[tuple[int, bool]]:
        """Send frames of which a tenth is missing, half of these only of the road camera.

        Yields:
            The id of each that was sent whole, and whether the one before it was, too.
        """
        random_numbers = random.Random(seed)  # noqa: S311 -- a repeatable choice
        dropped: set[int] = set()
        for frame_id in range(1, FRAMES_WITH_DROPS + 1):
            if frame_id > 3 and random_numbers.random() < 0.1:
                dropped.add(frame_id)
                if random_numbers.random() < 0.5:
                    self.send(frame_id, "wideRoadCameraState")
                continue
            if calibrated:
                self.calibrate()
            self.send(frame_id)
            yield frame_id, frame_id - 1 not in dropped
        assert dropped
        assert self.answer(SILENCE_MS) is None


def _cameras(process: DaemonProcess, resources: ExitStack) -> dict[str, Camera]:
    """Open the cameras that a process looks for."""
    if not process.prefix:
        rings = {name: FrameRingWriter(process.server, name, FORMAT) for name in CAMERAS.values()}
        for ring in rings.values():
            resources.callback(ring.close)
        return {name: (ring.next_buffer, ring.publish) for name, ring in rings.items()}
    bus = MsgqTransport(prefix=process.prefix)
    resources.callback(bus.close)
    server = VisionIpcServer(process.server, bus, prefix=process.prefix)
    resources.callback(server.close)
    for name in CAMERAS.values():
        server.create_buffers(name, 40, FORMAT)
    server.start()
    return {
        name: (partial(server.next_buffer, name), partial(server.send, name))
        for name in CAMERAS.values()
    }


@contextmanager
def car_of(
    interface: str, directory: Path, pictures: list[NDArray[np.uint8]], *, shares: bool = False
) -> Iterator[Car]:
    """A daemon with the small example of an interface that waits for its first frame.

    Args:
        interface: Of the example.
        directory: Of its own.
        pictures: Of the cameras.
        shares: Everything comes as openpilot's processes have it, in shared memory.
    """
    (directory / "params").mkdir()
    (directory / "params/CarParams").write_bytes(car_parameter(car_event("MOCK", 0.5, 0.1)))
    model = str(example_artifact(interface))
    with ExitStack() as resources:
        prefix = resources.enter_context(own_rings()) if shares else ""
        process = DaemonProcess(directory, "--model", model, prefix=prefix)
        resources.callback(process.close)
        car = Car(process, pictures, resources)
        yield car
        car.states.close()


@pytest.fixture(params=[False, True], ids=["rings-and-zmq", "visionipc-and-msgq"])
def car(
    request: pytest.FixtureRequest, tmp_path: Path, pictures: list[NDArray[np.uint8]]
) -> Iterator[Car]:
    with car_of("split-2025", tmp_path, pictures, shares=request.param) as found:
        yield found


def check(events: dict[str, Any], frame_id: int, valid: tuple[str, ...] = ()) -> None:
    """All that openpilot asserts of an answered frame, and that only `valid` claim to be so."""
    model, odometry = events["modelV2"].modelV2, events["cameraOdometry"].cameraOdometry
    brief = events["drivingModelData"].drivingModelData
    eof_ns = (frame_id + 1) * FRAME_NS
    assert (model.frameId, model.frameIdExtra) == (frame_id, frame_id)
    assert (brief.frameId, brief.frameIdExtra) == (frame_id, frame_id)
    assert (odometry.frameId, odometry.timestampEof) == (frame_id, eof_ns)
    assert model.timestampEof == eof_ns
    assert model.frameAge == 0
    assert tuple(name for name in PUBLICATIONS if events[name].valid) == valid
    assert np.isfinite(list(model.position.x)).all()


def test_every_frame_is_answered(car: Car) -> None:
    for frame_id in range(1, FRAMES + 1):
        car.send(frame_id)
        events = car.answer()
        assert events is not None, (frame_id, car.process.said())
        check(events, frame_id)
        assert events["modelV2"].modelV2.frameDropPerc == 0
        assert events["drivingModelData"].drivingModelData.frameDropPerc == 0
    assert car.process.stop_by(signal.SIGINT) == 130


@pytest.mark.parametrize("seed", [1, 2])
def test_after_a_drop_only_consecutive_frames_are_answered(car: Car, seed: int) -> None:
    for frame_id, is_next in car.drops(seed):
        events = car.answer(ANSWER_MS if is_next else SILENCE_MS)
        assert (events is not None) == is_next, (frame_id, car.process.said())
        if events is not None:
            check(events, frame_id)


def test_a_model_that_runs_after_drops_answers_every_frame(
    tmp_path: Path, pictures: list[NDArray[np.uint8]]
) -> None:
    with car_of("supercombo-2026", tmp_path, pictures) as car:
        for frame_id, is_next in car.drops(1, calibrated=True):
            events = car.answer()
            assert events is not None, (frame_id, car.process.said())
            # The calibration counts once the camera's state has been heard. The pose is a step
            # from the frame before; where that is missing it is another one.
            if frame_id > 3:
                check(events, frame_id, PUBLICATIONS if is_next else PUBLICATIONS[:2])

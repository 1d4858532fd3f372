"""openpilot's own test of its modeld, against our process: real rings, real bus, real pictures.

Unpadded frames of both cameras come as soon as the last ones are answered, and nothing of the car
but its parameters: no calibration, so everything is published, and marked invalid. A model that
runs after drops gets a calibration too, or validity would say nothing of the drops.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.clock import MonotonicClock
from cereal.frame_format import nv12_unpadded
from cereal.frames import FrameRingWriter
from cereal.pubsub import PubMaster
from cereal.schema import new_event, read_event
from cereal.transport import ZmqTransport
from scheduler.compile import compile_driving
from tests.reference_loop.drive import pictures_of_the_clip
from tools.make_model import write_interface

pytestmark = pytest.mark.opencl
ROOT = Path(__file__).parents[2]
FORMAT = nv12_unpadded(1928, 1208)
FRAME_NS = 50_000_000
FRAMES, FRAMES_WITH_DROPS = 499, 49
OUTPUTS = ("modelV2", "drivingModelData", "cameraOdometry")
ANSWER_MS = 5000
# Upstream waits 5 s for what must not come; the ids of what comes next tell the same.
SILENCE_MS = 300


@pytest.fixture(scope="module")
def pictures() -> list[NDArray[np.uint8]]:
    """Each twentieth frame of the clip at the size of the cameras, by nearest neighbour."""
    found = []
    for picture in pictures_of_the_clip()[::20]:
        y, u, v = picture.planes()
        rows = np.arange(FORMAT.height) * y.shape[0] // FORMAT.height
        columns = np.arange(FORMAT.width) * y.shape[1] // FORMAT.width
        half = np.ix_(rows[::2] // 2, columns[::2] // 2)
        chroma = np.stack([u[half], v[half]], axis=-1)
        found.append(np.concatenate([y[np.ix_(rows, columns)].reshape(-1), chroma.reshape(-1)]))
        assert found[-1].size == FORMAT.size
    return found


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_example(tmp_path_factory.mktemp("scenario"), "split-2025")


@pytest.fixture(scope="module")
def running_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its interface has the drop policy "run"."""
    return compile_example(tmp_path_factory.mktemp("scenario"), "supercombo-2026")


def compile_example(directory: Path, interface: str) -> Path:
    """The small example of an interface as an artifact."""
    models = [path for path, _ in write_interface(directory, interface)]
    compile_driving(models, interface=interface).write(directory / "driving.pkl")
    return directory / "driving.pkl"


class Car:
    """Cameras and bus beside the daemon's process."""

    def __init__(self, artifact: Path, directory: Path, pictures: list[NDArray[np.uint8]]) -> None:
        self.pictures = pictures
        server, bus = f"scenario_{os.getpid()}", f"ipc://{directory}/bus"
        (directory / "bus").mkdir()
        write_car_params(directory / "params")
        self.cameras = {
            name: FrameRingWriter(server, stream, FORMAT)
            for name, stream in (("roadCameraState", "road"), ("wideRoadCameraState", "wideRoad"))
        }
        self.transport = ZmqTransport(bus)
        services = (*self.cameras, "deviceState", "liveCalibration")
        self.states = PubMaster(services, self.transport, MonotonicClock())
        self.outputs: dict[str, Any] = {}
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tools.cli", "run", "-v", "--model", str(artifact)),
                *("--bus", bus, "--camera-server", server, "--params", str(directory / "params")),
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running = threading.Event()
        self.reader = threading.Thread(target=self._read_log)
        self.reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if line.rstrip().endswith("running"):
                self.running.set()

    def wait_until_running(self) -> None:
        """Wait for the loop, and for both ends of the bus to have found each other."""
        assert self.running.wait(60), self.log
        self.outputs = {name: self.transport.subscriber(name) for name in OUTPUTS}
        # Sockets of ZeroMQ do not tell when they are connected; they try each half second at least.
        time.sleep(1.0)

    def send(self, camera: str, frame_id: int) -> None:
        """The camera's state, then its frame."""
        sof_ns, eof_ns = frame_id * FRAME_NS, (frame_id + 1) * FRAME_NS
        event = self.states.new(camera)
        event.valid = True
        state = getattr(event, camera)
        state.frameId, state.timestampSof, state.timestampEof = frame_id, sof_ns, eof_ns
        self.states.send(camera, event)
        ring = self.cameras[camera]
        shift = 3 if camera.startswith("wide") else 0
        ring.next_buffer()[...] = self.pictures[(frame_id + shift) % len(self.pictures)]
        ring.publish(frame_id, sof_ns, eof_ns)

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
        first = self.outputs["modelV2"].receive(wait_ms)
        if first is None:
            return None
        found = {"modelV2": read_event(first)}
        for name in OUTPUTS[1:]:
            data = self.outputs[name].receive(ANSWER_MS)
            assert data is not None, name
            found[name] = read_event(data)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()
        for ring in self.cameras.values():
            ring.close()
        self.states.close()
        self.transport.close()


def write_car_params(directory: Path) -> None:
    """The stack's parameter CarParams: the structure itself, not an event."""
    directory.mkdir()
    event = new_event("carParams", mono_time_ns=0)
    event.carParams.carFingerprint = "MOCK"
    event.carParams.steerActuatorDelay = 0.1
    event.carParams.longitudinalActuatorDelay = 0.5
    (directory / "CarParams").write_bytes(event.carParams.copy().to_bytes())


@pytest.fixture
def car(artifact: Path, tmp_path: Path, pictures: list[NDArray[np.uint8]]) -> Iterator[Car]:
    with running_car(artifact, tmp_path, pictures) as found:
        yield found


@contextmanager
def running_car(
    artifact: Path, directory: Path, pictures: list[NDArray[np.uint8]]
) -> Iterator[Car]:
    """A daemon that waits for its first frame."""
    found = Car(artifact, directory, pictures)
    try:
        found.wait_until_running()
        yield found
    finally:
        found.close()


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
    assert tuple(name for name in OUTPUTS if events[name].valid) == valid
    assert np.isfinite(list(model.position.x)).all()


def test_every_frame_is_answered(car: Car) -> None:
    for frame_id in range(1, FRAMES + 1):
        for camera in car.cameras:
            car.send(camera, frame_id)
        events = car.answer()
        assert events is not None, (frame_id, car.log)
        check(events, frame_id)
        assert events["modelV2"].modelV2.frameDropPerc == 0
        assert events["drivingModelData"].drivingModelData.frameDropPerc == 0
    car.process.send_signal(signal.SIGINT)
    assert car.process.wait(20) == 130
    assert "Traceback" not in "".join(car.log)


@pytest.mark.parametrize("seed", [1, 2])
def test_after_a_drop_only_consecutive_frames_are_answered(car: Car, seed: int) -> None:
    random_numbers = random.Random(seed)  # noqa: S311 -- a repeatable choice
    sent: list[int] = []
    answered, dropped = [], []
    for frame_id in range(1, FRAMES_WITH_DROPS + 1):
        if frame_id > 3 and random_numbers.random() < 0.1:
            dropped.append(frame_id)
            if random_numbers.random() < 0.5:
                car.send("wideRoadCameraState", frame_id)
            continue
        for camera in car.cameras:
            car.send(camera, frame_id)
        sent.append(frame_id)
        expected = len(sent) < 3 or sent[-1] == sent[-2] + 1
        events = car.answer(ANSWER_MS if expected else SILENCE_MS)
        assert (events is not None) == expected, (frame_id, dropped, car.log)
        if events is not None:
            check(events, frame_id)
            answered.append(frame_id)
    assert dropped
    assert answered == [n for n in sent if n - 1 not in dropped]
    assert car.answer(SILENCE_MS) is None


def test_a_model_that_runs_after_drops_answers_every_frame(
    running_artifact: Path, tmp_path: Path, pictures: list[NDArray[np.uint8]]
) -> None:
    random_numbers = random.Random(1)  # noqa: S311 -- a repeatable choice
    dropped = []
    with running_car(running_artifact, tmp_path, pictures) as car:
        for frame_id in range(1, FRAMES_WITH_DROPS + 1):
            if frame_id > 3 and random_numbers.random() < 0.1:
                dropped.append(frame_id)
                if random_numbers.random() < 0.5:
                    car.send("wideRoadCameraState", frame_id)
                continue
            car.calibrate()
            for camera in car.cameras:
                car.send(camera, frame_id)
            events = car.answer()
            assert events is not None, (frame_id, dropped, car.log)
            if frame_id <= 3:
                continue  # the calibration counts once the camera's state has been heard
            # The pose is a step from the frame before; where that is missing it is another one.
            check(events, frame_id, OUTPUTS[:2] if frame_id - 1 in dropped else OUTPUTS)
        assert car.answer(SILENCE_MS) is None
    assert dropped

"""The daemon on the real runtime: a hand-written driving artifact that copies its inputs out."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime
from cereal.clock import ManualClock
from cereal.frames import Frame, FrameFormat, FrameRingWriter, MemoryFrameSource
from cereal.schema import new_event, read_event
from cereal.transport import MemoryTransport, Subscriber, ZmqTransport
from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config
from modeld.daemon import Daemon
from modeld.driving_model import DrivingModel, DrivingProgram, ModelInputs
from modeld.frame_sync import FramePair
from tests.modeld.fake_program import make_interface

pytestmark = pytest.mark.opencl

# The pose (columns 87..) becomes road[0], wide[0], runs so far, road_transform[0],
# wide_transform[0], desire[3]; wide_from_device_euler (99..) the road frame's width and where the
# wide one's chroma begins; the plan begins with the traffic convention.
SOURCE = """
__kernel void count_frames(__global float* frames) { frames[0] += 1.0f; }

__kernel void vision(__global float* out, const __global uchar* road, const __global uchar* wide,
                     const __global float* road_transform, const __global float* wide_transform,
                     const __global float* desire, const __global float* frames,
                     const __global int* road_geometry, const __global int* wide_geometry) {
  const size_t i = get_global_id(0);
  float value = 0.0f;
  if (i == 87) value = road[0];
  if (i == 88) value = wide[0];
  if (i == 89) value = frames[0];
  if (i == 90) value = road_transform[0];
  if (i == 91) value = wide_transform[0];
  if (i == 92) value = desire[3];
  if (i == 99) value = road_geometry[0];
  if (i == 100) value = wide_geometry[3];
  out[i] = value;
}

__kernel void policy(__global float* out, const __global float* traffic_convention) {
  const size_t i = get_global_id(0);
  out[i] = i < 2 ? traffic_convention[i] : 0.0f;
}
"""
# Indices into the buffer table below.
ROAD, WIDE, ROAD_G, WIDE_G, ROAD_T, WIDE_T, DESIRE, TRAFFIC, VISION, POLICY, FRAMES = range(11)


def buffer(name: str, kind: str, dtype: str, *shape: int) -> dict[str, Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return {
        "name": name,
        "kind": kind,
        "dtype": dtype,
        "shape": list(shape),
        "offset": 0,
        "size": size,
    }


def kernel(name: str, extent: int, *args: int) -> dict[str, Any]:
    return {
        "name": name,
        "program": 0,
        "args": list(args),
        "global": [extent, 1, 1],
        "local": [1, 1, 1],
        "origin": [],
        "flops": 0,
        "bytes": 0,
    }


def make_manifest(capacity_bytes: int) -> dict[str, Any]:
    prepare_inputs = [ROAD, WIDE, ROAD_G, WIDE_G, ROAD_T, WIDE_T, DESIRE]
    return {
        "magic": "modeld-artifact",
        "format": 1,
        "abi": 1,
        "name": "copy",
        "kind": "driving",
        "models": [],
        "metadata": {"interface": make_interface().plain()},
        "target": {"name": "cpu", "device": "", "driver": "", "options": ""},
        "buffers": [
            {**buffer("road_frame", "input", "uint8", capacity_bytes), "partial": True},
            {**buffer("wide_frame", "input", "uint8", capacity_bytes), "partial": True},
            buffer("road_geometry", "input", "int32", 4),
            buffer("wide_geometry", "input", "int32", 4),
            buffer("road_transform", "input", "float32", 3, 3),
            buffer("wide_transform", "input", "float32", 3, 3),
            buffer("desire", "input", "float32", 8),
            buffer("traffic_convention", "input", "float32", 1, 2),
            buffer("vision_outputs", "output", "float32", 1, 1576),
            buffer("policy_outputs", "output", "float32", 1, 1000),
            buffer("frames", "state", "float32", 1),
        ],
        "arena_size": 0,
        "programs": [{"source": SOURCE, "options": "", "binary": b""}],
        "kernels": [
            kernel("count_frames", 1, FRAMES),
            kernel(
                "vision", 1576, VISION, ROAD, WIDE, ROAD_T, WIDE_T, DESIRE, FRAMES, ROAD_G, WIDE_G
            ),
            kernel("policy", 1000, POLICY, TRAFFIC),
        ],
        "entries": {
            "run": {
                "inputs": [*prepare_inputs, TRAFFIC],
                "outputs": [VISION, POLICY],
                "launches": [0, 1, 2],
            },
            "prepare": {"inputs": prepare_inputs, "outputs": [], "launches": [0]},
        },
        "self_test": {},
    }


@pytest.fixture
def artifact(tmp_path: Path, small_format: FrameFormat, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "copy.pkl"
    runtime.write_artifact(path, make_manifest(small_format.size), b"")
    return path


def pose_of(subscriber: Subscriber) -> list[float] | None:
    data = subscriber.receive(0)
    if data is None:
        return None
    odometry = read_event(data).cameraOdometry
    return [*odometry.trans, *odometry.rot]


def test_steps_on_the_real_runtime(
    artifact: Path, small_format: FrameFormat, frame_of: Callable[..., Frame]
) -> None:
    program = runtime.load_program(artifact)
    accepted: DrivingProgram = program
    transport = MemoryTransport()
    subscriber = transport.subscriber("cameraOdometry")
    road, wide = MemoryFrameSource(small_format), MemoryFrameSource(small_format)
    cameras = DeviceCameras(Camera(64, 32, 91.0), Camera(64, 32, 45.5))
    daemon = Daemon(Config(cameras=cameras), accepted, transport, ManualClock(1), road, wide)
    daemon.model.warm_up()
    daemon.calibration.update([0.0, 0.0, 0.0], "", "")
    poses = []
    for frame_id in (10, 11, 13, 14):
        road.push(frame_of(frame_id))
        wide.push(frame_of(frame_id + 100, frame_id * 50_000_000))
        daemon.step()
        poses.append(pose_of(subscriber))
    # Warm-up left no trace; the prepare entry after the gap counted but published nothing.
    assert poses[2] is None
    assert [pose and pose[:3] for pose in poses] == [
        [10, 110, 1],
        [11, 111, 2],
        None,
        [14, 114, 4],
    ]
    assert poses[0] is not None
    assert poses[0][3:] == pytest.approx([0.1, 0.1, 0.0])
    program.close()


def test_frames_of_different_sizes_in_one_program(
    artifact: Path, frame_of: Callable[..., Frame]
) -> None:
    bare = FrameFormat(40, 16, 40, 640, 960)  # without padding
    with runtime.load_program(artifact) as program:
        model = DrivingModel(program)
        model.warm_up()
        zeros, pair = np.zeros((3, 3), np.float32), np.zeros((1, 2), np.float32)
        seen = []
        for main, extra in ((bare, None), (None, bare)):
            first, second = [
                frame_of(5) if form is None else Frame(np.full(960, 9, np.uint8), form, 5, 0, 0)
                for form in (main, extra)
            ]
            inputs = ModelInputs(
                FramePair(first, second), zeros, zeros, np.zeros(8, np.float32), pair, pair, pair
            )
            outputs = model.run(inputs).outputs
            seen.append([*outputs.pose[:2], *outputs.wide_from_device_euler[:2]])
    # Brightness of both; 64x32 padded has its chroma behind 32 rows of 128 bytes.
    assert seen == [[9, 5, 40, 4096], [5, 9, 64, 640]]


RUN = """
import sys
from pathlib import Path
from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config
from modeld.process import run
cameras = DeviceCameras(Camera(64, 32, 91.0), Camera(64, 32, 45.5))
sys.exit(run(Config(model=Path(sys.argv[1]), bus_address=sys.argv[2], camera_server=sys.argv[3],
                    demo="--demo" in sys.argv, cameras=cameras)))
"""


class Process:
    """A daemon process, its bus and the name of its camera server."""

    def __init__(self, artifact: Path, directory: Path, *options: str) -> None:
        self.server = f"test_modeld_{os.getpid()}"
        (directory / "bus").mkdir(exist_ok=True)
        self.bus = f"ipc://{directory}/bus"
        self.handle = subprocess.Popen(
            [sys.executable, "-c", RUN, str(artifact), self.bus, self.server, *options],
            stderr=subprocess.PIPE,
            text=True,
        )
        # A daemon that never writes the awaited line must not hold the test until its limit.
        self.watchdog = threading.Timer(60.0, self.handle.kill)
        self.watchdog.start()

    def wait_for(self, text: str) -> None:
        """Read the log until a line begins with the text."""
        assert self.handle.stderr is not None
        lines = []
        for line in self.handle.stderr:
            if message_of(line).startswith(text):
                return
            lines.append(line)
        pytest.fail(f"expected a line {text!r}, got {lines}")

    def stop(self, number: signal.Signals) -> tuple[int, list[str]]:
        """Send a signal; return the exit code and the rest of the log."""
        self.handle.send_signal(number)
        _, errors = self.handle.communicate(timeout=20)
        return self.handle.returncode, [message_of(line) for line in errors.splitlines()]


def message_of(line: str) -> str:
    """A line of the log without its time, level and logger."""
    return line.rstrip("\n").partition(": ")[2]


@pytest.fixture
def start(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Process]]:
    # A stack on this machine has a car of its own.
    monkeypatch.setenv("PARAMS_ROOT", str(tmp_path / "params"))
    processes: list[Process] = []

    def begin(*options: str) -> Process:
        processes.append(Process(artifact, tmp_path, *options))
        return processes[-1]

    yield begin
    for process in processes:
        process.watchdog.cancel()
        process.handle.kill()
        # Waits for the process and closes its pipe.
        with process.handle:
            pass


@pytest.fixture
def publish_until_answered(small_format: FrameFormat) -> Iterator[Callable[[Process], Any]]:
    """Sends road frames at 20 Hz until the daemon answers with a cameraOdometry event."""
    writers: list[FrameRingWriter] = []

    def publish(process: Process) -> Any:
        transport = ZmqTransport(process.bus)
        subscriber = transport.subscriber("cameraOdometry")
        writers.append(FrameRingWriter(process.server, "road", small_format))
        try:
            for frame_id in range(1200):
                writers[0].next_buffer()[:] = 7
                writers[0].publish(frame_id, time.monotonic_ns(), time.monotonic_ns())
                data = subscriber.receive(50)
                if data is not None:
                    return read_event(data)
                assert process.handle.poll() is None, "the daemon ended"
        finally:
            transport.close()
        pytest.fail("nothing was published in a minute")

    yield publish
    for writer in writers:
        writer.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_process_runs_and_stops_on_a_signal(
    start: Callable[..., Process],
    publish_until_answered: Callable[[Process], Any],
    number: signal.Signals,
    code: int,
) -> None:
    process = start("--demo")
    event = publish_until_answered(process)
    assert list(event.cameraOdometry.trans)[:2] == [7, 7]
    assert not event.valid
    process.wait_for("running")
    returned, log = process.stop(number)
    assert returned == code
    assert log[-1:] == ["stopping"]
    assert "Traceback" not in "".join(log)


@pytest.mark.parametrize("phase", ["loading", "waiting for camera"])
def test_process_stops_while_starting(start: Callable[..., Process], phase: str) -> None:
    process = start("--demo")
    process.wait_for(phase)
    returned, log = process.stop(signal.SIGTERM)
    assert returned == 0
    assert log[-2:] == ["stopped while starting", "stopping"]
    assert "Traceback" not in "".join(log)


def test_process_waits_for_the_car_without_demo(
    start: Callable[..., Process], small_format: FrameFormat
) -> None:
    process = start()
    transport = ZmqTransport(process.bus)
    writer = FrameRingWriter(process.server, "road", small_format)
    try:
        process.wait_for("waiting for carParams")
        event = new_event("carParams", mono_time_ns=1)
        event.carParams.carFingerprint = "TEST CAR"
        data = event.to_bytes()
        publisher = transport.publisher("carParams")
        # The daemon connects within half a second of the socket being there.
        for _ in range(100):
            publisher.send(data)
            time.sleep(0.02)
        process.wait_for("car: TEST CAR")
        assert process.stop(signal.SIGINT)[0] == 130
    finally:
        writer.close()
        transport.close()


def test_process_takes_the_car_of_the_parameter_and_publishes(
    start: Callable[..., Process],
    publish_until_answered: Callable[[Process], Any],
    tmp_path: Path,
) -> None:
    """As after a restart while driving: the next message would come in up to 50 s."""
    event = new_event("carParams", mono_time_ns=1)
    event.carParams.carFingerprint = "FILE CAR"
    (tmp_path / "params/d").mkdir(parents=True)
    (tmp_path / "params/d/CarParams").write_bytes(
        event.carParams.as_reader().as_builder().to_bytes()
    )
    process = start()
    assert publish_until_answered(process).cameraOdometry.frameId >= 0
    process.wait_for("car: FILE CAR")
    assert process.stop(signal.SIGTERM)[0] == 0


class TwoCameras:
    """A camera process at 20 Hz whose wide frames have ids 1000 higher, and who listens."""

    def __init__(self, process: Process, form: FrameFormat) -> None:
        self.process = process
        self.transport = ZmqTransport(process.bus)
        self.models = self.transport.subscriber("modelV2")
        self.rings: dict[str, FrameRingWriter] = {}
        self.frame_id = 0
        self.open("wideRoad", form)
        self.open("road", form)

    def open(self, stream: str, form: FrameFormat) -> None:
        self.rings[stream] = FrameRingWriter(self.process.server, stream, form)

    def publish_until(self, extra_ahead: int) -> None:
        """Publish until a message says that the extra frame's id is so far ahead."""
        for _ in range(1200):
            self.frame_id += 1
            stamp_ns = time.monotonic_ns()
            # The wide frame first: it is there when the road frame wakes the daemon.
            for stream, ahead in (("wideRoad", 1000), ("road", 0)):
                if stream in self.rings:
                    self.rings[stream].next_buffer()[:] = 7
                    self.rings[stream].publish(self.frame_id + ahead, stamp_ns, stamp_ns)
            data = self.models.receive(50)
            if data is not None:
                model = read_event(data).modelV2
                if model.frameIdExtra - model.frameId == extra_ahead:
                    return
            assert self.process.handle.poll() is None, "the daemon ended"
        pytest.fail(f"never {extra_ahead} ahead in a minute")

    def close(self) -> None:
        for ring in self.rings.values():
            ring.close()
        self.transport.close()


def test_process_outlives_its_wide_camera(
    start: Callable[..., Process], small_format: FrameFormat
) -> None:
    process = start("--demo")
    cameras = TwoCameras(process, small_format)
    try:
        cameras.publish_until(1000)
        cameras.rings.pop("wideRoad").close()
        cameras.publish_until(0)
        # It comes back with unpadded frames: stride and chroma offset are the frame's own.
        cameras.open("wideRoad", FrameFormat(64, 32, 64, 64 * 32, 64 * 32 * 3 // 2))
        cameras.publish_until(1000)
        process.wait_for("extra camera lost")
        process.wait_for("extra camera is back")
        assert process.stop(signal.SIGTERM)[0] == 0
    finally:
        cameras.close()

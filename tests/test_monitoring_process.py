"""Driver monitoring as a user runs it: real model, real process, a subscriber not of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from cereal.clock import MonotonicClock
from cereal.frames import FrameFormat, FrameRingWriter, nv12_format
from cereal.pubsub import PubMaster
from cereal.schema import SCHEMA_PATH
from cereal.transport import ZmqTransport
from tests.reference_loop.warps import bilinear, nearest

pytestmark = pytest.mark.opencl
ROOT = Path(__file__).resolve().parent.parent
PICTURES = 3
ANGLES = (0.0625, -0.125, 0.09375)  # within bounds; outputs tell them from zeros
UNPADDED = FrameFormat(1344, 760, 1344, 1344 * 760, 1344 * 760 * 3 // 2)
# K_camera inv(K_view), by hand: equal focal lengths, and three quarters.
MATRICES = {
    1928: [[1.0, 0.0, 244.0], [0.0, 1.0, 248.0], [0.0, 0.0, 1.0]],
    1344: [[0.75, 0.0, 132.0], [0.0, 0.75, 113.0], [0.0, 0.0, 1.0]],
}
# Logarithms of deviations on both sides of 11, where 2026 clips them.
LARGE = {6: 12.5, 7: 9.0, 9: 12.5, 10: 9.0}

# pyzmq, pycapnp and the schema file; nothing of ours, started with -I from another directory.
FOREIGN = """
import json, sys
import capnp, zmq
capnp.remove_import_hook()
log = capnp.load(sys.argv[1])
socket = zmq.Context.instance().socket(zmq.SUB)
socket.setsockopt(zmq.SUBSCRIBE, b"")
socket.connect(sys.argv[2] + "/driverStateV2")
while socket.poll(60000):
    with log.Event.from_bytes(socket.recv(), traversal_limit_in_words=2**61) as event:
        assert event.which() == "driverStateV2", event.which()
        row = event.driverStateV2.to_dict()
        row["rawPredictions"] = len(event.driverStateV2.rawPredictions)
        print(json.dumps(row | {"valid": event.valid}), flush=True)
"""


def cli(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True, slots=True)
class Layout:
    """A revision by hand: how it sees, and where its vector has what.

    Attributes:
        warp: of luma.
        clip: of logarithms of deviations.
        seat: values of a seat; the right one follows the left one.
        lists: field of a seat -> places of logits.
        single: field of a seat -> place of a logit.
        general: field of the message -> place of a logit.
        empty: fields of a seat that this revision does not fill -> 0, or None for no list.
    """

    warp: Callable[..., NDArray[np.uint8]]
    clip: float
    seat: int
    lists: dict[str, range]
    single: dict[str, int]
    general: dict[str, int]
    empty: dict[str, Any]


LAYOUTS = {
    "dmonitoring-2025": Layout(
        bilinear,
        np.inf,
        41,
        {"readyProb": range(35, 39), "notReadyProb": range(39, 41)},
        {
            "faceProb": 12, "leftEyeProb": 21, "rightEyeProb": 30, "leftBlinkProb": 31,
            "rightBlinkProb": 32, "sunglassesProb": 33, "occludedProb": 34,
        },
        {"poorVisionProb": 82, "wheelOnRightProb": 83},
        {"phoneProb": 0.0, "sleepProb": 0.0},
    ),
    "dmonitoring-2026": Layout(
        nearest,
        11.0,
        20,
        {},
        {
            "faceProb": 12, "leftEyeProb": 13, "rightEyeProb": 14, "leftBlinkProb": 15,
            "rightBlinkProb": 16, "sunglassesProb": 17, "phoneProb": 18, "sleepProb": 19,
        },
        {"wheelOnRightProb": 40},
        {"occludedProb": 0.0, "readyProb": None, "notReadyProb": None},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=LAYOUTS)
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Layout]:
    name: str = request.param
    directory = tmp_path_factory.mktemp("monitoring-process")
    cli("make-model", ".", "--interface", name, cwd=directory)
    enlarge_deviations(directory / "dmonitoring.onnx", LAYOUTS[name].seat)
    cli("compile", "dmonitoring.onnx", "-o", "dmonitoring.pkl", cwd=directory)
    return directory, LAYOUTS[name]


def enlarge_deviations(path: Path, seat: int) -> None:
    """Set LARGE in the bias of both seats, so that a clip can be told."""
    model = onnx.load(path)
    last = next(n for n in model.graph.node if model.graph.output[0].name in n.output)
    bias = next(i for i in model.graph.initializer if i.name == last.input[2])
    values = onnx.numpy_helper.to_array(bias).copy()
    for place, value in LARGE.items():
        values[[place, seat + place]] = value
    bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
    onnx.save(model, path)


def picture(form: FrameFormat, number: int) -> NDArray[np.uint8]:
    """Blocks of 16 pixels, another pattern for each number; the padding is not black."""
    rng = np.random.default_rng(number)
    blocks = rng.integers(0, 256, (form.height // 16 + 1, form.stride // 16 + 1))
    luma = np.kron(blocks, np.ones((16, 16), np.int64))[: form.height, : form.stride]
    data = np.full(form.size, 99, np.uint8)
    data[: luma.size] = luma.ravel()
    return data


class Car:
    """The driver camera at 20 Hz, in a thread, and calibration where it is asked for."""

    def __init__(self, bus: str, server: str, form: FrameFormat, *, calibrated: bool) -> None:
        self.transport = ZmqTransport(bus)
        self.calibration = PubMaster(["liveCalibration"], self.transport, MonotonicClock())
        self.calibrated = calibrated
        self.ring = FrameRingWriter(server, "driver", form)
        self.pictures = [picture(form, number) for number in range(PICTURES)]
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.drive)
        self.thread.start()

    def drive(self) -> None:
        frame_id = 0
        while not self.stop.wait(0.05):
            if self.calibrated:
                event = self.calibration.new("liveCalibration")
                event.liveCalibration.rpyCalib = list(ANGLES)
                self.calibration.send("liveCalibration", event)
            self.ring.next_buffer()[:] = self.pictures[frame_id % PICTURES]
            self.ring.publish(frame_id, time.monotonic_ns(), time.monotonic_ns())
            frame_id += 1

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        self.ring.close()
        self.transport.close()


class Expected:
    """What each picture gives, by numpy and onnxruntime."""

    def __init__(self, model: Path, layout: Layout) -> None:
        self.warp = layout.warp
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def vector(
        self, form: FrameFormat, number: int, angles: tuple[float, ...]
    ) -> NDArray[np.float64]:
        luma = picture(form, number)[: form.stride * form.height]
        luma = luma.reshape(form.height, form.stride)[:, : form.width]
        view = self.warp(luma, np.array(MATRICES[form.width], np.float32), (960, 1440))
        inputs = {"input_img": view.reshape(1, -1), "calib": np.array([angles], np.float32)}
        (found,) = self.session.run(None, inputs)
        return np.asarray(found[0], np.float64)


def prob(logit: float) -> float:
    return float(1 / (1 + np.exp(-logit)))


def check_seat(data: dict[str, Any], raw: NDArray[np.float64], layout: Layout) -> None:
    """Compare the fields of a seat with its values of the vector."""
    faces = {"faceOrientation": raw[0:3], "facePosition": raw[3:5]}
    for name, values in faces.items():
        assert data[name] == pytest.approx(list(values), abs=1e-4), name
    assert raw[6] > 11 > raw[7]
    deviations = {"faceOrientationStd": raw[6:9], "facePositionStd": raw[9:11]}
    for name, values in deviations.items():
        clipped = list(np.exp(np.minimum(values, layout.clip)))
        assert data[name] == pytest.approx(clipped, rel=1e-3), name
    for name, places in layout.lists.items():
        assert data[name] == pytest.approx([prob(raw[i]) for i in places], abs=1e-4), name
    for name, at in layout.single.items():
        assert data[name] == pytest.approx(prob(raw[at]), abs=1e-4), name
    for name, value in layout.empty.items():
        assert data.get(name) == value, name


@pytest.fixture
def children() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        child = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, text=True, **options)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        with child:
            pass


@pytest.mark.slow
def test_messages_are_those_of_numpy_and_onnxruntime(
    models: tuple[Path, Layout], tmp_path: Path, children: Callable[..., subprocess.Popen[str]]
) -> None:
    directory, layout = models
    bus, server = f"ipc://{tmp_path}", f"test-dm-{os.getpid()}"
    log = (tmp_path / "log").open("w", encoding="utf-8")
    daemon = children(
        "-m", "tools.cli", "run", "--model", str(directory / "dmonitoring.pkl"), "--bus", bus,
        "--camera-server", server, stderr=log,
    )  # fmt: skip
    foreign = children("-I", "-c", FOREIGN, str(SCHEMA_PATH), bus, stdout=subprocess.PIPE)
    watchdog = threading.Timer(120.0, foreign.kill)
    watchdog.start()
    assert foreign.stdout is not None
    expected = Expected(directory / "dmonitoring.onnx", layout)
    # Nothing has calibrated the first camera; the second one comes back smaller and unpadded.
    stages = ((nv12_format(1928, 1208), (0.0, 0.0, 0.0)), (UNPADDED, ANGLES))
    try:
        for form, angles in stages:
            vectors = [expected.vector(form, number, angles) for number in range(PICTURES)]
            car = Car(bus, server, form, calibrated=any(angles))
            try:
                seen: dict[int, dict[str, Any]] = {}
                for line in foreign.stdout:
                    row = json.loads(line)
                    assert row["valid"]
                    vector = vectors[row["frameId"] % PICTURES]
                    # Frames of the camera before may still come, and those before calibration.
                    if row["leftDriverData"]["faceOrientation"] == pytest.approx(
                        list(vector[0:3]), abs=1e-4
                    ):
                        seen[row["frameId"]] = row
                    if len(seen) >= 8:
                        break
            finally:
                car.close()
            assert len(seen) >= 8, (tmp_path / "log").read_text(encoding="utf-8")
            for frame_id, row in seen.items():
                vector = vectors[frame_id % PICTURES]
                check_seat(row["leftDriverData"], vector[: layout.seat], layout)
                check_seat(row["rightDriverData"], vector[layout.seat :], layout)
                for name, at in layout.general.items():
                    assert row[name] == pytest.approx(prob(vector[at]), abs=1e-4), name
                assert 0 < row["gpuExecutionTime"] <= row["modelExecutionTime"] < 10
                assert row["rawPredictions"] == 0
            assert daemon.poll() is None, "the daemon ended"
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=20) == 0
    finally:
        watchdog.cancel()
        log.close()
    assert "Traceback" not in (tmp_path / "log").read_text(encoding="utf-8")

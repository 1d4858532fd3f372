"""Driver monitoring as a user runs it: real model, real process, a subscriber not of ours."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from cereal.clock import MonotonicClock
from cereal.frames import FrameFormat, FrameRingWriter, nv12_format
from cereal.pubsub import PubMaster
from cereal.transport import ZmqTransport
from tests.foreign import cli, heard, process
from tests.reference_loop.warps import bilinear, nearest

pytestmark = pytest.mark.opencl
PICTURES = 3
ANGLES = (0.0625, -0.125, 0.09375)  # within bounds; outputs tell them from zeros
UNPADDED = FrameFormat(1344, 760, 1344, 1344 * 760, 1344 * 760 * 3 // 2)
# K_camera inv(K_view), by hand: equal focal lengths, and three quarters.
MATRICES = {
    1928: [[1.0, 0.0, 244.0], [0.0, 1.0, 248.0], [0.0, 0.0, 1.0]],
    1344: [[0.75, 0.0, 132.0], [0.0, 0.75, 113.0], [0.0, 0.0, 1.0]],
}


@dataclass(frozen=True, slots=True)
class Layout:
    """A revision by hand: how it sees, and where its vector has what.

    Attributes:
        warp: of luma.
        seat: values of a seat; the right one follows the left one.
        probabilities: field of a seat -> its logits, one or a list.
        general: field of the message -> place of a logit.
    """

    warp: Callable[..., NDArray[np.uint8]]
    seat: int
    probabilities: dict[str, int | range]
    general: dict[str, int]


LAYOUTS = {
    "dmonitoring-2025": Layout(
        bilinear,
        41,
        {
            "faceProb": 12, "leftEyeProb": 21, "rightEyeProb": 30, "leftBlinkProb": 31,
            "rightBlinkProb": 32, "sunglassesProb": 33, "occludedProb": 34,
            "readyProb": range(35, 39), "notReadyProb": range(39, 41),
        },
        {"poorVisionProb": 82, "wheelOnRightProb": 83},
    ),
    "dmonitoring-2026": Layout(
        nearest,
        20,
        {
            "faceProb": 12, "leftEyeProb": 13, "rightEyeProb": 14, "leftBlinkProb": 15,
            "rightBlinkProb": 16, "sunglassesProb": 17, "phoneProb": 18, "sleepProb": 19,
        },
        {"wheelOnRightProb": 40},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=LAYOUTS)
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Layout]:
    name: str = request.param
    directory = tmp_path_factory.mktemp("monitoring-process")
    cli("make-model", ".", "--interface", name, cwd=directory)
    cli("compile", "dmonitoring.onnx", "-o", "dmonitoring.pkl", cwd=directory)
    return directory, LAYOUTS[name]


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


def prob(logits: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(logits)))


def check_seat(data: dict[str, Any], raw: NDArray[np.float64], layout: Layout) -> None:
    """Compare the fields of a seat with its values of the vector."""
    assert data["faceOrientation"] == pytest.approx(list(raw[0:3]), abs=1e-4)
    assert data["facePosition"] == pytest.approx(list(raw[3:5]), abs=1e-4)
    for name, places in layout.probabilities.items():
        assert data[name] == pytest.approx(prob(raw[places]), abs=1e-4), name


@pytest.mark.slow
@pytest.mark.alone  # late frames are not valid
def test_messages_are_those_of_numpy_and_onnxruntime(
    models: tuple[Path, Layout], tmp_path: Path
) -> None:
    directory, layout = models
    bus, server, log = f"ipc://{tmp_path}", f"test-dm-{os.getpid()}", tmp_path / "log"
    command = ("-m", "tools.cli", "run", "--model", str(directory / "dmonitoring.pkl"))
    expected = Expected(directory / "dmonitoring.onnx", layout)
    # Nothing has calibrated the first camera; the second one comes back smaller and unpadded.
    stages = ((nv12_format(1928, 1208), (0.0, 0.0, 0.0)), (UNPADDED, ANGLES))
    with (
        process(*command, "--bus", bus, "--camera-server", server, log=log) as daemon,
        heard(bus, "driverStateV2", log=tmp_path / "subscriber.log") as rows,
    ):
        for form, angles in stages:
            vectors = [expected.vector(form, number, angles) for number in range(PICTURES)]
            car = Car(bus, server, form, calibrated=any(angles))
            try:
                seen: dict[int, dict[str, Any]] = {}
                while len(seen) < 8:
                    row = next(rows)
                    assert row["valid"]
                    vector = vectors[row["frameId"] % PICTURES]
                    # Frames of the camera before may still come, and those before calibration.
                    if row["leftDriverData"]["faceOrientation"] == pytest.approx(
                        list(vector[0:3]), abs=1e-4
                    ):
                        seen[row["frameId"]] = row
            finally:
                car.close()
            for frame_id, row in seen.items():
                vector = vectors[frame_id % PICTURES]
                check_seat(row["leftDriverData"], vector[: layout.seat], layout)
                check_seat(row["rightDriverData"], vector[layout.seat :], layout)
                for name, at in layout.general.items():
                    assert row[name] == pytest.approx(prob(vector[at]), abs=1e-4), name
                assert 0 < row["gpuExecutionTime"] <= row["modelExecutionTime"] < 10
                assert "rawPredictions" not in row
            assert daemon.poll() is None, "the daemon ended"
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=20) == 0
    assert "Traceback" not in log.read_text(encoding="utf-8")

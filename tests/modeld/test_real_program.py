"""The daemon on the real runtime, with an artifact that copies its inputs out."""

from pathlib import Path

import numpy as np
import pytest

import runtime
from cereal.frames import Frame, FrameFormat
from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config
from modeld.daemon import Daemon
from modeld.driving_model import DrivingModel, DrivingProgram, ModelInputs
from modeld.frame_sync import FramePair
from tests.modeld.bench import Bench, frame_of
from tests.modeld.copy_program import make_manifest

pytestmark = pytest.mark.opencl


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    runtime.write_artifact(tmp_path / "copy.pkl", make_manifest(), b"")
    return tmp_path / "copy.pkl"


def test_steps_on_the_real_runtime(artifact: Path, bench: Bench) -> None:
    with runtime.load_program(artifact) as program:
        accepted: DrivingProgram = program
        bench.daemon.close()
        cameras = DeviceCameras(Camera(64, 32, 91.0), Camera(64, 32, 45.5))
        ends = (bench.transport, bench.clock, bench.road, bench.wide)
        bench.daemon = Daemon(Config(cameras=cameras), accepted, *ends)
        bench.daemon.model.warm_up()
        bench.daemon.calibration.update([0.0, 0.0, 0.0], "", "")
        poses = []
        for frame_id in (10, 11, 13, 14):
            bench.offer(frame_of(frame_id), frame_of(frame_id + 100, frame_id * 50_000_000))
            if bench.said:
                odometry = bench.said["cameraOdometry"].cameraOdometry
                assert list(odometry.rot) == pytest.approx([0.1, 0.1, 0.0])
                poses.append(list(odometry.trans))
    # Warm-up left no trace; the prepare entry after the gap counted but published nothing.
    assert poses == [[10, 110, 1], [11, 111, 2], [14, 114, 4]]


def test_frames_of_different_sizes_in_one_program(artifact: Path) -> None:
    bare = FrameFormat(40, 16, 40, 640, 960)  # without padding
    padded, small = frame_of(5), Frame(np.full(960, 9, np.uint8), bare, 5, 0, 0)
    zeros, pair = np.zeros((3, 3), np.float32), np.zeros((1, 2), np.float32)
    seen = []
    with runtime.load_program(artifact) as program:
        model = DrivingModel(program)
        model.warm_up()
        for frames in (FramePair(small, padded), FramePair(padded, small)):
            inputs = ModelInputs(frames, zeros, zeros, np.zeros(8, np.float32), pair, pair, pair)
            outputs = model.run(inputs).outputs
            seen.append([*outputs.pose[:2], *outputs.wide_from_device_euler[:2]])
    # Brightness of both; 64x32 padded has its chroma behind 32 rows of 128 bytes.
    assert seen == [[9, 5, 40, 4096], [5, 9, 64, 640]]

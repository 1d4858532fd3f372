"""The demo's processes on a real bus, with an artifact that is written by hand."""

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.frames import DIRECTORY, FrameRingWriter, nv12_format
from cereal.log_reader import read_log
from tests.tools import tiny_driving
from tests.tools.conftest import Modeld
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main
from tools.commands.on_drives import demo
from tools.drives.open_drive import DriveOptions, open_drive
from tools.example_models.driving import PolicyConfig, VisionConfig, build_policy, build_vision
from tools.lib.processes import Child, ProcessError
from tools.messages.drive_log import OUTPUT_SERVICES
from tools.simulator.closed_loop import trained_model
from tools.simulator.closed_loop.device import Cameras, device_cameras
from tools.simulator.closed_loop.film import MOST_PICTURES, clip_frames
from tools.simulator.closed_loop.live import LiveOptions
from tools.simulator.closed_loop.simulation import TICKS_PER_FRAME, Simulation
from tools.simulator.closed_loop.trial import STANDARD, make_trial

FRAMES = 20
TRAINED_FRAMES = 60
RUN_UP_FRAMES = 100
# Of our own, so that tests of several checkouts do not meet.
SERVER = f"test-demo-{os.getpid()}"


def write_model(path: Path) -> Path:
    """Write an artifact that answers by the brightness of frames: a plan straight on, nearly."""
    road = device_cameras().road
    return write_tiny_driving(path, (road.width, road.height))


def check_drive(directory: Path, names: Counter[str]) -> None:
    """See that a directory holds one drive: a picture for each frame, and all around it."""
    frames = RUN_UP_FRAMES + FRAMES
    services = ("roadCameraState", "wideRoadCameraState", "roadEncodeIdx", "wideRoadEncodeIdx")
    assert [names[name] for name in services] == [frames] * 4
    assert (names["initData"], names["sentinel"]) == (1, 2)
    # A frame of the parked car is due after 0.8 to 1 period, and two periods are kept.
    assert 5 * frames + 2 <= names["carState"] <= 5 * frames + 3
    trial = make_trial(STANDARD, demo.SEED, FRAMES * 2.0)
    simulation, painter = Simulation(trial), Cameras(trial, device_cameras())
    drive = open_drive(str(directory), DriveOptions())
    ids = []
    for moment in drive.moments():
        if moment.index == frames:  # what was recorded after the last frame
            assert not moment.frames
            continue
        assert sorted(moment.frames) == ["road", "wideRoad"]
        ids.append(moment.frames["road"].frame_id)
        # Who leads the car is known: so is what its cameras saw.
        painted = painter.frames(simulation, 0, 0) if moment.index in (0, 50) else {}
        for stream, frame in painted.items():
            apart = moment.frames[stream].data.astype(int) - frame.data
            assert np.abs(apart).mean() < 3.0, stream
        for _ in range(TICKS_PER_FRAME):
            simulation.tick()
    assert ids == list(range(ids[0], ids[0] + frames))
    drive.close()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_demo_drives_the_daemon_process_over_the_bus(tmp_path: Path, modeld: Modeld) -> None:
    model = write_model(tmp_path / "model.pkl")
    options = ["--directory", str(tmp_path / "demo"), "--model", str(model)]
    options += ["--frames", str(FRAMES), "--camera-server", SERVER, "--json"]
    result = modeld(0, "demo", *options).json
    assert result["frames"] == FRAMES
    assert set(result["messages"]) == set(OUTPUT_SERVICES)
    assert FRAMES / 2 <= result["messages"]["modelV2"] <= FRAMES
    assert result["valid"] == result["messages"]["modelV2"]
    # A second of a car, however fast this machine is.
    assert 0.005 < result["km"] < 0.04
    assert result["end"] == "done"
    (segment,) = map(Path, result["segments"])
    names = Counter(str(event.which()) for event in read_log(segment / "rlog.zst"))
    # What was said in the run-up is in the log, and the result says so.
    assert result["logged"] == {name: names[name] for name in OUTPUT_SERVICES}
    assert result["logged"]["modelV2"] > result["messages"]["modelV2"]
    check_drive(tmp_path / "demo", names)
    modeld(0, "replay", tmp_path / "demo", "--model", model, "-o", tmp_path / "again.rlog")
    said = [event for event in read_log(tmp_path / "again.rlog") if event.which() == "modelV2"]
    # The first frame is calibrated, too, as it was in the demo.
    assert [event.valid for event in said] == [True] * (RUN_UP_FRAMES + FRAMES)
    page = (tmp_path / "demo" / "report.html").read_text("utf-8")
    clip = (tmp_path / "demo" / "drive.webp").read_bytes()
    assert (clip[:4], clip[8:12]) == (b"RIFF", b"WEBP")
    assert 2 <= clip.count(b"ANMF") <= MOST_PICTURES
    # A sentence and the moving picture come before all charts.
    parts = ("Drove ", "image/webp;base64,", "ground truth", "By scenario")
    order = [page.index(one) for one in parts]
    assert order == sorted(order)
    assert "<title>Demo drive</title>" in page
    assert page.count("data:image/jpeg;base64,") == 4
    assert page.count('class="true"') >= 4 * 2 * 3  # a plan and two edges, twice a picture
    shown = ["The road from above", "Offset from", "Heading against", "Speed over time"]
    assert all(f"<title>{one}" in page for one in (*shown, "Execution time of every frame"))
    # Of pictures, any letters may follow each other.
    text = re.sub(r'base64,[^"]*', "", page)
    assert "nan" not in text
    # All is in the page; a link of SVG's would be the only address.
    assert "http" not in text


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_the_trained_model_keeps_its_lane_and_sees_its_lines(
    tmp_path: Path, modeld: Modeld
) -> None:
    options = ["--directory", str(tmp_path), "--camera-server", SERVER, "--json"]
    result = modeld(0, "demo", *options, "--frames", TRAINED_FRAMES).json
    assert (result["end"], result["departures"], result["collisions"]) == ("done", 0, 0)
    assert result["offset_mean_m"] <= 0.25
    # Half the width of a painted line on either side, and a hand's more.
    assert result["line_error_mean_m"] <= 0.3


@pytest.mark.slow
@pytest.mark.opencl
def test_the_trained_model_is_compiled_once_and_anew_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    monkeypatch.setattr(trained_model, "MODELS", models)
    small = VisionConfig(dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), expansion=2, head_width=32)
    policy, _ = build_policy(0, PolicyConfig(layers=1, heads=2, feed_forward=64, head_width=32))
    (models / "policy.onnx").write_bytes(policy.SerializeToString(deterministic=True))
    said = []
    for seed in (0, 0, 1):
        vision, _ = build_vision(seed, small)
        (models / "vision.onnx").write_bytes(vision.SerializeToString(deterministic=True))
        trained_model.trained_model(tmp_path, quiet=False)
        said.append(capfd.readouterr().out)
    assert [text.count("$ modeld compile ") for text in said] == [1, 0, 1]
    assert "compiled earlier" in said[1]


def test_demo_without_a_trained_model_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modeld: Modeld
) -> None:
    monkeypatch.setattr(trained_model, "MODELS", tmp_path / "none")
    expected = "none: expected the trained model, vision.onnx and policy.onnx, found no"
    error = modeld.refused(2, expected, "demo", "--directory", tmp_path).err
    assert "make train" in error
    assert "--model" in error


@pytest.mark.parametrize(
    ("latency_ms", "rate_hz"), [(12.0, 20.0), (50.0, 20.0), (70.0, 14.0), (9000.0, 3.0)]
)
def test_a_machine_that_is_too_slow_gets_slower_cameras(latency_ms: float, rate_hz: float) -> None:
    assert demo.rate_of(latency_ms) == rate_hz


@pytest.mark.parametrize(
    ("rate_hz", "is_trial", "timeout_ms"),
    [(20.0, False, 100), (10.0, False, 400), (4.0, False, 800), (20.0, True, 800)],
)
def test_a_slow_machine_waits_longer_for_a_frame_before_it_warns(
    rate_hz: float, is_trial: bool, timeout_ms: int
) -> None:
    options = LiveOptions(Path("m.pkl"), rate_hz=rate_hz, is_trial=is_trial)
    assert options.frame_timeout_ms == timeout_ms


@pytest.mark.parametrize(("frames", "step"), [(2, 2), (100, 2), (121, 3), (36_000, 600)])
def test_a_clip_is_evenly_spaced_and_bounded(frames: int, step: int) -> None:
    chosen = clip_frames(range(frames))
    assert len(chosen) <= MOST_PICTURES
    assert {b - a for a, b in pairwise(chosen)} <= {step}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_demo_can_be_watched_from_outside(tmp_path: Path, modeld: Modeld) -> None:
    model = write_model(tmp_path / "model.pkl")
    (tmp_path / "my bus").mkdir()
    bus = f"ipc://{tmp_path}/my bus"
    options = ["--directory", str(tmp_path / "demo"), "--model", str(model), "--bus", bus]
    options += ["--frames", "10", "--rate-hz", "20", "--camera-server", SERVER]
    watch = ("subscribe", "drivingModelData", "--bus", bus, "--count", "2", "--timeout", "60")
    with subprocess.Popen(
        [sys.executable, "-m", "tools.cli", *watch],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watcher:
        said = modeld(0, "demo", *options)
        text, errors = watcher.communicate(timeout=60)
    assert (watcher.returncode, errors) == (0, "")
    assert len(text.splitlines()) == 2
    line = next(one for one in said.out.splitlines() if one.startswith("bus: "))
    assert line == f"bus: {bus}; watch it with: modeld subscribe modelV2 --bus '{bus}'"
    assert said.out.splitlines()[-1] == f"view it with: modeld view {tmp_path}/demo"


@pytest.mark.opencl
def test_demo_refuses_an_artifact_without_room_for_its_cameras(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_driving(tmp_path / "model.pkl", (320, 240))
    assert main(["demo", "--directory", str(tmp_path), "--model", str(model)]) == 4
    error = capfd.readouterr().err
    assert "model.pkl: expected frames of at most 144384 bytes" in error
    assert error.count("\n") == 1


@pytest.mark.opencl
def test_demo_fails_when_the_daemon_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make = tiny_driving._Builder.manifest

    def without_prepare(self: Any) -> Any:
        manifest = make(self)
        del manifest["entries"]["prepare"]
        return manifest

    monkeypatch.setattr(tiny_driving._Builder, "manifest", without_prepare)
    model = write_model(tmp_path / "model.pkl")
    options = ["--directory", str(tmp_path), "--model", str(model), "--rate-hz", "20"]
    options += ["--frames", "2", "--camera-server", SERVER]
    assert main(["demo", *options]) == 1
    errors = capfd.readouterr().err
    assert "daemon: expected it to run, found it ended with exit code 4" in errors
    assert "Traceback" not in errors


def test_child_that_ends_is_noticed() -> None:
    with Child("helper", "tools.cli", ["nonsense"]) as child:
        with pytest.raises(ProcessError, match=r"helper: expected it to run, .* exit code 2"):
            child.read_line(timeout_s=20.0)
        with pytest.raises(ProcessError, match="exit code 2"):
            child.check_running()
        assert child.stop() == 2


@pytest.mark.opencl
def test_second_demo_of_the_same_camera_server_ends_with_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model.pkl")
    capfd.readouterr()  # what the compiler logged
    options = ["--directory", str(tmp_path), "--model", str(model), "--camera-server", SERVER]
    first = FrameRingWriter(SERVER, "road", nv12_format(64, 32))
    try:
        assert main(["demo", *options]) == 1
        # The ring that it could have made is not left behind.
        assert sorted(DIRECTORY.glob(f"frames_{SERVER}_*")) == [DIRECTORY / f"frames_{SERVER}_road"]
    finally:
        first.close()
    error = capfd.readouterr().err
    assert "no other writer" in error
    assert "choose another name" in error
    assert error.count("\n") == 1

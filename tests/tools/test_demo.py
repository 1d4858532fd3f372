"""The demo's processes on a real bus with the hand-written artifact, and the subscriber alone."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cereal.clock import MonotonicClock
from cereal.frames import DIRECTORY, FrameRingWriter, nv12_format
from cereal.log_reader import read_log
from cereal.pubsub import PubMaster
from cereal.transport import ZmqTransport
from tests.tools import tiny_driving
from tests.tools.tiny_driving import write_tiny_driving
from tools import demo
from tools.cli import main
from tools.closed_loop import trained_model
from tools.closed_loop.cameras import device_cameras
from tools.example_models.policy import PolicyConfig, build_policy
from tools.example_models.vision import VisionConfig, build_vision
from tools.lib.drive_log import OUTPUT_SERVICES
from tools.lib.processes import Child, ProcessError

FRAMES = 20
TRAINED_FRAMES = 60
# Of our own, so that tests of several checkouts do not meet.
SERVER = f"test-demo-{os.getpid()}"


def write_model(path: Path) -> Path:
    """Write an artifact that answers by the brightness of frames: a plan straight on, nearly."""
    road = device_cameras().road
    return write_tiny_driving(path, (road.width, road.height))


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_demo_drives_the_daemon_process_over_the_bus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model.pkl")
    options = ["--directory", str(tmp_path / "demo"), "--model", str(model)]
    options += ["--frames", str(FRAMES), "--camera-server", SERVER, "--json"]
    assert main(["demo", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["frames"] == FRAMES
    assert set(result["messages"]) == set(OUTPUT_SERVICES)
    assert FRAMES / 2 <= result["messages"]["modelV2"] <= FRAMES
    assert result["valid"] == result["messages"]["modelV2"]
    # A second of a car, however fast this machine is.
    assert 0.005 < result["km"] < 0.04
    assert result["end"] == "done"
    names = Counter(str(event.which()) for event in read_log(tmp_path / "demo" / "drive.rlog.zst"))
    assert set(names) >= {*OUTPUT_SERVICES, "carState", "liveCalibration", "roadCameraState"}
    # What was said before the drive is in the log, and the result says so.
    assert result["logged"] == {name: names[name] for name in OUTPUT_SERVICES}
    assert result["logged"]["modelV2"] > result["messages"]["modelV2"]
    assert not {"initData", "sentinel"} & set(names)  # docs/formats/bus.md, Logs
    page = (tmp_path / "demo" / "report.html").read_text("utf-8")
    assert "<title>Demo drive</title>" in page
    assert page.count("data:image/jpeg;base64,") == 4
    assert page.count('class="true"') >= 4 * 2 * 3  # a plan and two edges, twice a picture
    shown = ["The road from above", "Offset from", "Heading against", "Speed over time"]
    assert all(f"<title>{one}" in page for one in (*shown, "Execution time of every frame"))
    assert "nan" not in page
    # All is in the page; a link of SVG's would be the only address.
    assert "http" not in page


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_the_trained_model_keeps_its_lane_and_sees_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--directory", str(tmp_path), "--camera-server", SERVER, "--json"]
    assert main(["demo", *options, "--frames", str(TRAINED_FRAMES)]) == 0
    result = json.loads(capsys.readouterr().out)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trained_model, "MODELS", tmp_path / "none")
    assert main(["demo", "--directory", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "none: expected the trained model, vision.onnx and policy.onnx, found no" in error
    assert "make train" in error
    assert "--model" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("latency_ms", "rate_hz"), [(12.0, 20.0), (50.0, 20.0), (70.0, 14.0), (9000.0, 3.0)]
)
def test_a_machine_that_is_too_slow_gets_slower_cameras(latency_ms: float, rate_hz: float) -> None:
    assert demo.rate_of(latency_ms) == rate_hz


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_demo_can_be_watched_from_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model.pkl")
    (tmp_path / "my bus").mkdir()
    bus = f"ipc://{tmp_path}/my bus"
    options = ["--directory", str(tmp_path / "demo"), "--model", str(model), "--bus", bus]
    options += ["--frames", "10", "--rate-hz", "20", "--camera-server", SERVER]
    with _subscribe("--bus", bus, "--count", "2", "--timeout", "60") as watcher:
        assert main(["demo", *options]) == 0
        text, errors = watcher.communicate(timeout=60)
    assert (watcher.returncode, errors) == (0, "")
    assert len(text.splitlines()) == 2
    line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("bus: "))
    assert line == f"bus: {bus}; watch it with: modeld subscribe modelV2 --bus '{bus}'"


def test_demo_refuses_an_address_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--directory", str(tmp_path), "--model", "x.pkl", "--rate-hz", "20"]
    assert main(["demo", *options, "--bus", "udp://localhost"]) == 4
    assert "expected tcp://HOST or ipc:///DIR, got 'udp://localhost'" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    "option", [["--frames", "0"], ["--frames", "36001"], ["--rate-hz", "21"], ["--rate-hz", "nan"]]
)
def test_demo_refuses_impossible_options(option: list[str]) -> None:
    assert main(["demo", *option]) == 2


def _publish_until_ended(process: subprocess.Popen[str], bus: str) -> None:
    """Send modelV2 messages, as subscribers connect when they like."""
    transport = ZmqTransport(bus)
    publisher = PubMaster(["drivingModelData"], transport, MonotonicClock())
    deadline = time.monotonic() + 20.0
    number = 0
    while process.poll() is None and time.monotonic() < deadline:
        event = publisher.new("drivingModelData")
        event.valid = True
        event.drivingModelData.frameId = number
        publisher.send("drivingModelData", event)
        number += 1
        time.sleep(0.01)
    publisher.close()
    transport.close()


def _subscribe(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tools.subscribe", "drivingModelData", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_subscriber_prints_and_logs_what_arrives(tmp_path: Path) -> None:
    bus, log = f"ipc://{tmp_path}", tmp_path / "live.rlog.zst"
    with _subscribe("--bus", bus, "--count", "5", "--every", "2", "--output", str(log)) as process:
        _publish_until_ended(process, bus)
        text, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    lines = text.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("drivingModelData ") and " valid " in line for line in lines)
    ids = [event.drivingModelData.frameId for event in read_log(log)]
    assert len(ids) == 5
    assert ids == list(range(ids[0], ids[0] + 5))


def test_subscriber_ends_with_code_1_when_nothing_arrives(tmp_path: Path) -> None:
    with _subscribe("--bus", f"ipc://{tmp_path}", "--timeout", "0.2") as process:
        text, errors = process.communicate()
    assert (process.returncode, text) == (1, "")
    assert "expected a message of drivingModelData within 0.2 s" in errors


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1"])
def test_subscriber_refuses_a_timeout_that_never_or_always_comes(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["subscribe", f"--timeout={seconds}"]) == 2
    assert "--timeout: expected a positive number of seconds" in capsys.readouterr().err


def test_subscriber_refuses_an_unknown_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subscribe", "modelV3"]) == 2
    assert "modelV3" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_subscriber_stops_by_signal_and_keeps_its_log(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    bus, log = f"ipc://{tmp_path}", tmp_path / "live.rlog"
    transport = ZmqTransport(bus)
    publisher = PubMaster(["drivingModelData"], transport, MonotonicClock())
    with _subscribe("--bus", bus, "--output", str(log)) as process:
        assert process.stdout is not None
        for _ in range(500):
            publisher.send("drivingModelData", publisher.new("drivingModelData"))
            time.sleep(0.01)
            # The first printed line shows that it is connected and listening for signals.
            if log.with_name(f".{log.name}.{process.pid}.part").exists() and _has_line(process):
                break
        process.send_signal(number)
        process.communicate()
    publisher.close()
    transport.close()
    assert process.returncode == code
    assert sum(1 for _ in read_log(log)) >= 1


def _has_line(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


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

"""The demo's processes on a real bus with the hand-written artifact, and the subscriber alone."""

from __future__ import annotations

import json
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
from tools.cli import main
from tools.lib.drive_log import OUTPUT_SERVICES
from tools.lib.processes import Child, ProcessError
from tools.render.demo_camera import demo_cameras

FRAMES = 20


@pytest.mark.opencl
def test_demo_drives_the_daemon_process_over_the_bus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    road = demo_cameras().road
    model = write_tiny_driving(tmp_path / "model.pkl", (road.width, road.height))
    options = ["--directory", str(tmp_path / "demo"), "--model", str(model)]
    options += ["--frames", str(FRAMES), "--camera-server", "test-demo", "--json"]
    assert main(["demo", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["messages"]) == set(OUTPUT_SERVICES)
    assert FRAMES / 2 <= result["messages"]["modelV2"] <= FRAMES
    assert result["valid"] == result["messages"]["modelV2"]
    names = Counter(str(event.which()) for event in read_log(tmp_path / "demo" / "drive.rlog.zst"))
    assert set(names) >= {*OUTPUT_SERVICES, "carState", "liveCalibration", "roadCameraState"}
    # What was said before the drive is in the log, and the result says so.
    assert result["logged"] == {name: names[name] for name in OUTPUT_SERVICES}
    assert result["logged"]["modelV2"] > result["messages"]["modelV2"]
    assert not {"initData", "sentinel"} & set(names)  # docs/formats/bus.md, Logs
    assert "<title>Demo drive</title>" in (tmp_path / "demo" / "report.html").read_text("utf-8")


@pytest.mark.alone
@pytest.mark.opencl
def test_demo_can_be_watched_from_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    road = demo_cameras().road
    model = write_tiny_driving(tmp_path / "model.pkl", (road.width, road.height))
    (tmp_path / "my bus").mkdir()
    bus = f"ipc://{tmp_path}/my bus"
    options = ["--directory", str(tmp_path / "demo"), "--model", str(model), "--bus", bus]
    options += ["--frames", "10", "--rate-hz", "20", "--camera-server", "test-demo-bus"]
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
    road = demo_cameras().road
    model = write_tiny_driving(tmp_path / "model.pkl", (road.width, road.height))
    options = ["--directory", str(tmp_path), "--model", str(model), "--rate-hz", "20"]
    options += ["--frames", "2", "--camera-server", "test-demo-fails"]
    assert main(["demo", *options]) == 1
    errors = capfd.readouterr().err
    assert "daemon: expected it to run, found it ended with exit code 4" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("option", [["--frames", "0"], ["--rate-hz", "21"]])
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


def test_second_camera_of_the_same_name_ends_with_one_line(tmp_path: Path) -> None:
    arguments = ["--server", "test-demo-twice", "--bus", f"ipc://{tmp_path}"]
    arguments += ["--frames", "1", "--rate-hz", "20"]
    first = FrameRingWriter("test-demo-twice", "road", nv12_format(64, 32))
    try:
        second = subprocess.run(
            [sys.executable, "-m", "tools.render.demo_camera", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # The ring that it could have made is not left behind.
        assert sorted(DIRECTORY.glob("frames_test-demo-twice_*")) == [
            DIRECTORY / "frames_test-demo-twice_road"
        ]
    finally:
        first.close()
    assert second.returncode == 1
    assert second.stderr.startswith("camera process: ")
    assert "no other writer" in second.stderr
    assert second.stderr.count("\n") == 1

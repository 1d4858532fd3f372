"""The daemon of a drive that is played: its car, its cameras, and the command that is printed."""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cereal.schema import read_event
from cereal.stacks import Addresses
from cereal.transport import ZmqTransport
from modeld.service.config import Config
from modeld.service.config_sources import load_config
from modeld.vehicle.cameras import Camera, DeviceCameras
from modeld.vehicle.inputs import DEMO_CAR, read_car_parameters
from tests.tools.playback.synthetic_drive import drive_to_play
from tests.tools.waiting import wait_until
from tools.commands import run
from tools.commands.on_drives import play
from tools.messages.drive_messages import Mounting
from tools.playback.player.daemon import cameras_of, daemon_commands, with_car
from tools.service.options import settings_given

STATED = DeviceCameras(Camera(192, 128, 150.0), None)


@pytest.mark.parametrize(
    ("mounting", "size", "streams", "focal_px"),
    [
        (Mounting("tici", "ox03c10"), (1928, 1208), ("road",), 2648.0),
        (Mounting("mici", "os04c10"), (1344, 760), ("road",), 1141.5),
        (Mounting("tici", "ox03c10"), (1928, 1208), ("wideRoad", "road"), None),
        (Mounting("tici", "ox03c10"), (1928, 1208), ("wideRoad",), None),
        (Mounting("tici", "ox03c10"), (640, 480), ("road",), None),
        (Mounting("neo", "unknown"), (1164, 874), ("road",), None),
        (Mounting("tici", "a new one"), (1928, 1208), ("road",), None),
    ],
)
def test_a_recording_without_the_wide_camera_is_one_of_the_road_camera(
    mounting: Mounting, size: tuple[int, int], streams: tuple[str, ...], focal_px: float | None
) -> None:
    """None: the daemon looks the cameras up by what the recording says of its device."""
    info = replace(drive_to_play(streams=streams, size=size).info, mounting=mounting, cameras=None)
    expected = None if focal_px is None else DeviceCameras(Camera(*size, focal_px), None)
    assert cameras_of(info) == expected
    # A video has the cameras that it states.
    assert cameras_of(replace(info, cameras=STATED)) == STATED


def configured(command: str) -> Config:
    """Return the settings that a printed command gives a daemon."""
    name, *words = shlex.split(command)
    assert (name, words.pop(0)) == ("modeld", "run")
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    args = parser.parse_args(words)
    args.verbosity = 0
    return load_config(args.config, {}, settings_given(args))


def commands(
    *words: str, streams: tuple[str, ...] = ("road",), cameras: DeviceCameras | None = None
) -> list[str]:
    """Return what `play` prints for a drive with these options."""
    parser = argparse.ArgumentParser()
    play.add_arguments(parser)
    info = replace(drive_to_play(streams=streams).info, cameras=cameras)
    return daemon_commands(parser.parse_args(["drive.mp4", *words]), info)


@pytest.mark.parametrize("road", [Camera(192, 128, 150.25), Camera(240, 272, 216.0, 432.0)])
def test_the_daemon_is_told_of_the_cameras_as_they_are(road: Camera) -> None:
    stated = DeviceCameras(road, Camera(192, 128, 75.0))
    (command,) = commands(cameras=stated)
    assert configured(command).cameras == stated


def test_the_command_has_the_bus_and_the_cameras_of_the_player() -> None:
    (command,) = commands()
    assert command == "modeld run --model driving.pkl"
    where = ["--bus", "msgq:", "--camera-server", "visionipc:a b", "--stack", "sunnypilot"]
    found = configured(*commands(*where))
    assert (found.bus_address, found.camera_server) == ("msgq:", "visionipc:a b")
    assert found.stack == "sunnypilot"
    (command,) = commands("--publish", "tcp://h:+9", "--subscribe", "ipc:///s")
    found = configured(command)
    assert Addresses(found.publish_address or "", found.subscribe_address or "") == Addresses(
        "tcp://h:+9", "ipc:///s"
    )


def test_each_kind_of_camera_has_its_daemon() -> None:
    driving, monitoring = commands(streams=("wideRoad", "road", "driver"))
    assert driving == "modeld run --model driving.pkl"
    assert monitoring == "modeld run --model dmonitoring.pkl"


def test_a_drive_without_a_car_has_the_one_of_demo() -> None:
    info = drive_to_play().info
    data = with_car(replace(info, car_params=None)).car_params
    assert data is not None
    car = read_car_parameters(read_event(data).carParams)
    assert (car.name, car.reasons) == (DEMO_CAR.name, ())
    for name in ("steer_actuator_delay_s", "longitudinal_actuator_delay_s"):
        assert getattr(car, name) == pytest.approx(getattr(DEMO_CAR, name))
    recorded = replace(info, car_params=b"its own")
    assert with_car(recorded) is recorded


@contextmanager
def _process(*words: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tools.cli", *words]
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_the_printed_command_starts_a_daemon_that_answers_a_video(
    tmp_path: Path, tiny_model: Path, video: Path
) -> None:
    """`play VIDEO` and the line that it prints, as two processes; frames of no known device."""
    shutil.copy(tiny_model, tmp_path / "driving.pkl")
    (tmp_path / "bus").mkdir()
    bus, server = f"ipc://{tmp_path / 'bus'}", f"test-printed-{os.getpid()}"
    words = ["play", str(video), "--loop", "--bus", bus, "--camera-server", server]
    with ExitStack() as stack:
        subscriber = stack.enter_context(closing(ZmqTransport(bus))).subscriber("modelV2")
        player = stack.enter_context(_process(*words, directory=tmp_path))
        assert player.stdout is not None
        assert player.stdout.readline() == "start a daemon for it with:\n"
        name, *printed = shlex.split(player.stdout.readline())
        assert name == "modeld"
        daemon = stack.enter_context(_process(*printed, directory=tmp_path))
        answers = []

        def answered() -> bool:
            assert daemon.poll() is None
            data = subscriber.receive(100)
            answers.extend([] if data is None else [read_event(data)])
            return bool(answers) and answers[-1].valid

        wait_until(answered, "a valid modelV2")
        for process in (daemon, player):
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0

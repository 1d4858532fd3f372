"""`modeld play`: the real command in its own process, its keys on a real terminal, its summary."""

from __future__ import annotations

import itertools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cereal.frames import FrameRingReader, available_streams
from cereal.schema import read_event
from cereal.transport import ZmqTransport
from cereal.transport.base import Subscriber
from tests.tools.conftest import SIZE, MakeVideo
from tests.tools.playback.memory_drive import MemoryDrive
from tools.cli import main
from tools.play import Console, clock_text
from tools.playback.player_keys import Keys, split_keys

DEADLINE_S = 20.0


def _command(video: Path, bus: str, server: str, *options: str) -> list[str]:
    where = ["--bus", bus, "--camera-server", server]
    return [sys.executable, "-m", "tools.cli", "play", str(video), *where, *options]


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command that does not outlive the test, however that ends."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _await(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _play_and_listen(
    video: Path, bus: str, server: str, subscriber: Subscriber
) -> tuple[dict[str, Any], list[int], list[int]]:
    """Return the summary, the ids of frames, the ids of roadCameraState."""
    with _running(_command(video, bus, server, "--json", "--speed", "2")) as process:
        _await(lambda: available_streams(server) == {"road"})
        reader = FrameRingReader(server, "road", conflate=False)
        frames: list[int] = []
        while (frame := reader.receive(500 if frames else 5000)) is not None:
            assert (frame.format.width, frame.format.height) == SIZE
            frames.append(frame.frame_id)
        reader.close()
        out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    states = []
    while (data := subscriber.receive(0)) is not None:
        states.append(read_event(data).roadCameraState.frameId)
    return json.loads(out), frames, states


@pytest.mark.alone
def test_plays_into_whoever_listens_and_sums_up(tmp_path: Path, make_video: MakeVideo) -> None:
    video = make_video(frames=24)
    bus, server = f"ipc://{tmp_path}", "test-play"
    # Before the player: a subscriber that waits must not miss the first message.
    with closing(ZmqTransport(bus)) as transport:
        subscriber = transport.subscriber("roadCameraState")
        result, frames, states = _play_and_listen(video, bus, server, subscriber)
    assert frames == list(range(24))
    assert states == list(range(24))
    assert result["frames"] == {"road": 24}
    assert result["services"]["roadCameraState"] == 24
    assert result["messages"] == sum(result["services"].values())
    assert set(result["late_ms"]) == {"p50", "p99", "max"}
    assert available_streams(server) == set()


@pytest.mark.alone
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_it_and_leave_no_ring(
    tmp_path: Path, make_video: MakeVideo, number: signal.Signals, code: int
) -> None:
    server = f"test-play-{number}"
    command = _command(make_video(), f"ipc://{tmp_path}", server, "--loop", "--json")
    with _running(command) as process:
        _await(lambda: available_streams(server))
        reader = FrameRingReader(server, "road", conflate=False)
        ids: list[int] = []
        # More than the video has: it loops, and ids go on.
        while len(ids) < 12:
            frame = reader.receive(5000)
            assert frame is not None
            ids.append(frame.frame_id)
        reader.close()
        process.send_signal(number)
        out, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, errors) == (code, "")
    assert ids == list(range(12))
    assert json.loads(out)["jumps"] >= 1
    assert available_streams(server) == set()


@contextmanager
def _on_terminal(command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command in a session whose terminal is ours."""
    ours, theirs = pty.openpty()
    # In the child: a new session, and the terminal as its controlling one.
    script = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    script += "os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *command], stdin=theirs, stdout=theirs, stderr=theirs
    )
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)


def _read_until(descriptor: int, text: str, seen: bytearray) -> None:
    deadline = time.monotonic() + DEADLINE_S
    start = len(seen)
    while text.encode() not in seen[start:]:
        assert time.monotonic() < deadline, seen
        if select.select([descriptor], [], [], 0.1)[0]:
            seen += os.read(descriptor, 4096)


@pytest.mark.alone
def test_keys_on_a_terminal_and_its_settings_afterwards(
    tmp_path: Path, make_video: MakeVideo
) -> None:
    command = _command(make_video(frames=40), f"ipc://{tmp_path}", "test-play-keys", "--loop")
    seen = bytearray()
    with _on_terminal(command) as (process, terminal):
        before = termios.tcgetattr(terminal)
        _read_until(terminal, "Hz, late", seen)
        assert not termios.tcgetattr(terminal)[3] & termios.ICANON
        os.write(terminal, b" ")
        _read_until(terminal, "paused", seen)
        os.write(terminal, b" ")
        _read_until(terminal, "Hz, late", seen)
        os.write(terminal, b"\x1b[D,.\x1b[C")
        _read_until(terminal, "Hz, late", seen)
        os.write(terminal, b"q")
        _read_until(terminal, "late ms:", seen)
        assert process.wait(DEADLINE_S) == 0
        assert termios.tcgetattr(terminal) == before
    assert b"Traceback" not in seen


@pytest.mark.alone
def test_ctrl_c_on_a_terminal_restores_it(tmp_path: Path, make_video: MakeVideo) -> None:
    command = _command(make_video(), f"ipc://{tmp_path}", "test-play-ctrl-c", "--loop")
    seen = bytearray()
    with _on_terminal(command) as (process, terminal):
        before = termios.tcgetattr(terminal)
        _read_until(terminal, "Hz, late", seen)
        os.write(terminal, b"\x03")
        _read_until(terminal, "drive.mkv: frames: ", seen)
        assert process.wait(DEADLINE_S) == 130
        assert termios.tcgetattr(terminal) == before


@pytest.mark.parametrize(
    ("text", "keys", "rest"),
    [
        ("q ,", ["q", " ", ","], ""),
        ("\x1b[D\x1b[C", ["left", "right"], ""),
        ("\x1bOD", ["left"], ""),
        ("a\x1b", ["a"], "\x1b"),
        ("\x1b[", [], "\x1b["),
        # Other keys' sequences end in letters that are none of ours: delete, F5, ctrl-right.
        ("\x1b[3~q", ["q"], ""),
        ("\x1b[15~", [], ""),
        ("\x1b[1;5C.", ["."], ""),
        ("\x1bx", ["x"], ""),
    ],
)
def test_split_keys(text: str, keys: list[str], rest: str) -> None:
    assert split_keys(text) == (keys, rest)


def test_keys_do_nothing_without_a_terminal() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"q")
    with Keys(reading) as keys:
        assert (keys.is_active, keys.read()) == (False, [])
    os.close(reading)
    os.close(writing)


class Pressed(Keys):
    """Keys that a test presses."""

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self.waiting = list(keys)

    def read(self) -> list[str]:
        waiting, self.waiting = self.waiting, []
        return waiting


def test_what_keys_do() -> None:
    from tests.tools.playback.test_player import make

    player, tape, played = make(MemoryDrive(count=500))
    keys = Pressed()
    console = Console(keys, played, show=False)
    presses = {5: ["right"], 8: ["."], 12: ["left", ","], 16: ["x"], 20: ["q"]}
    positions: list[int] = []

    def attend(one: Any) -> None:
        if len(played) in presses:
            positions.append(one.position)
            keys.waiting = presses.pop(len(played))
        console.attend(one)

    player.run(threading.Event(), attend)
    assert not presses
    steps = [b - a for a, b in itertools.pairwise(positions)]
    # Seeks of 200, 200 and -400 moments beside what was played in between.
    assert [round(step, -2) for step in steps] == [200, 200, -400, 0]
    assert player.counts.jumps == 3
    assert 20 <= len(tape.road()) <= 22


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0:00.0"), (59.99, "0:59.9"), (60.0, "1:00.0"), (754.3, "12:34.3")]
)
def test_clock_text(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--speed", "0.05"], "--speed: expected 0.1 to 10, found 0.05"),
        (["--speed", "nan"], "--speed: expected 0.1 to 10, found nan"),
        (["--start", "-1"], "--start: expected 0 s or more, found -1"),
        (
            ["--start", "99"],
            "--start: expected a time within drive.mkv, found no frame from 99 s on",
        ),
        (["--limit", "0"], "--limit: expected at least 1 frame, found 0"),
        (["--block", "carState,carStat"], "--block: expected names of services, found carStat"),
        (["--allow", "modelV3"], "--allow: expected names of services, found modelV3"),
    ],
)
def test_impossible_options(
    tmp_path: Path,
    make_video: MakeVideo,
    options: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ["--bus", f"ipc://{tmp_path}", "--camera-server", "test-play-options"]
    assert main(["play", str(make_video()), *where, *options]) == 2
    errors = capsys.readouterr().err
    assert text in errors
    assert errors.count("\n") == 1


def test_a_damaged_video_and_a_missing_one_are_one_line(
    tmp_path: Path, make_video: MakeVideo, capsys: pytest.CaptureFixture[str]
) -> None:
    video = make_video()
    broken = tmp_path / "broken.mkv"
    broken.write_bytes(video.read_bytes()[:200])
    for path in (broken, tmp_path / "missing.mp4"):
        assert main(["play", str(path), "--bus", f"ipc://{tmp_path}"]) == 4
        errors = capsys.readouterr().err
        assert errors.startswith("modeld: error: ")
        assert errors.count("\n") == 1

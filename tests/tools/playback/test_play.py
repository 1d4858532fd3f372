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
from tests.tools.conftest import SIZE, MakeVideo
from tests.tools.playback.synthetic_drive import drive_to_play
from tests.tools.playback.tape import make
from tests.tools.waiting import wait_until
from tools.commands.on_drives.play import Console, clock_text
from tools.playback.player.keys import Keys, split_keys

DEADLINE_S = 20.0
SERVER = f"test-play-{os.getpid()}"


def _command(video: Path, bus: Path, *options: str) -> list[str]:
    where = ["--bus", f"ipc://{bus}", "--camera-server", SERVER]
    return [sys.executable, "-m", "tools.cli", "play", str(video), *where, *options]


class Playing:
    """A running player whose road camera is watched, from its first frame on."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)

    def __enter__(self) -> Playing:
        wait_until(lambda: available_streams(SERVER) == {"road"}, "its ring")
        self.reader = FrameRingReader(SERVER, "road", conflate=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self.process.kill()
        self.process.communicate()

    def next_id(self, timeout_ms: int = 5000) -> int | None:
        frame = self.reader.receive(timeout_ms)
        if frame is None:
            return None
        assert (frame.format.width, frame.format.height) == SIZE
        return frame.frame_id

    def ended(self, code: int) -> Any:
        out, errors = self.process.communicate(timeout=DEADLINE_S)
        assert (self.process.returncode, errors) == (code, "")
        assert available_streams(SERVER) == set()
        return json.loads(out)


@pytest.mark.alone
@pytest.mark.slow
def test_plays_into_whoever_listens_and_sums_up(tmp_path: Path, make_video: MakeVideo) -> None:
    command = _command(make_video(frames=24), tmp_path, "--json", "--speed", "2")
    # Before the player: a subscriber that waits must not miss the first message.
    with closing(ZmqTransport(f"ipc://{tmp_path}")) as transport:
        subscriber = transport.subscriber("roadCameraState")
        with Playing(command) as player:
            first = player.next_id()
            assert [first, *iter(lambda: player.next_id(500), None)] == list(range(24))
            result = player.ended(0)
        messages = iter(lambda: subscriber.receive(0), None)
        states = [read_event(data).roadCameraState.frameId for data in messages]
    assert (states, result["frames"]) == (list(range(24)), {"road": 24})
    assert result["services"]["roadCameraState"] == 24
    assert result["messages"] == sum(result["services"].values())
    assert set(result["late_ms"]) == {"p50", "p99", "max"}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_signals_end_it_and_leave_no_ring(
    tmp_path: Path, video: Path, number: signal.Signals, code: int
) -> None:
    with Playing(_command(video, tmp_path, "--loop", "--json")) as player:
        # More than the video has: it loops, and ids go on.
        assert [player.next_id() for _ in range(12)] == list(range(12))
        player.process.send_signal(number)
        assert player.ended(code)["jumps"] >= 1


class Terminal:
    """A command in a session whose terminal is ours."""

    def __init__(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        self.ours, self.process = ours, process
        self.before = termios.tcgetattr(ours)
        self.seen = bytearray()

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        start = len(self.seen)
        while text.encode() not in self.seen[start:]:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.ours], [], [], 0.1)[0]:
                self.seen += os.read(self.ours, 4096)

    def press(self, keys: bytes, text: str) -> None:
        os.write(self.ours, keys)
        self.read_until(text)

    def check_end(self, code: int) -> None:
        assert self.process.wait(DEADLINE_S) == code
        assert termios.tcgetattr(self.ours) == self.before
        assert b"Traceback" not in self.seen


@contextmanager
def _on_terminal(command: list[str]) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    # In the child: a new session, and the terminal as its controlling one.
    script = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    script += "os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *command], stdin=theirs, stdout=theirs, stderr=theirs
    )
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)


@pytest.mark.alone
@pytest.mark.slow
def test_keys_on_a_terminal_and_its_settings_afterwards(
    tmp_path: Path, make_video: MakeVideo
) -> None:
    with _on_terminal(_command(make_video(frames=40), tmp_path, "--loop")) as terminal:
        terminal.read_until("Hz, late")
        assert not termios.tcgetattr(terminal.ours)[3] & termios.ICANON
        terminal.press(b" ", "paused")
        terminal.press(b" ", "Hz, late")
        terminal.press(b"\x1b[D,.\x1b[C", "Hz, late")
        terminal.press(b"q", "late ms:")
        terminal.check_end(0)


@pytest.mark.alone
@pytest.mark.slow
def test_ctrl_c_on_a_terminal_restores_it(tmp_path: Path, video: Path) -> None:
    with _on_terminal(_command(video, tmp_path, "--loop")) as terminal:
        terminal.read_until("Hz, late")
        terminal.press(b"\x03", "drive.mkv: frames: ")
        terminal.check_end(130)


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


class Pressed(Keys):
    """Keys that a test presses."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []

    def read(self) -> list[str]:
        waiting, self.waiting = self.waiting, []
        return waiting


def test_what_keys_do() -> None:
    player, tape, played = make(drive_to_play(500))
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
    assert 20 <= len(tape.road) <= 22
    # They do nothing without a terminal.
    reading, writing = os.pipe()
    os.write(writing, b"q")
    with Keys(reading) as none:
        assert (none.is_active, none.read()) == (False, [])
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0:00.0"), (59.99, "0:59.9"), (60.0, "1:00.0"), (754.3, "12:34.3")]
)
def test_clock_text(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text

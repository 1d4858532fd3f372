"""A daemon in a process of its own, its log line by line, and its camera server's rings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cereal.frames import FrameFormat, FrameRingWriter
from cereal.schema import read_event
from cereal.transport import ZmqTransport
from tests.modeld.fake_program import SMALL

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0


class DaemonProcess:
    """`modeld run -v` on a bus in a directory, for a camera server that is this test's own.

    `said` are the lines of its log without time, level and logger, as far as they were read.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.server = f"test_modeld_{os.getpid()}"
        (directory / "bus").mkdir(exist_ok=True)
        self.bus = f"ipc://{directory}/bus"
        self.handle = subprocess.Popen(
            [
                *(sys.executable, "-m", "tools.cli", "run", "-v", "--bus", self.bus),
                *("--camera-server", self.server, "--state-dir", str(directory / "bus")),
                *("--params", str(directory / "params"), *options),
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self.rings: dict[str, FrameRingWriter] = {}
        # A daemon that never writes the awaited line must not hold the test until its limit.
        self.watchdog = threading.Timer(DEADLINE_S, self.handle.kill)
        self.watchdog.start()

    def lines(self) -> Iterator[str]:
        """The log from where it was read last to the end of the process."""
        assert self.handle.stderr is not None
        for line in self.handle.stderr:
            self.said.append(line.rstrip("\n").partition(": ")[2])
            yield self.said[-1]

    def wait_for(self, text: str) -> None:
        """Read the log until a line holds the text."""
        if not any(text in line for line in self.lines()):
            pytest.fail(f"expected a line with {text!r}, got {self.said}")

    def stop(self, number: signal.Signals) -> int:
        """Send a signal; return the exit code after the rest of the log."""
        self.handle.send_signal(number)
        return self.end()

    def end(self) -> int:
        """Read the rest of the log; return the exit code."""
        for line in self.lines():
            assert "Traceback" not in line
        return self.handle.wait(DEADLINE_S)

    def open(self, stream: str, form: FrameFormat = SMALL) -> None:
        self.rings[stream] = FrameRingWriter(self.server, stream, form)

    def publish_until(self, service: str) -> Any:
        """Send frames of the open cameras at 20 Hz until an event comes."""
        transport = ZmqTransport(self.bus)
        subscriber = transport.subscriber(service)
        try:
            for frame_id in range(1, 1200):
                stamp_ns = time.monotonic_ns()
                for ring in self.rings.values():
                    ring.next_buffer()[:] = 7
                    ring.publish(frame_id, stamp_ns, stamp_ns)
                data = subscriber.receive(50)
                if data is not None:
                    return read_event(data)
                assert self.handle.poll() is None, "the daemon ended"
        finally:
            transport.close()
        pytest.fail("nothing was published in a minute")


@contextmanager
def running(directory: Path, *options: str) -> Iterator[DaemonProcess]:
    process = DaemonProcess(directory, *options)
    try:
        # Closes its pipe.
        with process.handle:
            try:
                yield process
            finally:
                process.watchdog.cancel()
                process.handle.kill()
    finally:
        for ring in process.rings.values():
            ring.close()

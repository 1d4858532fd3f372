"""A daemon in a process of its own, and its log line by line."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from tests.faults.service import Service, Setup

DEADLINE_S = 60.0


class DaemonProcess(Service):
    """`modeld run -v` on a bus in a directory, for a camera server that is this test's own."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.server = f"test_modeld_{os.getpid()}"
        (directory / "bus").mkdir(exist_ok=True)
        self.bus = f"ipc://{directory}/bus"
        self._heard_ns = 0
        own = ("-v", "--bus", self.bus, "--camera-server", self.server)
        places = ("--state-dir", str(directory / "bus"), "--params", str(directory / "params"))
        super().__init__(directory, Setup((*own, *places, *options)))

    def said(self) -> list[str]:
        """The log so far, without time, level and logger."""
        return [line.text.partition(": ")[2] for line in self.log]

    def wait_for(self, text: str) -> str:
        """Return the next line that holds the text, after the one that was waited for before."""
        line = self.wait_line(re.escape(text), self._heard_ns, DEADLINE_S)
        self._heard_ns = line.arrived_ns + 1
        return line.text

    def stop_by(self, number: signal.Signals) -> int:
        """Send a signal; return the exit code after the rest of the log."""
        self.signal(number, asked=True)
        code = self.wait_exit(DEADLINE_S)
        for reader in self._readers:
            reader.join()
        assert not self.lines("Traceback")
        return code

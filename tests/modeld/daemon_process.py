"""A daemon in a process of its own, and its log line by line."""

import os
import re
import signal
from pathlib import Path

from tests.faults.service import Service, Setup

DEADLINE_S = 60.0


class DaemonProcess(Service):
    """`modeld run -v` on a bus in a directory, for a camera server that is this test's own.

    With a prefix of openpilot bus and cameras are in shared memory, as openpilot has them.
    """

    def __init__(self, directory: Path, *options: str, prefix: str = "") -> None:
        self.server = f"test_modeld_{os.getpid()}"
        self.prefix = prefix
        (directory / "bus").mkdir(exist_ok=True)
        self.bus = "msgq:" if prefix else f"ipc://{directory}/bus"
        self._heard_ns = 0
        cameras = f"visionipc:{self.server}" if prefix else self.server
        own = ("-v", "--bus", self.bus, "--camera-server", cameras)
        places = ("--state-dir", str(directory / "bus"), "--params", str(directory / "params"))
        environment = {"OPENPILOT_PREFIX": prefix} if prefix else {}
        super().__init__(directory, Setup((*own, *places, *options), environment))

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

"""Does for one service what systemd does of its protocol, after the lines of the unit itself.

Starts the command with a notification socket, reads READY, STATUS, WATCHDOG, EXTEND_TIMEOUT_USEC,
RELOADING and STOPPING, ends what does not report in time, and restarts as the unit says. It knows
no sandbox, no users and no control groups. sd_notify(3), systemd.service(5).
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0}


def read_unit(text: str) -> dict[str, list[str]]:
    """Return the values of each key, of all sections together."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith(("#", ";", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def seconds(span: str) -> float:
    """Return a time span of a unit, such as 200ms or 2, in s."""
    number = re.fullmatch(r"(\d+)(ms|s|min)?", span)
    if number is None:
        raise ValueError(f"expected a time span, found {span!r}")
    return int(number[1]) * _UNITS_S[number[2] or "s"]


class StandIn:
    """One service.

    Args:
        unit: text of the unit.
        command: what runs, for the command of the unit.
        environment: of the process.
        log: file of what it prints, and of what is done to it.
    """

    def __init__(
        self, unit: str, command: list[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self._unit = read_unit(unit)
        self._command = command
        self._log = log
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = str(log.with_name("notify"))
        self._socket.bind(address)
        self._socket.settimeout(0.02)
        self._period_s = self._one("WatchdogSec", seconds)
        period_us = int(self._period_s * 1e6)
        self._environment = {
            **environment, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(period_us),
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="service manager")
        self._deadline = self._killing = 0.0
        self.shown = {
            "ActiveState": "inactive", "SubState": "dead", "StatusText": "", "MainPID": "0",
            "NRestarts": "0", "Result": "success", "ExecMainStatus": "0",
        }  # fmt: skip
        self._thread.start()

    def _one(self, key: str, read: Callable[[str], float]) -> float:
        return read(self._unit[key][-1])

    def start(self) -> None:
        self._wanted = True

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end."""
        self._wanted = False
        if self._process is not None:
            self._kill(signal.SIGTERM, self._one("TimeoutStopSec", seconds))
        while self.shown["MainPID"] != "0":
            time.sleep(0.01)

    def close(self) -> None:
        self.stop()
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _work(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                self._take(self._socket.recv(4096).decode("utf-8", "replace"))
            now = time.monotonic()
            if self._process is None:
                if self._wanted:
                    self._spawn()
            elif self._process.poll() is not None:
                self._bury(self._process.returncode)
            elif self._killing and now > self._killing:
                self._process.kill()
            elif self._deadline and now > self._deadline and not self._killing:
                self._say("watchdog timeout" if self._is("active") else "start timeout")
                self._kill(signal.SIGABRT, self._one("TimeoutAbortSec", seconds))

    def _spawn(self) -> None:
        with self._log.open("ab") as log:
            # The process sets WATCHDOG_PID itself: its number is not known before.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", 'export WATCHDOG_PID=$$; exec "$@"', "sh", *self._command],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._deadline = time.monotonic() + self._one("TimeoutStartSec", seconds)
        self._period_s = self._one("WatchdogSec", seconds)
        self._killing = 0.0
        self.shown |= {
            "ActiveState": "activating", "SubState": "start", "MainPID": str(self._process.pid),
        }  # fmt: skip

    def _take(self, text: str) -> None:
        for key, _, value in (line.partition("=") for line in text.splitlines()):
            if key == "READY":
                self.shown |= {"ActiveState": "active", "SubState": "running"}
            elif key == "STATUS":
                self.shown["StatusText"] = value
            elif key == "EXTEND_TIMEOUT_USEC":
                self._deadline = max(self._deadline, time.monotonic() + int(value) * 1e-6)
            elif key == "RELOADING":
                self.shown |= {"ActiveState": "reloading", "SubState": "reload"}
            elif key == "STOPPING":
                # From here on nothing but the end is expected.
                self.shown |= {"ActiveState": "deactivating", "SubState": "stop-sigterm"}
                self._killing = time.monotonic() + self._one("TimeoutStopSec", seconds)
            elif key == "WATCHDOG_USEC":
                self._period_s = int(value) * 1e-6
            if key in ("READY", "WATCHDOG", "WATCHDOG_USEC") and not self._is("activating"):
                self._deadline = time.monotonic() + self._period_s

    def _bury(self, code: int) -> None:
        status = str(abs(code))
        prevented = self._unit["RestartPreventExitStatus"][-1].split()
        again = self._wanted and status not in prevented
        # Before the end is shown: whoever waits for it may start the service at once.
        self._wanted = again
        self._process = None
        self._say(f"main process ended with {code}")
        result = "success" if code == 0 else "signal" if code < 0 else "exit-code"
        self.shown |= {
            "MainPID": "0", "ExecMainStatus": status, "Result": result,
            "ActiveState": "activating" if again else "failed" if code else "inactive",
            "SubState": "auto-restart" if again else "dead",
        }  # fmt: skip
        script = self._unit["ExecStopPost"][-1].partition('"')[2].rstrip('"').replace("$$", "$")
        subprocess.run(
            ["/bin/sh", "-c", script], env={**self._environment, "EXIT_STATUS": status}, check=False
        )
        if again:
            time.sleep(self._one("RestartSec", seconds))
            self.shown["NRestarts"] = str(int(self.shown["NRestarts"]) + 1)

    def _kill(self, number: int, patience_s: float) -> None:
        process = self._process
        if process is None:
            return
        self._killing = time.monotonic() + patience_s
        # A stopped process takes no signal but SIGKILL before it goes on.
        for one in (number, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, one)

    def _is(self, state: str) -> bool:
        return self.shown["ActiveState"] == state

    def _say(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"manager: {text}\n")

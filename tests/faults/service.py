"""The daemon's process and what systemd would be to it: restarts, notifications, the watchdog."""

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
# RestartSec of a unit where nothing is said: 100 ms.
RESTART_S = 0.1
# What the unit has: a configuration that is refused will be refused again.
NO_RESTART = (2,)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log, or of a notification, and when it came."""

    arrived_ns: int
    text: str


@dataclass(slots=True)
class Life:
    """One process from its start to its end.

    Attributes:
        pid: of the process.
        started_ns: on the monotonic clock.
        ready_ns: when it said READY=1; 0 until then.
        pinged_ns: when it last said WATCHDOG=1, or became ready.
        ended_ns: 0 while it lives.
        code: exit code, negative for a signal, as of `subprocess`.
        by_watchdog: it was ended as it did not ping.
        period_s: of the watchdog as the process has set it; 0 while it has not.
        asked: it was ended by the test.
    """

    pid: int
    started_ns: int
    ready_ns: int = 0
    pinged_ns: int = 0
    ended_ns: int = 0
    code: int | None = None
    by_watchdog: bool = False
    period_s: float = 0.0
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """How a process is started.

    Attributes:
        arguments: of `modeld run`.
        environment: over the one of this process.
        control: control file of the faulty OpenCL layer; None runs without that layer.
        watchdog_s: of the unit; 0 for none.
        limits: shell commands before the program, "ulimit -n 24" for one.
        read_log: whether stderr is read at all.
        stderr: a file that takes the log in place of a pipe.
    """

    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    control: Path | None = None
    watchdog_s: float = 2.0
    limits: str = ""
    read_log: bool = True
    stderr: Path | None = None


def command(before: str, arguments: Sequence[str]) -> list[str]:
    """Return a command line that does something in its process first, as a shell says it."""
    return ["sh", "-c", f'{before}; exec "$@"', "sh", *arguments] if before else list(arguments)


class Service:
    """A supervised daemon.

    Attributes:
        setup: of the next start; may be replaced.
        restarts: whether a process that ends is started again, and one that does not ping is ended.
        lives: of all processes, the last one is the present one.
        log: lines of stderr of all lives.
        notices: datagrams of all lives.
    """

    def __init__(self, directory: Path, setup: Setup, *, restarts: bool = False) -> None:
        self.setup = setup
        self.restarts = restarts
        self.lives: list[Life] = []
        self.log: list[Line] = []
        self.notices: list[Line] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []
        self._socket_path = directory / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._socket_path))
        self._socket.settimeout(0.02)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.start()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (("notify", self._listen), ("systemd", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def life(self) -> Life:
        """The present process."""
        return self.lives[-1]

    @property
    def pid(self) -> int:
        return self.life.pid

    @property
    def watchdog_ns(self) -> int:
        """Within which time the present process has to ping."""
        return int((self.life.period_s or self.setup.watchdog_s) * 1e9)

    def start(self) -> None:
        setup = self.setup
        environment = {**os.environ, **setup.environment, "NOTIFY_SOCKET": str(self._socket_path)}
        if setup.watchdog_s:
            environment["WATCHDOG_USEC"] = str(round(setup.watchdog_s * 1e6))
        program = ["-m", "tools.cli"]
        if setup.control is not None:
            program = ["-m", "tests.faults.faulty_opencl", str(setup.control)]
        stderr = subprocess.PIPE if setup.stderr is None else os.open(setup.stderr, os.O_WRONLY)
        with self._lock:
            process = subprocess.Popen(
                command(setup.limits, [sys.executable, *program, "run", *setup.arguments]),
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
            self._process = process
            self.lives.append(Life(process.pid, time.monotonic_ns()))
        if setup.stderr is not None:
            os.close(stderr)
        elif setup.read_log:
            reader = threading.Thread(target=self._read, args=(process,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def signal(self, number: int, *, asked: bool = False) -> None:
        """Send a signal to the present process; `asked` if it shall end by it."""
        self.life.asked |= asked
        os.kill(self.pid, number)

    def wait_exit(self, timeout_s: float = 10.0) -> int:
        """Wait until the present process has ended; return its exit code."""
        life = self.life
        self.wait(lambda: life.ended_ns, timeout_s, "no end of the process")
        assert life.code is not None
        return life.code

    def wait(self, find: Callable[[], T | None], timeout_s: float, failure: str) -> T:
        """Wait for something and return it; AssertionError with the whole log if it stays away."""
        found = until(find, timeout_s)
        assert found, f"{failure} within {timeout_s} s:\n{self.text()}"
        return found

    def lines(self, pattern: str, start_ns: int = 0) -> list[Line]:
        """Return the lines of the log since a time that a regular expression finds."""
        look = re.compile(pattern)
        return [line for line in self.log if line.arrived_ns >= start_ns and look.search(line.text)]

    def wait_line(self, pattern: str, start_ns: int = 0, timeout_s: float = 5.0) -> Line:
        find = functools.partial(self.lines, pattern, start_ns)
        return self.wait(find, timeout_s, f"no line {pattern!r}")[0]

    def wait_ready(self, timeout_s: float = 15.0) -> None:
        """Wait until the present process has said READY=1."""
        self.wait(lambda: self.life.ready_ns, timeout_s, "not ready")

    def pings(self, start_ns: int) -> list[Line]:
        """WATCHDOG=1 since a time."""
        return [part for part in self.told("WATCHDOG=1", start_ns) if part.text == "WATCHDOG=1"]

    def statuses(self, start_ns: int = 0) -> list[Line]:
        lines = self.told("STATUS=", start_ns)
        return [Line(line.arrived_ns, line.text.removeprefix("STATUS=")) for line in lines]

    def told(self, beginning: str, start_ns: int) -> list[Line]:
        """Lines of notifications since a time that begin so."""
        return [
            Line(notice.arrived_ns, part)
            for notice in self.notices
            if notice.arrived_ns >= start_ns
            for part in notice.text.split("\n")
            if part.startswith(beginning)
        ]

    def text(self) -> str:
        """The whole log and how processes ended, for messages."""
        lives = [
            f"{life.pid}: {life.code} {'by the watchdog' * life.by_watchdog}" for life in self.lives
        ]
        return "\n".join([*(line.text for line in self.log), *lives])

    def close(self) -> None:
        self.restarts = False
        self._stop.set()
        for thread in self._threads:
            thread.join()
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
            for reader in self._readers:
                reader.join()
            if process.stderr is not None:
                process.stderr.close()
        self._socket.close()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as stream:
            for line in stream:
                self.log.append(
                    Line(time.monotonic_ns(), line.decode("utf-8", "replace").rstrip("\n"))
                )

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                text = self._socket.recv(65536).decode("utf-8", "replace").rstrip("\n")
            except TimeoutError:
                continue
            now_ns = time.monotonic_ns()
            self.notices.append(Line(now_ns, text))
            parts = text.split("\n")
            life = self.life
            if "READY=1" in parts:
                life.ready_ns = life.ready_ns or now_ns
                life.pinged_ns = now_ns
            if "WATCHDOG=1" in parts:
                life.pinged_ns = now_ns
            for part in parts:
                name, _, value = part.partition("=")
                if name == "WATCHDOG_USEC":
                    life.pinged_ns, life.period_s = now_ns, int(value) / 1e6

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            life, process = self.life, self._process
            assert process is not None
            if life.code is not None:
                continue
            life_code = process.poll()
            now_ns = time.monotonic_ns()
            if life_code is not None:
                life.code, life.ended_ns = life_code, now_ns
                if self.restarts and life.code not in (0, *NO_RESTART):
                    self._stop.wait(RESTART_S)
                    self.start()
            elif (
                self.restarts
                and life.ready_ns
                and self.setup.watchdog_s
                and now_ns - life.pinged_ns > self.watchdog_ns
            ):
                life.by_watchdog, life.pinged_ns = True, now_ns
                # As systemd does: a stopped process takes the signal once it goes on.
                process.send_signal(signal.SIGABRT)
                process.send_signal(signal.SIGCONT)

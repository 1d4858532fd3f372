"""What a service that stays up does, asked of the running one."""

import contextlib
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.deploy.machine import DeployError, Machine
from tests.support import waiting

# Generous: a machine that runs tests beside has all the time it needs; what it took is printed.
PATIENCE_S = 60.0
# The bound of the fault table is 2 s, on a machine with nothing else to do.
RESUMED_S = 15.0


class Arrivals:
    """The messages of modelV2 that a subscriber has printed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def after(self, moment_ns: int) -> list[tuple[float, bool]]:
        """Return of each message after a moment how much later it came, s, and if it was valid."""
        lines = self._path.read_text(encoding="ascii").splitlines()
        # The last line may be there in part.
        found = [words for line in lines if len(words := line.split()) == 3]
        return [
            ((int(at_ns) - moment_ns) * 1e-9, valid == "1")
            for at_ns, _, valid in found
            if int(at_ns) > moment_ns
        ]


def until(what: str, holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    if not waiting.until(holds, seconds, pause_s=0.05):
        raise DeployError(f"expected within {seconds:g} s: {what}")


class Checks:
    """The service on a machine, and a subscriber beside it.

    Args:
        machine: where the page was followed to its start of the service.
        arrivals: what the subscriber has received.
        say: prints a line of the report.
    """

    def __init__(self, machine: Machine, arrivals: Arrivals, say: Callable[[str], None]) -> None:
        self._machine = machine
        self._arrivals = arrivals
        self._say = say

    def all(self) -> None:
        """Ask everything, in an order that leaves the service stopped."""
        self.runs_without_a_camera()
        self.publishes()
        self.comes_back_after(signal.SIGKILL, "kill -9")
        self.comes_back_after(signal.SIGSTOP, "SIGSTOP of the main process")
        self.comes_back_however_often()
        self.reloads()
        self.gives_up_on_a_wrong_configuration()
        self.stops()
        self._machine.camera(on=False)

    def runs_without_a_camera(self) -> None:
        """Ready is said after the self-test; the camera is waited for."""
        until("the service is active", self._is_running)
        until("a line of status", lambda: bool(self._show("StatusText")))
        time.sleep(5)  # more than two periods of the watchdog
        self._expect("NRestarts", "0")
        self._say(f"active (running) without a camera: {self._show('StatusText')}")
        for line in self._journal().splitlines():
            # A machine whose limits cannot be raised has no real time to give: that is no failure.
            if found := re.search(r"modeld\.process: ((cpus|priority|lock_memory) .*)", line):
                self._say(f"real time: {found[1]}")

    def publishes(self) -> None:
        """With a camera modelV2 arrives."""
        start_ns = time.monotonic_ns()
        self._machine.camera(on=True)
        self._resumed(start_ns, "the camera process was started")
        until(
            "modelV2 that is valid",
            lambda: any(valid for _, valid in self._arrivals.after(start_ns)),
        )
        time.sleep(2)
        self._say(f"status: {self._show('StatusText')}")

    def comes_back_after(self, number: int, what: str) -> None:
        """A process that was killed, or hangs, is replaced."""
        before = int(self._show("NRestarts"))
        start_ns = time.monotonic_ns()
        self._machine.signal(number)
        until(
            f"a restart after {what}", lambda: int(self._show("NRestarts")) == before + 1, RESUMED_S
        )
        replaced_ns = time.monotonic_ns()
        # What was on its way when the signal came is no answer of the new process.
        self._resumed(
            start_ns + 100_000_000 if number == signal.SIGKILL else replaced_ns, what, start_ns
        )

    def comes_back_however_often(self) -> None:
        """No limit of restarts leaves it dead."""
        for _ in range(6):
            before = self._show("NRestarts")
            until("a main process", lambda: self._show("MainPID") != "0", RESUMED_S)
            self._machine.signal(signal.SIGKILL)
            until("a restart", self._restarted_since(before), RESUMED_S)
        start_ns = time.monotonic_ns()
        self._resumed(start_ns, "six times kill -9 in a row")

    def reloads(self) -> None:
        """A reload waits until the car is parked, here until its camera is gone; it stays active.

        No frame is no fault: the watchdog is fed meanwhile.
        """
        before = self._machine.show()
        loads = self._loads()
        self._machine.control("reload")
        until("the reload put off", lambda: "reload deferred until" in self._journal())
        self._machine.camera(on=False)
        until("the model loaded anew", lambda: self._loads() == loads + 1)
        until("active after a reload", self._is_running)
        until("a status anew", lambda: self._show("StatusText").startswith("waiting"))
        for name in ("MainPID", "NRestarts"):
            self._expect(name, before[name])
        self._say(f"reload when parked, by the same process: {self._show('StatusText')}")
        start_ns = time.monotonic_ns()
        self._machine.camera(on=True)
        self._resumed(start_ns, "the camera process came back")

    def gives_up_on_a_wrong_configuration(self) -> None:
        """Exit code 2 is final until somebody starts it again."""
        self._machine.control("stop")
        config = self._machine.path("/etc/modeld/config.toml")
        text = config.read_text(encoding="utf-8")
        config.write_text(f"bus_adress = 1\n{text}", encoding="utf-8")
        with contextlib.suppress(DeployError):
            self._machine.control("start")
        until("the service failed", lambda: self._show("ActiveState") == "failed")
        before = self._show("NRestarts")
        time.sleep(2)
        self._expect("ActiveState", "failed")
        self._expect("ExecMainStatus", "2")
        self._expect("NRestarts", before)
        config.write_text(text, encoding="utf-8")
        start_ns = time.monotonic_ns()
        self._machine.control("start")
        self._resumed(start_ns, "a wrong configuration, exit code 2, then a right one")

    def stops(self) -> None:
        """SIGTERM ends it with 0, and nothing starts it again."""
        start_ns = time.monotonic_ns()
        self._machine.control("stop")
        took_s = (time.monotonic_ns() - start_ns) * 1e-9
        self._expect("ActiveState", "inactive")
        self._expect("ExecMainStatus", "0")
        self._expect("Result", "success")
        journal = self._journal()
        for words in ("running", "stopping"):
            if words not in journal:
                raise DeployError(f"expected {words!r} in the journal, found none")
        self._say(f"stop: exit code 0 after {took_s:.2f} s")

    def _journal(self) -> str:
        return self._machine.journal()

    def _restarted_since(self, restarts: str) -> Callable[[], bool]:
        return lambda: self._show("NRestarts") != restarts

    def _loads(self) -> int:
        return len(re.findall(r"loaded \S+ in ", self._journal()))

    def _is_running(self) -> bool:
        shown = self._machine.show()
        return (shown["ActiveState"], shown["SubState"]) == ("active", "running")

    def _show(self, name: str) -> str:
        return self._machine.show()[name]

    def _expect(self, name: str, value: str) -> None:
        found = self._show(name)
        if found != value:
            raise DeployError(f"{name}: expected {value!r}, found {found!r}")

    def _resumed(self, after_ns: int, what: str, since_ns: int | None = None) -> None:
        """Wait for messages after a moment, and say how long they took since another one."""
        until(f"modelV2 after {what}", lambda: len(self._arrivals.after(after_ns)) >= 5)
        took_s = self._arrivals.after(after_ns)[0][0] + (after_ns - (since_ns or after_ns)) * 1e-9
        self._say(f"{what}: modelV2 {took_s:.2f} s later")

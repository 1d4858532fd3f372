"""What the deployment test asks of a place that runs the service: with systemd, or in its stead."""

import shutil
import subprocess
from pathlib import Path
from typing import Protocol

from tests.deploy.page import Step


class DeployError(Exception):
    """A command failed, or the service did not do what it should."""


class UnavailableError(Exception):
    """This machine cannot make such a place; says why."""


class Machine(Protocol):
    """A place where docs/deploy.md is followed.

    Attributes:
        what: the place in a few words.
        root: directory of this machine in which absolute names of the place lie.
        work: where the page's commands run.
    """

    what: str
    root: Path
    work: Path

    def takes(self, step: Step) -> bool:
        """Whether a command of the page can run here."""

    def follow(self, step: Step) -> str:
        """Run a command of the page; return what it printed."""

    def put(self, source: Path, name: str) -> None:
        """Copy a file into the directory where the page's commands run."""
        shutil.copy(source, self.work / name)

    def path(self, name: str) -> Path:
        """Return where a file of the machine lies, by its absolute name."""
        return self.root / name.lstrip("/")

    def python(self, name: str, *arguments: str, output: Path) -> subprocess.Popen[bytes]:
        """Start a script that was ``put`` there with the Python that has modeld."""

    def prepare(self, bus: str) -> None:
        """Set bus and what else the place needs; install a car and a camera process."""

    def camera(self, *, on: bool) -> None:
        """Start or stop the camera process."""

    def control(self, verb: str) -> None:
        """Start, stop or reload the service."""

    def signal(self, number: int) -> None:
        """Send a signal to the service's main process."""

    def show(self) -> dict[str, str]:
        """Return properties of the service, by systemd's names.

        ActiveState, SubState, StatusText, MainPID, NRestarts, Result, ExecMainStatus.
        """

    def journal(self) -> str:
        """Return what the service and its manager have logged."""

    def close(self) -> None:
        """End everything and leave nothing behind."""


def checked(command: list[str], *, timeout_s: float = 300, **options: object) -> str:
    """Run a command and return what it printed on both streams."""
    try:
        done = subprocess.run(  # type: ignore[call-overload]  # options are passed through
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            **options,
        )
    except subprocess.TimeoutExpired as error:
        raise DeployError(f"{' '.join(command)}: not done after {timeout_s:g} s") from error
    if done.returncode != 0:
        raise DeployError(f"{' '.join(command)}: ended with {done.returncode}:\n{done.stdout}")
    return str(done.stdout)

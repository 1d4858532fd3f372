"""The deployment test without a container: a directory, and a stand-in for systemd."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy.checks import until
from tests.deploy.container import CAR
from tests.deploy.machine import DeployError, checked
from tests.deploy.page import Step
from tests.deploy.service_stand_in import StandIn, read_unit

# What the page's commands write to; each is the same path below the directory.
_OURS = re.compile(r"(?<![\w./])/(opt|etc|var|run|data)(?=/)")
_CONTROL = re.compile(r"systemctl (?:enable --now|start|stop|restart|reload) modeld\.service")


class Harness:
    """A directory that stands for a machine.

    Args:
        place: does not exist yet.
    """

    what = "a directory, with a notification socket in the place of systemd"

    def __init__(self, place: Path) -> None:
        self._place = place
        self._work = place / "root"
        self._log = place / "journal.txt"
        for name in ("root", "opt", "run/modeld", "var/cache/modeld", "data/params/d"):
            (place / name).mkdir(parents=True, exist_ok=True)
        self._log.touch()
        self._bus = ""
        self._server = f"deploy-{os.getpid()}"
        self._service: StandIn | None = None
        self._camera: subprocess.Popen[bytes] | None = None

    def takes(self, step: Step) -> bool:
        """What needs neither packages nor systemd, and the service's start and stop."""
        return step.needs == "shell" or _CONTROL.fullmatch(step.command) is not None

    def follow(self, step: Step) -> str:
        """Run a command of the page, with its paths moved into the directory."""
        if step.needs == "systemd":
            self.control("start" if "enable" in step.command else step.command.split()[1])
            return ""
        command = _OURS.sub(rf"{self._place}/\1", step.command)
        if "install-unit" in command:
            command += f" --prefix {self._place}"
        return checked(["/bin/sh", "-euc", command], cwd=self._work)

    def put(self, source: Path, name: str) -> None:
        """Copy a file to where the commands run."""
        shutil.copy(source, self._work / name)

    def python(self, name: str, *arguments: str, output: Path) -> subprocess.Popen[bytes]:
        """Start a script with the installed package."""
        with output.open("wb") as file:
            return subprocess.Popen(
                [str(self._python), str(self._work / name), *arguments],
                cwd=self._work, stdin=subprocess.DEVNULL, stdout=file,
            )  # fmt: skip

    def path(self, name: str) -> Path:
        """Return a file of the directory."""
        return self._place / name.lstrip("/")

    @property
    def _python(self) -> Path:
        return self._place / "opt/modeld/bin/python"

    def prepare(self, bus: str) -> None:
        """Set bus, cameras and parameters, which others on this machine may have, too."""
        self._bus = bus
        config = self._place / "etc/modeld/config.toml"
        settings = {
            "bus_address": bus,
            "camera_server": self._server,
            "params_dir": str(self._place / "data/params/d"),
        }
        lines = [f'{name} = "{value}"' for name, value in settings.items()]
        text = _OURS.sub(rf"{self._place}/\1", config.read_text(encoding="utf-8"))
        config.write_text("\n".join([*lines, text]), encoding="utf-8")
        car = _OURS.sub(rf"{self._place}/\1", CAR)
        checked([str(self._python), "-c", car], cwd=self._work)

    def camera(self, *, on: bool) -> None:
        """Start or stop the camera process."""
        if on:
            self._camera = subprocess.Popen(
                [
                    str(self._python), "-m", "tools.lib.bench_camera", "--server", self._server,
                    "--bus", self._bus, "--size", "1928", "1208", "--frames", "1",
                    "--rate-hz", "20",
                ],
                cwd=self._work, stdin=subprocess.PIPE,
            )  # fmt: skip
        elif self._camera is not None:
            self._camera.terminate()
            self._camera.communicate()
            self._camera = None

    def control(self, verb: str) -> None:
        """Start, stop, restart or reload the service."""
        if self._service is None:
            self._service = self._make_service()
        if verb in ("stop", "restart"):
            self._service.stop()
        if verb in ("start", "restart"):
            self._service.start()
            until("the service ready", lambda: self.show()["ActiveState"] in ("active", "failed"))
        if verb == "reload":
            self.signal(1)

    def _make_service(self) -> StandIn:
        text = (self._place / "etc/systemd/system/modeld.service").read_text(encoding="utf-8")
        unit = read_unit(text)
        command = [
            word if word.startswith(str(self._place)) else _OURS.sub(rf"{self._place}/\1", word)
            for word in shlex.split(unit["ExecStart"][-1])
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "RUNTIME_DIRECTORY": str(self._place / "run/modeld"),
            "MODELD_CACHE_DIR": str(self._place / "var/cache/modeld"),
        }
        return StandIn(text, command, environment, self._log)

    def signal(self, number: int) -> None:
        """Send a signal to the service's main process."""
        pid = int(self.show()["MainPID"])
        if pid == 0:
            raise DeployError(f"signal {number}: expected a main process, found none")
        os.kill(pid, number)

    def show(self) -> dict[str, str]:
        """Return properties of the service."""
        return dict(self._service.shown) if self._service is not None else {}

    def journal(self) -> str:
        """Return what daemon and manager have said."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """End service and camera; the directory is its maker's."""
        self.camera(on=False)
        if self._service is not None:
            self._service.close()
        if self._log.stat().st_size > 1 << 20:
            print("the journal was larger than 1 MiB", file=sys.stderr)

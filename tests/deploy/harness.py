"""The deployment test without a container: a directory, and a stand-in for systemd."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.deploy.checks import until
from tests.deploy.container import CAR
from tests.deploy.machine import DeployError, Machine, checked
from tests.deploy.page import Step
from tests.deploy.service_stand_in import StandIn, read_unit

# What the page's commands write to; each is the same path below the directory.
_OURS = re.compile(r"(?<![\w./])/(opt|etc|var|run|data)(?=/)")
_CONTROL = re.compile(r"systemctl (?:enable --now|start|stop|restart|reload) modeld\.service")


class Harness(Machine):
    """A directory that stands for a machine."""

    what = "a directory, with a notification socket in the place of systemd"

    def __init__(self, place: Path) -> None:
        self.root = place
        self.work = place / "root"
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
        command = _OURS.sub(rf"{self.root}/\1", step.command)
        if "install-unit" in command:
            command += f" --prefix {self.root}"
        return checked(["/bin/sh", "-euc", command], cwd=self.work)

    def python(self, name: str, *arguments: str, output: Path) -> subprocess.Popen[bytes]:
        with output.open("wb") as file:
            return subprocess.Popen(
                [str(self._python), str(self.work / name), *arguments],
                cwd=self.work, stdin=subprocess.DEVNULL, stdout=file,
            )  # fmt: skip

    @property
    def _python(self) -> Path:
        return self.root / "opt/modeld/bin/python"

    def prepare(self, bus: str) -> None:
        """Set bus, cameras and parameters, which others on this machine may have, too."""
        self._bus = bus
        config = self.root / "etc/modeld/config.toml"
        settings = {
            "bus_address": bus,
            "camera_server": self._server,
            "params_dir": str(self.root / "data/params/d"),
        }
        lines = [f'{name} = "{value}"' for name, value in settings.items()]
        text = _OURS.sub(rf"{self.root}/\1", config.read_text(encoding="utf-8"))
        config.write_text("\n".join([*lines, text]), encoding="utf-8")
        car = _OURS.sub(rf"{self.root}/\1", CAR)
        checked([str(self._python), "-c", car], cwd=self.work)

    def camera(self, *, on: bool) -> None:
        if on:
            self._camera = subprocess.Popen(
                [
                    str(self._python), "-m", "tools.bench.camera", "--server", self._server,
                    "--bus", self._bus, "--size", "1928", "1208", "--frames", "1",
                    "--rate-hz", "20",
                ],
                cwd=self.work, stdin=subprocess.PIPE,
            )  # fmt: skip
        elif self._camera is not None:
            self._camera.terminate()
            self._camera.communicate()
            self._camera = None

    def control(self, verb: str) -> None:
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
        text = (self.root / "etc/systemd/system/modeld.service").read_text(encoding="utf-8")
        unit = read_unit(text)
        command = [
            word if word.startswith(str(self.root)) else _OURS.sub(rf"{self.root}/\1", word)
            for word in shlex.split(unit["ExecStart"][-1])
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "RUNTIME_DIRECTORY": str(self.root / "run/modeld"),
            "MODELD_CACHE_DIR": str(self.root / "var/cache/modeld"),
        }
        return StandIn(text, command, environment, self._log)

    def signal(self, number: int) -> None:
        pid = int(self.show()["MainPID"])
        if pid == 0:
            raise DeployError(f"signal {number}: expected a main process, found none")
        os.kill(pid, number)

    def show(self) -> dict[str, str]:
        return dict(self._service.shown) if self._service is not None else {}

    def journal(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """End service and camera; the directory is its maker's."""
        self.camera(on=False)
        if self._service is not None:
            self._service.close()
        if self._log.stat().st_size > 1 << 20:
            print("the journal was larger than 1 MiB", file=sys.stderr)

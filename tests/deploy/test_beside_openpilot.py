"""docs/beside-openpilot.md, command by command, against processes that stand for openpilot's.

In a directory, with a prefix of the test's own, and what stands for systemd. The commands that
install the package are those of docs/deploy.md, where `make test-deploy` runs them; here the
program of this checkout is put in their place.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cereal.stacks import STACKS
from tests.deploy import openpilot_stand_in
from tests.deploy.beside import PAGE, repeated
from tests.deploy.checks import until
from tests.deploy.machine import checked
from tests.deploy.page import ROOT, Step, steps
from tests.deploy.service_stand_in import StandIn, read_unit
from tests.support.built import interface_models
from tools.commands import install_unit

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]

STACK = STACKS["openpilot-2026"]
PROGRAM = "/data/modeld/venv/bin/modeld"
_DATA = re.compile(r"(?<![\w./])/data(?=/)|(?<=ipc://)/data(?=/)")


class Device:
    """A directory that stands for the device, and openpilot beside it."""

    def __init__(self, place: Path, prefix: str) -> None:
        self.root = place
        self.work = place / "work"
        for name in ("work", "data/modeld/venv/bin", "data/params", "cache", "run"):
            (place / name).mkdir(parents=True)
        continued = "#!/usr/bin/env bash\ncd /data/openpilot\nexec ./launch_openpilot.sh\n"
        (place / "data/continue.sh").write_text(continued, encoding="utf-8")
        for model in interface_models("split-2025"):
            shutil.copy(model, self.work / f"driving_{model.name}")
        # openpilot's launcher makes it; msgq does not.
        self.rings = STACK.queue_path("modelV2", prefix).parent
        self.rings.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "OPENPILOT_PREFIX": prefix,
            "PARAMS_ROOT": str(place / "data/params"),
            "MODELD_CACHE_DIR": str(place / "cache"),
            "RUNTIME_DIRECTORY": str(place / "run"),
        }
        self.log = place / "journal.txt"
        self.service: StandIn | None = None
        self._openpilot: subprocess.Popen[str] | None = None

    def moved(self, text: str) -> str:
        """Return text with the device's paths where they are here."""
        return _DATA.sub(f"{self.root}/data", text)

    def run(self, command: str) -> str:
        # All of this is one user's.
        command = command.removeprefix("sudo ")
        if "install-unit" not in command:
            return self.shell(self.moved(command))
        # The units say where things lie on the device; only this command writes elsewhere.
        program, _, arguments = command.partition(" ")
        more = f"--bin {PROGRAM} --prefix {self.root}"
        said = self.shell(f"{self.moved(program)} {arguments} {more}")
        for path in (self.root / "data/modeld").glob("*.toml"):
            path.write_text(self.moved(path.read_text(encoding="utf-8")), encoding="utf-8")
        return said

    def shell(self, command: str) -> str:
        """Run a command in the directory with the models, with openpilot's environment."""
        return checked(["/bin/sh", "-euc", command], cwd=self.work, env=self.environment)

    def install(self) -> None:
        """Put the checkout's program where the page has installed it."""
        program = Path(self.moved(PROGRAM))
        program.write_text(
            f'#!/bin/sh\nexec {sys.executable} -m tools.cli "$@"\n', encoding="ascii"
        )
        program.chmod(0o755)

    def start_openpilot(self) -> None:
        """Start openpilot, as a reboot does; wait for its frames."""
        self._openpilot = subprocess.Popen(
            [sys.executable, openpilot_stand_in.__file__, STACK.name],
            env=self.environment, text=True, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._openpilot.stdout is not None
        assert self._openpilot.stdout.readline() == "frames run\n"

    def start_service(self) -> None:
        """Do what systemd does with the unit that was written."""
        text = (self.root / "etc/systemd/system/modeld.service").read_text(encoding="utf-8")
        unit = read_unit(text)
        (command,) = unit["ExecStart"]
        (given,) = (line for line in unit["Environment"] if "OPENPILOT_PREFIX" in line)
        passed = dict(pair.split("=", 1) for pair in given.split() if "%" not in pair)
        # What the unit does not pass on is not there.
        rest = {k: v for k, v in self.environment.items() if k not in install_unit.PASSED_ON}
        self.service = StandIn(text, shlex.split(self.moved(command)), {**rest, **passed}, self.log)
        self.service.start()
        until("the service active", lambda: self.shown["ActiveState"] in ("active", "failed"))

    @property
    def shown(self) -> dict[str, str]:
        """What the stand-in for systemd says of the service."""
        assert self.service is not None
        return self.service.shown

    def close(self) -> None:
        """End what was started, and remove the rings."""
        if self.service is not None:
            self.service.close()
        if self._openpilot is not None:
            self._openpilot.send_signal(signal.SIGTERM)
            self._openpilot.communicate()
        shutil.rmtree(self.rings)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    made = Device(tmp_path / "device", f"beside{os.getpid()}")
    yield made
    made.close()


def follow(device: Device, step: Step) -> str:
    if step.needs == "shell":
        # Healthy: the histories are full, and nothing was missed in the last seconds.
        return repeated(lambda: device.run(step.command), "modeld status" in step.command)
    if step.needs == "install":
        device.install()
    elif "enable" in step.command:
        device.start_openpilot()
        device.start_service()
    return ""


def test_the_page_can_be_followed(device: Device) -> None:
    text = PAGE.read_text(encoding="utf-8")
    said: dict[str, str] = {}
    try:
        for step in steps(text):
            said.setdefault(step.section, "")
            said[step.section] += follow(device, step)
        assert device.shown["ActiveState"] == "active"
        continued = (device.root / "data/continue.sh").read_text(encoding="utf-8").splitlines()
        assert continued[1] == "export BLOCK=modeld,dmonitoringmodeld"
        unit = (device.root / "etc/systemd/system/modeld.service").read_text(encoding="utf-8")
        assert "\nUser=comma\n" in unit
        params, _, heard = said["Check"].partition("driving: ")
        assert f"{openpilot_stand_in.CAR}, actuators" in params
        assert "pitch 1.15, yaw -0.57 degrees" in params
        assert heard.startswith("healthy"), heard
        assert len(re.findall(r"^modelV2 ", heard, re.MULTILINE)) == 20, heard
        # A second daemon is told who has the ring, and leaves it alone.
        run = device.moved(f"{PROGRAM} run --config /data/modeld/config.toml --json")
        second = subprocess.run(
            shlex.split(run), env=device.environment, capture_output=True, text=True, check=False
        )
        assert second.returncode == 4
        assert "expected to be the only publisher" in second.stderr
        status = device.moved(f"{PROGRAM} status --bus msgq: --stack {STACK.name} --json")
        found = json.loads(repeated(lambda: device.shell(status), True))
        health = found["daemons"]["modeldHealth"]["health"]
        assert str(health["processId"]) == device.shown["MainPID"]
        assert device.service is not None
        device.service.stop()
        assert (device.shown["ExecMainStatus"], device.shown["NRestarts"]) == ("0", "0")
    except Exception:
        if device.log.exists():
            print(device.log.read_text(encoding="utf-8", errors="replace")[-6000:])
        raise

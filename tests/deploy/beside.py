"""Follows docs/beside-openpilot.md in a container: the unit's sandbox beside others' processes."""

import shlex
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.deploy import openpilot_stand_in
from tests.deploy.checks import PATIENCE_S
from tests.deploy.container import Container
from tests.deploy.machine import DeployError
from tests.deploy.page import ROOT, steps
from tools.example_models import write_interface

PAGE = ROOT / "docs/beside-openpilot.md"
HOME = "/home/comma"
STACK = "openpilot-2026"
# openpilot, as its own user runs it; it writes rings and parameters, and signals those who read.
OPENPILOT = f"""\
[Service]
User=comma
ExecStart=/data/modeld/venv/bin/python {HOME}/openpilot_stand_in.py {STACK}
"""
PREPARE = f"""
systemctl stop camera.service
rm -rf /data/params
useradd --create-home comma
mkdir -p /data/openpilot /data/params
printf '#!/usr/bin/env bash\\ncd /data/openpilot\\n' > /data/continue.sh
cp /root/modeld-*.whl {HOME}
chown -R comma /data {HOME}
"""


def follow(machine: Container, scratch: Path, started: float) -> None:
    """Follow the page on a machine that has gone through docs/deploy.md."""
    machine.shell(PREPARE)
    write_interface(scratch, "split-2025", 0)
    for name in ("vision", "policy"):
        shutil.copy(scratch / f"{name}.onnx", machine.path(f"{HOME}/driving_{name}.onnx"))
    shutil.copy(openpilot_stand_in.__file__, machine.path(HOME))
    unit = machine.path("/etc/systemd/system/openpilot.service")
    unit.write_text(OPENPILOT, encoding="utf-8")
    print(PAGE.name)
    for step in steps(PAGE.read_text(encoding="utf-8")):
        print(f"  {time.monotonic() - started:5.1f} s  $ {step.command}", flush=True)
        if "enable" in step.command:
            machine.shell("systemctl start openpilot.service")
        repeated(partial(_run, machine, step.command), "modeld status" in step.command)
    said = _run(
        machine, "stat -c '%U %a' /dev/shm/msgq_modelV2; /data/modeld/venv/bin/modeld params"
    )
    for expected in ("comma 644\n", f"{openpilot_stand_in.CAR}, actuators"):
        if expected not in said:
            raise DeployError(f"expected {expected!r}, found:\n{said}")
    found = machine.show()
    if (found["ActiveState"], found["NRestarts"]) != ("active", "0"):
        raise DeployError(f"expected a service that runs and never ended, found {found}")
    machine.shell("systemctl stop modeld.service openpilot.service")


def repeated(run: Callable[[], str], again: bool) -> str:
    """Run a command of the page, again and again until it says that all is well if asked to."""
    deadline = time.monotonic() + (2 * PATIENCE_S if again else 0.0)
    while True:
        try:
            return run()
        except DeployError:
            if time.monotonic() > deadline:
                raise


def _run(machine: Container, command: str) -> str:
    """Run a command of the page as its user, or with what `sudo` stands for."""
    # The page is for a device with a GPU.
    command = command.replace("[compile]", "[compile,pocl]")
    if command.startswith("sudo "):
        return machine.shell(command.removeprefix("sudo "))
    return machine.shell(
        f"cd {HOME} && HOME={HOME} runuser -u comma -- sh -euc {shlex.quote(command)}"
    )

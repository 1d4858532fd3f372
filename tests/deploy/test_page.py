"""The deployment page can be followed, and the stand-in for systemd does what it is for."""

import re
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.beside import PAGE as BESIDE
from tests.deploy.checks import until
from tests.deploy.page import NEEDS, PAGE, steps
from tests.deploy.service_stand_in import StandIn

ROOT = Path(__file__).parent.parent.parent

UNIT = """
[Service]
WatchdogSec=300ms
TimeoutStartSec=5
TimeoutStopSec=5
TimeoutAbortSec=200ms
RestartSec=10ms
RestartPreventExitStatus=2
ExecStopPost=/bin/sh -c "true"
"""
# Ready, then as many pings as it is told, 0.1 s apart; then it ends, or hangs.
SERVICE = """
import os, socket, sys, time
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.connect(os.environ["NOTIFY_SOCKET"])
assert os.environ["WATCHDOG_PID"] == str(os.getpid())
manager.send(b"READY=1\\nSTATUS=here")
for _ in range(int(sys.argv[1])):
    time.sleep(0.1)
    manager.send(b"WATCHDOG=1")
time.sleep(60 if sys.argv[2] == "hang" else 0)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StandIn]:
    """A service that pings so often and then ends so."""
    command = [sys.executable, "-c", SERVICE, *map(str, request.param)]
    made = StandIn(UNIT, command, {"PATH": "/usr/bin:/bin"}, tmp_path / "log")
    made.start()
    yield made
    made.close()


def test_the_pages_have_commands_of_every_kind() -> None:
    texts = (page.read_text(encoding="utf-8") for page in (PAGE, BESIDE))
    assert {step.needs for text in texts for step in steps(text)} == set(NEEDS)


def test_a_mark_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="run: everywhere"):
        steps("## Start\n\n<!-- run: everywhere -->\n```\nls\n```\n")


def test_the_pages_install_the_present_version() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    for page in (PAGE, BESIDE):
        shown = re.findall(r"modeld-([\d.]+)-py3", page.read_text(encoding="utf-8"))
        assert set(shown) == {version}


@pytest.mark.parametrize("service", [(20, "hang")], indirect=True)
def test_a_service_that_pings_is_left_alone(service: StandIn) -> None:
    until("ready", lambda: service.shown["SubState"] == "running")
    assert service.shown["StatusText"] == "here"
    pid = service.shown["MainPID"]
    time.sleep(1)
    assert (service.shown["MainPID"], service.shown["NRestarts"]) == (pid, "0")


@pytest.mark.parametrize("service", [(1, "hang")], indirect=True)
def test_a_service_that_does_not_ping_is_replaced(service: StandIn) -> None:
    until("a restart", lambda: service.shown["NRestarts"] == "1")
    until("ready again", lambda: service.shown["SubState"] == "running")


@pytest.mark.parametrize("service", [(1, "2")], indirect=True)
def test_an_exit_code_that_prevents_restarts_is_final(service: StandIn) -> None:
    until("the end", lambda: service.shown["ActiveState"] == "failed")
    assert service.shown["NRestarts"] == "0"

"""The service manager's side is a real datagram socket."""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modeld.notify import Notifier

Listen = Callable[[str], socket.socket]


@pytest.fixture
def listen() -> Iterator[Listen]:
    opened: list[socket.socket] = []

    def at(address: str) -> socket.socket:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        end.bind("\0" + address[1:] if address.startswith("@") else address)
        end.settimeout(5.0)
        opened.append(end)
        return end

    yield at
    for end in opened:
        end.close()


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@modeld-{uuid.uuid4()}"


def test_messages_are_those_of_the_protocol(listen: Listen, address: str) -> None:
    manager = listen(address)
    notifier = Notifier(address)
    notifier.ready()
    notifier.status("frame 5;\n valid")
    notifier.alive()
    notifier.reloading(7_000_999)
    notifier.extend_start(2.5)
    notifier.stopping()
    assert [manager.recv(1000).decode() for _ in range(6)] == [
        "READY=1",
        "STATUS=frame 5; valid",
        "WATCHDOG=1",
        "RELOADING=1\nMONOTONIC_USEC=7000",
        "EXTEND_TIMEOUT_USEC=2500000",
        "STOPPING=1",
    ]
    notifier.close()
    notifier.ready()
    manager.settimeout(0.05)
    with pytest.raises(TimeoutError):
        manager.recv(1000)


def test_variables_are_taken_away_and_kept_for_who_takes_our_place(
    listen: Listen, address: str
) -> None:
    manager = listen(address)
    told = {
        "NOTIFY_SOCKET": address,
        "WATCHDOG_USEC": "2500000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    environ = {**told, "HOME": "/"}
    notifier = Notifier.from_environment(environ)
    assert environ == {"HOME": "/"}
    assert notifier.environment == told
    assert notifier.watchdog_s == 2.5
    notifier.ready()
    assert manager.recv(100) == b"READY=1\nWATCHDOG_USEC=2500000"
    notifier.close()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "often"},
        {"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "1"},
    ],
)
def test_no_watchdog_where_none_is_meant_for_us(variables: dict[str, str]) -> None:
    assert Notifier.from_environment(dict(variables)).watchdog_s is None


def test_ready_waits_for_a_manager_that_is_busy(listen: Listen, address: str) -> None:
    manager = listen(address)
    notifier = Notifier(address)
    for _ in range(10_000):
        notifier.alive()
    telling = threading.Thread(target=notifier.ready)
    telling.start()
    telling.join(0.05)
    assert telling.is_alive()
    heard = manager.recv(100)
    while heard == b"WATCHDOG=1":
        heard = manager.recv(100)
    assert heard == b"READY=1"
    telling.join(5.0)
    notifier.close()


def test_a_manager_that_is_gone_or_full_does_not_hold_us_up(listen: Listen, address: str) -> None:
    notifier = Notifier(address)
    notifier.ready()  # nobody is there
    manager = listen(address)
    for _ in range(10_000):
        notifier.alive()  # nobody reads
    assert manager.recv(100) == b"WATCHDOG=1"
    notifier.close()


def test_watchdog_waits_for_a_process_that_loads_anew(listen: Listen, address: str) -> None:
    manager = listen(address)
    notifier = Notifier(address, watchdog_s=2.0)
    notifier.reloading(7_000_999)
    assert manager.recv(100) == b"RELOADING=1\nMONOTONIC_USEC=7000\nWATCHDOG_USEC=60000000"
    notifier.ready()
    assert manager.recv(100) == b"READY=1\nWATCHDOG_USEC=2000000"
    notifier.close()

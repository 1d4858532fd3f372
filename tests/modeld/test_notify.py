"""The service manager's side is a real datagram socket; whether the car is parked, by the bus."""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cereal.schema import new_event
from cereal.transport import MemoryTransport, ZmqTransport
from modeld.service.notify import Notifier
from tools.service.running_models import why_not_parked


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@modeld-{uuid.uuid4()}"


@pytest.fixture
def listen(address: str) -> Iterator[Callable[[], socket.socket]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:

        def begin() -> socket.socket:
            end.bind("\0" + address[1:] if address.startswith("@") else address)
            end.settimeout(5.0)
            return end

        yield begin


@pytest.fixture
def manager(listen: Callable[[], socket.socket]) -> socket.socket:
    return listen()


@pytest.fixture
def notifier(address: str) -> Iterator[Notifier]:
    made = Notifier(address)
    yield made
    made.close()


def test_messages_are_those_of_the_protocol(manager: socket.socket, notifier: Notifier) -> None:
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
    manager: socket.socket, address: str
) -> None:
    told = {"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getpid())}
    told["NOTIFY_SOCKET"] = address
    environ = {**told, "HOME": "/"}
    notifier = Notifier.from_environment(environ)
    assert environ == {"HOME": "/"}
    assert notifier.environment == told
    assert notifier.watchdog_s == 2.5
    notifier.ready()
    assert manager.recv(100) == b"READY=1\nWATCHDOG_USEC=2500000"
    # The watchdog waits for a process that loads anew.
    notifier.reloading(7_000_999)
    assert manager.recv(100) == b"RELOADING=1\nMONOTONIC_USEC=7000\nWATCHDOG_USEC=60000000"
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


def test_ready_waits_for_a_manager_that_is_busy(manager: socket.socket, notifier: Notifier) -> None:
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


def test_a_manager_that_is_gone_or_full_does_not_hold_us_up(
    listen: Callable[[], socket.socket], notifier: Notifier
) -> None:
    notifier.ready()  # nobody is there
    manager = listen()
    for _ in range(10_000):
        notifier.alive()  # nobody reads
    assert manager.recv(100) == b"WATCHDOG=1"


def event(service: str, *, started: bool = False) -> bytes:
    built = new_event(service, mono_time_ns=1, valid=True)
    if service == "deviceState":
        built.deviceState.started = started
    data: bytes = built.to_bytes()
    return data


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], ""),
        ([event("deviceState")], ""),
        ([event("deviceState", started=True)], "deviceState reports started"),
        ([b"junk"], ""),
        ([event("modelV2")], ""),
    ],
)
def test_device_state_says_whether_the_car_drives(messages: list[bytes], reason: str) -> None:
    transport = MemoryTransport()
    publisher = transport.publisher("deviceState")

    def publish() -> None:
        for message in messages:
            publisher.send(message)

    timer = threading.Timer(0.02, publish)
    timer.start()
    assert why_not_parked(transport, 0.2) == reason
    timer.join()


@pytest.mark.parametrize("service", ["modelV2", "driverStateV2"])
def test_a_daemon_that_publishes_drives(service: str, tmp_path: Path) -> None:
    transport = ZmqTransport(f"ipc://{tmp_path}")
    publisher = transport.publisher(service)
    done = threading.Event()

    def publish() -> None:
        while not done.wait(0.02):
            publisher.send(event(service))

    thread = threading.Thread(target=publish)
    thread.start()
    listener = ZmqTransport(f"ipc://{tmp_path}")
    assert why_not_parked(listener, 20.0) == f"a daemon publishes {service}"
    done.set()
    thread.join()
    assert why_not_parked(listener, 0.1) == ""
    listener.close()
    transport.close()

"""Whether the car is parked, as the bus says it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cereal.schema import new_event
from cereal.transport import MemoryTransport, ZmqTransport
from modeld.parked import why_not_parked


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
        ([event("deviceState", started=True)], "deviceState says that it is started"),
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

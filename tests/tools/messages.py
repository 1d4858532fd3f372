"""Messages for tests of commands: made, damaged, and sent again and again on a bus."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cereal.schema import new_event
from cereal.transport import ZmqTransport


@contextmanager
def repeating(bus: str, *messages: tuple[str, bytes]) -> Iterator[None]:
    """Publish messages 50 times a second while the block runs: subscribers connect when they like.

    Each is a service and an Event. The publishers are there when the block begins.
    """
    ready, done = threading.Event(), threading.Event()

    def publish() -> None:
        transport = ZmqTransport(bus)
        publishers = {service: transport.publisher(service) for service in dict(messages)}
        ready.set()
        while not done.wait(0.02):
            for service, data in messages:
                publishers[service].send(data)
        for publisher in publishers.values():
            publisher.close()
        transport.close()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        done.set()
        thread.join()


def event_of(service: str, mono_time_ns: int = 1, **fields: Any) -> bytes:
    event = new_event(service, mono_time_ns=mono_time_ns, valid=True)
    for name, value in fields.items():
        setattr(getattr(event, service), name, value)
    return bytes(event.to_bytes())


def damaged(data: bytes, length: int) -> bytes:
    """Return an Event whose first list of this many numbers of 4 bytes lies outside of it."""
    changed = bytearray(data)
    for position in range(8, len(changed), 8):
        word = int.from_bytes(changed[position : position + 8], "little")
        if word & 3 == 1 and word >> 35 == length and (word >> 32) & 7 == 4:
            changed[position : position + 4] = (0x0FFF_FFF0 << 2 | 1).to_bytes(4, "little")
            return bytes(changed)
    raise AssertionError("no such list")

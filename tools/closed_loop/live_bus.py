"""The bus and the frame rings of a live closed loop: what the simulated car sends and hears."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Final

from cereal.frames import Frame
from cereal.transport import ZmqTransport
from modeld.daemon import PUBLICATIONS
from modeld.vehicle.inputs import SUBSCRIPTIONS
from tools.closed_loop.cameras import device_cameras, formats
from tools.drives.drive import Message
from tools.lib.camera_process import make_rings

# All that the simulated car says.
SERVICES: Final = (*SUBSCRIPTIONS, "wideRoadCameraState", "carParams", "livePose")
Record = Callable[[bytes], None]


class LiveBus:
    """Publishers, frame rings and subscribers. A context.

    Args:
        address: of the bus.
        server: name of the frame rings.
        record: takes every event that is sent or received, in that order.

    Raises:
        TransportError: somebody else publishes on this bus, or the address is none.
        FrameError: somebody else has the rings, or memory is short.
    """

    def __init__(self, address: str, server: str, record: Record) -> None:
        self._record = record
        with ExitStack() as stack:
            self._transport = ZmqTransport(address)
            stack.callback(self._transport.close)
            self._publishers = {name: self._transport.publisher(name) for name in SERVICES}
            # Publishers and subscribers of a transport end with it.
            self._subscribers = [self._transport.subscriber(name) for name in PUBLICATIONS]
            self._rings = make_rings(server, formats(device_cameras()))
            for ring in self._rings.values():
                stack.callback(ring.close)
            self._open = stack.pop_all()

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages of the car."""
        for message in messages:
            self._publishers[message.service].send(message.data)
            self._record(message.data)

    def fill(self, frames: Mapping[str, Frame]) -> None:
        """Copy frames to where they will be published from."""
        for stream, frame in frames.items():
            self._rings[stream].next_buffer()[:] = frame.data

    def publish(self, frame: Frame, stream: str) -> None:
        """Hand over the frame that was filled in last."""
        self._rings[stream].publish(frame.frame_id, frame.timestamp_sof_ns, frame.timestamp_eof_ns)

    def receive(self, timeout_ms: int) -> list[bytes]:
        """Return what the daemon said; wait for it as long as that."""
        if not self._transport.wait(self._subscribers, timeout_ms):
            return []
        events = []
        for subscriber in self._subscribers:
            while (data := subscriber.receive()) is not None:
                events.append(data)
                self._record(data)
        return events

    def __enter__(self) -> LiveBus:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

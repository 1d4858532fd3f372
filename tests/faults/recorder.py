"""What arrives from the daemon: each message with its time, kept for the test or the soak."""

import threading
import time
from dataclasses import dataclass

import zmq

from cereal.errors import MessageError
from cereal.schema import read_event
from cereal.transport import ZmqTransport

DRIVING = ("modelV2", "drivingModelData", "cameraOdometry")
# A daemon that starts again must be heard at once, whatever ZeroMQ's usual pause is.
_RECONNECT_MS = 10


@dataclass(frozen=True, slots=True)
class Message:
    """One modelV2.

    Attributes:
        arrived_ns: on the monotonic clock.
        frame_id: of its main frame.
        frame_id_extra: of the other one.
        timestamp_eof_ns: as the message has it.
        valid: as the message has it.
        speed_mps: of its plan at once, which tells the primary model from the fallback.
    """

    arrived_ns: int
    frame_id: int
    frame_id_extra: int
    timestamp_eof_ns: int
    valid: bool
    speed_mps: float


class Recorder:
    """Listens to what the daemon publishes, in a thread.

    Attributes:
        messages: all modelV2, in order.
        unreadable: messages that could not be read, of all three services.
    """

    def __init__(self, bus: str) -> None:
        self.messages: list[Message] = []
        self.unreadable = 0
        self._names = ZmqTransport(bus)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def since(self, start_ns: int) -> list[Message]:
        """Messages that arrived after a time, in order."""
        found: list[Message] = []
        for message in reversed(self.messages):
            if message.arrived_ns < start_ns:
                break
            found.append(message)
        return found[::-1]

    def valid_again(self, start_ns: int) -> Message | None:
        """First of the messages since a time that are valid up to the last, if three are."""
        found: list[Message] = []
        for message in reversed(self.since(start_ns)):
            if not message.valid:
                break
            found.append(message)
        return found[-1] if len(found) >= 3 else None

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._names.close()
        self._context.term()

    def _run(self) -> None:
        sockets = {}
        poller = zmq.Poller()
        for name in DRIVING:
            socket = self._context.socket(zmq.SUB)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(self._names.endpoint(name))
            poller.register(socket, zmq.POLLIN)
            sockets[socket] = name
        while not self._stop.is_set():
            for socket, _ in poller.poll(50):
                self._take(sockets[socket], socket.recv(), time.monotonic_ns())
        for socket in sockets:
            socket.close()

    def _take(self, name: str, data: bytes, now_ns: int) -> None:
        try:
            event = read_event(data)
            model = getattr(event, name)
            frame_id = model.frameId
            if name != "modelV2":
                return
            speed = float(model.velocity.x[0]) if len(model.velocity.x) else float("nan")
            self.messages.append(
                Message(
                    now_ns,
                    frame_id,
                    model.frameIdExtra,
                    model.timestampEof,
                    event.valid,
                    speed,
                )
            )
        except MessageError:
            self.unreadable += 1

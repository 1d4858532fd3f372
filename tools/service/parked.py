"""Whether the car is parked, asked on the bus: models are switched only then."""

import time
from typing import Final

from cereal.errors import MessageError
from cereal.schema import content, read_event, reading
from cereal.transport.base import Subscriber, Transport

_DEVICE: Final = "deviceState"
# What a daemon that has frames publishes 20 times a second.
_OUTPUTS: Final = ("modelV2", "driverStateV2")
# Three messages of deviceState at its 2 Hz, and the time that ZeroMQ takes to connect.
ANSWER_S: Final = 1.6


def why_not_parked(transport: Transport, timeout_s: float = ANSWER_S) -> str:
    """Return in a phrase what says that the car drives; "" if it is parked.

    It drives while deviceState says started, or a daemon publishes what a model sees. If nobody
    says anything for `timeout_s`, it is parked; who may not listen cannot tell.
    """
    device = transport.subscriber(_DEVICE, conflate=True)
    outputs = {name: transport.subscriber(name, conflate=True) for name in _OUTPUTS}
    ends = [device, *outputs.values()]
    try:
        for service, reason in transport.refused().items():
            return f"nobody can tell, as {service} may not be received ({reason})"
        deadline = time.monotonic() + timeout_s
        while (remaining_s := deadline - time.monotonic()) > 0:
            # Rounded up, so that the last millisecond is not spent in turns.
            if not transport.wait(ends, int(remaining_s * 1000) + 1):
                break
            for name, output in outputs.items():
                if output.receive() is not None:
                    return f"a daemon publishes {name}"
            if _says_started(device):
                return f"{_DEVICE} says that it is started"
    finally:
        for end in ends:
            end.close()
    return ""


def _says_started(device: Subscriber) -> bool:
    """Return what the newest message says; False of none, and of one that is damaged."""
    data = device.receive()
    if data is None:
        return False
    try:
        event = read_event(data)
        with reading(_DEVICE):
            return event.which() == _DEVICE and bool(content(event).started)
    except MessageError:
        return False

"""The sending process of ``modeld bench --bus``: stamped messages and frames, on command.

Protocol, line by line on stdin: ``paced N`` sends N messages 5 ms apart, ``burst N`` sends N
messages as fast as it goes, ``frames N`` publishes N frames 5 ms apart; after each it prints
"done". It ends with stdin or by a signal. Before the first command it sends a message with the
stamp 0 every 20 ms, so that the receiver knows when it is connected.
Started by ``tools.bench_bus``.
"""

from __future__ import annotations

import argparse
import select
import struct
import sys
from contextlib import ExitStack

from cereal.clock import MonotonicClock
from cereal.frames import FrameRingWriter, nv12_format
from cereal.transport import ZmqTransport
from cereal.transport.base import Publisher
from modeld.startup import StopSignals

# Stamp: time of sending, ns of the monotonic clock; the rest of a message is padding.
STAMP = struct.Struct("<q")
# What modelV2 of the example models takes on the wire, rounded up.
MESSAGE_BYTES = 10_240
PACE_NS = 5_000_000  # far enough apart that the receiver sleeps in between, as it does in the car
FRAME_SIZE = (1928, 1208)
STREAM = "road"


class Sender:
    """One service and one frame ring.

    Args:
        transport: the bus.
        service: name of the service.
        server: name of the frame ring.
    """

    def __init__(self, transport: ZmqTransport, service: str, server: str) -> None:
        self._publisher: Publisher = transport.publisher(service)
        self._ring = FrameRingWriter(server, STREAM, nv12_format(*FRAME_SIZE))
        self._padding = bytes(MESSAGE_BYTES - STAMP.size)
        self._clock = MonotonicClock()

    def probe(self) -> None:
        """Send a message that is not counted."""
        self._publisher.send(STAMP.pack(0) + self._padding)

    def paced(self, count: int) -> None:
        """Send messages one by one."""
        for due_ns in self._due_times(count):
            self._clock.sleep_until_ns(due_ns)
            self._send()

    def burst(self, count: int) -> None:
        """Send messages back to back; what the receiver cannot take in is lost."""
        for _ in range(count):
            self._send()

    def frames(self, count: int) -> None:
        """Publish frames one by one, without touching the pixels."""
        for number, due_ns in enumerate(self._due_times(count)):
            self._clock.sleep_until_ns(due_ns)
            self._ring.next_buffer()
            now_ns = self._clock.now_ns()
            self._ring.publish(number, now_ns, now_ns)

    def close(self) -> None:
        """Remove the ring."""
        self._ring.close()

    def _send(self) -> None:
        self._publisher.send(STAMP.pack(self._clock.now_ns()) + self._padding)

    def _due_times(self, count: int) -> range:
        start_ns = self._clock.now_ns() + PACE_NS
        return range(start_ns, start_ns + count * PACE_NS, PACE_NS)


def main() -> int:
    """Run the sending process; return the exit code."""
    parser = argparse.ArgumentParser(description="sending process of modeld bench --bus")
    parser.add_argument("--server", required=True)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--service", required=True)
    args = parser.parse_args()
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        transport = ZmqTransport(args.bus)
        stack.callback(transport.close)
        sender = Sender(transport, args.service, args.server)
        stack.callback(sender.close)
        probing = True
        while not stop.event.is_set():
            if not select.select([sys.stdin], [], [], 0.02)[0]:
                if probing:
                    sender.probe()
                continue
            words = sys.stdin.readline().split()
            if not words:
                break
            probing = False
            command, count = words
            actions = {"paced": sender.paced, "burst": sender.burst, "frames": sender.frames}
            actions[command](int(count))
            print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

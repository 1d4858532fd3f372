"""The sending process of ``modeld bench --bus``: sends stamped messages and frames on command.

Each line on stdin is a command::

    paced N     send N messages, 5 ms apart
    near N      send N messages, 1 ms apart
    burst N     send N messages as fast as possible
    steady N    send N small messages, 10 000 per second
    frames N    publish N frames in the frame ring, 5 ms apart
    vision N    publish N frames by VisionIPC, 5 ms apart

After each command the process prints "done" and a JSON object. It ends at the end of stdin or on a
signal. Until the first command it sends a message with the stamp 0 every 20 ms, so that the
receiver knows when it is connected. Started by ``tools.bench.bus``.
"""

from __future__ import annotations

import argparse
import select
import struct
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cereal.clock import MonotonicClock
from cereal.frames import FrameRingWriter, nv12_format
from cereal.stacks import STACKS, Addresses, BusAddress
from cereal.transport.opening import open_transport
from cereal.visionipc.server import VisionIpcServer
from modeld.health.snapshot import FigureReader
from modeld.startup import StopSignals
from tools.lib.json_output import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cereal.transport.base import Publisher, Transport

# The stack defines the layout of message rings; ZeroMQ is the same on all stacks.
STACK = STACKS["openpilot-2026"]
# Stamp: time of sending in ns on the monotonic clock, and the message's number.
STAMP = struct.Struct("<qq")
# Size of modelV2 of the example models on the wire, rounded up.
MESSAGE_BYTES = 10_240
# About the size of carState, one of 13 services at 100 Hz.
SMALL_BYTES = 256
PACE_NS = 5_000_000  # long enough that the receiver sleeps in between, as it does in the car
NEAR_NS = 1_000_000
STEADY_NS = 100_000
FRAME_SIZE = (1928, 1208)
STREAM = "road"
BUFFERS = 4


def open_bus(address: str) -> Transport:
    """Open a bus that uses one address to publish and to subscribe."""
    return open_transport(Addresses(address, address), (), STACK)


class Sender:
    """Publishes two services, a frame ring and a VisionIPC server.

    `services` are the services of large and of small messages. `server` names both the frame ring
    and the VisionIPC server; `prefix` is that of the message rings.
    """

    def __init__(self, transport: Transport, services: list[str], server: str, prefix: str) -> None:
        self._large, self._small = (transport.publisher(name) for name in services)
        self._clock = MonotonicClock()
        self._transport = transport
        self._server = server
        self._prefix = prefix
        self._figures = FigureReader()

    def probe(self) -> None:
        """Send one message with the stamp 0 on each service; the receiver does not count it."""
        for publisher in (self._large, self._small):
            publisher.send(STAMP.pack(0, 0) + bytes(8))

    def paced(self, count: int) -> dict[str, Any]:
        """Send messages 5 ms apart."""
        return self._send(self._large, MESSAGE_BYTES, self._due_times(count, PACE_NS))

    def near(self, count: int) -> dict[str, Any]:
        """Send messages 1 ms apart, so that caches and processors stay awake."""
        return self._send(self._large, MESSAGE_BYTES, self._due_times(count, NEAR_NS))

    def burst(self, count: int) -> dict[str, Any]:
        """Send messages back to back; those that overflow the receiver's queue are lost."""
        return self._send(self._large, MESSAGE_BYTES, [0] * count)

    def steady(self, count: int) -> dict[str, Any]:
        """Send small messages, 10 000 per second; late ones are sent without delay."""
        return self._send(self._small, SMALL_BYTES, self._due_times(count, STEADY_NS))

    def frames(self, count: int) -> dict[str, Any]:
        """Publish frames 5 ms apart in a frame ring, without touching the pixels."""
        ring = FrameRingWriter(self._server, STREAM, nv12_format(*FRAME_SIZE))
        try:
            print("ready", flush=True)
            return self._publish(count, ring.next_buffer, ring.publish)
        finally:
            ring.close()

    def vision(self, count: int) -> dict[str, Any]:
        """Publish frames 5 ms apart by VisionIPC, without touching the pixels."""
        with VisionIpcServer(
            self._server, self._transport, stack=STACK, prefix=self._prefix
        ) as server:
            server.create_buffers(STREAM, BUFFERS, nv12_format(*FRAME_SIZE))
            server.start()
            print("ready", flush=True)
            return self._publish(
                count,
                lambda: server.next_buffer(STREAM),
                lambda number, sof_ns, eof_ns: server.send(STREAM, number, sof_ns, eof_ns),
            )

    def _publish(
        self, count: int, begin: Callable[[], object], send: Callable[[int, int, int], None]
    ) -> dict[str, Any]:
        # Wait for the line that the reader sends when it is attached.
        sys.stdin.readline()
        for number, due_ns in enumerate(self._due_times(count, PACE_NS)):
            self._clock.sleep_until_ns(due_ns)
            begin()
            now_ns = self._clock.now_ns()
            send(number, now_ns, now_ns)
        return {}

    def _send(self, publisher: Publisher, size: int, due_ns: Sequence[int]) -> dict[str, Any]:
        """Send messages at the given times; return the duration of `send` and our memory growth."""
        message = bytearray(size)
        # Both transports copy the message, so one buffer is enough.
        data = cast("bytes", message)
        # Filled with ones to allocate its memory now, so that it does not count as growth.
        took_ns = np.ones(len(due_ns), np.int64)
        before = self._figures.read().memory_bytes
        for number, due in enumerate(due_ns):
            if due:
                self._clock.sleep_until_ns(due)
            now_ns = time.monotonic_ns()
            STAMP.pack_into(message, 0, now_ns, number)
            publisher.send(data)
            took_ns[number] = time.monotonic_ns() - now_ns
        return {
            "send_p50_us": float(np.percentile(took_ns, 50)) / 1e3,
            "send_p99_us": float(np.percentile(took_ns, 99)) / 1e3,
            "grown_mib": (self._figures.read().memory_bytes - before) / (1 << 20),
        }

    def _due_times(self, count: int, pace_ns: int) -> range:
        start_ns = self._clock.now_ns() + pace_ns
        return range(start_ns, start_ns + count * pace_ns, pace_ns)


def main() -> int:
    """Run the sending process; return the exit code."""
    parser = argparse.ArgumentParser(description="sending process of modeld bench --bus")
    parser.add_argument("--server", required=True)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--services", required=True, nargs=2)
    args = parser.parse_args()
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        transport = open_bus(args.bus)
        stack.callback(transport.close)
        sender = Sender(
            transport, args.services, args.server, BusAddress.parse(args.bus).prefix or ""
        )
        actions = {
            one.__name__: one
            for one in (
                *(sender.paced, sender.near, sender.burst, sender.steady),
                *(sender.frames, sender.vision),
            )
        }
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
            print("done", json_text(actions[words[0]](int(words[1]))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

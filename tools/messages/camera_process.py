"""The parts of a camera process: arguments, protocol, pace; and the rings of cameras.

Protocol: frames run freely, with increasing ids; a line on stdin begins the frames that count;
after them one JSON line is printed, and frames run on until stdin closes or a signal comes.
"""

from __future__ import annotations

import argparse
import select
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Protocol

import numpy as np

from cereal.clock import MonotonicClock
from cereal.errors import CerealError
from cereal.frames import DEFAULT_SLOTS, FrameFormat, FrameRingWriter
from cereal.pubsub import PubMaster
from cereal.transport import Transport, ZmqTransport
from modeld.startup import StopSignals
from tools.lib.json_output import print_json
from tools.messages.drive_messages import (
    DRIVE_SERVICES,
    NS_PER_S,
    DriveMessages,
    FrameTimes,
    Mounting,
)
from tools.messages.telemetry import CarSample


class Camera(Protocol):
    """What publishes frames."""

    def publish(self, frame_id: int) -> None:
        """Send one frame of all streams."""

    def close(self) -> None:
        """Remove the frame rings."""


class CarBus:
    """The messages of the car that come with frames."""

    def __init__(self, transport: Transport, mounting: Mounting) -> None:
        self.clock = MonotonicClock()
        self._publisher = PubMaster(DRIVE_SERVICES, transport, self.clock)
        self._messages = DriveMessages(mounting)

    def publish(self, times: FrameTimes, car: CarSample) -> None:
        """Send what is due on the bus with this frame."""
        for service, data in self._messages.for_frame(times, car):
            self._publisher.send(service, data)


def make_rings(
    server: str, formats: Mapping[str, FrameFormat], slots: int = DEFAULT_SLOTS
) -> dict[str, FrameRingWriter]:
    """Make the frame rings of all streams, or none.

    Raises:
        FrameError: a ring has another writer, or memory is short.
    """
    with ExitStack() as made:
        rings = {}
        for stream, layout in formats.items():
            rings[stream] = FrameRingWriter(server, stream, layout, slots)
            made.callback(rings[stream].close)
        made.pop_all()
    return rings


def run_camera(description: str, make: Callable[[argparse.Namespace, Transport], Camera]) -> None:
    """Run a camera process to its end; what `make` returns publishes the frames.

    Arguments of the command line: `server` (name of the frame rings), `bus` (address), `size`
    (width, height; None if it was not given), `frames` (that count), `rate_hz`, `driver` (whether
    the driver camera is wanted, too).
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--server", required=True)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--size", type=int, nargs=2)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--rate-hz", type=float, required=True)
    parser.add_argument("--driver", action="store_true")
    args = parser.parse_args()
    try:
        with ExitStack() as stack:
            stop = stack.enter_context(StopSignals())
            transport = ZmqTransport(args.bus)
            stack.callback(transport.close)
            camera = make(args, transport)
            stack.callback(camera.close)
            _publish_frames(camera, args.frames, args.rate_hz, stop)
    except CerealError as error:  # rings that another camera process writes, an address in use
        sys.exit(f"camera process: {error}")


def _publish_frames(camera: Camera, frames: int, rate_hz: float, stop: StopSignals) -> None:
    clock = MonotonicClock()
    period_ns = int(NS_PER_S / rate_hz)
    frame_id, first = 0, -1
    late_ms: list[float] = []
    due_ns = clock.now_ns()
    while not stop.event.is_set():
        command = _read_command()
        if command == "":
            break
        if command is not None and first < 0:
            first = frame_id
        counted = frame_id - first if first >= 0 else -1
        if 0 <= counted < frames:
            late_ms.append((clock.now_ns() - due_ns) / 1e6)
        camera.publish(frame_id)
        if counted == frames - 1:
            report = {
                "first_frame": first,
                "last_frame": frame_id,
                "late_ms_p99": float(np.percentile(late_ms, 99)),
                "late_ms_max": max(late_ms),
            }
            print_json(report)
        frame_id += 1
        # After a hiccup of this process frames must not come in a burst: the daemon would take
        # two for one, and a drop would be counted that no real camera causes.
        due_ns = max(due_ns + period_ns, clock.now_ns() + period_ns * 4 // 5)
        clock.sleep_until_ns(due_ns)


def _read_command() -> str | None:
    """Return a line from stdin, "" when it is closed, None when there is nothing yet."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return None
    return sys.stdin.readline()

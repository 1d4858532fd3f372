"""Runs a process that publishes camera frames and car messages for a daemon.

Protocol: the process publishes frames with increasing ids at a fixed rate. A line on stdin starts
the measurement of a given number of frames. After these, the process prints one JSON line with
their ids and delays. It publishes until stdin closes or a signal arrives.
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
    """A source that publishes the frames of all its streams."""

    def publish(self, frame_id: int) -> None:
        """Publish one frame of each stream."""

    def close(self) -> None:
        """Remove the frame rings."""


class CarBus:
    """Publishes the car's messages that accompany frames."""

    def __init__(self, transport: Transport, mounting: Mounting) -> None:
        self.clock = MonotonicClock()
        self._publisher = PubMaster(DRIVE_SERVICES, transport, self.clock)
        self._messages = DriveMessages(mounting)

    def publish(self, times: FrameTimes, car: CarSample) -> None:
        """Send the messages that are due with this frame."""
        for service, data in self._messages.for_frame(times, car):
            self._publisher.send(service, data)


def make_rings(
    server: str, formats: Mapping[str, FrameFormat], slots: int = DEFAULT_SLOTS
) -> dict[str, FrameRingWriter]:
    """Create the frame rings of all streams; if one fails, close the others.

    Raises:
        FrameError: A ring has another writer, or memory is exhausted.
    """
    with ExitStack() as made:
        rings = {}
        for stream, layout in formats.items():
            rings[stream] = FrameRingWriter(server, stream, layout, slots)
            made.callback(rings[stream].close)
        made.pop_all()
    return rings


def run_camera(description: str, make: Callable[[argparse.Namespace, Transport], Camera]) -> None:
    """Run a camera process to its end. `make` returns the camera for the parsed arguments.

    Command line arguments: `server` (name of the frame rings), `bus` (address), `size` (width,
    height; None if not given), `frames` (number of measured frames), `rate_hz`, `driver` (whether
    to publish the driver camera, too).
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
    except CerealError as error:  # for example, another process writes the rings
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
        # After a hiccup of this process, frames must not be sent in a burst. The daemon would skip
        # some, and count drops that a real camera does not cause.
        due_ns = max(due_ns + period_ns, clock.now_ns() + period_ns * 4 // 5)
        clock.sleep_until_ns(due_ns)


def _read_command() -> str | None:
    """Return a line from stdin, "" if stdin is closed, None if there is no line yet."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return None
    return sys.stdin.readline()

"""The demo's camera process: rendered frames into the shared-memory rings, car state onto the bus.

Protocol: like a parked car it offers one picture again and again, with increasing frame ids. When a
line arrives on stdin it drives; at the end it writes one JSON line with the first and the last
frame id of the drive and is parked again. It ends with stdin or by a signal. Started by
``tools.demo`` as ``python -m tools.lib.demo_camera``.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from cereal.clock import MonotonicClock
from cereal.frames import FrameRingWriter, nv12_format
from cereal.pubsub import PubMaster
from cereal.transport import ZmqTransport
from modeld.calibration import DeviceCameras, find_cameras
from modeld.startup import ROAD_STREAM, WIDE_STREAM, StopSignals
from tools.lib.demo_drive import DemoDrive, drive_state
from tools.lib.drive_messages import (
    DRIVE_SERVICES,
    NS_PER_S,
    READOUT_NS,
    DriveMessages,
    FrameTimes,
    Mounting,
)
from tools.lib.telemetry import CarSample
from tools.lib.video import write_planes

# What the demo pretends to be: the smallest current camera, so that the demo runs anywhere.
MOUNTING = Mounting(device_type="mici", sensor="os04c10")
# The drive is rendered at the model's rate, also when the camera runs slower.
DRIVE_HZ = 20.0

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def demo_cameras() -> DeviceCameras:
    """Return the cameras of the demo's device."""
    return find_cameras(MOUNTING.device_type, MOUNTING.sensor)


class DemoCamera:
    """Two rendered cameras and the messages around them.

    Args:
        server: name of the frame rings.
        transport: the bus.
        frames: length of the drive; all of it is rendered here, because rendering beside the
            daemon would take its processor.
    """

    def __init__(self, server: str, transport: ZmqTransport, frames: int) -> None:
        cameras = demo_cameras()
        assert cameras.wide is not None, "the demo's device has two cameras"
        # The wide frame is published first: when the road frame wakes the daemon, both are there.
        streams = {WIDE_STREAM: cameras.wide, ROAD_STREAM: cameras.road}
        self._pictures: dict[str, list[Planes]] = {}
        for stream, camera in streams.items():
            drive = DemoDrive(camera)
            self._pictures[stream] = [drive.render(index / DRIVE_HZ) for index in range(frames)]
        # Together, after the slow part: a daemon connects to what streams it finds.
        self._rings = {
            stream: FrameRingWriter(server, stream, nv12_format(camera.width, camera.height))
            for stream, camera in streams.items()
        }
        self._clock = MonotonicClock()
        self._publisher = PubMaster(DRIVE_SERVICES, transport, self._clock)
        self._messages = DriveMessages(MOUNTING)

    def publish(self, frame_id: int, picture: int) -> None:
        """Send one frame of both cameras, and what is due on the bus with it."""
        now_ns = self._clock.now_ns()
        times = FrameTimes(frame_id, now_ns - READOUT_NS, now_ns)
        state = drive_state(picture / DRIVE_HZ)
        car = CarSample(state.speed_mps, 0.0, left_blinker=False, right_blinker=False)
        for service, data in self._messages.for_frame(times, car):
            self._publisher.send(service, data)
        for stream, ring in self._rings.items():
            write_planes(*self._pictures[stream][picture], ring.next_buffer(), ring.format)
            ring.publish(frame_id, times.sof_ns, times.eof_ns)

    def close(self) -> None:
        """Remove the rings."""
        for ring in self._rings.values():
            ring.close()


def main() -> int:
    """Run the camera process; return the exit code."""
    parser = argparse.ArgumentParser(description="camera process of the demo")
    parser.add_argument("--server", required=True)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--rate-hz", type=float, required=True)
    args = parser.parse_args()
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        transport = ZmqTransport(args.bus)
        stack.callback(transport.close)
        camera = DemoCamera(args.server, transport, args.frames)
        stack.callback(camera.close)
        _run(camera, args.frames, args.rate_hz, stop)
    return 0


def _run(camera: DemoCamera, frames: int, rate_hz: float, stop: StopSignals) -> None:
    """Park, drive when told to, park again; until a signal, or until the starter is gone."""
    clock = MonotonicClock()
    period_ns = int(NS_PER_S / rate_hz)
    frame_id, first, picture = 0, -1, 0
    due_ns = clock.now_ns()
    while not stop.event.is_set():
        command = _read_command()
        if command == "":
            break
        if command is not None and first < 0:
            first = frame_id
        camera.publish(frame_id, picture)
        if first >= 0 and frame_id == first + frames - 1:
            print(json.dumps({"first_frame": first, "last_frame": frame_id}), flush=True)
        frame_id += 1
        picture = min(frame_id - first, frames - 1) if first >= 0 else 0
        # After a hiccup frames must not come in a burst: the daemon would take two for one.
        due_ns = max(due_ns + period_ns, clock.now_ns() + period_ns * 4 // 5)
        clock.sleep_until_ns(due_ns)


def _read_command() -> str | None:
    """Return a line from stdin, "" when it is closed, None when there is nothing yet."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return None
    return sys.stdin.readline()


if __name__ == "__main__":
    sys.exit(main())

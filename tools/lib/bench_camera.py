"""The camera process of ``modeld bench --daemon``: frames at a fixed rate, and the bus around them.

Pictures are written into the rings once; a frame is then published without touching its pixels, as
a camera's DMA would, so that this process takes no time from the daemon beside it. The end of a
frame's exposure is stamped immediately before it is published: what comes later is the daemon's.

Protocol: it runs freely; a line on stdin begins the counted frames; after them it prints one JSON
line and runs on until stdin closes or a signal comes. Started by ``tools.bench_daemon``.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
from contextlib import ExitStack

import numpy as np

from cereal.clock import MonotonicClock
from cereal.frames import DEFAULT_SLOTS, FrameRingWriter, nv12_format
from cereal.pubsub import PubMaster
from cereal.transport import ZmqTransport
from modeld.startup import ROAD_STREAM, WIDE_STREAM, StopSignals
from tools.lib.drive_messages import (
    DRIVE_SERVICES,
    NS_PER_S,
    READOUT_NS,
    DriveMessages,
    FrameTimes,
    Mounting,
)
from tools.lib.telemetry import CarSample

SPEED_MPS = 25.0


class PacedCamera:
    """Two cameras whose rings hold random pictures.

    Args:
        server: name of the frame rings.
        transport: the bus.
        size: (width, height) of both cameras.
    """

    def __init__(self, server: str, transport: ZmqTransport, size: tuple[int, int]) -> None:
        layout = nv12_format(*size)
        # The wide frame is published first: when the road frame wakes the daemon, both are there.
        self._rings = [FrameRingWriter(server, name, layout) for name in (WIDE_STREAM, ROAD_STREAM)]
        rng = np.random.default_rng(0)
        for _ in range(DEFAULT_SLOTS):
            for ring in self._rings:
                ring.next_buffer()[:] = rng.integers(0, 256, layout.size, np.uint8)
                ring.publish(0, 0, 0)
        self._clock = MonotonicClock()
        self._publisher = PubMaster(DRIVE_SERVICES, transport, self._clock)
        self._messages = DriveMessages(Mounting())
        self._car = CarSample(SPEED_MPS, 0.0, left_blinker=False, right_blinker=False)

    def publish(self, frame_id: int) -> None:
        """Send one frame of both cameras, and what is due on the bus with it."""
        now_ns = self._clock.now_ns()
        times = FrameTimes(frame_id, now_ns - READOUT_NS, now_ns)
        for service, data in self._messages.for_frame(times, self._car):
            self._publisher.send(service, data)
        for ring in self._rings:
            ring.next_buffer()
            ring.publish(frame_id, times.sof_ns, self._clock.now_ns())

    def close(self) -> None:
        """Remove the rings."""
        for ring in self._rings:
            ring.close()


def main() -> int:
    """Run the camera process; return the exit code."""
    parser = argparse.ArgumentParser(description="camera process of modeld bench --daemon")
    parser.add_argument("--server", required=True)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--size", type=int, nargs=2, required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--rate-hz", type=float, required=True)
    args = parser.parse_args()
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        transport = ZmqTransport(args.bus)
        stack.callback(transport.close)
        width, height = args.size
        camera = PacedCamera(args.server, transport, (width, height))
        stack.callback(camera.close)
        _run(camera, args.frames, args.rate_hz, stop)
    return 0


def _run(camera: PacedCamera, frames: int, rate_hz: float, stop: StopSignals) -> None:
    clock = MonotonicClock()
    period_ns = int(NS_PER_S / rate_hz)
    frame_id, first = 0, -1
    late_ms: list[float] = []
    due_ns = clock.now_ns()
    while not stop.event.is_set():
        if select.select([sys.stdin], [], [], 0)[0]:
            if sys.stdin.readline() == "":
                break
            first = frame_id
        late_ms.append((clock.now_ns() - due_ns) / 1e6)
        camera.publish(frame_id)
        if first >= 0 and frame_id == first + frames - 1:
            counted = late_ms[-frames:]
            report = {
                "first_frame": first,
                "last_frame": frame_id,
                "late_ms_p99": float(np.percentile(counted, 99)),
                "late_ms_max": max(counted),
            }
            print(json.dumps(report), flush=True)
        frame_id += 1
        # After a hiccup of this process frames must not come in a burst: the daemon would take
        # two for one, and a drop would be counted that no real camera causes.
        due_ns = max(due_ns + period_ns, clock.now_ns() + period_ns * 4 // 5)
        clock.sleep_until_ns(due_ns)


if __name__ == "__main__":
    sys.exit(main())

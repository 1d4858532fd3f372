"""The camera process of ``modeld bench --daemon``: frames at a fixed rate, and the bus around them.

Pictures are written into the rings once; a frame is then published without touching its pixels, as
a camera's DMA would, so that this process takes no time from the daemon beside it. The end of a
frame's exposure is stamped immediately before it is published: what comes later is the daemon's.

Started by ``tools.bench_daemon``; ``tools.lib.camera_process`` has the protocol.
"""

from __future__ import annotations

import sys

import numpy as np

from cereal.frames import DEFAULT_SLOTS, nv12_format
from cereal.transport import ZmqTransport
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from tools.lib.camera_process import CarBus, make_rings, run_camera
from tools.lib.drive_messages import READOUT_NS, FrameTimes, Mounting
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
        # Before the rings, which stay behind when a constructor fails.
        self._bus = CarBus(transport, Mounting())
        # The wide frame is published first: when the road frame wakes the daemon, both are there.
        rings = make_rings(server, dict.fromkeys((WIDE_STREAM, ROAD_STREAM), layout))
        self._rings = list(rings.values())
        rng = np.random.default_rng(0)
        for _ in range(DEFAULT_SLOTS):
            for ring in self._rings:
                ring.next_buffer()[:] = rng.integers(0, 256, layout.size, np.uint8)
                ring.publish(0, 0, 0)
        self._car = CarSample(SPEED_MPS, 0.0, left_blinker=False, right_blinker=False)

    def publish(self, frame_id: int, _picture: int) -> None:
        """Send one frame of both cameras, and what is due on the bus with it."""
        clock = self._bus.clock
        now_ns = clock.now_ns()
        times = FrameTimes(frame_id, now_ns - READOUT_NS, now_ns)
        self._bus.publish(times, self._car)
        for ring in self._rings:
            ring.next_buffer()
            ring.publish(frame_id, times.sof_ns, clock.now_ns())

    def close(self) -> None:
        """Remove the rings."""
        for ring in self._rings:
            ring.close()


def main() -> int:
    """Run the camera process; return the exit code."""
    run_camera(
        "camera process of modeld bench --daemon",
        lambda args, transport: PacedCamera(args.server, transport, tuple(args.size)),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

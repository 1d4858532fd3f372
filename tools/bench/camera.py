"""The camera process of ``modeld bench --daemon``: publishes frames and messages at a fixed rate.

Random pictures are written into the rings once. A frame is then published without touching its
pixels, the way a camera's DMA works, so that this process takes no CPU time from the daemon. The
end of a frame's exposure is stamped immediately before it is published, so the daemon accounts for
all later delay.

Started by ``tools.bench.daemon``; ``tools.messages.camera_process`` has the protocol.
"""

from __future__ import annotations

import queue
import sys
import threading

import numpy as np

from cereal.clock import MonotonicClock
from cereal.frames import DEFAULT_SLOTS, FrameRingWriter, nv12_format
from cereal.transport import Transport
from modeld.startup import DRIVER_STREAM, ROAD_STREAM, WIDE_STREAM
from tools.messages.camera_process import CarBus, make_rings, run_camera
from tools.messages.drive_messages import NS_PER_S, READOUT_NS, FrameTimes, Mounting
from tools.messages.telemetry import CarSample

SPEED_MPS = 25.0


class LaterCamera:
    """A camera whose thread publishes each frame `later_ns` after the other cameras."""

    def __init__(self, ring: FrameRingWriter, later_ns: int) -> None:
        self._ring = ring
        self._later_ns = later_ns
        self._asked: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._publish, name="driver camera", daemon=True)
        self._thread.start()

    def publish_later(self, frame_id: int, now_ns: int) -> None:
        """Schedule the frame `frame_id` for `later_ns` after `now_ns`."""
        self._asked.put((frame_id, now_ns + self._later_ns))

    def close(self) -> None:
        """Publish the scheduled frames and end the thread; the caller closes the ring."""
        self._asked.put(None)
        self._thread.join()

    def _publish(self) -> None:
        clock = MonotonicClock()
        while (asked := self._asked.get()) is not None:
            frame_id, due_ns = asked
            clock.sleep_until_ns(due_ns)
            self._ring.next_buffer()
            self._ring.publish(frame_id, due_ns - READOUT_NS, clock.now_ns())


class PacedCamera:
    """The road and wide cameras, and optionally a driver camera, of one `size` (width, height).

    With `driver_later_ns` there is a driver camera, which publishes this long after the others.
    """

    def __init__(
        self,
        server: str,
        transport: Transport,
        size: tuple[int, int],
        driver_later_ns: int | None = None,
    ) -> None:
        layout = nv12_format(*size)
        # Opened before the rings, which would leak if this failed after them.
        self._bus = CarBus(transport, Mounting())
        # The road frame wakes the daemon, so it is published last.
        streams = [WIDE_STREAM, ROAD_STREAM]
        slots = DEFAULT_SLOTS
        if driver_later_ns is not None:
            streams.append(DRIVER_STREAM)
            # Three cameras use no more shared memory than two.
            slots = 2 * DEFAULT_SLOTS // 3
        rings = make_rings(server, dict.fromkeys(streams, layout), slots)
        rng = np.random.default_rng(0)
        for _ in range(slots):
            for ring in rings.values():
                ring.next_buffer()[:] = rng.integers(0, 256, layout.size, np.uint8)
                ring.publish(0, 0, 0)
        self._all_rings = list(rings.values())
        driver = rings.pop(DRIVER_STREAM, None)
        self._rings = list(rings.values())
        self._driver: LaterCamera | None = None
        if driver is not None and driver_later_ns is not None:
            self._driver = LaterCamera(driver, driver_later_ns)
        self._car = CarSample(SPEED_MPS, 0.0, left_blinker=False, right_blinker=False)

    def publish(self, frame_id: int) -> None:
        """Publish one frame of each camera, and the messages due with it."""
        clock = self._bus.clock
        now_ns = clock.now_ns()
        times = FrameTimes(frame_id, now_ns - READOUT_NS, now_ns)
        self._bus.publish(times, self._car)
        for ring in self._rings:
            ring.next_buffer()
            ring.publish(frame_id, times.sof_ns, clock.now_ns())
        if self._driver is not None:
            self._driver.publish_later(frame_id, now_ns)

    def close(self) -> None:
        """Remove the rings."""
        if self._driver is not None:
            self._driver.close()
        for ring in self._all_rings:
            ring.close()


def main() -> int:
    """Run the camera process; return the exit code."""
    run_camera(
        "camera process of modeld bench --daemon",
        lambda args, transport: PacedCamera(
            args.server,
            transport,
            tuple(args.size),
            int(NS_PER_S / args.rate_hz / 2) if args.driver else None,
        ),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

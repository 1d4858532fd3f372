"""The demo's camera process: rendered frames into the shared-memory rings, car state onto the bus.

Like a parked car it offers one picture again and again until it is told to drive, and is parked
again at the end. Started by ``tools.demo`` as ``python -m tools.render.demo_camera``;
``tools.lib.camera_process`` has the protocol.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from cereal.frames import nv12_format
from cereal.transport import ZmqTransport
from modeld.calibration import Camera, DeviceCameras, find_cameras
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from tools.lib.camera_process import CarBus, make_rings, run_camera
from tools.lib.drive_messages import READOUT_NS, FrameTimes, Mounting
from tools.lib.telemetry import CarSample
from tools.lib.video import write_planes
from tools.render.painter import DrivePainter
from tools.render.world import LEFT, RIGHT, TICKS_PER_S, World, seeded_motion
from tools.world.view import Lens, Mount

# What the demo pretends to be: the smallest current camera, so that the demo runs anywhere.
MOUNTING = Mounting(device_type="mici", sensor="os04c10")
# The drive is rendered at the model's rate, also when the camera runs slower.
DRIVE_HZ = 20.0
TICKS_PER_FRAME = round(TICKS_PER_S / DRIVE_HZ)
SEED = 0

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def demo_cameras() -> DeviceCameras:
    """Return the cameras of the demo's device."""
    return find_cameras(MOUNTING.device_type, MOUNTING.sensor)


def demo_world(frames: int) -> World:
    """Return the road that the demo drives along."""
    return World(seeded_motion(SEED, frames / DRIVE_HZ))


def demo_painter(world: World, camera: Camera) -> DrivePainter:
    """Return what renders the pictures of one of the demo's cameras."""
    return DrivePainter(world, Mount(Lens.of(camera), MOUNTING.rpy_rad, MOUNTING.height_m), SEED)


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
        self._world = demo_world(frames)
        self._pictures: dict[str, list[Planes]] = {}
        for stream, camera in streams.items():
            painter = demo_painter(self._world, camera)
            self._pictures[stream] = [
                painter.paint(index * TICKS_PER_FRAME).nv12() for index in range(frames)
            ]
        # Before the rings, which stay behind when a constructor fails.
        self._bus = CarBus(transport, MOUNTING)
        self._shown: int | None = None
        # Together, after the slow part: a daemon connects to what streams it finds.
        self._rings = make_rings(
            server, {name: nv12_format(one.width, one.height) for name, one in streams.items()}
        )

    def publish(self, frame_id: int, picture: int) -> None:
        """Send one frame of both cameras, and what is due on the bus with it."""
        now_ns = self._bus.clock.now_ns()
        times = FrameTimes(frame_id, now_ns - READOUT_NS, now_ns)
        state = self._world.state(picture * TICKS_PER_FRAME)
        # A parked car shows one picture; a moving one that does is a camera that hangs.
        parked, self._shown = picture == self._shown, picture
        car = CarSample(
            0.0 if parked else state.speed_mps,
            state.steering_angle_deg,
            left_blinker=state.blinker == LEFT,
            right_blinker=state.blinker == RIGHT,
        )
        self._bus.publish(times, car)
        for stream, ring in self._rings.items():
            write_planes(*self._pictures[stream][picture], ring.next_buffer(), ring.format)
            ring.publish(frame_id, times.sof_ns, times.eof_ns)

    def close(self) -> None:
        """Remove the rings."""
        for ring in self._rings.values():
            ring.close()


def main() -> int:
    """Run the camera process; return the exit code."""
    run_camera(
        "camera process of the demo",
        lambda args, transport: DemoCamera(args.server, transport, args.frames),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

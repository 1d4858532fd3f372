"""The cameras of the simulated car: what they see is painted straight into camera frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from cereal.frames import Frame, FrameFormat, nv12_format
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from modeld.vehicle.calibration import Camera, DeviceCameras, find_cameras
from tools.closed_loop.messages import DEVICE, ENDED_BEFORE_NS, EXPOSED_BEFORE_NS, SENSOR
from tools.closed_loop.simulation import Simulation
from tools.closed_loop.trial import Trial
from tools.lib.video import write_planes
from tools.world.painting.painter import Painter
from tools.world.painting.sky import Picture
from tools.world.view import Lens, Mount

# The wide frame is published first: when the road frame wakes the daemon, both are there.
STREAMS = (WIDE_STREAM, ROAD_STREAM)
Pictures = Mapping[str, Picture]
# Changes what the cameras deliver.
Disturb = Callable[[Pictures], Pictures]


def device_cameras() -> DeviceCameras:
    """Return the cameras of the simulated car's device."""
    return find_cameras(DEVICE, SENSOR)


def cropped_cameras() -> DeviceCameras:
    """Return the same cameras without what no view of the model reaches: a third of the pixels.

    Wide enough for all mountings and all errors of calibration of `tools.closed_loop.trial`.
    """
    road, wide = _both(device_cameras()).values()
    return DeviceCameras(replace(road, width=816, height=640), replace(wide, width=576, height=384))


def _both(cameras: DeviceCameras) -> dict[str, Camera]:
    """Return road and wide camera by stream."""
    assert cameras.wide is not None, "the device has two cameras"
    return {ROAD_STREAM: cameras.road, WIDE_STREAM: cameras.wide}


def formats(cameras: DeviceCameras) -> dict[str, FrameFormat]:
    """Return the layout of the frames by stream."""
    return {stream: nv12_format(one.width, one.height) for stream, one in _both(cameras).items()}


class Cameras:
    """The two cameras of one drive.

    Args:
        trial: the drive.
        cameras: which there are.
        disturb: a fault between simulation and daemon; None: none.
        are_swapped: each camera's lens sits before the other one's sensor.
    """

    def __init__(
        self,
        trial: Trial,
        cameras: DeviceCameras,
        disturb: Disturb | None = None,
        *,
        are_swapped: bool = False,
    ) -> None:
        both = _both(cameras)
        focal_px = [one.focal_px for one in both.values()]
        if are_swapped:
            focal_px.reverse()
        self._trial = trial
        self._disturb = disturb
        self._formats = formats(cameras)
        self._painters = {
            stream: Painter(
                trial.world,
                Mount(Lens.of(replace(camera, focal_px=focal)), trial.rpy_rad, trial.height_m),
            )
            for (stream, camera), focal in zip(both.items(), focal_px, strict=True)
        }
        self._buffers = {
            stream: np.zeros(layout.size, np.uint8) for stream, layout in self._formats.items()
        }

    def frames(self, simulation: Simulation, first_id: int, now_ns: int) -> dict[str, Frame]:
        """Return the frames of this moment; a lost one is missing.

        Args:
            simulation: where everything is.
            first_id: frame id of the drive's first frame.
            now_ns: the moment that the pictures show, and at which they are announced.

        Returns:
            By stream, in the order in which they are to be published. The buffers are used again
            for the next frames.
        """
        number = simulation.frame
        pictures: Pictures = {
            stream: painter.paint(simulation.body, simulation.vehicles, number)
            for stream, painter in self._painters.items()
        }
        if self._disturb is not None:
            pictures = self._disturb(pictures)
        frames = {}
        for index, stream in enumerate(STREAMS):
            # Whoever drives before the hand-over sees everything.
            if simulation.is_engaged and self._trial.loses(index, number):
                continue
            layout, buffer = self._formats[stream], self._buffers[stream]
            write_planes(*pictures[stream].nv12(), buffer, layout)
            frames[stream] = Frame(
                buffer,
                layout,
                first_id + number,
                now_ns - EXPOSED_BEFORE_NS,
                now_ns - ENDED_BEFORE_NS,
            )
        return frames

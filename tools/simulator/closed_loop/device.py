"""The simulated car's device: builds its messages and camera frames, and publishes them.

`CarMessages` and `Cameras` derive both from the state of a `Simulation`. `LiveBus` sends them over
the real bus and frame rings, and receives the daemon's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import numpy as np

from cereal.frames import Frame, FrameFormat, nv12_format
from cereal.transport import ZmqTransport
from modeld.daemon import PUBLICATIONS
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from modeld.vehicle.cameras import Camera, DeviceCameras, find_cameras
from modeld.vehicle.inputs import SUBSCRIPTIONS
from tools.drives.drive import Message
from tools.messages.camera_process import make_rings
from tools.simulator.closed_loop.simulation import Simulation
from tools.simulator.closed_loop.trial import Trial
from tools.simulator.render.messages import (
    CarReport,
    Motion,
    ReportedValues,
    fill_camera_state,
    message_of,
)
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.painting.painter import Painter
from tools.simulator.world.view import Lens, Mount
from tools.video.video import write_planes

# The smallest current device, so that models for it run on any other.
DEVICE, SENSOR = "mici", "os04c10"
# A frame is announced 1 ms after its readout, which takes 11 ms with this sensor.
ENDED_BEFORE_NS = 1_000_000
EXPOSED_BEFORE_NS = 12_000_000
STATE_SERVICES = {WIDE_STREAM: "wideRoadCameraState", ROAD_STREAM: "roadCameraState"}

Falsify = Callable[[ReportedValues], ReportedValues]


class CarMessages:
    """Builds the car's messages in one drive.

    `falsify` changes the reported values.
    """

    def __init__(self, simulation: Simulation, falsify: Falsify | None = None) -> None:
        self._simulation = simulation
        self._falsify = falsify

    def car_params(self, time_ns: int) -> list[Message]:
        """Return carParams."""
        return self._report().start_messages(time_ns)

    def tick_messages(self, time_ns: int) -> list[Message]:
        """Return carState and carControl."""
        return self._report().tick_messages(time_ns)

    def frame_messages(self, time_ns: int) -> list[Message]:
        """Return the messages of a frame; slow services are sent only on some frames."""
        return self._report().frame_messages(self._simulation.frame, time_ns)

    def _report(self) -> CarReport:
        simulation, car, trial = self._simulation, self._simulation.car, self._simulation.trial
        body, model = simulation.body, car.model
        reported = ReportedValues(
            trial.reported_rpy_rad(simulation.time_s), model.lateral_delay_s, car.speed_mps
        )
        return CarReport(
            motion=Motion(
                speed_mps=car.speed_mps,
                acceleration_mps2=car.acceleration_mps2,
                curvature_1pm=car.curvature_1pm,
                rpy_rad=(body.roll_rad, body.pitch_rad, car.heading_rad),
                blinker=simulation.blinker,
                nudge=simulation.nudge,
            ),
            wanted=simulation.action,
            is_engaged=simulation.is_engaged,
            reported=reported if self._falsify is None else self._falsify(reported),
            rpy_rad=trial.rpy_rad,
            height_m=trial.height_m,
            set_speed_mps=simulation.set_speed_mps,
            device=DEVICE,
            model=model,
        )


def camera_message(stream: str, frame_id: int, now_ns: int) -> Message:
    """Return the camera state that announces a frame."""
    exposed_ns = (now_ns - EXPOSED_BEFORE_NS, now_ns - ENDED_BEFORE_NS)
    return message_of(
        STATE_SERVICES[stream],
        now_ns,
        lambda state: fill_camera_state(state, frame_id, exposed_ns, SENSOR),
    )


# --- Cameras -------------------------------------------------------------------------------------

# The wide frame is published first, so both are available when the road frame wakes the daemon.
STREAMS = (WIDE_STREAM, ROAD_STREAM)
Pictures = Mapping[str, Picture]
# Changes the pictures of the cameras, to inject a fault.
Disturb = Callable[[Pictures], Pictures]


def device_cameras() -> DeviceCameras:
    """Return the cameras of the simulated car's device."""
    return find_cameras(DEVICE, SENSOR)


def cropped_cameras() -> DeviceCameras:
    """Return the same cameras, cropped to the third of the pixels that models use.

    The crop suits all mountings and calibration errors of `tools.simulator.closed_loop.trial`.
    """
    road, wide = _both(device_cameras()).values()
    return DeviceCameras(replace(road, width=816, height=640), replace(wide, width=576, height=384))


def _both(cameras: DeviceCameras) -> dict[str, Camera]:
    """Return the road and the wide camera by stream."""
    assert cameras.wide is not None, "the device has two cameras"
    return {ROAD_STREAM: cameras.road, WIDE_STREAM: cameras.wide}


def formats(cameras: DeviceCameras) -> dict[str, FrameFormat]:
    """Return each stream's frame layout."""
    return {stream: nv12_format(one.width, one.height) for stream, one in _both(cameras).items()}


class Cameras:
    """The two cameras of one drive.

    `disturb` injects a fault into their pictures. `are_swapped` exchanges their lenses.
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
        """Return the present frames by stream, in publishing order, without lost frames.

        The next call overwrites their buffers. `first_id` is the id of frame 0, and `now_ns` is the
        time at which the frames are announced.
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
            # No frames are lost before the hand-over.
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


# All services that the simulated car publishes.
SERVICES: Final = (*SUBSCRIPTIONS, "wideRoadCameraState", "carParams", "livePose")
Record = Callable[[bytes], None]


class LiveBus:
    """The publishers, frame rings and subscribers of the simulated car; a context manager.

    `record` is called with every sent or received event.

    Raises:
        TransportError: another process publishes on this bus, or the address is invalid.
        FrameError: another process owns the rings, or memory is exhausted.
    """

    def __init__(self, address: str, server: str, record: Record) -> None:
        self._record = record
        with ExitStack() as stack:
            self._transport = ZmqTransport(address)
            stack.callback(self._transport.close)
            self._publishers = {name: self._transport.publisher(name) for name in SERVICES}
            # Closing the transport closes its publishers and subscribers.
            self._subscribers = [self._transport.subscriber(name) for name in PUBLICATIONS]
            self._rings = make_rings(server, formats(device_cameras()))
            for ring in self._rings.values():
                stack.callback(ring.close)
            self._open = stack.pop_all()

    def send(self, messages: Iterable[Message]) -> None:
        """Send and record messages of the car."""
        for message in messages:
            self._publishers[message.service].send(message.data)
            self._record(message.data)

    def fill(self, frames: Mapping[str, Frame]) -> None:
        """Copy frames into the next ring buffers, before `publish`."""
        for stream, frame in frames.items():
            self._rings[stream].next_buffer()[:] = frame.data

    def publish(self, frame: Frame, stream: str) -> None:
        """Publish the frame that the last call of `fill` copied."""
        self._rings[stream].publish(frame.frame_id, frame.timestamp_sof_ns, frame.timestamp_eof_ns)

    def receive(self, timeout_ms: int) -> list[bytes]:
        """Return the daemon's messages; wait for them up to the given time."""
        if not self._transport.wait(self._subscribers, timeout_ms):
            return []
        events = []
        for subscriber in self._subscribers:
            while (data := subscriber.receive()) is not None:
                events.append(data)
                self._record(data)
        return events

    def __enter__(self) -> LiveBus:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

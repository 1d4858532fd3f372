"""A drive made in memory: small frames of known brightness, the messages of a car around them.

Buffers are filled again after ``KEPT_MOMENTS`` moments, as real drives do, and with noise before:
what keeps a frame without copying it shows in the outputs.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cereal.frames import Frame, nv12_format
from cereal.schema import new_event
from modeld.vehicle.cameras import Camera, DeviceCameras
from tools.drives.drive import KEPT_MOMENTS, DriveInfo, Message, Moment
from tools.errors import DriveError
from tools.messages.drive_messages import READOUT_NS, DriveMessages, FrameTimes, Mounting
from tools.messages.telemetry import CarSample

START_NS = 5_000_000_000
PERIOD_NS = 50_000_000
FIRST_ID = 700
CAR = CarSample(12.0, 0.0, left_blinker=False, right_blinker=False)


@dataclass
class SyntheticDrive:
    """A drive of `count` moments at 20 Hz."""

    count: int = 12
    size: tuple[int, int] = (192, 128)
    streams: tuple[str, ...] = ("road",)
    missing: frozenset[tuple[int, str]] = frozenset()  # of moments and streams
    recorded_model: bool = False  # the log holds modelV2 of the recording device
    damaged_at: int | None = None
    car_delay_s: float | None = None  # longitudinal, of its carParams; None: it has none
    first_id: int = 0
    gap: tuple[int, int] = (0, 0)  # a moment, and the nanoseconds that pass before it
    with_between: bool = True  # a carState comes from while the frame before was worked on
    after: tuple[Message, ...] = ()  # messages behind the last frame
    opened: list[int] = field(default_factory=lambda: [0, 0])  # iterators begun, and ended
    began: list[int] = field(default_factory=list)  # moments with which they were

    @property
    def info(self) -> DriveInfo:
        """What is known of it."""
        layout, camera = nv12_format(*self.size), Camera(*self.size, 150.0)
        car_params = None
        if self.car_delay_s is not None:
            event = new_event("carParams", mono_time_ns=START_NS, valid=True)
            event.carParams.longitudinalActuatorDelay = self.car_delay_s
            car_params = event.to_bytes()
        described = repr((self.count, self.size, self.streams, sorted(self.missing)))
        return DriveInfo(
            name="synthetic",
            kind="video",
            identity=hashlib.sha256(described.encode()).hexdigest(),
            formats=dict.fromkeys(self.streams, layout),
            cameras=DeviceCameras(camera, camera if "wideRoad" in self.streams else None),
            mounting=Mounting(),
            moments=self.count + bool(self.after),
            rate_hz=20.0,
            car_params=car_params,
        )

    def moments(self, first: int = 0) -> Iterator[Moment]:
        self.opened[0] += 1
        self.began.append(first)
        try:
            yield from self._moments(first)
        finally:
            self.opened[1] += 1

    def close(self) -> None:
        """Do nothing."""

    def _moments(self, first: int) -> Iterator[Moment]:
        layout = nv12_format(*self.size)
        shape = (KEPT_MOMENTS, len(self.streams), layout.size)
        buffers = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        messages = DriveMessages(Mounting())
        for index in range(first, self.count):
            if index == self.damaged_at:
                raise DriveError(f"synthetic: expected {self.count} frames, found {index}")
            sof_ns = START_NS + index * PERIOD_NS + (self.gap[1] if index >= self.gap[0] else 0)
            times = FrameTimes(self.first_id + index, sof_ns, sof_ns + READOUT_NS)
            frames = {}
            for number, stream in sorted(enumerate(self.streams), reverse=True):
                data = buffers[index % KEPT_MOMENTS, number]
                data[:] = brightness(index, stream)
                if (index, stream) not in self.missing:
                    frames[stream] = Frame(data, layout, times.frame_id, sof_ns, times.eof_ns)
            taken = list(self._recorded(index, sof_ns))
            for service, data_of in messages.for_frame(times, CAR):
                stamp_ns = times.eof_ns if service == "roadCameraState" else sof_ns
                taken.append(Message(service, stamp_ns, data_of))
            yield Moment(index, tuple(taken), frames)
        if self.after:
            yield Moment(self.count, self.after, {})

    def _recorded(self, index: int, sof_ns: int) -> Iterator[Message]:
        if self.with_between:  # the log is to stay in order
            between = new_event("carState", mono_time_ns=sof_ns - 33_000_000, valid=True)
            between.carState.vEgo = 7.0
            yield Message("carState", sof_ns - 33_000_000, between.to_bytes())
        if self.recorded_model:
            model = new_event("modelV2", mono_time_ns=sof_ns - 30_000_000, valid=True)
            model.modelV2.frameId = 900_000 + index
            yield Message("modelV2", sof_ns - 30_000_000, model.to_bytes())


def brightness(index: int, stream: str) -> int:
    """Value of every byte of a frame."""
    return (40 + 3 * index + (100 if stream == "wideRoad" else 0)) % 256


def drive_to_play(count: int = 20, **more: Any) -> SyntheticDrive:
    """Return a drive of two cameras whose ids begin with 700, of a car that is known."""
    more = {"streams": ("road", "wideRoad"), "car_delay_s": 0.25, **more}
    return SyntheticDrive(count, first_id=FIRST_ID, with_between=False, **more)

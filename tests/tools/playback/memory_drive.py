"""A drive made of nothing: consecutive frames of one brightness each, with the car's messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from cereal.frames import Frame, FrameFormat, nv12_format
from cereal.schema import new_event
from modeld.calibration import Camera, DeviceCameras
from tools.drives.drive import DriveInfo, Message, Moment
from tools.errors import DriveError
from tools.lib.drive_messages import DriveMessages, FrameTimes, Mounting
from tools.lib.telemetry import CarSample

START_NS = 5_000_000_000
PERIOD_NS = 50_000_000
READOUT_NS = 10_000_000
FIRST_ID = 700
SIZE = (192, 128)


def car_params() -> bytes:
    """A carParams Event."""
    event = new_event("carParams", mono_time_ns=START_NS, valid=True)
    event.carParams.longitudinalActuatorDelay = 0.25
    event.carParams.carFingerprint = "MEMORY"
    data: bytes = event.to_bytes()
    return data


@dataclass
class MemoryDrive:
    """Frames 700, 701, ... every 50 ms from 5 s on, each a little brighter.

    Attributes:
        count: moments.
        streams: in the order in which they are handed over.
        gap_before: index of a moment before which `gap_ns` pass.
        fails_at: index of a moment that cannot be read.
        with_car: carParams are known.
    """

    count: int = 20
    streams: tuple[str, ...] = ("wideRoad", "road")
    size: tuple[int, int] = SIZE
    gap_before: int | None = None
    gap_ns: int = 0
    fails_at: int | None = None
    with_car: bool = True
    began: list[int] = field(default_factory=list)

    @property
    def info(self) -> DriveInfo:
        """What a drive says of itself."""
        layout = self.layout
        width, height = self.size
        camera = Camera(width, height, 0.9 * width)
        return DriveInfo(
            name="memory",
            kind="video",
            identity="0" * 64,
            formats=dict.fromkeys(self.streams, layout),
            cameras=DeviceCameras(camera, camera if "wideRoad" in self.streams else None),
            mounting=Mounting(),
            moments=self.count,
            rate_hz=20.0,
            car_params=car_params() if self.with_car else None,
        )

    @property
    def layout(self) -> FrameFormat:
        """Of all frames."""
        return nv12_format(*self.size)

    def sof_ns(self, index: int) -> int:
        """Start of the exposure of a moment's frames."""
        gap_ns = self.gap_ns if self.gap_before is not None and index >= self.gap_before else 0
        return START_NS + index * PERIOD_NS + gap_ns

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the moments from number `first` on; the same each time."""
        self.began.append(first)
        sender = DriveMessages(Mounting())
        car = CarSample(20.0, 0.0, left_blinker=False, right_blinker=False)
        for index in range(first, self.count):
            if index == self.fails_at:
                raise DriveError(f"memory: expected moment {index}, found damage; record it again")
            sof_ns = self.sof_ns(index)
            times = FrameTimes(FIRST_ID + index, sof_ns, sof_ns + READOUT_NS)
            messages = [
                Message(service, times.eof_ns if service == "roadCameraState" else sof_ns, data)
                for service, data in sender.for_frame(times, car)
            ]
            layout = self.layout
            frame = Frame(
                np.full(layout.size, index % 200, np.uint8),
                layout,
                times.frame_id,
                times.sof_ns,
                times.eof_ns,
            )
            frames = {stream: replace(frame) for stream in self.streams}
            yield Moment(index, tuple(messages), frames)

    def close(self) -> None:
        """Do nothing."""

"""The interface of a recorded drive: messages and camera frames in time order, cut into moments.

A moment is what the daemon has when it takes one frame of its main camera: every message up to and
including the camera states of that frame, and the frames themselves. What was recorded after the
last frame is one more moment, without frames. Replay, live playing, regression and export see
drives through this module only; each kind of drive is one module beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from cereal.frames import Frame, FrameFormat
from modeld.vehicle.cameras import DeviceCameras
from tools.errors import PictureSizeError
from tools.messages.drive_messages import DriveMessages, FrameTimes, Mounting
from tools.messages.telemetry import CarSample
from tools.video.video import Video, VideoFrame

# A drive fills the buffers of its frames again after this many moments: what reads ahead may hold
# fewer than that many, and what keeps a frame copies it.
KEPT_MOMENTS = 8


class Message(NamedTuple):
    """One recorded message."""

    service: str  # the Event member's name, as in `cereal.services`
    # `logMonoTime`, ns of the recording machine's monotonic clock. The `initData` that later
    # segments begin with is as old as the route: it has the time of the message after it.
    mono_time_ns: int
    data: bytes  # the Event as it was recorded: what is passed on
    # The Event as software of today would have sent it, for those who read it; None where that is
    # `data`.
    migrated: bytes | None = None

    @property
    def read_as(self) -> bytes:
        """The Event for those who read it: the daemon, and what is asked of a drive."""
        return self.data if self.migrated is None else self.migrated


@dataclass(frozen=True, slots=True)
class Moment:
    """What has happened since the moment before."""

    index: int  # position in the drive, from 0; a moment that was skipped keeps its number
    # In time order; the camera states of this moment are the last ones. Over all moments, every
    # message that was recorded.
    messages: tuple[Message, ...]
    # By stream of `cereal.frames.STREAMS`, in the order in which they are to be handed over: extra
    # cameras first, "road" last. A camera that delivered nothing is missing, so a moment may have
    # no frame. Buffers are reused, see ``KEPT_MOMENTS``.
    frames: Mapping[str, Frame]


@dataclass(frozen=True, slots=True)
class DriveInfo:
    """What is known of a drive before its first frame is decoded."""

    # What users call it, e.g. ``a2a0ccea32023010|2023-07-27--13-01-19--5`` or ``drive.mp4``.
    name: str
    kind: str  # ``openpilot``, ``comma2k19`` or ``video``
    # Sha256 (64 hex digits) of all that decides what `moments` yields: contents of files, options.
    # The key of references.
    identity: str
    # Layout of the frames by stream; only streams that have frames.
    formats: Mapping[str, FrameFormat]
    # What the frames were filmed with; None where `deviceState` and `roadCameraState` of the drive
    # name a device of `modeld.vehicle.cameras.DEVICE_CAMERAS`.
    cameras: DeviceCameras | None
    mounting: Mounting  # first calibration of the drive, for pictures with overlays
    # How many there are, that behind the last frame included; None where only decoding tells.
    moments: int | None
    rate_hz: float  # of the main camera
    car_params: bytes | None = None  # the drive's first `carParams` Event; None where it has none
    # Name -> value, for reports: where the drive came from and what was assumed.
    facts: Mapping[str, str] = field(default_factory=dict)


class Drive(Protocol):
    """An open drive."""

    @property
    def info(self) -> DriveInfo:
        """What is known of it."""
        ...

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the moments from number `first` on, decoding as they are asked for.

        The same drive yields the same moments every time. Only one iterator is used at a time.

        What a damaged video or log lacks is left out with a warning.

        Raises:
            ToolError: a file cannot be read at all; what precedes was yielded.
        """
        ...

    def close(self) -> None:
        """Release decoders and files."""
        ...


@dataclass(slots=True)
class FirstPart:
    """A drive up to where its pictures change their size, for what keeps that much."""

    drive: Drive  # an open drive
    change: PictureSizeError | None = None  # what was said there; None before, and of other drives

    @property
    def info(self) -> DriveInfo:
        """What is known of the drive."""
        return self.drive.info

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the drive's moments, and end where it cannot be followed any more.

        Raises:
            ToolError: as the drive does, but for that.
        """
        try:
            yield from self.drive.moments(first)
        except PictureSizeError as error:
            self.change = error

    def check(self) -> None:
        """Say what ended the drive, now that what precedes is kept.

        Raises:
            PictureSizeError: the pictures have changed their size.
        """
        if self.change is not None:
            raise self.change

    def close(self) -> None:
        """Release decoders and files."""
        self.drive.close()


@dataclass(frozen=True, slots=True)
class FilmedDrive:
    """What drives of a single video have in common: messages are made for its frames."""

    info: DriveInfo  # what is known of it; ``moments`` as far as the header tells
    _open: list[Video] = field(default_factory=list, kw_only=True)
    _ends: list[str] = field(default_factory=list, kw_only=True)

    @property
    def damage(self) -> str:
        """Why the moments that were yielded last ended too early; "" where they did not."""
        return self._ends[-1] if self._ends else ""

    def close(self) -> None:
        """Release the decoder."""
        while self._open:
            self._open.pop().close()

    def _filmed(
        self, shown: Iterable[tuple[FrameTimes, CarSample, VideoFrame]], first: int
    ) -> Iterator[Moment]:
        """Yield the moments from number `first` on.

        `shown`: all frames, with their stamps and the car at that time.
        """
        layout = self.info.formats["road"]
        buffers = [np.zeros(layout.size, np.uint8) for _ in range(KEPT_MOMENTS)]
        messages = DriveMessages(self.info.mounting)
        for times, car, picture in shown:
            # Of skipped frames too: when a slow message is due depends on all before.
            sent = [
                Message(name, times.eof_ns if name == "roadCameraState" else times.sof_ns, data)
                for name, data in messages.for_frame(times, car)
            ]
            index = times.frame_id
            if index < first:
                continue
            buffer = buffers[index % KEPT_MOMENTS]
            picture.write_nv12(buffer, layout)
            frame = Frame(buffer, layout, index, times.sof_ns, times.eof_ns)
            yield Moment(index, tuple(sent), {"road": frame})

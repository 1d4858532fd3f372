"""Defines the interface of a recorded drive: messages and frames in time order, as moments.

A moment is the data that the daemon has when it processes one frame of its main camera: the frames,
and all messages since the previous moment, up to the camera states of these frames. Messages after
the last frame form one more moment, without frames. Replay, live playback, regression and export
use drives only through this module. Each kind of drive has its own module in this package.
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

# Number of moments after which a drive reuses its frame buffers. Readers that look ahead must hold
# fewer moments than this; readers that keep a frame must copy it.
KEPT_MOMENTS = 8


class Message(NamedTuple):
    """One recorded message."""

    service: str  # the Event member's name, as in `cereal.services`
    # `logMonoTime` in ns, from the monotonic clock of the recording machine. The `initData` at the
    # start of later segments is as old as the route; it gets the time of the message after it.
    mono_time_ns: int
    data: bytes  # the Event as recorded; this is what is forwarded
    # The Event converted to the current schema, for readers. None if no conversion is needed.
    migrated: bytes | None = None

    @property
    def read_as(self) -> bytes:
        """The Event to read, in the current schema."""
        return self.data if self.migrated is None else self.migrated


@dataclass(frozen=True, slots=True)
class Moment:
    """The messages and frames since the previous moment."""

    index: int  # position in the drive, from 0; skipped moments keep their numbers
    # In time order, ending with the camera states of this moment. The messages of all moments
    # together are all recorded messages.
    messages: tuple[Message, ...]
    # Frames by stream of `cereal.frames.STREAMS`, in the order of delivery: extra cameras first,
    # "road" last. Cameras without a frame are missing, so a moment can have no frames. Buffers are
    # reused, see ``KEPT_MOMENTS``.
    frames: Mapping[str, Frame]


@dataclass(frozen=True, slots=True)
class DriveInfo:
    """Properties of a drive that are known before its first frame is decoded."""

    # Display name, e.g. ``a2a0ccea32023010|2023-07-27--13-01-19--5`` or ``drive.mp4``.
    name: str
    kind: str  # ``openpilot``, ``comma2k19`` or ``video``
    # Sha256 (64 hex digits) of everything that determines the moments: file contents and options.
    # References are stored under this key.
    identity: str
    # Layout of the frames, by stream; only streams that have frames.
    formats: Mapping[str, FrameFormat]
    # Cameras of the recording. None if the drive's `deviceState` and `roadCameraState` name a
    # device of `modeld.vehicle.cameras.DEVICE_CAMERAS`.
    cameras: DeviceCameras | None
    mounting: Mounting  # first calibration of the drive, for pictures with overlays
    # Number of moments, including the one after the last frame. None if only decoding can show it.
    moments: int | None
    rate_hz: float  # frame rate of the main camera
    car_params: bytes | None = None  # the drive's first `carParams` Event; None if it has none
    # Name -> value, for reports: where the drive came from and what was assumed.
    facts: Mapping[str, str] = field(default_factory=dict)


class Drive(Protocol):
    """An open drive."""

    @property
    def info(self) -> DriveInfo:
        """The drive's properties."""
        ...

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the moments from number `first` on, decoding lazily.

        The same drive yields the same moments every time. Only one iterator can be active.

        Parts missing from a damaged video or log are omitted with a warning.

        Raises:
            ToolError: a file cannot be read at all; earlier moments were yielded.
        """
        ...

    def close(self) -> None:
        """Release decoders and files."""
        ...


@dataclass(slots=True)
class FirstPart:
    """A drive up to the point where its pictures change their size."""

    drive: Drive  # an open drive
    change: PictureSizeError | None = None  # the size change, once it has been reached

    @property
    def info(self) -> DriveInfo:
        """The drive's properties."""
        return self.drive.info

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the drive's moments up to a change of the picture size.

        Raises:
            ToolError: any other error of the drive.
        """
        try:
            yield from self.drive.moments(first)
        except PictureSizeError as error:
            self.change = error

    def check(self) -> None:
        """Raise the size change that ended the drive, after the earlier moments were processed.

        Raises:
            PictureSizeError: the pictures have changed their size.
        """
        if self.change is not None:
            raise self.change

    def close(self) -> None:
        """Release decoders and files."""
        self.drive.close()


@dataclass(frozen=True, slots=True)
class SingleVideoDrive:
    """A base for drives from a single video; their messages are generated for its frames."""

    info: DriveInfo  # the drive's properties; ``moments`` is None if the header does not show it
    _open: list[Video] = field(default_factory=list, kw_only=True)
    _ends: list[str] = field(default_factory=list, kw_only=True)

    @property
    def damage(self) -> str:
        """Reason for which the last iteration ended early; "" if it did not."""
        return self._ends[-1] if self._ends else ""

    def close(self) -> None:
        """Release the decoder."""
        while self._open:
            self._open.pop().close()

    def _moments_of(
        self, shown: Iterable[tuple[FrameTimes, CarSample, VideoFrame]], first: int
    ) -> Iterator[Moment]:
        """Yield the moments from number `first` on.

        `shown`: all frames, with their timestamps and the car state at that time.
        """
        layout = self.info.formats["road"]
        buffers = [np.zeros(layout.size, np.uint8) for _ in range(KEPT_MOMENTS)]
        messages = DriveMessages(self.info.mounting)
        for times, car, picture in shown:
            # Also for skipped frames: when a slow message is due depends on all earlier frames.
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

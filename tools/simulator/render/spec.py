"""The specification of a rendered drive, and the route name and frame times that follow from it.

A route is the name of a drive. It contains the seed and a digest of the device, mounting, camera
height, streams, lost frames and telemetry. The length and the segment length are not included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from modeld.vehicle.cameras import Camera, find_cameras
from tools.messages.camera import DEFAULT_HEIGHT_M
from tools.simulator.world.view import Lens, Mount

FRAME_NS = 50_000_000
FRAMES_PER_SEGMENT = 1200
# The drive starts one minute after the device was switched on.
START_NS = 60_000_000_000
# The driver camera exposes half a frame period after the others.
DRIVER_LATER_NS = 25_000_000

# Readout time of a picture, by sensor.
READOUT_NS: Mapping[str, int] = MappingProxyType(
    {"ar0231": 22_850_000, "ox03c10": 14_697_000, "os04c10": 11_000_000}
)
# Device name -> its current sensor.
SENSOR_OF_DEVICE: Mapping[str, str] = MappingProxyType(
    {"mici": "os04c10", "tici": "ox03c10", "tizi": "ox03c10"}
)

STREAMS = ("road", "wide", "driver")
# Stream of the scaled road pictures, which devices upload.
SMALL = "small"


@dataclass(frozen=True, slots=True)
class DriveSpec:
    """A drive to render. Equal specifications give equal bytes.

    Attributes:
        seed: seed of the drive.
        frames: length in frames, 20 per second.
        device: key of ``SENSOR_OF_DEVICE``.
        rpy_rad: roll, pitch and yaw of the cameras' mounting (device from calib).
        streams: members of ``STREAMS``; or ``SMALL`` alone for a reduced drive, with only the
            scaled road pictures (qcamera) and the reduced log (qlog).
        dropped: stream -> ids of its lost frames; the camera delivers all others.
        telemetry: comma2k19 segment directory that provides the motion; None to draw it from the
            seed.
        telemetry_digest: digest of the content of that directory.
        height_m: height of the cameras above the road.
        segment_frames: length of a segment; only tests use another one than a minute.
    """

    seed: int = 0
    frames: int = FRAMES_PER_SEGMENT
    device: str = "mici"
    rpy_rad: tuple[float, float, float] = (0.0, 0.02, -0.01)
    streams: tuple[str, ...] = ("road", "wide")
    dropped: Mapping[str, frozenset[int]] = field(default_factory=dict)
    telemetry: Path | None = None
    telemetry_digest: str = ""
    height_m: float = DEFAULT_HEIGHT_M
    segment_frames: int = FRAMES_PER_SEGMENT

    @property
    def sensor(self) -> str:
        """The name of the sensor, as in ``roadCameraState.sensor``."""
        return SENSOR_OF_DEVICE[self.device]

    @property
    def readout_ns(self) -> int:
        """The time from the start to the end of a frame's readout."""
        return READOUT_NS[self.sensor]

    @property
    def route(self) -> str:
        """The name of the drive: 8 hex digits of the seed, and 10 that identify the content."""
        # The length is not included: a longer drive is a continuation of the same one.
        lost = sorted((name, sorted(ids)) for name, ids in self.dropped.items())
        # A reduced drive has the name of the drive with the road and wide streams.
        streams = STREAMS[:2] if self.is_small else self.streams
        content = (self.seed, self.device, self.rpy_rad, streams, lost)
        digest = hashlib.sha256(
            repr((content, self.height_m, self.telemetry_digest)).encode()
        ).hexdigest()
        return f"{self.seed & 0xFFFFFFFF:08x}--{digest[:10]}"

    @property
    def seconds(self) -> float:
        """The length of the drive in seconds."""
        return self.frames * FRAME_NS / 1e9

    @property
    def segments(self) -> int:
        """The number of segments."""
        return -(-self.frames // self.segment_frames)

    @property
    def is_small(self) -> bool:
        """Whether only the files that devices upload are written."""
        return self.streams == (SMALL,)

    def camera(self, stream: str) -> Camera:
        """Return a stream's camera; the driver camera is built like the road camera."""
        cameras = find_cameras(self.device, self.sensor)
        if stream == "wide":
            assert cameras.wide is not None, "devices of SENSOR_OF_DEVICE have a wide camera"
            return cameras.wide
        return cameras.road

    def mount(self, stream: str) -> Mount:
        """Return the mounting of a stream's camera."""
        return Mount(Lens.of(self.camera(stream)), self.rpy_rad, self.height_m)

    def frame_ids(self, segment: int) -> range:
        """Return the frame ids of a segment, including lost frames."""
        first = segment * self.segment_frames
        return range(first, min(first + self.segment_frames, self.frames))

    def delivered(self, stream: str, segment: int) -> list[int]:
        """Return the frame ids of a segment that a camera delivered."""
        lost = self._lost(stream)
        return [frame for frame in self.frame_ids(segment) if frame not in lost]

    def first_encode_id(self, stream: str, segment: int) -> int:
        """Return the number of frames that a camera delivered before a segment."""
        first = segment * self.segment_frames
        return first - sum(1 for frame in self._lost(stream) if frame < first)

    def _lost(self, stream: str) -> frozenset[int]:
        return self.dropped.get("road" if stream == SMALL else stream, frozenset())

    def sof_ns(self, stream: str, frame_id: int) -> int:
        """Return the start time of a frame."""
        later = DRIVER_LATER_NS if stream == "driver" else 0
        return START_NS + frame_id * FRAME_NS + later

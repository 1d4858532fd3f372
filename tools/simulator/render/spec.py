"""The specification of a rendered drive, and the identity that follows from it."""

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
# The drive begins a minute after its device was switched on.
START_NS = 60_000_000_000
# The driver camera exposes half a period after the others.
DRIVER_LATER_NS = 25_000_000

# Start to end of reading a picture out, by sensor.
READOUT_NS: Mapping[str, int] = MappingProxyType(
    {"ar0231": 22_850_000, "ox03c10": 14_697_000, "os04c10": 11_000_000}
)
# Device as users name it -> its current sensor.
SENSOR_OF_DEVICE: Mapping[str, str] = MappingProxyType(
    {"mici": "os04c10", "tici": "ox03c10", "tizi": "ox03c10"}
)

STREAMS = ("road", "wide", "driver")
# The road camera's pictures, scaled: what devices upload.
SMALL = "small"


@dataclass(frozen=True, slots=True)
class DriveSpec:
    """A drive to be rendered; equal specs give equal bytes.

    Attributes:
        frames: length, 20 a second.
        rpy_rad: mounting, device from calib.
        streams: which of ``STREAMS`` the device has; ``SMALL`` alone for a reduced drive, of which
            there are the small pictures and the small log.
        dropped: stream -> frame ids that its camera lost.
        telemetry: comma2k19 segment directory whose motion is used, and its content's digest;
            without it the seed's.
        height_m: of the cameras over the road.
        segment_frames: length of a segment; another one than a minute only for tests.
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
        """``roadCameraState.sensor``."""
        return SENSOR_OF_DEVICE[self.device]

    @property
    def readout_ns(self) -> int:
        """From start to end of a frame."""
        return READOUT_NS[self.sensor]

    @property
    def route(self) -> str:
        """Name of the drive: 8 hex digits of a counter, 10 that stand for its content."""
        # Not the length: a longer drive is the same one, driven on.
        lost = sorted((name, sorted(ids)) for name, ids in self.dropped.items())
        # A reduced drive is the same one, too.
        streams = STREAMS[:2] if self.is_small else self.streams
        content = (self.seed, self.device, self.rpy_rad, streams, lost)
        digest = hashlib.sha256(
            repr((content, self.height_m, self.telemetry_digest)).encode()
        ).hexdigest()
        return f"{self.seed & 0xFFFFFFFF:08x}--{digest[:10]}"

    @property
    def seconds(self) -> float:
        """Length."""
        return self.frames * FRAME_NS / 1e9

    @property
    def segments(self) -> int:
        """How many files the drive is cut into."""
        return -(-self.frames // self.segment_frames)

    @property
    def is_small(self) -> bool:
        """Whether only what devices upload is written."""
        return self.streams == (SMALL,)

    def camera(self, stream: str) -> Camera:
        """Return a stream's camera; the driver camera is built like the road camera."""
        cameras = find_cameras(self.device, self.sensor)
        if stream == "wide":
            assert cameras.wide is not None, "devices of SENSOR_OF_DEVICE have a wide camera"
            return cameras.wide
        return cameras.road

    def mount(self, stream: str) -> Mount:
        """Return how a camera is mounted."""
        return Mount(Lens.of(self.camera(stream)), self.rpy_rad, self.height_m)

    def frame_ids(self, segment: int) -> range:
        """Return the frames of a segment, lost ones included."""
        first = segment * self.segment_frames
        return range(first, min(first + self.segment_frames, self.frames))

    def delivered(self, stream: str, segment: int) -> list[int]:
        """Return the frames of a segment that a camera delivered."""
        lost = self._lost(stream)
        return [frame for frame in self.frame_ids(segment) if frame not in lost]

    def first_encode_id(self, stream: str, segment: int) -> int:
        """Return how many frames a camera delivered before a segment."""
        first = segment * self.segment_frames
        return first - sum(1 for frame in self._lost(stream) if frame < first)

    def _lost(self, stream: str) -> frozenset[int]:
        return self.dropped.get("road" if stream == SMALL else stream, frozenset())

    def sof_ns(self, stream: str, frame_id: int) -> int:
        """Return the start of a frame."""
        later = DRIVER_LATER_NS if stream == "driver" else 0
        return START_NS + frame_id * FRAME_NS + later

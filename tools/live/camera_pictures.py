"""Copies of a camera's newest frames, so that the one that was answered can be shown.

Reads them as any other reader does: their memory is mapped read-only, the writer never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cereal.cameras import CameraServer, CameraSource
from cereal.errors import CerealError
from cereal.frames import Frame
from tools.report.picture import encode_jpeg
from tools.views.pass_over import planes

# Of each camera: an answer comes some 50 ms after its frame, on a slow machine a few frames later.
KEPT: Final = 8
# How often it is looked for cameras that are not there yet.
LOOK_S: Final = 0.5

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A frame that was copied."""

    frame_id: int
    planes: Planes  # luma (h, w) and interleaved chroma (h/2, w), uint8

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        rows, columns = self.planes[0].shape
        return columns, rows

    def jpeg(self, width: int) -> bytes:
        """Return the picture as JPEG, scaled down to a width in pixels."""
        return encode_jpeg(*self.planes, width=width)


class CameraPictures:
    """The newest pictures of the cameras of one server.

    `cameras`: of the server; closed with this. `streams`: of `cereal.frames.STREAMS`.

    Raises:
        FrameError: the server's name is none.
    """

    def __init__(self, cameras: CameraServer, streams: tuple[str, ...]) -> None:
        self._cameras = cameras
        self._readers: dict[str, CameraSource | None] = dict.fromkeys(streams)
        self._kept: dict[str, deque[Picture]] = {name: deque(maxlen=KEPT) for name in streams}
        self._came_s: dict[str, float] = {}
        self._looked_s = -LOOK_S
        self._unusable: Mapping[str, str] = {}
        cameras.available_streams()

    def update(self, keep: Collection[str]) -> None:
        """Take over what arrived.

        `keep`: cameras whose frames are copied; of others it is only seen that they come.
        """
        if monotonic() - self._looked_s > LOOK_S:
            self._looked_s = monotonic()
            self._connect()
        for stream, reader in self._readers.items():
            if reader is None:
                continue
            while (frame := reader.receive(0)) is not None:
                self._came_s[stream] = monotonic()
                if stream not in keep:
                    continue
                copied = _copy(frame)
                if reader.is_intact():
                    self._kept[stream].append(copied)
            if stream not in keep:
                self._kept[stream].clear()

    def streams(self, within_s: float) -> list[str]:
        """Return the cameras that delivered a frame lately."""
        now = monotonic()
        return [
            name for name in self._readers if now - self._came_s.get(name, -within_s) < within_s
        ]

    def find(self, stream: str, frame_id: int | None) -> Picture | None:
        """Return the picture of a frame, or the newest one; None if it is not there."""
        kept = self._kept[stream]
        if frame_id is None:
            return kept[-1] if kept else None
        return next((one for one in reversed(kept) if one.frame_id == frame_id), None)

    def missing(self, stream: str) -> str:
        """Return why there is no picture of a camera, for a person."""
        if stream in self._unusable:
            return self._unusable[stream]
        came_s = self._came_s.get(stream)
        if came_s is None:
            return f"no camera process {self._cameras.name!r} offers frames of this camera"
        return f"no frame of this camera for {monotonic() - came_s:.0f} s"

    def close(self) -> None:
        """Release the cameras."""
        for reader in self._readers.values():
            if reader is not None:
                reader.close()
        self._cameras.close()

    def _connect(self) -> None:
        if all(self._readers.values()):
            return
        offered = self._cameras.available_streams()
        for stream, reader in self._readers.items():
            if reader is None and stream in offered:
                try:
                    self._readers[stream] = self._cameras.reader(stream, conflate=False)
                except CerealError:
                    # In the moment between two writers; what lasts is told by `missing`.
                    continue
        self._unusable = self._cameras.unusable_streams()


def _copy(frame: Frame) -> Picture:
    luma, chroma = planes(frame)
    return Picture(frame.frame_id, (luma.copy(), chroma.copy()))

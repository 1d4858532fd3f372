"""A camera that is missing when the loop starts: it is looked for once a second, then read.

A look opens a file or asks a socket, as any reader does whose camera is gone; see ADR 0020.
"""

import time
from collections.abc import Callable
from typing import Final

from cereal.cameras import CameraServer, CameraSource
from cereal.errors import CerealError, FrameError
from cereal.frames import Frame, FrameFormat

LOOK_NS: Final = 1_000_000_000


class LateCamera:
    """A source of frames that has none until its camera can be read; it does not conflate.

    `now_ns`, the monotonic clock, paces the looks.
    """

    def __init__(
        self,
        cameras: CameraServer,
        stream: str,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._cameras = cameras
        self._stream = stream
        self._now_ns = now_ns
        self._looked_ns: int | None = None
        self._reader: CameraSource | None = None

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames; raise FrameError if the camera has not been found yet."""
        if self._reader is None:
            raise FrameError(
                f"cameras: expected the stream {self._stream} of {self._cameras.name!r}, found "
                "none yet; receive a frame first"
            )
        return self._reader.format

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame, or None; never waits for a camera that is not there."""
        reader = self._reader or self._look()
        return None if reader is None else reader.receive(timeout_ms)

    def is_intact(self) -> bool:
        """Return whether the data of the frame received last is still that frame's."""
        return self._reader is not None and self._reader.is_intact()

    def close(self) -> None:
        """Stop receiving."""
        if self._reader is not None:
            self._reader.close()

    def _look(self) -> CameraSource | None:
        now_ns = self._now_ns()
        if self._looked_ns is not None and now_ns - self._looked_ns < LOOK_NS:
            return None
        self._looked_ns = now_ns
        try:
            self._reader = self._cameras.reader(self._stream, conflate=False)
        except CerealError:
            # Not there, or not to be read: why was said when the loop started.
            return None
        return self._reader

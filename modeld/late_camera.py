"""A camera that is not there when the loop starts: looked for once a second, then read.

A look opens one file, which is what a reader does anyhow whose writer is gone; see ADR 0081.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cereal.errors import FrameError
from cereal.frames import DIRECTORY, Frame, FrameFormat, FrameRingReader

LOOK_NS: Final = 1_000_000_000


class LateCamera:
    """A source of frames that has none until its ring can be read; it does not conflate.

    Args:
        name: Name of the camera process.
        stream: One of ``cereal.frames.STREAMS``.
        directory: Where the ring will lie.
        now_ns: Paces the looks; the monotonic clock unless a test says otherwise.
    """

    def __init__(
        self,
        name: str,
        stream: str,
        *,
        directory: Path = DIRECTORY,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._name = name
        self._stream = stream
        self._directory = directory
        self._now_ns = now_ns
        self._looked_ns: int | None = None
        self._reader: FrameRingReader | None = None

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames.

        Raises:
            FrameError: the camera has not been found yet.
        """
        if self._reader is None:
            raise FrameError(
                f"{self._directory}: expected the stream {self._stream} of {self._name!r}, found "
                "none yet; receive a frame first"
            )
        return self._reader.format

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame, or None; never waits for a camera that is not there."""
        reader = self._reader or self._look()
        return None if reader is None else reader.receive(timeout_ms)

    def is_intact(self) -> bool:
        """Tell whether the data of the frame received last is still that frame's."""
        return self._reader is not None and self._reader.is_intact()

    def close(self) -> None:
        """Stop receiving."""
        if self._reader is not None:
            self._reader.close()

    def _look(self) -> FrameRingReader | None:
        now_ns = self._now_ns()
        if self._looked_ns is not None and now_ns - self._looked_ns < LOOK_NS:
            return None
        self._looked_ns = now_ns
        try:
            self._reader = FrameRingReader(
                self._name, self._stream, conflate=False, directory=self._directory
            )
        except FrameError:
            # Not there, or not to be read: why was said when the loop started.
            return None
        return self._reader

"""Frames of a drive beside its log: found by frame id, in one pass over both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.frames import Frame
from tools.drives.drive import Drive, Moment
from tools.playback.session import DAEMON_STREAMS
from tools.playback.threads import prefetch


class FrameFollower:
    """The main camera's frames, up to the one that the log has come to."""

    def __init__(self, moments: Iterator[Moment], stream: str) -> None:
        self._moments = moments
        self._stream = stream
        self._next: Frame | None = None
        self.matched = 0

    def until(self, frame_id: int) -> Iterator[Frame]:
        """Yield the frames that precede a frame, and that frame if there is one.

        Valid until the next one is asked for.
        """
        while True:
            frame, self._next = self._next, None
            if frame is None:
                frame = self._read()
            if frame is None:
                return
            if frame.frame_id > frame_id:
                self._next = frame
                return
            self.matched += frame.frame_id == frame_id
            yield frame
            if frame.frame_id == frame_id:
                return

    def _read(self) -> Frame | None:
        for moment in self._moments:
            frame = moment.frames.get(self._stream)
            if frame is not None:
                return frame
        return None


def main_stream(drive: Drive) -> str:
    """Return the stream that the daemon takes as its main camera."""
    return next(name for name in DAEMON_STREAMS if name in drive.info.formats)


@contextmanager
def followed(drive: Drive) -> Iterator[FrameFollower]:
    """Prefetch the drive's main camera while the block runs."""
    with prefetch(drive) as moments:
        yield FrameFollower(moments, main_stream(drive))


def planes(frame: Frame) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return luma (h, w) and interleaved chroma (h/2, w) of a padded NV12 frame, not copied."""
    layout = frame.format
    height, width, stride = layout.height, layout.width, layout.stride
    luma = frame.data[: stride * height].reshape(height, stride)
    end = layout.uv_offset + stride * (height // 2)
    chroma = frame.data[layout.uv_offset : end].reshape(height // 2, stride)
    return luma[:, :width], chroma[:, :width]


def rgb_of(frame: Frame) -> NDArray[np.uint8]:
    """Return a frame as (h, w, 3) uint8 RGB. Imports PyAV (extra ``replay``)."""
    import av

    picture: Any = av.VideoFrame.from_ndarray(np.concatenate(planes(frame)), format="nv12")
    rgb: NDArray[np.uint8] = picture.to_ndarray(format="rgb24")
    return rgb

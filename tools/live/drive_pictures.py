"""Pictures of a drive beside its log, by frame id, wherever somebody looks.

Segments are decoded from the key frame before. Any other video is only exact when counted from its
start: each viewer has a decoder of its own there, which goes on where it stands; what is behind it
is decoded from the start again, but for the last second, which is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Any, Final, Protocol, cast

import numpy as np

from cereal.frames import Frame
from tools.drives.drive import Drive, Moment
from tools.drives.segment_drive import SegmentDrive
from tools.errors import ToolError
from tools.lib.picture import encode_jpeg
from tools.live.cameras import ROAD, WIDE
from tools.live.messages import Shown
from tools.playback.player_threads import yield_to_others
from tools.views.frames import planes

# Pictures behind the present one that are kept, so that one can step back.
KEPT: Final = 24


class Pictures(Protocol):
    """Where one viewer's pictures come from; used by one thread at a time."""

    def show(self, stream: str, frame_id: int) -> Shown:
        """Return the picture of a frame, or why there is none."""

    def close(self) -> None:
        """Release what this viewer alone uses."""


class NoPictures:
    """Of a log without frames.

    Args:
        why: for a person.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    def show(self, stream: str, frame_id: int) -> Shown:  # noqa: ARG002 - as `Pictures`
        """Return why there are none."""
        return Shown(stream, why_not=self._why)

    def close(self) -> None:
        """Do nothing."""


class SegmentPictures:
    """Of segments; shared by all viewers.

    Args:
        drive: an open drive, used by nobody else.
        width: of the pictures in pixels, at most.
    """

    def __init__(self, drive: SegmentDrive, width: int) -> None:
        self._drive, self._width = drive, width
        self._lock = threading.Lock()
        self._moments: dict[str, dict[int, int]] = {
            stream: _positions(drive.frame_ids(stream))
            for stream in (ROAD, WIDE)
            if stream in drive.info.formats
        }
        if ROAD in self._moments and WIDE in self._moments:
            # A moment has one frame id in answers, that of the road camera.
            self._moments[WIDE] = self._moments[ROAD]

    def show(self, stream: str, frame_id: int) -> Shown:
        """Return the picture of a frame, or why there is none."""
        moments = self._moments.get(stream)
        if moments is None:
            return Shown(stream, why_not="the drive has no video of this camera")
        index = moments.get(frame_id)
        with self._lock:
            yield_to_others()
            try:
                frame = None if index is None else self._drive.frame(stream, index)
            except ToolError as error:
                return Shown(stream, why_not=str(error))
            if frame is None:
                return Shown(stream, why_not=f"the drive has no picture of frame {frame_id}")
            return _shown(stream, frame, self._width)

    def close(self) -> None:
        """Do nothing: others use the drive."""


class SequentialPictures:
    """Of a drive that is decoded from its start; of one viewer.

    Args:
        drive: an open drive of this viewer.
        width: of the pictures in pixels, at most.
    """

    def __init__(self, drive: Drive, width: int) -> None:
        self._drive, self._width = drive, width
        self._stream = next(iter(drive.info.formats))
        self._moments: Generator[Moment, None, None] | None = None
        self._last = -1
        self._kept: OrderedDict[int, Shown] = OrderedDict()
        self._lock = threading.Lock()
        self._is_closed = False

    def show(self, stream: str, frame_id: int) -> Shown:
        """Return the picture of a frame, or why there is none."""
        if stream != self._stream:
            return Shown(stream, why_not="the drive has no video of this camera")
        with self._lock:
            yield_to_others()
            try:
                found = self._kept.get(frame_id) or self._decode(frame_id)
            except ToolError as error:
                self._release()
                return Shown(stream, why_not=str(error))
            if self._is_closed:
                self._release()
        return found or Shown(stream, why_not=f"the drive has no picture of frame {frame_id}")

    def close(self) -> None:
        """End the decoder, at once or by the thread that waits for a picture."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._release()
            self._lock.release()

    def _release(self) -> None:
        if self._moments is not None:
            self._moments.close()
            self._moments = None
        self._last = -1
        self._drive.close()

    def _decode(self, frame_id: int) -> Shown | None:
        if self._moments is None or frame_id <= self._last:
            self._release()
            # A generator in all drives.
            self._moments = cast("Generator[Moment, None, None]", self._drive.moments(0))
        for moment in self._moments:
            frame = moment.frames.get(self._stream)
            if frame is None:
                continue
            self._last = frame.frame_id
            if frame.frame_id > frame_id - KEPT:
                self._keep(frame)
            if frame.frame_id >= frame_id or self._is_closed:
                break
        return self._kept.get(frame_id)

    def _keep(self, frame: Frame) -> None:
        self._kept[frame.frame_id] = _shown(self._stream, frame, self._width)
        while len(self._kept) > 2 * KEPT:
            self._kept.popitem(last=False)


def picture_maker(drive: Drive, reopen: Callable[[], Drive], width: int) -> Callable[[], Pictures]:
    """Return what makes the source of pictures of one more viewer.

    Args:
        drive: an open drive.
        reopen: opens it once more.
        width: of the pictures in pixels, at most.
    """
    if isinstance(drive, SegmentDrive):
        shared = SegmentPictures(drive, width)
        return lambda: shared
    return lambda: SequentialPictures(reopen(), width)


def _positions(ids: Any) -> dict[int, int]:
    return {int(ids[at]): int(at) for at in np.flatnonzero(ids >= 0)}


def _shown(stream: str, frame: Frame, width: int) -> Shown:
    layout = frame.format
    jpeg = encode_jpeg(*planes(frame), width=width)
    return Shown(stream, frame.frame_id, (layout.width, layout.height), jpeg)

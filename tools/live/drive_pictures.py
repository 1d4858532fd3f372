"""Finds pictures of a drive by frame id, at any position, to show them with its log.

Segments are decoded from the preceding key frame. They are opened one by one on demand, since
opening one reads all of it. The frames of other videos are only exact when counted from the start,
so each viewer has its own decoder, which continues at its position. To jump, it uses the
container's seek table if there is one; otherwise it decodes from the start. The pictures of the
last second are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Protocol, cast

import numpy as np

from cereal.frames import Frame
from tools.drives.drive import Drive, DriveInfo
from tools.drives.segment_drive import SegmentDrive
from tools.drives.video_drive import VideoDrive
from tools.errors import ToolError
from tools.live.messages import ROAD, WIDE, Shown
from tools.playback.threads import yield_to_others
from tools.report.picture import encode_jpeg
from tools.views.pass_over import planes

# Maximum number of segments of a route that are open at once, and that are searched for a frame:
# the one expected from its number, and its neighbors.
OPEN_SEGMENTS: Final = 3
# Number of pictures kept before the present one, for stepping back.
KEPT: Final = 24
# Up to this many frames ahead, frames are decoded in order; further ahead, the decoder seeks.
FAR: Final = 100


class Pictures(Protocol):
    """The source of one viewer's pictures; used by one thread at a time."""

    def show(self, stream: str, frame_id: int) -> Shown:
        """Return the picture of a frame, or the reason why there is none."""

    def close(self) -> None:
        """Release the resources of this viewer only."""


class NoPictures:
    """The picture source of a log without frames.

    `why`: the reason, for the user.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    def show(self, stream: str, frame_id: int) -> Shown:  # noqa: ARG002 - as `Pictures`
        """Return the reason why there is no picture."""
        return Shown(stream, why_not=self._why)

    def close(self) -> None:
        """Do nothing."""


class SegmentPictures:
    """The pictures of one segment; shared by all viewers.

    `drive`: an open drive, used by nobody else. `width`: maximum width of the pictures in pixels.

    Attributes:
        first_id, last_id: first and last frame id of the segment.
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
            # Answers refer to the frame id of the road camera, for both cameras.
            self._moments[WIDE] = self._moments[ROAD]
        ids = next(iter(self._moments.values()), {})
        self.first_id, self.last_id = min(ids, default=0), max(ids, default=-1)

    def show(self, stream: str, frame_id: int) -> Shown:
        """Return the picture of a frame, or the reason why there is none."""
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
        """Do nothing: other viewers use the drive."""

    def release(self) -> None:
        """Close the drive."""
        with self._lock:
            self._drive.close()


class RoutePictures:
    """The pictures of consecutive segments; shared by all viewers.

    `first`: the pictures of the first segment. `others`: functions that open the other segments, in
    order.
    """

    def __init__(
        self, first: SegmentPictures, others: Sequence[Callable[[], SegmentPictures]]
    ) -> None:
        self._first, self._others = first, others
        self._open: OrderedDict[int, SegmentPictures] = OrderedDict()
        self._lock = threading.Lock()

    def show(self, stream: str, frame_id: int) -> Shown:
        """Return the picture of a frame, or the reason why there is none."""
        first = self._first
        count = max(1, first.last_id - first.first_id + 1)
        # All segments but the last have about the same number of frames.
        at = min(max((frame_id - first.first_id) // count, 0), len(self._others))
        tried: set[int] = set()
        with self._lock:
            while at not in tried and 0 <= at <= len(self._others) and len(tried) < OPEN_SEGMENTS:
                tried.add(at)
                try:
                    pictures = self._segment(at)
                except ToolError as error:
                    return Shown(stream, why_not=str(error))
                if pictures.first_id <= frame_id <= pictures.last_id:
                    return pictures.show(stream, frame_id)
                at += 1 if frame_id > pictures.last_id else -1
        return Shown(stream, why_not=f"the drive has no picture of frame {frame_id}")

    def close(self) -> None:
        """Do nothing: other viewers use the segments."""

    def release(self) -> None:
        """Close all open segments except the first."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].release()

    def _segment(self, at: int) -> SegmentPictures:
        if at == 0:
            return self._first
        found = self._open.pop(at, None) or self._others[at - 1]()
        self._open[at] = found
        if len(self._open) > OPEN_SEGMENTS:
            self._open.popitem(last=False)[1].release()
        return found


class SequentialPictures:
    """The pictures of a drive that is decoded from its start; for one viewer.

    `drive`: an open drive of this viewer. `width`: maximum width of the pictures in pixels.
    """

    def __init__(self, drive: Drive, width: int) -> None:
        self._drive, self._width = drive, width
        self._stream = next(iter(drive.info.formats))
        self._frames: Iterator[Frame] | None = None
        self._can_seek = isinstance(drive, VideoDrive)
        self._last = -1
        self._kept: OrderedDict[int, Shown] = OrderedDict()
        self._lock = threading.Lock()
        self._is_closed = False

    def show(self, stream: str, frame_id: int) -> Shown:
        """Return the picture of a frame, or the reason why there is none."""
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
        """Release the decoder, now or in the thread that is decoding a picture."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._release()
            self._lock.release()

    def _release(self) -> None:
        self._frames = None
        self._last = -1
        self._drive.close()

    def _decode(self, frame_id: int) -> Shown | None:
        is_behind = frame_id <= self._last
        if self._can_seek and (is_behind or frame_id > self._last + FAR):
            self._release()
            self._frames = self._enter(max(0, frame_id - KEPT))
        if self._frames is None or (is_behind and not self._can_seek):
            self._release()
            moments = self._drive.moments(0)
            self._frames = (m.frames[self._stream] for m in moments if self._stream in m.frames)
        for frame in self._frames:
            self._last = frame.frame_id
            if frame.frame_id > frame_id - KEPT:
                self._keep(frame)
            if frame.frame_id >= frame_id or self._is_closed:
                break
        return self._kept.get(frame_id)

    def _enter(self, first: int) -> Iterator[Frame] | None:
        """Return the frames from number `first` on; None if the video has no seek table."""
        found = cast("VideoDrive", self._drive).frames_from(first)
        self._can_seek = found is not None
        return found

    def _keep(self, frame: Frame) -> None:
        self._kept[frame.frame_id] = _shown(self._stream, frame, self._width)
        while len(self._kept) > 2 * KEPT:
            self._kept.popitem(last=False)


def picture_maker(
    texts: Sequence[str], open_one: Callable[[str], Drive], width: int, stack: ExitStack
) -> tuple[Callable[[], Pictures], DriveInfo]:
    """Open a drive, and return a function that makes a viewer's pictures, and the drive's info.

    Of a route, only the first segment is opened. `texts`: the drive, or the segments of a route.
    `width`: maximum width of the pictures in pixels. `stack`: closes whatever stays open.

    Raises:
        ToolError: the drive cannot be opened.
    """

    def segment(text: str) -> SegmentPictures:
        return SegmentPictures(cast("SegmentDrive", open_one(text)), width)

    drive = open_one(texts[0])
    stack.callback(drive.close)
    if not isinstance(drive, SegmentDrive):
        return lambda: SequentialPictures(open_one(texts[0]), width), drive.info
    pictures = SegmentPictures(drive, width)
    route = RoutePictures(pictures, [partial(segment, text) for text in texts[1:]])
    stack.callback(route.release)
    return lambda: route, drive.info


def _positions(ids: Any) -> dict[int, int]:
    return {int(ids[at]): int(at) for at in np.flatnonzero(ids >= 0)}


def _shown(stream: str, frame: Frame, width: int) -> Shown:
    layout = frame.format
    jpeg = encode_jpeg(*planes(frame), width=width)
    return Shown(stream, frame.frame_id, (layout.width, layout.height), jpeg)

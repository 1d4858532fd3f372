"""Camera frames: shared-memory rings between processes, and a source for replay.

A writer owns one ring per camera stream and never waits for readers; a reader sees frames in place,
without a copy. A reader that is too slow is lapped: the ring tells it, it never gets mixed frames.
"""

import contextlib
import fcntl
import os
import re
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cereal import frame_ring, ring_file
from cereal.errors import FrameError
from cereal.frame_ring import FrameFormat, nv12_format, nv12_unpadded

__all__ = [
    "STREAMS",
    "Frame",
    "FrameFormat",
    "FrameRingReader",
    "FrameRingWriter",
    "FrameSource",
    "MemoryFrameSource",
    "available_streams",
    "nv12_format",
    "nv12_unpadded",
    "unusable_streams",
]

STREAMS: Final = ("road", "wideRoad", "driver")
DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 -- memory shared with the camera process
# 6 frames are 300 ms at 20 Hz: more than a reader may be late, and two rings of 1928x1208 still
# fit into the 64 MiB that containers give to shared memory.
DEFAULT_SLOTS: Final = 6
# How long a waiting reader may miss that its writer was replaced.
_LOOK_AGAIN_S: Final = 0.1
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(slots=True)
class Frame:
    """One NV12 picture of a camera."""

    data: NDArray[np.uint8]
    """(format.size,) uint8; in a ring: read-only, and overwritten when the writer comes round."""
    format: FrameFormat
    frame_id: int
    timestamp_sof_ns: int
    """Start of the exposure, ns of the monotonic clock."""
    timestamp_eof_ns: int
    """End of the exposure, ns of the monotonic clock."""


class FrameSource(Protocol):
    """Where frames of one camera stream come from."""

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames."""
        ...

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame, or None if none arrives within `timeout_ms` (0 = do not wait)."""
        ...

    def close(self) -> None:
        """Stop receiving; frames received before must not be used any more."""
        ...


class FrameRingWriter:
    """The one writer of a camera stream.

    Per frame: fill `next_buffer()`, then `publish(...)`. Neither allocates or waits.

    Args:
        name: Name of the camera process, such as "camerad".
        stream: One of STREAMS.
        format: Layout of the frames.
        count: Frames in the ring, 2 to 256.
        directory: Where the ring lies.

    Raises:
        FrameError: another writer has the stream, a name is not usable, or memory is short.
    """

    def __init__(
        self,
        name: str,
        stream: str,
        format: FrameFormat,  # noqa: A002 -- the word for it; the builtin is not needed here
        count: int = DEFAULT_SLOTS,
        *,
        directory: Path = DIRECTORY,
    ) -> None:
        path = _ring_path(name, stream, directory)
        if not 2 <= count <= frame_ring.MAX_SLOTS or not frame_ring.is_sound(format):
            raise FrameError(
                f"{path}: expected 2 to {frame_ring.MAX_SLOTS} slots of a sound format, got "
                f"{count} of {format}; see cereal.frames.nv12_format"
            )
        self._path = path
        self._mapping: frame_ring.Mapping | None = ring_file.create(path, format, count)
        self._is_filling = False
        self.format = format

    def next_buffer(self) -> NDArray[np.uint8]:
        """Return the buffer of the next frame to fill, (format.size,) uint8, with old content."""
        mapping = self._opened()
        number = mapping.head + 1
        mapping.begin(number)
        self._is_filling = True
        return mapping.buffer(number)

    def publish(self, frame_id: int, timestamp_sof_ns: int, timestamp_eof_ns: int) -> None:
        """Hand the buffer of the last `next_buffer` to the readers.

        `frame_id` is the camera's 32-bit unsigned counter; the timestamps are start and end of the
        exposure, ns of the monotonic clock. Raises FrameError if no buffer was requested since the
        last frame, or the id is out of range.
        """
        mapping = self._opened()
        if not self._is_filling:
            raise FrameError(
                f"{self._path}: expected next_buffer before publish of frame {frame_id}, got two "
                "publishes in a row; fill a buffer for each frame"
            )
        if not 0 <= frame_id <= frame_ring.MAX_FRAME_ID:
            raise FrameError(
                f"{self._path}: expected a frame id of 0 to {frame_ring.MAX_FRAME_ID}, got "
                f"{frame_id}; correct the camera's counter"
            )
        self._is_filling = False
        mapping.finish(
            frame_ring.Record(mapping.head + 1, frame_id, timestamp_sof_ns, timestamp_eof_ns)
        )

    def close(self) -> None:
        """End the stream and remove the ring; readers keep what they have mapped."""
        if self._mapping is None:
            return
        mapping, self._mapping = self._mapping, None
        mapping.close_ring()
        # Only our own file: someone may have removed it by hand and started another writer.
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == mapping.inode:
                self._path.unlink()
        # The mapping may live on in frames of this process; its lock must not.
        fcntl.flock(mapping.descriptor, fcntl.LOCK_UN)
        os.close(mapping.descriptor)

    def _opened(self) -> frame_ring.Mapping:
        if self._mapping is None:
            raise FrameError(f"{self._path}: expected an open ring, got a closed one; make another")
        return self._mapping


class FrameRingReader:
    """A reader of a camera stream; a FrameSource.

    It begins with the first frame published after it was made, so frames of a dead writer never
    pass for current ones. It follows the stream to a new writer by itself. If it conflates, it
    skips to the newest frame; else it takes them in order, as far as they are still there. Raises
    FrameError if the stream is missing or its file is damaged.
    """

    def __init__(
        self, name: str, stream: str, *, conflate: bool, directory: Path = DIRECTORY
    ) -> None:
        self._path = _ring_path(name, stream, directory)
        self._conflate = conflate
        self._mapping = ring_file.attach(self._path)
        self._last = self._mapping.head
        self._held = (self._mapping, 0)
        self._is_open = True
        self.lapped = 0
        """Frames so far that were overwritten before they were received, or had no usable id."""

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames; may change when the writer is replaced."""
        return self._mapping.format

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next (conflating: the newest) frame, None if none comes within `timeout_ms`.

        The frame's data is a view into the ring: use it at once and ask `is_intact` afterwards.
        """
        deadline = time.monotonic() + timeout_ms * 1e-3
        while self._is_open:
            frame = self._take()
            if frame is not None:
                return frame
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                self._follow_writer()
                return None
            mapping = self._mapping
            if not mapping.is_closed:
                mapping.wait_beyond(self._last, min(remaining_s, _LOOK_AGAIN_S))
            if mapping.head == self._last and not self._follow_writer() and mapping.is_closed:
                # Nothing will wake us: there is no writer. Wait for one without spinning.
                time.sleep(min(max(deadline - time.monotonic(), 0), 0.01))
        return None

    def is_intact(self) -> bool:
        """Return whether the data of the frame received last is still that frame's."""
        mapping, number = self._held
        return number > 0 and mapping.is_whole(number)

    def close(self) -> None:
        """Stop receiving."""
        if self._is_open:
            self._is_open = False
            os.close(self._mapping.descriptor)

    def _take(self) -> Frame | None:
        mapping = self._mapping
        head = mapping.head
        if head < self._last:
            # The count went back, as no sound writer lets it: waiting for it to catch up may take
            # for ever.
            self._last = max(0, head - 1)
        while self._last < head:
            number = head if self._conflate else max(self._last + 1, head - mapping.count + 1)
            if not self._conflate:
                self.lapped += number - self._last - 1
            record = mapping.read(number)
            self._last = number
            if record is not None:
                self._held = (mapping, number)
                return Frame(
                    mapping.buffer(number),
                    mapping.format,
                    record.frame_id,
                    record.sof_ns,
                    record.eof_ns,
                )
            self.lapped += 1
            head = mapping.head
        return None

    def _follow_writer(self) -> bool:
        """Map the ring that lies at the path now, if it is another one; True if it is."""
        try:
            if self._path.stat().st_ino == self._mapping.inode:
                return False
            mapping = ring_file.attach(self._path)
        except (FileNotFoundError, FrameError):
            # Gone, or in the moment between two writers: look again later.
            return False
        os.close(self._mapping.descriptor)
        # The old mapping goes when the last frame that views it goes.
        self._mapping = mapping
        # Frames of a living writer's ring are recent; those of a dead one's may be old.
        self._last = 0 if ring_file.has_writer(self._path) else mapping.head
        return True


class MemoryFrameSource:
    """Frames handed over inside one process, in order: for replay and tests."""

    def __init__(self, format: FrameFormat) -> None:  # noqa: A002 -- as in FrameRingWriter
        self._format = format
        self._frames: deque[Frame] = deque()

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames."""
        return self._format

    def push(self, frame: Frame) -> None:
        """Append a frame; raise FrameError if it has another layout."""
        if frame.format != self._format or frame.data.shape != (self._format.size,):
            raise FrameError(
                f"memory frames: expected {self._format}, got {frame.format} with data of shape "
                f"{frame.data.shape}; convert the frame"
            )
        self._frames.append(frame)

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the oldest frame pushed, or None at once: nobody pushes while we wait."""
        del timeout_ms
        return self._frames.popleft() if self._frames else None

    def is_intact(self) -> bool:
        """Return True: nothing overwrites these frames."""
        return True

    def close(self) -> None:
        """Drop the frames."""
        self._frames.clear()


def available_streams(name: str, *, directory: Path = DIRECTORY) -> set[str]:
    """Return the streams of `name` that a living process writes."""
    return {
        stream for stream in STREAMS if ring_file.has_writer(_ring_path(name, stream, directory))
    }


def unusable_streams(name: str, *, directory: Path = DIRECTORY) -> dict[str, str]:
    """Return why streams of `name` that exist cannot be read: one line for each such stream.

    Such a ring belongs to another user or has another version.
    """
    reasons = {
        stream: ring_file.unusable(_ring_path(name, stream, directory)) for stream in STREAMS
    }
    return {stream: reason for stream, reason in reasons.items() if reason is not None}


def _ring_path(name: str, stream: str, directory: Path) -> Path:
    if not _NAME.fullmatch(name) or stream not in STREAMS:
        raise FrameError(
            f"frame ring: expected a name of letters, digits, - and _ (at most 64) and one of "
            f"{STREAMS}, got {name!r} and {stream!r}; correct them"
        )
    return directory / f"frames_{name}_{stream}"

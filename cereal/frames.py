"""Camera frames: writers and readers of shared-memory rings, and a source for replay.

Each camera stream has one ring and one writer, which never waits for readers. A reader sees frames
in place, without a copy. If the writer overtakes a slow reader, the reader skips the overwritten
frames. `is_intact` shows whether a frame was overwritten while it was in use.
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
# 6 frames are 300 ms at 20 Hz, longer than a reader should ever be late. Two rings of 1928x1208
# still fit into the 64 MiB of shared memory that containers get.
DEFAULT_SLOTS: Final = 6
# A waiting reader checks this often whether its writer was replaced.
_LOOK_AGAIN_S: Final = 0.1
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(slots=True)
class Frame:
    """One NV12 picture of a camera."""

    data: NDArray[np.uint8]
    """(format.size,) uint8. In a ring it is read-only, and the writer later overwrites it."""
    format: FrameFormat
    frame_id: int  # the camera's frame counter, 32 bits
    timestamp_sof_ns: int
    """Start of the exposure, ns of the monotonic clock."""
    timestamp_eof_ns: int
    """End of the exposure, ns of the monotonic clock."""


class FrameSource(Protocol):
    """A source of the frames of one camera stream."""

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames."""
        ...

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame, or None if none arrives within `timeout_ms` (0 = do not wait)."""
        ...

    def close(self) -> None:
        """Stop receiving. Frames received earlier must not be used afterwards."""
        ...


class FrameRingWriter:
    """The only writer of a camera stream.

    Per frame: fill `next_buffer()`, then call `publish(...)`. Neither call allocates or waits.

    Args:
        name: Name of the camera process, such as "camerad".
        stream: One of STREAMS.
        format: Layout of the frames.
        count: Frames in the ring, 2 to 256.
        directory: The directory of the ring file.

    Raises:
        FrameError: the stream has another writer, a name is not usable, or memory is short.
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
        """Return the next buffer to fill, (format.size,) uint8. It holds an old frame."""
        mapping = self._opened()
        number = mapping.head + 1
        mapping.begin(number)
        self._is_filling = True
        return mapping.buffer(number)

    def publish(self, frame_id: int, timestamp_sof_ns: int, timestamp_eof_ns: int) -> None:
        """Publish the buffer that `next_buffer` returned last.

        `frame_id` is the camera's 32-bit unsigned counter. The timestamps are start and end of the
        exposure, ns of the monotonic clock. Raises FrameError if no buffer was requested since the
        last frame, or the ID is out of range.
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
        """End the stream and remove the ring file. Readers keep their mappings."""
        if self._mapping is None:
            return
        mapping, self._mapping = self._mapping, None
        mapping.close_ring()
        # Remove only our own file: it may have been removed by hand and replaced by another writer.
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == mapping.inode:
                self._path.unlink()
        # Frames of this process may keep the mapping alive, but the lock must be released.
        fcntl.flock(mapping.descriptor, fcntl.LOCK_UN)
        os.close(mapping.descriptor)

    def _opened(self) -> frame_ring.Mapping:
        if self._mapping is None:
            raise FrameError(f"{self._path}: expected an open ring, got a closed one; make another")
        return self._mapping


class FrameRingReader:
    """A reader of a camera stream; a FrameSource.

    It begins with the first frame published after its creation, so old frames of a dead writer are
    never used as current ones. When the writer is replaced, it switches to the new one by itself.
    If `conflate` is set it skips to the newest frame; otherwise it returns all frames in order,
    except those already overwritten. Raises FrameError if the stream is missing or its file is
    damaged.
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
        """Number of frames overwritten before they were received, or with an unusable ID."""

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames; can change when the writer is replaced."""
        return self._mapping.format

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame (the newest if conflating); None if none arrives in `timeout_ms`.

        The frame's data is a view of the ring. Use it promptly and call `is_intact` afterwards.
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
                # Without a writer nothing wakes this thread, so sleep instead of spinning.
                time.sleep(min(max(deadline - time.monotonic(), 0), 0.01))
        return None

    def is_intact(self) -> bool:
        """Return whether the data of the last received frame has not been overwritten."""
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
            # The count went backward, which no correct writer does. Do not wait for it to catch up,
            # which might never happen.
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
        """Map the ring now at the path if it is another one; return whether it is."""
        try:
            if self._path.stat().st_ino == self._mapping.inode:
                return False
            mapping = ring_file.attach(self._path)
        except (FileNotFoundError, FrameError):
            # Missing, or between two writers: check again later.
            return False
        os.close(self._mapping.descriptor)
        # The old mapping is freed together with the last frame that views it.
        self._mapping = mapping
        # Frames in the ring of a living writer are recent; those of a dead writer may be old.
        self._last = 0 if ring_file.has_writer(self._path) else mapping.head
        return True


class MemoryFrameSource:
    """Frames passed within one process, in order, for replay and tests."""

    def __init__(self, format: FrameFormat) -> None:  # noqa: A002 -- as in FrameRingWriter
        self._format = format
        self._frames: deque[Frame] = deque()

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames."""
        return self._format

    def push(self, frame: Frame) -> None:
        """Append a frame; raise FrameError if its layout is different."""
        if frame.format != self._format or frame.data.shape != (self._format.size,):
            raise FrameError(
                f"memory frames: expected {self._format}, got {frame.format} with data of shape "
                f"{frame.data.shape}; convert the frame"
            )
        self._frames.append(frame)

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the oldest pushed frame, or None immediately if there is none."""
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
    """Return the reason, in one line, for each existing stream of `name` that cannot be read.

    For example, the ring belongs to another user or has another version.
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

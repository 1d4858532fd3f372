"""Reads a drive and the log made from it together: each frame with the model's answer.

Frames and answers are matched by frame id, so both are read only once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.frames import Frame
from cereal.schema import DAMAGED, member_name
from tools.drives.drive import Drive, Moment
from tools.errors import DriveError
from tools.messages.drive_log import read_log_events
from tools.playback.outcome import frames_path, load_frames
from tools.playback.session import DAEMON_STREAMS
from tools.playback.threads import prefetch
from tools.views.answer import Answer, AnswerReader
from tools.views.overlay import FrameFacts

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Written:
    """The output file and frame counts of a pass."""

    file: Path  # the output file
    frames: int = 0  # number of frames of the drive
    answered: int = 0  # number of frames with an answer
    on_frame: Callable[[], None] = lambda: None  # called after each frame

    def count(self, *, answered: bool) -> None:
        """Count a frame."""
        self.frames += 1
        self.answered += answered
        self.on_frame()

    def as_json(self) -> dict[str, Any]:
        """Return the counts for ``--json``."""
        return {"file": str(self.file), "frames": self.frames, "answered": self.answered}


def pass_over(
    drive: Drive, log: Path, written: Written, limit: int | None = None
) -> Generator[tuple[Frame, FrameFacts], None, None]:
    """Yield each frame of the main camera with its facts, and count frames in `written`.

    A frame is valid until the next one is requested; close the iterator before the drive. Frames
    after the log's last answer are omitted, since the replay may have been stopped there.

    `drive`: an open drive. `log`: a daemon's log of it. `written`: receives the counts. `limit`:
    stop after this many frames.

    Raises:
        DriveError: no frame of the drive has an answer in the log, or the drive is damaged.
        LogError: the log cannot be read.
    """
    times = measured_ms(log)
    builder = _FactsBuilder(times)
    mounting = drive.info.mounting
    reader = AnswerReader(mounting.rpy_rad, mounting.height_m)
    with followed(drive) as frames:
        for answer in _answers(log, reader):
            for frame in frames.until(answer.frame_id):
                is_answered = frame.frame_id == answer.frame_id
                yield frame, builder.of(frame, answer if is_answered else None)
                written.count(answered=is_answered)
                if written.frames == limit:
                    return
        if not written.answered:
            raise DriveError(
                f"{log}: expected modelV2 messages of the frames of {drive.info.name}, found none; "
                "name the drive that the log was made from"
            )


class _FactsBuilder:
    def __init__(self, times_ms: dict[int, float]) -> None:
        self._measured_ms = times_ms
        self._start_ns: int | None = None
        self._last_id: int | None = None

    def of(self, frame: Frame, answer: Answer | None) -> FrameFacts:
        eof_ns = frame.timestamp_eof_ns
        self._start_ns = eof_ns if self._start_ns is None else self._start_ns
        last_id, self._last_id = self._last_id, frame.frame_id
        execution_ms = self._measured_ms.get(frame.frame_id)
        if execution_ms is None and answer is not None and answer.execution_ms > 0:
            execution_ms = answer.execution_ms
        return FrameFacts(
            frame_id=frame.frame_id,
            time_s=1e-9 * (eof_ns - self._start_ns),
            missing=max(0, frame.frame_id - last_id - 1) if last_id is not None else 0,
            execution_ms=execution_ms,
            answer=answer,
        )


def _answers(log: Path, reader: AnswerReader) -> Iterator[Answer]:
    for event in read_log_events(log):
        member = member_name(event)
        if member is None:
            continue
        try:
            answer = reader.take(member, event)
        except DAMAGED as error:
            logger.warning("%s: left out a damaged %s: %s", log, member, error)
            continue
        if answer is not None:
            yield answer


def measured_ms(log: Path) -> dict[int, float]:
    """Return the execution times that a deterministic replay stores with its log, in ms.

    The result is by frame id, for frames on which the model ran; empty for other logs.
    """
    path = frames_path(log)
    if not path.exists():
        return {}
    try:
        table = load_frames(path)
    except DriveError as error:
        logger.warning("%s", error)
        return {}
    ran = table.execution_s > 0
    times = 1e3 * table.execution_s[ran]
    return dict(zip(table.frame_id[ran].tolist(), times.tolist(), strict=True))


class FrameFollower:
    """The main camera's frames, read up to the frame of the log's current answer."""

    def __init__(self, moments: Iterator[Moment], stream: str) -> None:
        self._moments = moments
        self._stream = stream
        self._next: Frame | None = None
        self.matched = 0

    def until(self, frame_id: int) -> Iterator[Frame]:
        """Yield the frames before a frame id, and the frame with that id if there is one.

        Each frame is valid until the next one is requested.
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
    """Return the stream that the daemon uses as its main camera."""
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

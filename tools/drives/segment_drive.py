"""Plays one or more consecutive openpilot segments as a drive: their logs and videos as moments.

A moment is one frame of the main camera with the messages since the previous one. Opening a drive
reads its logs and indexes its videos; pictures are decoded when moments are requested.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cereal.frames import Frame, FrameFormat
from modeld.vehicle.cameras import DeviceCameras
from tools.drives.drive import KEPT_MOMENTS, DriveInfo, Message, Moment
from tools.drives.drive_plan import LogSurvey, plan_moments, survey_logs
from tools.drives.encode_index import Placed, VideoFile, place_frames
from tools.drives.hevc_frames import HevcIndex, HevcReader, scan_hevc
from tools.drives.log_events import Migrator, merged_messages
from tools.drives.qcamera import SIZE, QCameraIndex, QCameraReader, scan_qcamera, small_cameras
from tools.drives.routes import SMALL_VIDEO, VIDEO_NAMES, SegmentFiles
from tools.errors import DriveError

logger = logging.getLogger(__name__)

# More than the number of pictures in any file.
_ALL_SOUND: Final = 1 << 62
# Part of a drive's identity. Raise it when the same files yield different moments.
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a drive and the options for its cameras."""

    name: str  # display name
    segments: Sequence[SegmentFiles]  # the segments, in order
    logs: Sequence[Path]  # one log for each segment
    videos: Mapping[str, str]  # wanted camera stream -> name of its video files
    focal_px: float | None = None  # focal length of small pictures; None: that of their device


class Reader(Protocol):
    """Decodes the pictures of one file."""

    def format_of(self, picture: int) -> FrameFormat:
        """Return the layout of a picture."""

    def read(self, picture: int, target: NDArray[np.uint8], layout: FrameFormat) -> None:
        """Decode one picture into a padded NV12 buffer."""

    def close(self) -> None:
        """Release decoder and file."""


class SegmentDrive:
    """Implements `tools.drives.drive.Drive` for openpilot segments.

    Opening reads all logs and the bytes of all videos once. Only the first picture of each video is
    decoded.

    Raises:
        DriveError: there is no video of a wanted camera, a file cannot be read, the videos of a
            camera differ in size, or a video does not belong to its log. Of road and wide camera,
            one video is enough.
        MissingPackageError: PyAV or the codec of a log is not installed.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._survey = survey_logs(source.logs)
        numbers = _numbers(source.segments, self._survey)
        self._files: dict[str, list[VideoFile]] = {}
        for stream, video in source.videos.items():
            paths = [one.files.get(video) for one in source.segments]
            if any(paths):
                self._files[stream] = [
                    VideoFile(number, _scan(path) if path else None, start_ns)
                    for number, path, start_ns in zip(
                        numbers, paths, self._survey.starts_ns, strict=True
                    )
                ]
        self._is_small = SMALL_VIDEO in source.videos.values()
        # The road camera defines the moments; the driver camera does if it alone is wanted.
        leading = [name for name in source.videos if name != "driver"] or ["driver"]
        if not set(leading) & set(self._files):
            small = [] if leading == ["driver"] else [SMALL_VIDEO]
            *names, last = dict.fromkeys([*(source.videos[name] for name in leading), *small])
            wanted = f"{', '.join(names)} or {last}" if names else last
            raise DriveError(
                f"{source.segments[0].path}: expected {wanted}, found "
                f"{', '.join(sorted(source.segments[0].files))}; fetch the videos of the drive"
            )
        placed = {name: self._place(name, files) for name, files in self._files.items()}
        self._readers: dict[tuple[str, int], Reader] = {}
        # For damaged files: the first picture that could not be read.
        self._damaged: dict[tuple[str, int], int] = {}
        try:
            self._formats = {name: self._format_of(name) for name in self._files}
        finally:
            # Files are opened again when moments are requested.
            self.close()
        main = next(name for name in leading if name in self._files)
        if main != leading[0]:
            logger.warning(
                "%s: no %s; only the wide camera is used", source.name, VIDEO_NAMES["road"]
            )
        self._plan = plan_moments({name: one.frames for name, one in placed.items()}, main)
        if not len(self._plan):
            raise DriveError(
                f"{source.segments[0].path}: expected camera states or EncodeIdx events for its "
                "videos, found none in the log; fetch the log again"
            )
        self._buffers = {
            name: [np.zeros(layout.size, np.uint8) for _ in range(KEPT_MOMENTS)]
            for name, layout in self._formats.items()
        }
        self._cameras: DeviceCameras | None = None
        reduced = self._small_camera() if self._is_small else ""
        self.info = self._describe(placed, reduced)

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the moments from number `first` on; see `tools.drives.drive.Drive`."""
        plan = self._plan
        begin_ns = int(plan.ends_ns[first - 1]) if 0 < first <= len(plan) else None
        messages = self._messages_after(begin_ns)
        pending = next(messages, None)
        for index in range(first, len(plan)):
            end_ns = int(plan.ends_ns[index])
            collected: list[Message] = []
            while pending is not None and pending.mono_time_ns <= end_ns:
                collected.append(pending)
                pending = next(messages, None)
            yield Moment(index, tuple(collected), self._frames(index))
        if pending is not None and first <= len(plan):
            yield Moment(len(plan), (pending, *messages), {})

    @property
    def logs(self) -> Sequence[Path]:
        """The drive's logs, in order."""
        return self._source.logs

    def frame_ids(self, stream: str) -> NDArray[np.int64]:
        """Return the frame id of a camera's picture in each moment; -1 if there is none."""
        ids = self._plan.frames[stream]["frame_id"].astype(np.int64)
        return np.where(self._plan.present[stream], ids, -1)

    def frame(self, stream: str, index: int) -> Frame | None:
        """Return the picture of a camera in a moment; moments can be read in any order.

        The buffer is reused by later pictures.

        Raises:
            DriveError: the picture cannot be decoded.
        """
        if not self._plan.present[stream][index]:
            return None
        row = self._plan.frames[stream][index]
        layout = self._formats[stream]
        data = self._buffers[stream][index % KEPT_MOMENTS]
        self._read(stream, int(row["segment"]), int(row["picture"]), data)
        return Frame(data, layout, int(row["frame_id"]), int(row["sof_ns"]), int(row["eof_ns"]))

    def close(self) -> None:
        """Release decoders and files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _place(self, stream: str, files: list[VideoFile]) -> Placed:
        survey = self._survey
        indices = survey.small_indices() if self._is_small else survey.indices[stream]
        placed = place_frames(survey.states[stream], indices, files)
        for position, trusted in enumerate(placed.trusted):
            index = files[position].index
            if index is not None:
                files[position] = replace(files[position], index=replace(index, trusted=trusted))
        return placed

    def _format_of(self, stream: str) -> FrameFormat:
        """Return the layout of a camera's frames, from the first picture of each file.

        If the first picture of a file does not decode, `moments` reports it. It is an error here
        only if no file has a readable first picture.
        """
        layout: FrameFormat | None = None
        described = ""
        failure: DriveError | None = None
        for position, file in enumerate(self._files[stream]):
            if file.index is None:
                continue
            try:
                found = self._reader(stream, position).format_of(0)
            except DriveError as error:
                failure = failure or error
                continue
            if layout is not None and found != layout:
                raise DriveError(
                    f"{file.index.path}: expected pictures of {layout.width}x{layout.height} as in "
                    f"{described}, found {found.width}x{found.height}; play the segments one by one"
                )
            layout, described = found, str(file.index.path)
        if layout is None:
            assert failure is not None, stream
            raise failure
        return layout

    def _messages_after(self, begin_ns: int | None) -> Iterator[Message]:
        """Yield the messages after a time, without reading logs that end before it."""
        skipped = 0
        if begin_ns is not None:
            times = self._survey.last_times_ns
            while skipped < len(times) - 1 and max(times[: skipped + 1]) <= begin_ns:
                skipped += 1
        migrator = Migrator(self._survey.recorder)
        for message in merged_messages(self._source.logs, skipped):
            if begin_ns is not None and message.mono_time_ns <= begin_ns:
                continue
            yield migrator.migrate(message) if self._survey.migrated else message

    def _frames(self, index: int) -> dict[str, Frame]:
        """Return the pictures of a moment; after damage, the rest of a file is omitted."""
        found: dict[str, Frame] = {}
        for stream in self._plan.frames:
            row = self._plan.frames[stream][index]
            file = stream, int(row["segment"])
            if not self._plan.present[stream][index] or row["picture"] >= self._damaged.get(
                file, _ALL_SOUND
            ):
                continue
            try:
                frame = self.frame(stream, index)
            except DriveError as error:
                self._damaged[file] = int(row["picture"])
                logger.warning(
                    "%s; frame %d and those after it in this file are left out",
                    error,
                    row["frame_id"],
                )
            else:
                assert frame is not None
                found[stream] = frame
        return found

    def _read(self, stream: str, position: int, picture: int, target: NDArray[np.uint8]) -> None:
        self._reader(stream, position).read(picture, target, self._formats[stream])

    def _reader(self, stream: str, position: int) -> Reader:
        """Return the reader of a file, and close other readers of the same camera."""
        reader = self._readers.get((stream, position))
        if reader is None:
            for key in [key for key in self._readers if key[0] == stream]:
                self._readers.pop(key).close()
            index = self._files[stream][position].index
            assert index is not None
            reader = HevcReader(index) if isinstance(index, HevcIndex) else QCameraReader(index)
            self._readers[stream, position] = reader
        return reader

    def _small_camera(self) -> str:
        """Set the camera of small pictures and return a description of the reduced drive."""
        source, layout = self._source, self._formats["road"]
        self._cameras, focal = small_cameras(
            source.segments[0].path, self._survey.mounting, layout, source.focal_px
        )
        if (layout.width, layout.height) != SIZE:
            logger.warning(
                "%s: expected small pictures of %dx%d, as devices write them, found %dx%d; %s",
                *(source.name, *SIZE, layout.width, layout.height, focal),
            )
        logs = ", ".join(sorted({path.name.partition(".")[0][-4:] for path in source.logs}))
        return f"{logs}, qcamera {layout.width}x{layout.height}, road camera only; {focal}"

    def _describe(self, placed: dict[str, Placed], reduced: str) -> DriveInfo:
        source, survey, plan = self._source, self._survey, self._plan
        without = [
            f"{int((~plan.present[name]).sum())} of {name}"
            for name in plan.frames
            if not plan.present[name].all()
        ]
        notes = [note for one in placed.values() for note in one.notes]
        facts = {
            "segments": _span_text(source.segments),
            "reduced": reduced,
            "logs": ", ".join(sorted({path.name.rpartition("--")[2] for path in source.logs})),
            "cameras": ", ".join(
                f"{name} {layout.width}x{layout.height}" for name, layout in self._formats.items()
            ),
            **survey.facts,
            "sensor": survey.mounting.sensor,
            "migrated": ", ".join(f"{n} {name}" for name, n in sorted(survey.migrated.items())),
            "moments without a picture": ", ".join(without),
            "placement": "; ".join(notes),
        }
        if notes:
            logger.warning("%s: %s", source.name, facts["placement"])
        return DriveInfo(
            name=source.name,
            kind="openpilot",
            identity=self._identity(),
            formats=dict(self._formats),
            cameras=self._cameras,
            mounting=survey.mounting,
            moments=len(plan) + (max(survey.last_times_ns) > int(plan.ends_ns[-1])),
            rate_hz=plan.rate_hz,
            car_params=survey.car_params,
            facts={name: value for name, value in facts.items() if value},
        )

    def _identity(self) -> str:
        """Return the digest of everything that determines the moments: contents, not paths."""
        digest = hashlib.sha256(f"openpilot drive {_VERSION}".encode())
        if self._is_small:
            digest.update(f"small, focal {self._source.focal_px!r}".encode())
        for position, log in enumerate(self._source.logs):
            with log.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
            for stream, files in sorted(self._files.items()):
                index = files[position].index
                digest.update(stream.encode() + (index.sha256 if index else b"\0"))
        return digest.hexdigest()


def _scan(path: Path) -> HevcIndex | QCameraIndex:
    return scan_qcamera(path) if path.name.endswith(SMALL_VIDEO) else scan_hevc(path)


def _span_text(segments: Sequence[SegmentFiles]) -> str:
    first = str(segments[0].path)
    return first if len(segments) == 1 else f"{len(segments)}, {first} to {segments[-1].path}"


def _numbers(segments: Sequence[SegmentFiles], survey: LogSurvey) -> list[int]:
    """Return the segmentNum of each segment: from its name, or the most frequent in its log."""
    numbers: list[int] = []
    for position, segment in enumerate(segments):
        logged: Counter[int] = Counter()
        for rows in survey.indices.values():
            logged.update(rows["number"][rows["segment"] == position].tolist())
        likely = logged.most_common(1)
        numbers.append(
            segment.number if segment.number is not None else likely[0][0] if likely else position
        )
    return numbers

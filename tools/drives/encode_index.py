"""Maps each frame of a camera to the picture and the file that show it.

A camera numbers its frames (``frameId``) over the whole drive; a video file numbers its pictures
from 0. EncodeIdx events connect the two: ``segmentNum`` is the file, ``segmentId`` the picture.
The numbers diverge as soon as the encoder drops a frame, so a frame id is never an index.

A qlog contains only every 20th state of a camera. Frames come at a steady rate, so ids and times of
the frames between are known to a millisecond. The start time of the segment determines which frame
the first picture of a file shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.drives.hevc_frames import HevcIndex
from tools.drives.qcamera import QCameraIndex
from tools.errors import DriveError

# Flag of a key frame in an EncodeIdx (V4L2_BUF_FLAG_KEYFRAME).
KEY_FLAG: Final = 8
NO_PICTURE: Final = -1
NO_STATE: Final = -1
# Maximum number of frames between a camera and its encoder when a file ends. Their states are in
# this segment's log, their pictures in the next file.
_IN_FLIGHT: Final = 3
# A restarted camera counts from 0, so equal ids at least this far apart are different frames.
_SAME_FRAME_NS: Final = 10_000_000_000
# Frame period, to interpolate the frames that a thinned log omits.
_PERIOD_NS: Final = 50_000_000

STATE: Final = np.dtype(
    [
        ("segment", np.int64),
        ("time_ns", np.int64),
        ("frame_id", np.int64),
        ("sof_ns", np.int64),
        ("eof_ns", np.int64),
    ]
)
"""A camera state: position of the segment whose log contains it, logMonoTime, and its fields."""

INDEX: Final = np.dtype(
    [
        *STATE.descr,
        ("number", np.int64),
        ("picture", np.int64),
        ("flags", np.int64),
        ("size_bytes", np.int64),
    ]
)
"""An EncodeIdx: the fields of a camera state, and segmentNum, segmentId, flags, len."""

FRAME: Final = np.dtype(
    [
        ("time_ns", np.int64),
        ("frame_id", np.int64),
        ("sof_ns", np.int64),
        ("eof_ns", np.int64),
        ("segment", np.int64),
        ("picture", np.int64),
        ("has_state", np.bool_),
    ]
)
"""A frame of a camera: its announcement, its timestamps, and the picture that shows it.

``time_ns`` is the logMonoTime of the camera state, or the end of the exposure if there is no state.
``segment`` is the position of the file in the drive. ``picture`` is ``NO_PICTURE`` if no picture
shows the frame.
"""

Rows = NDArray[np.void]
PictureIndex = HevcIndex | QCameraIndex


@dataclass(frozen=True, slots=True)
class VideoFile:
    """The video of one camera in one segment."""

    number: int  # the file's segmentNum in EncodeIdx events
    index: PictureIndex | None  # the file's pictures; None if the file is missing
    # Start time of the segment, from its log; None if its first picture is not from that time.
    start_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """The frames of a camera with their pictures."""

    frames: Rows  # (n,) of ``FRAME``, in the order of ``time_ns``
    trusted: tuple[int, ...]  # for each file, the number of pictures before the first damaged one
    notes: tuple[str, ...]  # remarks on the mapping, for the user


def place_frames(states: Rows, indices: Rows, files: Sequence[VideoFile]) -> Placed:
    """Return all frames of one camera with the pictures that show them.

    `states`: (n,) of ``STATE``, in log order. `indices`: (m,) of ``INDEX`` in log order, only those
    of the files' type. `files`: the video files, by position in the drive.

    Raises:
        DriveError: a file does not match its EncodeIdx events.
    """
    notes: list[str] = []
    _check_numbers(indices, files)
    indices = _with_interpolated(states, indices, files, notes)
    positions = {file.number: position for position, file in enumerate(files)}
    indices = _first_of_each(indices)
    indices = indices[np.isin(indices["number"], list(positions))]
    segments = np.array([positions[int(number)] for number in indices["number"]], np.int64)
    pictures = np.full(len(indices), NO_PICTURE, np.int64)
    # The number (segmentId) of each file's first picture.
    firsts = [0] * len(files)
    for position, file in enumerate(files):
        rows = segments == position
        if file.index is None or not rows.any():
            continue
        firsts[position] = first = _first_picture(indices[rows], file.index)
        if first:
            notes.append(f"{file.index.path.name} of segment {file.number} begins at {first}")
        pictures[rows] = indices["picture"][rows] - first
    frames = _join(states, indices, segments, pictures)
    trusted = [0] * len(files)
    for position, file in enumerate(files):
        if file.index is None:
            continue
        rows = segments == position
        if not rows.any():
            notes.append(f"segment {file.number} without EncodeIdx: placed by frame ids")
            _place_by_id(frames, states, position, len(file.index))
        shown = frames["picture"][frames["segment"] == position]
        named = int(shown.max()) + 1 if shown.size else 0
        trusted[position] = _trusted(indices[rows], file.index, firsts[position], named)
    ordered = frames[np.argsort(frames["time_ns"], kind="stable")]
    return Placed(ordered, tuple(trusted), tuple(notes))


def _with_interpolated(
    states: Rows, indices: Rows, files: Sequence[VideoFile], notes: list[str]
) -> Rows:
    """Return the events, with generated ones for files without events and with thinned states."""
    for position, file in enumerate(files):
        if file.index is None or (indices["number"] == file.number).any():
            continue
        known = states[states["segment"] == position]
        found = interpolate_states(known, len(file.index), file.start_ns)
        if found is None:
            continue
        made = np.zeros(len(found), INDEX)
        for name in ("frame_id", "sof_ns", "eof_ns"):
            made[name] = found[name]
        made["time_ns"] = found["eof_ns"]
        made["segment"], made["number"] = position, file.number
        made["picture"] = np.arange(len(found))
        indices = np.concatenate([indices, made])
        notes.append(
            f"segment {file.number} without EncodeIdx: frames interpolated between "
            f"{len(known)} camera states; a picture may be one frame off"
        )
    return indices


def interpolate_states(states: Rows, count: int, start_ns: int | None) -> Rows | None:
    """Return the states of the frames that a file's pictures show, by interpolation.

    `states`: (n,) of ``STATE``, of one camera in one log. `start_ns`: start time of the segment,
    which is the time of its first picture; None if the first picture shows the first state. The
    result is (count,) of ``STATE`` with ids and timestamps. It is None if there are no states, or
    if they are not thinned.
    """
    states = states[np.argsort(states["frame_id"], kind="stable")]
    ids = states["frame_id"]
    steps = np.diff(ids)
    if not count or not len(ids) or (steps.size and np.median(steps) <= 1):
        return None
    first = int(ids[0])
    # Thinning keeps the first state of the drive, and an early state of each segment.
    every = int(np.median(steps)) if steps.size else count
    if start_ns is not None:
        ahead = round((start_ns - int(states["eof_ns"][0])) / _PERIOD_NS)
        first = max(0, first + min(0, max(ahead, -every)))
    found = np.zeros(count, STATE)
    found["frame_id"] = wanted = first + np.arange(count)
    for name in ("sof_ns", "eof_ns"):
        found[name] = _at(wanted, ids, states[name])
    return found


def _at(
    wanted: NDArray[np.int64], ids: NDArray[np.int64], times_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Interpolate times by frame id, in whole ns; extrapolate at the nominal frame rate."""
    base = int(times_ns[0])
    inside = np.interp(wanted, ids, (times_ns - base).astype(np.float64))
    outside = np.minimum(wanted - ids[0], 0) + np.maximum(wanted - ids[-1], 0)
    return np.asarray(base + np.rint(inside).astype(np.int64) + outside * _PERIOD_NS)


def _check_numbers(indices: Rows, files: Sequence[VideoFile]) -> None:
    """Reject a file if its log describes other segments only: its directory was renamed."""
    for position, file in enumerate(files):
        logged = set(indices["number"][indices["segment"] == position].tolist())
        if file.index is not None and logged and file.number not in indices["number"]:
            raise DriveError(
                f"{file.index.path}: expected the video of segment {file.number}, by the name of "
                "its directory, found EncodeIdx events of segment "
                f"{', '.join(map(str, sorted(logged)[:4]))} in its log; give the directory "
                "its own number again"
            )


def _join(
    states: Rows, indices: Rows, segments: NDArray[np.int64], pictures: NDArray[np.int64]
) -> Rows:
    """Return the frames of all states, in their order, followed by those without a state."""
    matches = _match(states, indices)
    alone = np.flatnonzero(matches == NO_STATE)
    frames = np.zeros(len(states) + len(alone), FRAME)
    frames["picture"] = NO_PICTURE
    for name in ("time_ns", "frame_id", "sof_ns", "eof_ns"):
        frames[name][: len(states)] = states[name]
        frames[name][len(states) :] = indices[name][alone]
    frames["segment"][: len(states)] = states["segment"]
    frames["has_state"][: len(states)] = True
    # A frame without a state is assumed to be announced at the end of its exposure.
    ends = indices["eof_ns"][alone]
    frames["time_ns"][len(states) :] = np.where(ends > 0, ends, indices["time_ns"][alone])
    matches[alone] = len(states) + np.arange(len(alone))
    for name in ("sof_ns", "eof_ns"):
        # An event can have timestamps that the state lacks.
        frames[name][matches] = np.where(
            frames[name][matches] > 0, frames[name][matches], indices[name]
        )
    frames["segment"][matches] = segments
    frames["picture"][matches] = pictures
    return frames


def _first_of_each(indices: Rows) -> Rows:
    """Drop repeated events of the same picture, which occur in damaged logs."""
    names = np.stack([indices["number"], indices["picture"]], axis=1)
    _, first = np.unique(names, axis=0, return_index=True)
    return indices[np.sort(first)]


def _match(states: Rows, indices: Rows) -> NDArray[np.int64]:
    """Return for each EncodeIdx the row of its camera state, or ``NO_STATE``."""
    by_id: dict[int, list[int]] = {}
    for row, frame_id in enumerate(states["frame_id"].tolist()):
        by_id.setdefault(frame_id, []).append(row)
    matches = np.full(len(indices), NO_STATE, np.int64)
    times = states["time_ns"].tolist()
    for row, (frame_id, time_ns) in enumerate(
        zip(indices["frame_id"].tolist(), indices["time_ns"].tolist(), strict=True)
    ):
        candidates = by_id.get(frame_id)
        if not candidates:
            continue
        nearest = min(candidates, key=lambda one: abs(times[one] - time_ns))
        if abs(times[nearest] - time_ns) <= _SAME_FRAME_NS:
            candidates.remove(nearest)
            matches[row] = nearest
    return matches


def _first_picture(indices: Rows, file: PictureIndex) -> int:
    """Return the segmentId of the file's first picture.

    It is 0, unless the encoder started before the logger. Pictures before the first key frame that
    the logger saw are then in neither the file nor the log, and both begin with that key frame.
    """
    ids = indices["picture"]
    lowest, highest = int(ids.min()), int(ids.max())
    candidates = [0]
    if lowest > 0 and _may_be_key(indices, indices[int(np.argmin(ids))]):
        candidates.append(lowest)
    fitting = [first for first in candidates if _keys_fit(indices, file, first)]
    if len(fitting) > 1:
        by_size = [first for first in fitting if _sizes_fit(indices, file, first)]
        fitting = by_size or fitting
    if len(fitting) > 1:
        by_count = [first for first in fitting if len(file) == highest + 1 - first]
        fitting = by_count or fitting
    if len(fitting) == 1:
        return fitting[0]
    number = int(indices["number"][0])
    if not fitting:
        raise DriveError(
            f"{file.path}: expected key frames where the log's EncodeIdx events of segment "
            f"{number} have them, found them elsewhere; the video belongs to another segment or "
            "was encoded again"
        )
    raise DriveError(
        f"{file.path}: expected {highest + 1} pictures, or {highest + 1 - lowest} from number "
        f"{lowest} on, as the log's EncodeIdx events of segment {number} say, found {len(file)}; "
        "pictures cannot be matched to frames: fetch log and video again"
    )


def _may_be_key(indices: Rows, one: Any) -> bool:
    """Return whether an event can describe a key frame; old logs have no flags."""
    return bool(one["flags"] & KEY_FLAG) or not (indices["flags"] & KEY_FLAG).any()


def _keys_fit(indices: Rows, file: PictureIndex, first: int) -> bool:
    """Return whether key frames agree, up to the first picture with an unexpected size.

    Such a picture is damaged, and the pictures after it may be shifted.
    """
    says_key = (indices["flags"] & KEY_FLAG) != 0
    if not says_key.any():
        return True
    pictures = indices["picture"] - first
    inside = (pictures >= 0) & (pictures < _whole_by_size(indices, file, first))
    return bool((file.is_key[pictures[inside]] == says_key[inside]).all())


def _sizes_fit(indices: Rows, file: PictureIndex, first: int) -> bool:
    """Return whether each picture but the last has at least the size that its event states."""
    pictures, stated = _stated_sizes(indices, file, first)
    inside = pictures < len(file) - 1
    return bool((file.sizes_bytes[pictures[inside]] >= stated[inside]).all())


def _stated_sizes(
    indices: Rows, file: PictureIndex, first: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    pictures = indices["picture"] - first
    known = (pictures >= 0) & (pictures < len(file)) & (indices["size_bytes"] > 0)
    return pictures[known], indices["size_bytes"][known]


def _place_by_id(frames: Rows, states: Rows, position: int, count: int) -> None:
    """Place the states of one log in its file by frame id; the smallest id so far is picture 0."""
    rows = np.flatnonzero((states["segment"] == position) & (frames["picture"][: len(states)] < 0))
    ids = states["frame_id"][rows]
    pictures = ids - np.minimum.accumulate(ids)
    in_flight = (pictures >= count) & (pictures < count + _IN_FLIGHT)
    frames["segment"][rows] = position
    frames["picture"][rows] = np.where(in_flight, NO_PICTURE, pictures)


def _whole_by_size(indices: Rows, file: PictureIndex, first: int) -> int:
    """Return the number of pictures before the first whose size differs from its event's.

    Sizes are meaningless if the video was re-encoded. They are used if the first picture has its
    stated size, or most pictures do. This is decided for key frames alone, and for the others if it
    holds for either kind.
    """
    pictures, stated = _stated_sizes(indices, file, first)
    sizes = file.sizes_bytes[pictures]
    # The event's size of a key frame may or may not include the preceding parameter sets.
    is_whole = (sizes == stated) | (sizes - file.parameters_bytes[pictures] == stated)
    damaged = [len(file)]
    has_sizes = False
    for rows in (file.is_key[pictures], ~file.is_key[pictures]):
        whole = is_whole[rows]
        has_sizes |= bool(whole.size) and (
            bool(whole[np.argmin(pictures[rows])]) or float(whole.mean()) > 0.5
        )
        if has_sizes:
            damaged += pictures[rows][~whole].tolist()
    return min(damaged)


def _trusted(indices: Rows, file: PictureIndex, first: int, named: int) -> int:
    """Return the number of pictures in a file before the first damaged one.

    Decoders silently fill in the missing part of a damaged picture, so its size is checked. If
    sizes are not usable, the last picture of a file that lacks later ones is assumed truncated.

    `indices`: (m,) of ``INDEX``, those of the file. `first`: segmentId of the file's first picture.
    `named`: number of pictures according to the log.
    """
    pictures, stated = _stated_sizes(indices, file, first)
    last = pictures == len(file) - 1
    has_size = bool((file.sizes_bytes[pictures[last]] >= stated[last]).any())
    if named > len(file) and not (has_size and _sizes_fit(indices, file, first)):
        return min(_whole_by_size(indices, file, first), max(0, len(file) - 1))
    return _whole_by_size(indices, file, first)

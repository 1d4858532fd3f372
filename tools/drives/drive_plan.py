"""Surveys the logs of a drive before decoding, and divides the drive into moments.

A moment is one frame of the main camera with the messages since the previous one. The survey reads
all logs once and collects camera states, EncodeIdx events and facts. The plan then assigns frames
of all cameras to moments, and gives each moment the time of its last message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cereal.errors import MessageError
from cereal.schema import content, enumerant_name, read_event, reading
from modeld.frames.frame_sync import PAIRING_WINDOW_NS
from tools.drives.drive import Message
from tools.drives.encode_index import FRAME, INDEX, NO_PICTURE, STATE, Rows
from tools.drives.log_events import Migrator, Recorder, read_messages
from tools.messages.drive_messages import Mounting

logger = logging.getLogger(__name__)

# Stream name for the small pictures of the road camera (``qcamera.ts``).
SMALL: Final = "small"
STATE_SERVICES: Final = {
    "roadCameraState": "road",
    "wideRoadCameraState": "wideRoad",
    "driverCameraState": "driver",
}
INDEX_SERVICES: Final = {
    "roadEncodeIdx": "road",
    "wideRoadEncodeIdx": "wideRoad",
    "driverEncodeIdx": "driver",
    "qRoadEncodeIdx": SMALL,
}
# Numbers of EncodeIndex.Type fullHEVC and qcameraH264; other types describe other files.
_FULL_HEVC: Final = 1
_QCAMERA: Final = 6
# Upper limit for clocks and counters, which can hold anything in damaged logs: 146 years in ns.
_LARGEST: Final = 1 << 62
NO_FRAME: Final = -1


@dataclass(slots=True)
class LogSurvey:
    """The contents of a drive's logs that the plan needs."""

    # Stream -> (n,) of ``STATE``, in the order of the logs.
    states: dict[str, Rows] = field(default_factory=dict)
    # Stream, or ``SMALL`` -> (n,) of ``INDEX`` for the video files, in the order of the logs.
    indices: dict[str, Rows] = field(default_factory=dict)
    last_times_ns: list[int] = field(default_factory=list)  # newest logMonoTime of each log
    # Start time of each log that continues a previous one; None for others.
    starts_ns: list[int | None] = field(default_factory=list)
    recorder: Recorder = field(default_factory=Recorder)  # the recording device
    # From initData: device, dongle, version, commit, branch.
    facts: dict[str, str] = field(default_factory=dict)
    # From the first liveCalibration, deviceState and camera state.
    mounting: Mounting = field(default_factory=Mounting)
    car_params: bytes | None = None  # the first carParams Event
    migrated: dict[str, int] = field(default_factory=dict)  # Event member -> number migrated

    def small_indices(self) -> Rows:
        """Return the EncodeIdx events of small pictures, or of full ones in logs without those.

        Software before 2022 records events of the full pictures only. Both show the same frames,
        but key frames and sizes differ.
        """
        small, full = self.indices[SMALL], self.indices["road"].copy()
        full["flags"] = full["size_bytes"] = 0
        return np.concatenate([small, full[~np.isin(full["segment"], small["segment"])]])


def survey_logs(paths: Sequence[Path]) -> LogSurvey:
    """Read the logs of a drive once.

    Raises:
        DriveError: a file cannot be read or is not a log.
    """
    surveyor = _Surveyor()
    for position, path in enumerate(paths):
        surveyor.read(position, path)
    return surveyor.finish()


class _Surveyor:
    def __init__(self) -> None:
        self.survey = LogSurvey()
        self._migrator = Migrator()
        self._states: dict[str, list[Rows]] = {one: [] for one in STATE_SERVICES.values()}
        self._indices: dict[str, list[Rows]] = {one: [] for one in INDEX_SERVICES.values()}
        self._mounting: dict[str, Any] = {}
        self._handlers = {
            "initData": self._init_data,
            "deviceState": self._device_state,
            "liveCalibration": self._calibration,
            "carParams": self._car_params,
            "sentinel": self._sentinel,
        }

    def read(self, position: int, path: Path) -> None:
        """Read one log, which is number `position` of the drive."""
        states: dict[str, list[tuple[int, ...]]] = {name: [] for name in self._states}
        indices: dict[str, list[tuple[int, ...]]] = {name: [] for name in self._indices}
        last_ns = damaged = 0
        self.survey.starts_ns.append(None)
        for message in read_messages(path):
            if message.service != "initData":
                last_ns = max(last_ns, message.mono_time_ns)
            try:
                if message.service in STATE_SERVICES:
                    row = self._state(position, message)
                    states[STATE_SERVICES[message.service]].append(row)
                elif message.service in INDEX_SERVICES:
                    index = _index(position, message)
                    if index is not None:
                        indices[INDEX_SERVICES[message.service]].append(index)
                elif message.service in self._handlers:
                    self._handlers[message.service](message)
            except MessageError:
                damaged += 1
        if damaged:
            logger.warning("%s: %d events with damaged content", path, damaged)
        for name, rows in states.items():
            self._states[name].append(np.array(rows, STATE))
        for name, rows in indices.items():
            self._indices[name].append(np.array(rows, INDEX))
        self.survey.last_times_ns.append(last_ns)

    def finish(self) -> LogSurvey:
        """Return the survey of all logs read."""
        survey = self.survey
        survey.states = {name: np.concatenate(rows) for name, rows in self._states.items()}
        survey.indices = {name: np.concatenate(rows) for name, rows in self._indices.items()}
        self._mounting.setdefault("device_type", survey.facts.get("device", "unknown"))
        survey.mounting = Mounting(**self._mounting)
        survey.migrated = dict(self._migrator.done)
        return survey

    def _state(self, position: int, message: Message) -> tuple[int, ...]:
        state = _content(self._migrator.migrate(message))
        if message.service == "roadCameraState":
            self._mounting.setdefault("sensor", enumerant_name(state.sensor))
        stamps = (state.timestampSof, state.timestampEof)
        return (position, _bounded(message.mono_time_ns), state.frameId, *map(_bounded, stamps))

    def _init_data(self, message: Message) -> None:
        if self.survey.facts:
            return
        init = _content(message)
        with reading("initData"):
            facts = {
                "device": enumerant_name(init.deviceType),
                "dongle": str(init.dongleId),
                "version": str(init.version),
                "commit": str(init.gitCommit),
                "branch": str(init.gitBranch),
            }
        self.survey.facts = {name: value for name, value in facts.items() if value}
        self.survey.recorder = self._migrator.recorder = Recorder(init.deviceType.raw)

    def _sentinel(self, message: Message) -> None:
        if enumerant_name(_content(message).type) == "startOfSegment":
            self.survey.starts_ns[-1] = _bounded(message.mono_time_ns)

    def _device_state(self, message: Message) -> None:
        state = _content(self._migrator.migrate(message))
        self._mounting.setdefault("device_type", enumerant_name(state.deviceType))

    def _calibration(self, message: Message) -> None:
        calibration = _content(self._migrator.migrate(message))
        if "rpy_rad" in self._mounting:
            return
        with reading("liveCalibration"):
            if len(calibration.rpyCalib) != 3:
                return
            roll, pitch, yaw = (float(angle) for angle in calibration.rpyCalib)
            height_m = float(calibration.height[0]) if len(calibration.height) else 0.0
        if np.isfinite((roll, pitch, yaw)).all():
            self._mounting["rpy_rad"] = (roll, pitch, yaw)
            if 0 < height_m < np.inf:
                self._mounting["height_m"] = height_m

    def _car_params(self, message: Message) -> None:
        if self.survey.car_params is None:
            _content(message)
            self.survey.car_params = message.data


def _index(position: int, message: Message) -> tuple[int, ...] | None:
    index = _content(message)
    if index.type.raw != (_QCAMERA if INDEX_SERVICES[message.service] == SMALL else _FULL_HEVC):
        return None
    return (
        position,
        _bounded(message.mono_time_ns),
        index.frameId,
        _bounded(index.timestampSof),
        _bounded(index.timestampEof),
        index.segmentNum,
        index.segmentId,
        index.flags,
        index.len,
    )


def _content(message: Message) -> Any:
    return content(read_event(message.read_as))


def _bounded(value: int) -> int:
    return min(value, _LARGEST)


@dataclass(frozen=True, slots=True)
class MomentPlan:
    """The moments of a drive: one per frame of the main camera, and some between such frames."""

    # (n,) int64, logMonoTime of the last message of each moment, in non-decreasing order.
    ends_ns: NDArray[np.int64]
    frames: Mapping[str, Rows]  # stream -> (n,) of ``FRAME``; the main camera last
    # Stream -> (n,) bool, whether there is a picture for the moment.
    present: Mapping[str, NDArray[np.bool_]]

    def __len__(self) -> int:
        return len(self.ends_ns)

    @property
    def rate_hz(self) -> float:
        """Rate of the main camera, from the median of its frame intervals."""
        starts = self.frames[list(self.frames)[-1]]["sof_ns"]
        steps = np.diff(starts)
        steps = steps[steps > 0]
        return round(1e9 / float(np.median(steps)), 2) if steps.size else 20.0


def plan_moments(cameras: Mapping[str, Rows], main: str) -> MomentPlan:
    """Pair the frames of the cameras and determine where moments end.

    A moment ends with the later of the camera states of its road and wide frame, and before the
    next frame of the main camera. Its wide frame is the one that started with the road frame,
    within the daemon's pairing window. The driver camera runs half a period later; its frame
    belongs to the moment in which it was announced. If that moment has a newer driver frame,
    because the main camera lost a frame or has stopped, the older one gets its own moment. Frames
    before the first picture and after the last picture of all cameras belong to no moment.

    `cameras`: stream -> (n,) of ``FRAME`` in the order of ``time_ns``. `main`: the camera whose
    frames define the moments.
    """
    pace = cameras[main]
    count = len(pace)
    frames: dict[str, Rows] = {}
    present: dict[str, NDArray[np.bool_]] = {}
    ends = pace["time_ns"].copy()
    partner = np.full(count, NO_FRAME, np.int64)
    if main == "road" and "wideRoad" in cameras:
        wide = cameras["wideRoad"]
        partner = _pair(pace["sof_ns"], wide["sof_ns"])
        _extend_to_wide_states(ends, _chosen(wide, partner)[0], partner)
    ends, rows = np.maximum.accumulate(ends), np.arange(count)
    if "driver" in cameras and main != "driver":
        driver = cameras["driver"]
        places = _superseded(ends, driver)
        own = driver["time_ns"][list(places)]
        ends = np.insert(ends, list(places.values()), own)
        rows = np.insert(rows, list(places.values()), NO_FRAME)
        partner = np.insert(partner, list(places.values()), NO_FRAME)
        frames["driver"], present["driver"] = _chosen(driver, _newest(ends, driver["time_ns"]))
    if "wideRoad" in cameras and main != "wideRoad":
        frames["wideRoad"], present["wideRoad"] = _chosen(cameras["wideRoad"], partner)
    frames[main], present[main] = _chosen(pace, rows)
    shown = np.flatnonzero(np.any(list(present.values()), axis=0))
    span = slice(int(shown[0]), int(shown[-1]) + 1) if shown.size else slice(0, 0)
    order = [name for name in ("driver", "wideRoad", "road") if name in frames]
    return MomentPlan(
        ends[span],
        {name: frames[name][span] for name in order},
        {name: present[name][span] for name in order},
    )


def _pair(starts_ns: NDArray[np.int64], others_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nearest of `others_ns` within the window for each start, each used once."""
    partners = np.full(len(starts_ns), NO_FRAME, np.int64)
    if not len(others_ns):
        return partners
    order = np.argsort(others_ns, kind="stable")
    ordered = others_ns[order]
    after = np.clip(np.searchsorted(ordered, starts_ns), 1, max(1, len(ordered) - 1))
    before = after - 1
    after = np.minimum(after, len(ordered) - 1)
    is_before = starts_ns - ordered[before] <= ordered[after] - starts_ns
    nearest = np.where(is_before, before, after)
    gaps = np.abs(ordered[nearest] - starts_ns)
    # Closest pairs first, so that of two frames with the same nearest partner the closer gets it.
    taken: set[int] = set()
    for row in np.argsort(gaps, kind="stable").tolist():
        if gaps[row] < PAIRING_WINDOW_NS and nearest[row] not in taken:
            taken.add(int(nearest[row]))
            partners[row] = order[nearest[row]]
    return partners


def _superseded(ends_ns: NDArray[np.int64], frames: Rows) -> dict[int, int]:
    """Return the pictures that are not the newest of their moment: row -> moment."""
    moments = np.searchsorted(ends_ns, frames["time_ns"])
    newest = set(_newest(ends_ns, frames["time_ns"]).tolist())
    shown = np.flatnonzero(frames["picture"] != NO_PICTURE).tolist()
    return {row: int(moments[row]) for row in shown if row not in newest}


def _newest(ends_ns: NDArray[np.int64], times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each moment the last frame announced in it, or ``NO_FRAME``."""
    newest = np.full(len(ends_ns), NO_FRAME, np.int64)
    moments = np.searchsorted(ends_ns, times_ns)
    inside = moments < len(ends_ns)
    # The rows ascend, so that a later frame replaces an earlier one of the same moment.
    newest[moments[inside]] = np.flatnonzero(inside)
    return newest


def _chosen(frames: Rows, rows: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_]]:
    chosen = np.zeros(len(rows), FRAME)
    chosen["picture"] = NO_PICTURE
    there = rows != NO_FRAME
    chosen[there] = frames[rows[there]]
    return chosen, chosen["picture"] != NO_PICTURE


def _extend_to_wide_states(
    ends_ns: NDArray[np.int64], wide: Rows, partner: NDArray[np.int64]
) -> None:
    """Extend moments to the wide camera's state if it precedes the next frame."""
    following = np.append(ends_ns[1:], np.iinfo(np.int64).max)
    waits = (partner != NO_FRAME) & wide["has_state"]
    waits &= (wide["time_ns"] > ends_ns) & (wide["time_ns"] < following)
    ends_ns[waits] = wide["time_ns"][waits]

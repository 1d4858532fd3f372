"""Reads the events of a drive's logs as one stream in time order, and migrates old messages.

Logs are written as messages arrive, so neighboring events can be out of order, by no more than a
fraction of a second in known logs. Events are therefore sorted within a moving window. A migration
converts a message of older software to the current schema.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from cereal.errors import LogError, MessageError
from cereal.log_reader import read_log_bytes
from cereal.schema import content, read_event, reading
from tools.drives.drive import Message
from tools.errors import DriveError
from tools.messages.event_bytes import read_header, write_field

logger = logging.getLogger(__name__)

# More than a second of a full log. The limits also bound memory for logs with invalid times.
WINDOW_EVENTS: Final = 2048
WINDOW_BYTES: Final = 16 << 20
# The event at the start of each log of a drive. Each log repeats it with the time of the route's
# start.
_REPEATED: Final = "initData"


def read_messages(path: Path) -> Iterator[Message]:
    """Yield the messages of one log, in the order of the file.

    A truncated log yields the messages before the end of the file, and a warning is logged. Events
    with a damaged root are omitted and counted.

    Raises:
        DriveError: the file cannot be read or is not a log.
    """
    damaged = 0
    try:
        for data in read_log_bytes(path, logger.warning):
            header = read_header(data)
            if header is None:
                damaged += 1
                continue
            yield Message(header.service, header.mono_time_ns, data)
    except LogError as error:
        raise DriveError(str(error)) from error
    if damaged:
        logger.warning("%s: left out %d damaged events", path, damaged)


def merged_messages(paths: Sequence[Path], skipped: int = 0) -> Iterator[Message]:
    """Yield the messages of consecutive logs in time order.

    `paths`: the logs, in order. `skipped`: number of logs to omit at the start.

    Raises:
        DriveError: see `read_messages`; raised when the affected log is reached.
    """
    heap: list[tuple[int, int, Message]] = []
    size_bytes = 0
    for number, message in enumerate(_chained(paths, skipped)):
        heapq.heappush(heap, (message.mono_time_ns, number, message))
        size_bytes += len(message.data)
        while len(heap) > WINDOW_EVENTS or size_bytes > WINDOW_BYTES:
            first = heapq.heappop(heap)[2]
            size_bytes -= len(first.data)
            yield first
    while heap:
        yield heapq.heappop(heap)[2]


def _chained(paths: Sequence[Path], skipped: int) -> Iterator[Message]:
    """Yield the messages of the logs in the order of the files.

    A repeated initData gets the time of the next message, or of the last one at the end of a log.
    """
    last_ns = 0
    for position, path in enumerate(paths[skipped:], skipped):
        waiting: list[Message] = []
        for message in read_messages(path):
            if position and message.service == _REPEATED:
                waiting.append(message)
                continue
            last_ns = message.mono_time_ns
            yield from (one._replace(mono_time_ns=last_ns) for one in waiting)
            waiting.clear()
            yield message
        yield from (one._replace(mono_time_ns=last_ns) for one in waiting)


# --- Migrations of messages of older software to the current schema ---------------------------
# A migration returns None if the message already has its field. The daemon reads the migrated
# message; the recorded one is forwarded to others. Nothing migrates ``liveDelay``: drives from
# before May 2025 play with a measured lateral delay of 0.

# Read-out time of the sensor then in use, assumed for logs without a start of frame.
_READOUT_NS: Final = 18_000_000
# A camera state whose end of frame is not later than this is left unchanged.
_EARLIEST_EOF_NS: Final = 25_000_000
# Numbers of a calibration's status: old and new agree.
_UNCALIBRATED: Final = 0
_OLD_STATUSES: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Recorder:
    """The device that recorded a log, from its initData."""

    device_type: int = 0  # number in `InitData.DeviceType`; 0 without initData


Change = tuple[str, int]
"""Name of a field and its new number."""

Migration = Callable[[Any, Recorder], Change | None]


def start_of_frame(state: Any, recorder: Recorder) -> Change | None:
    """Set the start of exposure in a camera state from before 2021.

    ``{timestampSof: 0, timestampEof: t} -> {timestampSof: t - 18 ms, timestampEof: t}``
    """
    del recorder
    if state.timestampSof or state.timestampEof <= _EARLIEST_EOF_NS:
        return None
    return "timestampSof", state.timestampEof - _READOUT_NS


def device_type(state: Any, recorder: Recorder) -> Change | None:
    """Set the device's type if only initData has it.

    ``initData {deviceType: tici}, deviceState {deviceType: unknown} -> {deviceType: tici}``
    """
    if recorder.device_type in (0, state.deviceType.raw):
        return None
    return "deviceType", recorder.device_type


def calibration_status(calibration: Any, recorder: Recorder) -> Change | None:
    """Set the status of a calibration from before 2023, which was a number.

    ``{calStatusDEPRECATED: 1, calStatus: uncalibrated} -> {calStatus: calibrated}``
    """
    del recorder
    old = int(calibration.calStatusDEPRECATED)
    if calibration.calStatus.raw != _UNCALIBRATED or old not in _OLD_STATUSES:
        return None
    return "calStatus", old


MIGRATIONS: Final[Mapping[str, Migration]] = MappingProxyType(
    {
        "roadCameraState": start_of_frame,
        "wideRoadCameraState": start_of_frame,
        "driverCameraState": start_of_frame,
        "deviceState": device_type,
        "liveCalibration": calibration_status,
    }
)
"""Event member -> its migration."""


@dataclass(slots=True)
class Migrator:
    """Applies the migrations to messages and counts them."""

    recorder: Recorder = field(default_factory=Recorder)  # set once initData has been read
    done: dict[str, int] = field(default_factory=dict)  # Event member -> messages changed so far

    def migrate(self, message: Message) -> Message:
        """Return the message with its migrated form, or the same message if none is needed.

        A message with damaged content is returned unchanged; its reader handles the damage.
        """
        migration = MIGRATIONS.get(message.service)
        if migration is None:
            return message
        try:
            with reading(message.service):
                event = read_event(message.data)
                change = migration(content(event), self.recorder)
        except MessageError:
            return message
        data = write_field(message.data, message.service, *change) if change else None
        if data is None:
            return message
        self.done[message.service] = self.done.get(message.service, 0) + 1
        return message._replace(migrated=data)

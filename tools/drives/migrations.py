"""Migrates messages of older software to the schema of today.

Each migration is a small function on the message of one Event: which field it should have, and with
which number, or None where its product is there already. The daemon reads the migrated message; the
recorded one is passed on. Frame ids are not renumbered: EncodeIdx says which picture shows a frame,
and ids stay those of the drive.

There is no migration for ``liveDelay``: drives of before May 2025 play with a measured lateral
delay of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from cereal.errors import MessageError
from cereal.schema import content, read_event, reading
from tools.drives.drive import Message
from tools.drives.event_bytes import write_field

# Read-out of the sensor of that time; what logs without a start of frame are given.
_READOUT_NS: Final = 18_000_000
_EARLIEST_EOF_NS: Final = 25_000_000
_UNCALIBRATED: Final = 0
_OLD_STATUSES: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Recorder:
    """The device that made the log, by its initData.

    Attributes:
        device_type: number of `InitData.DeviceType`; 0 where there is no initData.
    """

    device_type: int = 0


Change = tuple[str, int]
"""Name of a field and the number that it should have."""

Migration = Callable[[Any, Recorder], Change | None]


def start_of_frame(state: Any, recorder: Recorder) -> Change | None:
    """Give a camera state of before 2021 its start of exposure.

    ``{timestampSof: 0, timestampEof: t} -> {timestampSof: t - 18 ms, timestampEof: t}``
    """
    del recorder
    if state.timestampSof or state.timestampEof <= _EARLIEST_EOF_NS:
        return None
    return "timestampSof", state.timestampEof - _READOUT_NS


def device_type(state: Any, recorder: Recorder) -> Change | None:
    """Tell the device's type where only initData did.

    ``initData {deviceType: tici}, deviceState {deviceType: unknown} -> {deviceType: tici}``
    """
    if recorder.device_type in (0, state.deviceType.raw):
        return None
    return "deviceType", recorder.device_type


def calibration_status(calibration: Any, recorder: Recorder) -> Change | None:
    """Tell the status of a calibration of before 2023, which was a number.

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
"""Event member -> what is done with it."""


@dataclass(slots=True)
class Migrator:
    """Applies the migrations.

    Attributes:
        recorder: set when initData has been seen.
        done: Event member -> messages changed so far.
    """

    recorder: Recorder = field(default_factory=Recorder)
    done: dict[str, int] = field(default_factory=dict)

    def migrate(self, message: Message) -> Message:
        """Return the message with its migrated form where it has one; often the very same.

        A message whose content is damaged is returned as it is: its reader decides.
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

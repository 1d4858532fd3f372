"""What older software wrote differently, told to the daemon in today's words.

Each migration is a small function on one Event; it returns False where its product is there already
and nothing is to be done. All other bytes of a log pass as they were recorded. Frame ids are not
renumbered: EncodeIdx says which picture shows a frame, and ids stay those of the drive.

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

# Read-out of the sensor of that time; what logs without a start of frame are given.
_READOUT_NS: Final = 18_000_000
_EARLIEST_EOF_NS: Final = 25_000_000


@dataclass(frozen=True, slots=True)
class Recorder:
    """The device that made the log, by its initData.

    Attributes:
        device_type: of `InitData.DeviceType`; ``unknown`` where there is no initData.
    """

    device_type: str = "unknown"


Migration = Callable[[Any, Recorder], bool]


def start_of_frame(state: Any, recorder: Recorder) -> bool:
    """Give a camera state of before 2021 its start of exposure.

    ``{timestampSof: 0, timestampEof: t} -> {timestampSof: t - 18 ms, timestampEof: t}``
    """
    del recorder
    if state.timestampSof or state.timestampEof <= _EARLIEST_EOF_NS:
        return False
    state.timestampSof = state.timestampEof - _READOUT_NS
    return True


def device_type(state: Any, recorder: Recorder) -> bool:
    """Tell the device's type where only initData did.

    ``initData {deviceType: tici}, deviceState {deviceType: unknown} -> {deviceType: tici}``
    """
    if recorder.device_type == "unknown" or str(state.deviceType) == recorder.device_type:
        return False
    state.deviceType = recorder.device_type
    return True


def calibration_status(calibration: Any, recorder: Recorder) -> bool:
    """Tell the status of a calibration of before 2023, which was a number.

    ``{calStatusDEPRECATED: 1, calStatus: uncalibrated} -> {calStatus: calibrated}``
    """
    del recorder
    names = ("uncalibrated", "calibrated", "invalid")
    old = int(calibration.calStatusDEPRECATED)
    if str(calibration.calStatus) != names[0] or not 0 < old < len(names):
        return False
    calibration.calStatus = names[old]
    return True


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
        """Return the message as software of today would have sent it; often the very same.

        A message whose content is damaged is returned as it is: its reader decides.
        """
        migration = MIGRATIONS.get(message.service)
        if migration is None:
            return message
        try:
            with reading(message.service):
                builder = read_event(message.data, is_bounded=True).as_builder()
                if not migration(content(builder), self.recorder):
                    return message
                data = builder.to_bytes()
        except MessageError:
            return message
        self.done[message.service] = self.done.get(message.service, 0) + 1
        return message._replace(data=data)

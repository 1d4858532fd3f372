"""Reads calibrations from the bus, and gives reasons why messages based on them are not valid."""

from typing import Any, Final, Protocol

from cereal.errors import MessageError
from cereal.schema import enumerant_name, reading
from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import Fault
from modeld.vehicle.calibration import Calibration
from modeld.vehicle.validity import ANGLES, Freshness, Reason, Received, silence

SERVICE: Final = "liveCalibration"
# Calibrations come four times a second, in some recordings once.
CALIBRATION_REFUSED: Final = Kind(
    "calibration not used", fault=Fault.INPUT_REJECTED, quiet_ns=2 * NS_PER_S
)


class CalibrationMessages(Received, Protocol):
    """The part of ``cereal.pubsub.SubMaster`` that is read here."""

    def __getitem__(self, service: str) -> Any:
        """Return the newest message of a service."""


class CalibrationInput:
    """Keeps a calibration up to date from the bus.

    The validity of its Event is ignored: its sender waits for our messages.
    """

    def __init__(
        self,
        calibration: Calibration,
        messages: CalibrationMessages,
        episodes: Episodes,
        freshness: Freshness,
    ) -> None:
        self._calibration = calibration
        self._messages = messages
        self._episodes = episodes
        self._freshness = freshness
        self._is_out_of_limits = False

    def update(self) -> None:
        """Use the newest calibration, if one came with the last update of the bus."""
        messages, calibration = self._messages, self._calibration
        if not messages.updated[SERVICE]:
            return
        # The intrinsics depend on device and sensor, so both services must have sent a message.
        if calibration.needs_device and self._missing():
            return
        # A damaged list must not end the loop; a device newer than our schema is in no table.
        try:
            with reading("liveCalibration, deviceState or roadCameraState"):
                message = messages[SERVICE]
                rpy_rad = message.rpyCalib
                self._is_out_of_limits = enumerant_name(message.calStatus) == "invalid"
                device_type = enumerant_name(messages["deviceState"].deviceType)
                sensor = enumerant_name(messages["roadCameraState"].sensor)
        except MessageError as error:
            calibration.refused = str(error)
        else:
            calibration.update(rpy_rad, device_type, sensor)
        if calibration.refused:
            self._episodes.happen(
                CALIBRATION_REFUSED, f"calibration not used: {calibration.refused}"
            )

    def reason(self, now_ns: int) -> Reason | None:
        """Return why calibration makes messages invalid at `now_ns` of the loop's clock."""
        calibration, messages = self._calibration, self._messages
        if calibration.refused:
            return Reason("calibration not used", calibration.refused)
        if not calibration.seen:
            missing = [*([] if messages.seen[SERVICE] else [SERVICE])]
            missing += self._missing() if calibration.needs_device else []
            what = " and ".join(missing) or SERVICE
            return Reason("not calibrated", f"no {what} yet")
        if self._is_out_of_limits:
            text = "liveCalibration.calStatus is invalid: the device is mounted beyond the limits"
            return Reason("calibration invalid", text)
        silent_s = self._freshness.silent_for_s(ANGLES[0], now_ns)
        return silence(ANGLES[0], silent_s) if silent_s else None

    def _missing(self) -> list[str]:
        """Return the other needed services that have not sent a message yet."""
        seen = self._messages.seen
        return [name for name in ("deviceState", "roadCameraState") if not seen[name]]

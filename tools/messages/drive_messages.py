"""Builds the car's messages that a video or rendered drive must send to the daemon.

``DriveMessages`` builds valid, stamped messages: those of slow services at their nominal rate, the
others with every frame. Replays and camera processes use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cereal.schema import new_event
from cereal.services import service
from tools.messages.camera import DEFAULT_HEIGHT_M
from tools.messages.telemetry import CarSample

NS_PER_S = 1_000_000_000
# A typical learned delay: a quarter of a second, minus the daemon's own part.
LATERAL_DELAY_S = 0.2
# Time from start to end of a rolling-shutter frame; real sensors need 0 to 50 ms.
READOUT_NS = 10_000_000

# Start of the drive's clock. It is not 0, because 0 means an unset stamp.
START_NS = 1_000_000_000
# Shortest interval of frames. The daemon skips frames closer than its pairing window.
MIN_INTERVAL_NS = 25_000_000

# Services in the order of sending with one frame. The camera state is last, as in the car.
DRIVE_SERVICES = (
    "deviceState",
    "liveCalibration",
    "liveDelay",
    "driverMonitoringState",
    "carState",
    "roadCameraState",
)
# Services sent at their own rate. carState is faster than frames in a car, but the daemon only
# reads the newest, so it is sent with each frame.
SLOW_SERVICES = frozenset({"deviceState", "liveCalibration", "liveDelay"})


@dataclass(frozen=True, slots=True)
class Mounting:
    """The camera's properties that are sent in messages."""

    device_type: str = "pc"  # ``deviceState.deviceType``
    sensor: str = "unknown"  # ``roadCameraState.sensor``
    rpy_rad: tuple[float, float, float] = (0.0, 0.0, 0.0)  # device_from_calib: roll, pitch, yaw
    height_m: float = DEFAULT_HEIGHT_M  # height over the road


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Id and time stamps of one camera frame, on the drive's clock."""

    frame_id: int
    sof_ns: int  # start of frame
    eof_ns: int  # end of frame


@dataclass(slots=True)
class FrameClock:
    """Computes time stamps for the frames of a recording without a clock, such as a video."""

    _last_sof_ns: int | None = None

    def stamp(self, frame_id: int, time_s: float) -> FrameTimes:
        """Return the stamps of the next frame.

        `time_s` is the time since the start of the drive. Frames closer than `MIN_INTERVAL_NS`,
        which the daemon cannot distinguish, are delayed.
        """
        sof_ns = START_NS + round(time_s * 1e9)
        if self._last_sof_ns is not None:
            sof_ns = max(sof_ns, self._last_sof_ns + MIN_INTERVAL_NS)
        self._last_sof_ns = sof_ns
        return FrameTimes(frame_id, sof_ns, sof_ns + READOUT_NS)


@dataclass(slots=True)
class DriveMessages:
    """Builds the messages that are due with each frame."""

    mounting: Mounting
    _due_ns: dict[str, int] = field(default_factory=dict)

    def for_frame(self, frame: FrameTimes, car: CarSample) -> Iterator[tuple[str, bytes]]:
        """Yield (service, Event bytes) of the messages due with a frame; all with the first one.

        Events are stamped with the start of the frame. The camera state has its end, when a camera
        announces the frame.
        """
        for name in DRIVE_SERVICES:
            if name in SLOW_SERVICES:
                if frame.sof_ns < self._due_ns.get(name, frame.sof_ns):
                    continue
                self._due_ns[name] = frame.sof_ns + int(NS_PER_S / service(name).frequency_hz)
            stamp_ns = frame.eof_ns if name == "roadCameraState" else frame.sof_ns
            event = new_event(name, mono_time_ns=stamp_ns, valid=True)
            self._fill(event, name, frame, car)
            yield name, event.to_bytes()

    def _fill(self, event: Any, name: str, frame: FrameTimes, car: CarSample) -> None:
        if name == "deviceState":
            event.deviceState.deviceType = self.mounting.device_type
            event.deviceState.started = True
        elif name == "liveCalibration":
            calibration = event.liveCalibration
            calibration.calStatus = "calibrated"
            calibration.calPerc = 100
            calibration.rpyCalib = list(self.mounting.rpy_rad)
            calibration.rpyCalibSpread = [0.0, 0.0, 0.0]
            calibration.wideFromDeviceEuler = [0.0, 0.0, 0.0]
            calibration.height = [self.mounting.height_m]
        elif name == "liveDelay":
            event.liveDelay.lateralDelay = LATERAL_DELAY_S
            event.liveDelay.status = "estimated"
        elif name == "driverMonitoringState":
            event.driverMonitoringState.isRHD = False
        elif name == "carState":
            state = event.carState
            state.vEgo = car.speed_mps
            state.steeringAngleDeg = car.steering_angle_deg
            state.leftBlinker = car.left_blinker
            state.rightBlinker = car.right_blinker
            state.canValid = True
        else:
            state = event.roadCameraState
            state.frameId = frame.frame_id
            state.timestampSof = frame.sof_ns
            state.timestampEof = frame.eof_ns
            state.sensor = self.mounting.sensor

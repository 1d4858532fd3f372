"""The messages that a recorded or rendered drive has to supply to the daemon.

``DriveMessages`` builds them, stamped and valid; slow services at their nominal rate, the others
with every frame. Called by ``tools.commands.on_drives.replay`` and by camera processes.
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
# A usual value after it has been learnt: a quarter of a second less the daemon's own share.
LATERAL_DELAY_S = 0.2
# Start to end of a rolling-shutter frame; real sensors lie within (0, 50) ms.
READOUT_NS = 10_000_000

# The drive's clock starts here: a monotonic clock never reads 0, and 0 stamps look unset.
START_NS = 1_000_000_000
# Frames of one camera closer than the daemon's pairing window would be passed over.
MIN_INTERVAL_NS = 25_000_000

# In the order in which they are sent with one frame; the camera state comes last, as in the car.
DRIVE_SERVICES = (
    "deviceState",
    "liveCalibration",
    "liveDelay",
    "driverMonitoringState",
    "carState",
    "roadCameraState",
)
# Sent at their own rate. carState is faster than frames, but the daemon reads the newest only.
SLOW_SERVICES = frozenset({"deviceState", "liveCalibration", "liveDelay"})


@dataclass(frozen=True, slots=True)
class Mounting:
    """The camera as its messages describe it.

    `device_type` is ``deviceState.deviceType``, `sensor` is ``roadCameraState.sensor``, `rpy_rad`
    is device_from_calib as roll, pitch, yaw, `height_m` the height over the road.
    """

    device_type: str = "pc"
    sensor: str = "unknown"
    rpy_rad: tuple[float, float, float] = (0.0, 0.0, 0.0)
    height_m: float = DEFAULT_HEIGHT_M


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Identity and stamps of one camera frame, ns of the drive's clock."""

    frame_id: int
    sof_ns: int
    eof_ns: int


@dataclass(slots=True)
class FrameClock:
    """Stamps the frames of a recording that knows only times from its first frame."""

    _last_sof_ns: int | None = None

    def stamp(self, frame_id: int, time_s: float) -> FrameTimes:
        """Return the stamps of the next frame.

        Ids are consecutive from 0; `time_s` counts from the start of the drive. Frames that follow
        each other faster than the daemon can tell apart are moved later.
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
        """Yield (service, Event bytes) for one frame; all services with the first one.

        Events are stamped with the frame's SOF, the camera state with its EOF, which is when a
        camera announces a frame.
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

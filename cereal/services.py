"""The services of the bus: their rates, their log decimation and their TCP ports.

A service is a topic. Each of its messages is an Event whose union holds the member with the
service's name. openpilot renamed services in 2026 (`RENAMED_2026`). Our code uses the names of
2025; the new names carry the same messages on other ports. `cereal.stacks` has the names and ports
of each stack.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from cereal.errors import ServiceError

HashName = Literal["murmur", "fnv1a"]

_PORT_BASE: Final = 8023
PORT_SPAN: Final = 65535 - _PORT_BASE
_MASK64: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Service:
    """One topic of the bus."""

    name: str
    logged: bool  # whether the full log (rlog) has its messages
    frequency_hz: float
    """Nominal rate; 0 for a service that is published on demand and therefore never late."""
    decimation: int | None
    """Every n-th message is written to the small log (qlog); None if no message is."""
    queue_bytes: int
    """Size of the service's msgq ring since December 2025; `BIG_QUEUE` on older stacks."""


BIG_QUEUE: Final = 10 * 1024 * 1024
MEDIUM_QUEUE: Final = 2 * 1024 * 1024
SMALL_QUEUE: Final = 250 * 1024
# Services with large outputs, video, or text of any length. Most other services have small queues.
_BIG: Final = frozenset(
    {"modelV2", "can", "logMessage", "errorLogMessage", "procLog"}
    | {"modelManagerSP", "backupManagerSP", "modelDataV2SP"}
    | {f"{camera}EncodeData" for camera in ("road", "wideRoad", "driver", "qRoad")}
)
_MEDIUM: Final = frozenset(
    {"controlsState", "sendcan"}
    | {f"livestream{camera}EncodeData" for camera in ("Road", "WideRoad", "Driver")}
)


def _queue_bytes(name: str) -> int:
    if name in _BIG:
        return BIG_QUEUE
    return MEDIUM_QUEUE if name in _MEDIUM else SMALL_QUEUE


def _table(*rows: tuple[str, bool, float, int | None]) -> dict[str, Service]:
    return {row[0]: Service(*row, queue_bytes=_queue_bytes(row[0])) for row in rows}


_SERVICES_2025: Final = _table(
    ("modelV2", True, 20, None),
    ("drivingModelData", True, 20, 10),
    ("cameraOdometry", True, 20, 10),
    ("driverStateV2", True, 20, 10),
    ("driverMonitoringState", True, 20, 10),
    ("roadCameraState", True, 20, 20),
    ("wideRoadCameraState", True, 20, 20),
    ("driverCameraState", True, 20, 20),
    ("roadEncodeIdx", False, 20, 1),
    ("wideRoadEncodeIdx", False, 20, 1),
    ("driverEncodeIdx", False, 20, 1),
    ("qRoadEncodeIdx", False, 20, None),
    ("roadEncodeData", False, 20, None),
    ("wideRoadEncodeData", False, 20, None),
    ("driverEncodeData", False, 20, None),
    ("qRoadEncodeData", False, 20, None),
    ("liveCalibration", True, 4, 4),
    ("liveDelay", True, 4, 1),
    ("livePose", True, 20, 4),
    ("longitudinalPlan", True, 20, 10),
    ("deviceState", True, 2, 1),
    ("managerState", True, 2, 1),
    ("carState", True, 100, 10),
    ("carControl", True, 100, 10),
    ("carOutput", True, 100, 10),
    ("controlsState", True, 100, 10),
    ("selfdriveState", True, 100, 10),
    ("carParams", True, 0.02, 1),
    ("onroadEvents", True, 1, 1),
    ("can", True, 100, 2053),
    ("sendcan", True, 100, 139),
    ("logMessage", True, 0, None),
    ("procLog", True, 0.5, 15),
    ("thumbnail", True, 1 / 60, 1),
    ("chestnutState", True, 10, 10),
    ("chestnutGpuState", True, 2, 1),
    ("gyroscope", True, 104, 104),
    ("gyroscope2", True, 100, 100),
    ("accelerometer", True, 104, 104),
    ("accelerometer2", True, 100, 100),
    ("magnetometer", True, 25, None),
    ("lightSensor", True, 100, 100),
    ("temperatureSensor", True, 2, 200),
    ("temperatureSensor2", True, 2, 200),
    ("gpsNMEA", True, 9, None),
    ("touch", True, 20, 1),
    ("pandaStates", True, 10, 1),
    ("peripheralState", True, 2, 1),
    ("radarState", True, 20, 5),
    ("liveTracks", True, 20, None),
    ("errorLogMessage", True, 0, 1),
    ("liveTorqueParameters", True, 4, 1),
    ("androidLog", True, 0, None),
    ("driverAssistance", True, 20, 20),
    ("gpsLocation", True, 1, 1),
    ("gpsLocationExternal", True, 10, 10),
    ("ubloxGnss", True, 10, None),
    ("ubloxRaw", True, 20, None),
    ("qcomGnss", True, 2, None),
    ("gnssMeasurements", True, 10, 10),
    ("clocks", True, 0.1, 1),
    ("liveParameters", True, 20, 5),
    ("uploaderState", True, 0, 1),
    ("navInstruction", True, 1, 10),
    ("navRoute", True, 0, None),
    ("navThumbnail", True, 0, None),
    ("userBookmark", True, 0, 1),
    ("bookmarkButton", True, 0, 1),
    ("audioFeedback", True, 0, 1),
    ("soundPressure", True, 10, 10),
    ("rawAudioData", False, 20, None),
    ("lateralManeuverPlan", True, 20, None),
    ("uiDebug", True, 0, 1),
    ("testJoystick", True, 0, None),
    ("alertDebug", True, 20, 5),
    ("livestreamRoadEncodeIdx", False, 20, None),
    ("livestreamWideRoadEncodeIdx", False, 20, None),
    ("livestreamDriverEncodeIdx", False, 20, None),
    ("livestreamRoadEncodeData", False, 20, None),
    ("livestreamWideRoadEncodeData", False, 20, None),
    ("livestreamDriverEncodeData", False, 20, None),
    ("customReservedRawData0", True, 0, None),
    ("customReservedRawData1", True, 0, None),
    ("customReservedRawData2", True, 0, None),
    # Our own services, in members reserved for forks (ADR 0090).
    ("modeldHealth", True, 1, 10),
    ("dmonitoringmodeldHealth", True, 1, 10),
    # Services of sunnypilot, in members reserved for forks or retired by openpilot: FORK_MEMBERS.
    ("selfdriveStateSP", True, 100, 10),
    ("modelManagerSP", False, 1, 1),
    ("longitudinalPlanSP", True, 20, 10),
    ("onroadEventsSP", True, 1, 1),
    ("carParamsSP", True, 0.02, 1),
    ("carControlSP", True, 100, 10),
    ("backupManagerSP", False, 1, 1),
    ("carStateSP", True, 100, 10),
    ("liveMapDataSP", True, 1, 1),
    ("modelDataV2SP", True, 20, None),
    ("liveLocationKalman", True, 20, None),
)

RENAMED_2026: Final[Mapping[str, str]] = MappingProxyType(
    {
        "narrowRoadCameraState": "roadCameraState",
        "cabinCameraState": "driverCameraState",
        "extrinsicsCalibration": "liveCalibration",
        "lateralDelay": "liveDelay",
        "deviceMotion": "livePose",
        "narrowRoadEncodeIdx": "roadEncodeIdx",
        "cabinEncodeIdx": "driverEncodeIdx",
        "qNarrowRoadEncodeIdx": "qRoadEncodeIdx",
        "narrowRoadEncodeData": "roadEncodeData",
        "cabinEncodeData": "driverEncodeData",
        "qNarrowRoadEncodeData": "qRoadEncodeData",
        "livestreamNarrowRoadEncodeIdx": "livestreamRoadEncodeIdx",
        "livestreamCabinEncodeIdx": "livestreamDriverEncodeIdx",
        "livestreamNarrowRoadEncodeData": "livestreamRoadEncodeData",
        "livestreamCabinEncodeData": "livestreamDriverEncodeData",
        "vehicleParameters": "liveParameters",
        "lateralTorqueParameters": "liveTorqueParameters",
        "radarTracks": "liveTracks",
        "operatingSystemLog": "androidLog",
    }
)
"""Service name of 2026 -> its name of 2025, which is also the name of the Event member."""

FORK_MEMBERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "selfdriveStateSP": "customReserved0",
        "modelManagerSP": "customReserved1",
        "longitudinalPlanSP": "customReserved2",
        "onroadEventsSP": "customReserved3",
        "carParamsSP": "customReserved4",
        "carControlSP": "customReserved5",
        "backupManagerSP": "customReserved6",
        "carStateSP": "customReserved7",
        "liveMapDataSP": "customReserved8",
        "modelDataV2SP": "customReserved9",
        "liveLocationKalman": "liveLocationKalmanDEPRECATED",
    }
)
"""Service of sunnypilot -> the Event member that carries it. Other forks use the same members."""

SERVICES: Final[Mapping[str, Service]] = MappingProxyType(
    _SERVICES_2025
    | {new: replace(_SERVICES_2025[old], name=new) for new, old in RENAMED_2026.items()}
)

# Stacks of 2026 publish driver monitoring as a different struct under the old service name.
_OTHER_MEMBERS: Final = {"driverMonitoringState": ("driverMonitoringStateV2",)}


def service(name: str) -> Service:
    """Return the service named `name`; raise ServiceError if there is none."""
    try:
        return SERVICES[name]
    except KeyError:
        near = difflib.get_close_matches(name, SERVICES, 1)
        raise ServiceError(
            f"service {name!r}: expected one of the {len(SERVICES)} names in cereal/services.py; "
            + (f"did you mean {near[0]}?" if near else "correct the name or add the service there")
        ) from None


def member_of(name: str) -> str:
    """Return the Event member in which we publish service `name`."""
    return RENAMED_2026.get(name) or FORK_MEMBERS.get(name, name)


def members_of(name: str) -> tuple[str, ...]:
    """Return the Event members in which other processes may publish service `name`."""
    member = member_of(name)
    return (member, *_OTHER_MEMBERS.get(member, ()))


def service_of_member(member: str) -> Service | None:
    """Return the service, under its name of 2025, to which an Event member belongs.

    None for members without a service, and for those that each fork uses in its own way.
    """
    for name, others in _OTHER_MEMBERS.items():
        if member in others:
            return SERVICES[name]
    return SERVICES.get(member)


def port_of(endpoint: str, hash_name: HashName = "fnv1a", moved: int = 0) -> int:
    """Return the TCP port on which `endpoint`, usually a service, is published.

    "fnv1a" is 64-bit FNV-1a (stacks since November 2024). "murmur" is `std::hash<std::string>` of
    libstdc++ (older stacks). `moved` is added to the port, modulo `PORT_SPAN`. Two endpoints may
    get the same port; nothing resolves that. Source: 8023 + hash mod (65535 - 8023);
    tests/cereal/services.csv has known ports.
    """
    data = endpoint.encode()
    value = _murmur64(data) if hash_name == "murmur" else fnv1a64(data)
    return _PORT_BASE + (value + moved) % PORT_SPAN


def _murmur64(data: bytes) -> int:
    """Murmur hash of strings: libstdc++'s `_Hash_bytes` on 64-bit machines, with its seed."""
    multiplier = 0xC6A4A7935BD1E995
    value = 0xC70F6907 ^ (len(data) * multiplier & _MASK64)
    whole = len(data) & ~7
    for start in range(0, whole, 8):
        word = int.from_bytes(data[start : start + 8], "little") * multiplier & _MASK64
        value = (value ^ _fold(word) * multiplier) & _MASK64
        value = value * multiplier & _MASK64
    if len(data) > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = value * multiplier & _MASK64
    return _fold(_fold(value) * multiplier & _MASK64)


def _fold(value: int) -> int:
    return value ^ (value >> 47)


def fnv1a64(data: bytes) -> int:
    """64-bit FNV-1a: offset basis 0xcbf29ce484222325, prime 0x100000001b3."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & _MASK64
    return value

from collections import Counter
from pathlib import Path

import pytest

from cereal.errors import ServiceError
from cereal.schema import member_name, new_event
from cereal.services import (
    SERVICES,
    HashName,
    member_of,
    members_of,
    port_of,
    service,
    service_of_member,
)

# Computed with g++ (std::hash<std::string>) and with an independent FNV-1a.
PORTS = [
    ("modelV2", 27098, 58537),
    ("drivingModelData", 31971, 49244),
    ("cameraOdometry", 8136, 50972),
    ("driverStateV2", 35997, 45495),
    ("roadCameraState", 37524, 12432),
    ("wideRoadCameraState", 57250, 53095),
    ("driverCameraState", 9105, 46980),
    ("narrowRoadCameraState", 62317, 20911),
    ("cabinCameraState", 18455, 15833),
    ("liveCalibration", 31676, 36768),
    ("extrinsicsCalibration", 38497, 32584),
    ("carState", 43447, 9041),
    ("carControl", 20378, 63225),
    ("carParams", 19959, 40326),
    ("deviceState", 43984, 17667),
    ("driverMonitoringState", 43705, 31369),
    ("liveDelay", 34311, 53853),
    ("lateralDelay", 51688, 34210),
    ("roadEncodeIdx", 65300, 43171),
    ("wideRoadEncodeIdx", 34287, 25468),
    ("managerState", 9636, 44328),
    ("modeldHealth", 53733, 28919),
    ("dmonitoringmodeldHealth", 64041, 43919),
]


@pytest.mark.parametrize(("name", "murmur", "fnv1a"), PORTS)
def test_port_is_the_published_one(name: str, murmur: int, fnv1a: int) -> None:
    assert port_of(name) == fnv1a
    assert port_of(name, "murmur") == murmur


def test_fnv1a_of_nothing_is_its_offset_basis() -> None:
    assert port_of("", "fnv1a") == 8023 + 0xCBF29CE484222325 % 57512


# Both exist only in stacks that have used the other hash for long.
SHARED: dict[HashName, set[str]] = {"murmur": {"peripheralState", "touch"}, "fnv1a": set()}


@pytest.mark.parametrize("hash_name", ["murmur", "fnv1a"])
def test_no_two_services_share_a_port(hash_name: HashName) -> None:
    ports = {name: port_of(name, hash_name) for name in SERVICES}
    counts = Counter(ports.values())
    assert {name for name, port in ports.items() if counts[port] > 1} == SHARED[hash_name]
    assert all(8023 <= port < 65535 for port in ports.values())


@pytest.mark.parametrize(
    ("name", "logged", "frequency_hz", "decimation"),
    [
        ("modelV2", True, 20, None),
        ("cameraOdometry", True, 20, 10),
        ("liveCalibration", True, 4, 4),
        ("carState", True, 100, 10),
        ("carParams", True, 0.02, 1),
        ("logMessage", True, 0, None),
        ("roadEncodeIdx", False, 20, 1),
        ("pandaStates", True, 10, 1),
        ("gyroscope", True, 104, 104),
        ("clocks", True, 0.1, 1),
        ("modeldHealth", True, 1, 10),
        ("dmonitoringmodeldHealth", True, 1, 10),
        ("modelManagerSP", False, 1, 1),
        ("qNarrowRoadEncodeData", False, 20, None),
    ],
)
def test_service_row(name: str, logged: bool, frequency_hz: float, decimation: int | None) -> None:
    row = SERVICES[name]
    assert (row.logged, row.frequency_hz, row.decimation) == (logged, frequency_hz, decimation)


def test_queues_have_three_sizes() -> None:
    big, medium, small = 10 * 1024**2, 2 * 1024**2, 256_000
    sizes = Counter(one.queue_bytes for one in SERVICES.values())
    assert set(sizes) == {big, medium, small}
    for name in ("modelV2", "can", "logMessage", "procLog", "qRoadEncodeData", "cabinEncodeData"):
        assert SERVICES[name].queue_bytes == big
    for name in ("controlsState", "sendcan", "livestreamNarrowRoadEncodeData"):
        assert SERVICES[name].queue_bytes == medium
    for name in ("drivingModelData", "carState", "narrowRoadEncodeIdx", "carParams"):
        assert SERVICES[name].queue_bytes == small


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_its_member_in_the_event(name: str) -> None:
    assert SERVICES[name].name == name
    event = new_event(name, mono_time_ns=0)
    assert member_name(event) == member_of(name)
    assert member_of(name) in members_of(name)


def test_driver_monitoring_is_read_in_both_generations() -> None:
    assert members_of("driverMonitoringState") == (
        "driverMonitoringState",
        "driverMonitoringStateV2",
    )


def test_renamed_service_keeps_its_rate() -> None:
    assert (
        SERVICES["extrinsicsCalibration"].frequency_hz == SERVICES["liveCalibration"].frequency_hz
    )


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("vehicleParameters", "liveParameters"),
        ("lateralTorqueParameters", "liveTorqueParameters"),
        ("radarTracks", "liveTracks"),
        ("operatingSystemLog", "androidLog"),
        ("cabinEncodeData", "driverEncodeData"),
        ("livestreamCabinEncodeIdx", "livestreamDriverEncodeIdx"),
        ("selfdriveStateSP", "customReserved0"),
        ("liveMapDataSP", "customReserved8"),
    ],
)
def test_member_of_renamed_and_of_fork_services(new: str, old: str) -> None:
    assert member_of(new) == old
    assert new in SERVICES


def test_service_of_a_member_is_the_one_that_carries_it() -> None:
    assert service_of_member("carState") is SERVICES["carState"]
    assert service_of_member("driverMonitoringStateV2") is SERVICES["driverMonitoringState"]
    assert service_of_member("initData") is None
    assert service_of_member("customReserved0") is None


def test_unknown_service_is_named() -> None:
    with pytest.raises(ServiceError, match="'modelv2'") as caught:
        service("modelv2")
    assert caught.value.exit_code == 2


def test_the_documented_table_is_the_one_in_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs/formats/bus.md").read_text(encoding="utf-8")
    for name, row in SERVICES.items():
        cells = (
            name,
            f"{row.frequency_hz:.3g}",
            "yes" if row.logged else "no",
            "-" if row.decimation is None else row.decimation,
            port_of(name, "murmur"),
            port_of(name, "fnv1a"),
            row.queue_bytes,
        )
        assert "| " + " | ".join(map(str, cells)) + " |" in text

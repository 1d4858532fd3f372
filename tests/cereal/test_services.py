"""Services by name, and what each stack calls them, on which port and in which file."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from cereal.errors import ServiceError
from cereal.schema import SCHEMA_PATH, member_name, new_event
from cereal.services import (
    RENAMED_2026,
    SERVICES,
    HashName,
    member_of,
    members_of,
    port_of,
    service,
    service_of_member,
)
from cereal.stacks import DEFAULT_STACK, STACKS
from docs.site_messages import SCHEMAS, messages, services

OPENPILOT_2026 = STACKS["openpilot-2026"]
# Both exist only in stacks that have used the other hash for long.
SHARED: dict[HashName, set[str]] = {"murmur": {"peripheralState", "touch"}, "fnv1a": set()}
# Renamed, and of forks.
MEMBERS = {
    "vehicleParameters": "liveParameters", "lateralTorqueParameters": "liveTorqueParameters",
    "radarTracks": "liveTracks", "operatingSystemLog": "androidLog",
    "cabinEncodeData": "driverEncodeData", "livestreamCabinEncodeIdx": "livestreamDriverEncodeIdx",
    "selfdriveStateSP": "customReserved0", "liveMapDataSP": "customReserved8",
}  # fmt: skip


@pytest.mark.parametrize("hash_name", ["murmur", "fnv1a"])
def test_no_two_services_share_a_port(hash_name: HashName) -> None:
    ports = {name: port_of(name, hash_name) for name in SERVICES}
    counts = Counter(ports.values())
    assert {name for name, port in ports.items() if counts[port] > 1} == SHARED[hash_name]
    assert all(8023 <= port < 65535 for port in ports.values())


def test_every_service_has_its_member_in_the_event() -> None:
    for name, row in SERVICES.items():
        assert row.name == name
        assert member_name(new_event(name, mono_time_ns=0)) == member_of(name)
        assert member_of(name) in members_of(name)
    assert {name: member_of(name) for name in MEMBERS} == MEMBERS
    assert set(MEMBERS) <= set(SERVICES)
    # Driver monitoring is read in both generations.
    both = ("driverMonitoringState", "driverMonitoringStateV2")
    assert members_of("driverMonitoringState") == both
    assert {service_of_member(name) for name in both} == {SERVICES["driverMonitoringState"]}
    assert service_of_member("carState") is SERVICES["carState"]
    assert service_of_member("initData") is None
    assert service_of_member("customReserved0") is None


def test_unknown_service_is_named() -> None:
    with pytest.raises(ServiceError, match=r"'modelv2': .* did you mean modelV2\?") as caught:
        service("modelv2")
    assert caught.value.exit_code == 2


def test_rates_decimations_queues_and_ports_are_those_of_openpilot() -> None:
    """The ports of the table were computed with g++ (std::hash<std::string>) and another FNV-1a."""
    with Path(__file__).with_name("services.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    found = [
        [
            *(name, f"{row.frequency_hz:.3g}", "yes" if row.logged else "no"),
            "-" if row.decimation is None else str(row.decimation),
            *map(str, (port_of(name, "murmur"), port_of(name, "fnv1a"), row.queue_bytes)),
        ]
        for name, row in SERVICES.items()
    ]
    assert sorted(rows) == sorted(found)
    assert port_of("", "fnv1a") == 8023 + 0xCBF29CE484222325 % 57512


def test_the_page_of_messages_has_every_service_and_structure() -> None:
    assert [row.split(" | ")[0] for row in services().splitlines()] == [f"| {n}" for n in SERVICES]
    for name in SCHEMAS:
        text = SCHEMA_PATH.with_name(f"{name}.capnp").read_text(encoding="utf-8")
        declared = re.findall(r"^(?:struct|enum) (\w+)", text, re.MULTILINE)
        assert re.findall(r"^### (\w+)$", messages(name), re.MULTILINE) == declared
        assert declared


# stack and service, of 2025: its name there, and its port
ENDPOINTS = {
    ("openpilot-2025", "modelV2"): ("modelV2", 58537),
    ("openpilot-2025", "liveCalibration"): ("liveCalibration", 36768),
    ("openpilot-2025", "liveDelay"): ("liveDelay", 53853),
    ("openpilot-2026", "modelV2"): ("modelV2", 58537),
    ("openpilot-2026", "liveCalibration"): ("extrinsicsCalibration", 32584),
    ("openpilot-2026", "liveDelay"): ("lateralDelay", 34210),
    ("openpilot-2026", "roadCameraState"): ("narrowRoadCameraState", 20911),
    ("openpilot-2026", "driverCameraState"): ("cabinCameraState", 15833),
    ("openpilot-2026", "wideRoadCameraState"): ("wideRoadCameraState", 53095),
    ("openpilot-2026", "driverMonitoringState"): ("driverMonitoringState", 31369),
    ("sunnypilot", "liveDelay"): ("liveDelay", 53853),
    ("sunnypilot", "carStateSP"): ("carStateSP", 11256),
}


def test_names_ports_and_members_on_the_stacks() -> None:
    assert list(STACKS) == [*("openpilot-2025", "openpilot-2026", "sunnypilot", "sunnypilot-2026")]
    assert all(stack.name == name for name, stack in STACKS.items())
    assert DEFAULT_STACK.name == "openpilot-2025"
    assert [stack.has_delay_params for stack in STACKS.values()] == [False, False, True, True]
    found = {(s, n): (STACKS[s].endpoint(n), STACKS[s].port(n)) for s, n in ENDPOINTS}
    assert found == ENDPOINTS
    # Every name of 2026 is reached by its name of 2025 and by itself.
    for new, old in RENAMED_2026.items():
        assert OPENPILOT_2026.endpoint(old) == OPENPILOT_2026.endpoint(new) == new
        assert OPENPILOT_2026.member(old) == old
    # Driver monitoring is another structure in 2026.
    members = [stack.member("driverMonitoringState") for stack in STACKS.values()]
    assert members == ["driverMonitoringState", "driverMonitoringStateV2"] * 2


def test_queues_of_a_stack() -> None:
    assert {DEFAULT_STACK.queue_bytes(name) for name in SERVICES} == {10 * 1024**2}
    assert OPENPILOT_2026.queue_bytes("liveCalibration") == 256_000
    assert OPENPILOT_2026.queue_bytes("modelV2") == 10 * 1024**2
    # What is no service has the size that the stack's library gives it.
    for name in ("initData", "visionipc_camerad_0"):
        assert OPENPILOT_2026.queue_bytes(name) == 1 << 20
        assert DEFAULT_STACK.queue_bytes(name) == 10 << 20
    shared = Path("/dev") / "shm"
    assert DEFAULT_STACK.queue_path("liveDelay") == shared / "liveDelay"
    assert DEFAULT_STACK.queue_path("liveDelay", "P") == shared / "P/liveDelay"
    assert OPENPILOT_2026.queue_path("liveDelay") == shared / "msgq_lateralDelay"
    assert OPENPILOT_2026.queue_path("liveDelay", "P") == shared / "msgq_P/lateralDelay"


def test_directory_of_the_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path("/home/me")
    for stack in STACKS.values():
        assert stack.params_dir(home) == home / ".comma/params/d"
        assert stack.params_dir(home, prefix="P") == home / ".commaP/params/P"
        assert stack.params_dir(home, root="/srv/root") == Path("/srv/root/d")
        assert stack.params_dir(home, root="/srv/root", prefix="P") == Path("/srv/root/P")
    # On the device there is a place for them.
    monkeypatch.setattr("cereal.stacks._DEVICE_PARAMS", tmp_path)
    assert DEFAULT_STACK.params_dir(home) == tmp_path / "d"
    assert DEFAULT_STACK.params_dir(home, root="/srv/root") == Path("/srv/root/d")

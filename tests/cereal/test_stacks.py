import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cereal.clock import MonotonicClock
from cereal.errors import ServiceError, TransportError
from cereal.pubsub import PubMaster, SubMaster
from cereal.schema import SCHEMA_PATH, new_event
from cereal.services import RENAMED_2026, SERVICES
from cereal.stacks import DEFAULT_STACK, STACKS, Stack
from cereal.transport import Publisher, ZmqTransport

OPENPILOT_2026 = STACKS["openpilot-2026"]


def test_the_stacks_and_the_default() -> None:
    assert list(STACKS) == ["openpilot-2025", "openpilot-2026", "sunnypilot"]
    assert all(stack.name == name for name, stack in STACKS.items())
    assert DEFAULT_STACK.name == "openpilot-2025"


@pytest.mark.parametrize(
    ("stack", "service", "name", "port"),
    [
        ("openpilot-2025", "modelV2", "modelV2", 58537),
        ("openpilot-2025", "liveCalibration", "liveCalibration", 36768),
        ("openpilot-2025", "liveDelay", "liveDelay", 53853),
        ("openpilot-2026", "modelV2", "modelV2", 58537),
        ("openpilot-2026", "liveCalibration", "extrinsicsCalibration", 32584),
        ("openpilot-2026", "liveDelay", "lateralDelay", 34210),
        ("openpilot-2026", "roadCameraState", "narrowRoadCameraState", 20911),
        ("openpilot-2026", "driverCameraState", "cabinCameraState", 15833),
        ("openpilot-2026", "wideRoadCameraState", "wideRoadCameraState", 53095),
        ("openpilot-2026", "driverMonitoringState", "driverMonitoringState", 31369),
        ("sunnypilot", "liveDelay", "liveDelay", 53853),
        ("sunnypilot", "carStateSP", "carStateSP", 11256),
    ],
)
def test_name_and_port_on_a_stack(stack: str, service: str, name: str, port: int) -> None:
    assert STACKS[stack].endpoint(service) == name
    assert STACKS[stack].port(service) == port


def test_every_name_of_2026_is_reached_by_its_name_of_2025_and_by_itself() -> None:
    for new, old in RENAMED_2026.items():
        assert OPENPILOT_2026.endpoint(old) == OPENPILOT_2026.endpoint(new) == new
        assert OPENPILOT_2026.member(old) == old


def test_driver_monitoring_is_another_structure_in_2026() -> None:
    members = [stack.member("driverMonitoringState") for stack in STACKS.values()]
    assert members == ["driverMonitoringState", "driverMonitoringStateV2", "driverMonitoringState"]


def test_queues_of_a_stack() -> None:
    assert {DEFAULT_STACK.queue_bytes(name) for name in SERVICES} == {10 * 1024**2}
    assert OPENPILOT_2026.queue_bytes("liveCalibration") == 256_000
    assert OPENPILOT_2026.queue_bytes("modelV2") == 10 * 1024**2
    with pytest.raises(ServiceError, match="modelv2"):
        OPENPILOT_2026.queue_bytes("modelv2")
    shared = Path("/dev") / "shm"
    assert DEFAULT_STACK.queue_path("liveDelay") == shared / "liveDelay"
    assert DEFAULT_STACK.queue_path("liveDelay", "P") == shared / "P/liveDelay"
    assert OPENPILOT_2026.queue_path("liveDelay") == shared / "msgq_lateralDelay"
    assert OPENPILOT_2026.queue_path("liveDelay", "P") == shared / "msgq_P/lateralDelay"


@pytest.mark.parametrize(
    ("root", "prefix", "expected"),
    [
        ("", "", "/home/me/.comma/params/d"),
        ("", "P", "/home/me/.commaP/params/P"),
        ("/srv/root", "", "/srv/root/d"),
        ("/srv/root", "P", "/srv/root/P"),
    ],
)
def test_directory_of_the_parameters(root: str, prefix: str, expected: str) -> None:
    for stack in STACKS.values():
        found = stack.params_dir(Path("/home/me"), root=root, prefix=prefix)
        assert found == Path(expected)


def test_directory_of_the_parameters_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cereal.stacks._DEVICE_PARAMS", tmp_path)
    assert DEFAULT_STACK.params_dir(Path("/home/me")) == tmp_path / "d"


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_publishers_and_subscribers_of_a_stack_meet_under_names_of_2025(
    stack: Stack, tmp_path: Path
) -> None:
    transport = ZmqTransport(f"ipc://{tmp_path}", stack=stack)
    clock = MonotonicClock()
    publisher = PubMaster(["liveCalibration"], transport, clock)
    messages = SubMaster(["liveCalibration"], transport, clock)
    assert (tmp_path / stack.endpoint("liveCalibration")).is_socket()
    event = publisher.new("liveCalibration")
    event.liveCalibration.rpyCalib = [0.0, 0.5, 0.25]
    data = event.to_bytes()
    for _ in range(200):
        publisher.send("liveCalibration", data)
        messages.update(50)
        if messages.seen["liveCalibration"]:
            break
    transport.close()
    assert list(messages["liveCalibration"].rpyCalib) == [0.0, 0.5, 0.25]


# A program of 2026: nothing of ours, names and ports by its own rule.
FOREIGN = """
import sys
import capnp, zmq
capnp.remove_import_hook()
log = capnp.load(sys.argv[1])
value = 0xCBF29CE484222325
for byte in b"cabinCameraState":
    value = (value ^ byte) * 0x100000001B3 % 2**64
sub = zmq.Context.instance().socket(zmq.SUB)
sub.setsockopt(zmq.SUBSCRIBE, b"")
sub.connect(f"tcp://127.0.0.1:{8023 + value % 57512}")
if not sub.poll(30000):
    sys.exit("nothing came")
with log.Event.from_bytes(sub.recv()) as event:
    print(event.which(), event.driverCameraState.frameId)
sub.close(0)
"""


def publisher_when_free(transport: ZmqTransport, service: str) -> Publisher:
    """The port is the same for every run of this test on one machine."""
    for _ in range(600):
        with suppress(TransportError):
            return transport.publisher(service)
        time.sleep(0.1)
    return transport.publisher(service)


def test_foreign_subscriber_of_2026_hears_us_on_its_name_and_port(tmp_path: Path) -> None:
    transport = ZmqTransport("tcp://127.0.0.1", stack=OPENPILOT_2026)
    publisher = publisher_when_free(transport, "driverCameraState")
    event = new_event("driverCameraState", mono_time_ns=1)
    event.driverCameraState.frameId = 4711
    data = event.to_bytes()
    with subprocess.Popen(
        [sys.executable, "-I", "-c", FOREIGN, str(SCHEMA_PATH)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            publisher.send(data)
            time.sleep(0.02)
        out, err = process.communicate()
    transport.close()
    assert process.returncode == 0, err
    assert out.split() == ["driverCameraState", "4711"]

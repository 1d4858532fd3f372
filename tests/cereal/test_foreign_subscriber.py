"""A program without any module of ours reads our messages: pyzmq, pycapnp and the schema."""

from pathlib import Path

import pytest

from cereal.clock import MonotonicClock
from cereal.pubsub import PubMaster
from cereal.schema import new_event
from cereal.stacks import STACKS
from cereal.transport import ZmqTransport
from tests.cereal.shared import free_address, heard_by

LISTEN = """
import sys
import capnp, zmq
capnp.remove_import_hook()
assert not any(name.split(".")[0] in ("cereal", "runtime", "modeld") for name in sys.modules)
log = capnp.load(sys.argv[1])

def heard(endpoint):
    sub = zmq.Context.instance().socket(zmq.SUB)
    sub.setsockopt(zmq.SUBSCRIBE, b"")
    sub.connect(endpoint)
    if not sub.poll(30000):
        sys.exit("nothing came")
    parts = sub.recv_multipart()
    assert len(parts) == 1, len(parts)
    sub.close(0)
    return log.Event.from_bytes(parts[0])
"""
OF_THE_MODEL = """
with heard(sys.argv[2]) as event:
    model = event.modelV2
    print(event.which(), event.valid, event.logMonoTime > 0, model.frameId, model.confidence,
          [round(x, 3) for x in model.position.x], [len(l.y) for l in model.laneLines],
          model.meta.disengagePredictions.t[1], round(model.action.desiredCurvature, 4))
"""
# Of 2026: its name, and the port that it finds by its own rule.
OF_2026 = """
value = 0xCBF29CE484222325
for byte in sys.argv[2].encode():
    value = (value ^ byte) * 0x100000001B3 % 2**64
with heard(f"ipc://{sys.argv[2]}") as event:
    print(event.which(), event.driverCameraState.frameId, 8023 + value % 57512)
"""


@pytest.mark.parametrize("scheme", ["tcp", pytest.param("ipc", marks=pytest.mark.slow)])
def test_foreign_subscriber_decodes_our_messages(scheme: str, tmp_path: Path) -> None:
    address = free_address("modelV2") if scheme == "tcp" else f"ipc://{tmp_path}"
    transport = ZmqTransport(address)
    publisher = PubMaster(["modelV2"], transport, MonotonicClock())
    event = publisher.new("modelV2")
    event.valid = True
    model = event.modelV2
    model.frameId = 4711
    model.confidence = "yellow"
    model.position.x = [0.0, 1.5, 192.0]
    for line in model.init("laneLines", 4):
        line.y = [0.0] * 33
    model.meta.disengagePredictions.t = [2.0, 4.0]
    model.action.desiredCurvature = -0.0125
    data = event.to_bytes()
    # By the rule of docs/formats/bus.md: from where stacks have modelV2, in a circle.
    port = 8023 + (58537 - 8023 + int(address.partition("+")[2] or 0)) % 57512
    endpoint = f"tcp://127.0.0.1:{port}" if scheme == "tcp" else f"ipc://{tmp_path}/modelV2"
    out = heard_by(
        LISTEN + OF_THE_MODEL, endpoint, lambda: publisher.send("modelV2", data), tmp_path
    )
    transport.close()
    expected = "modelV2 True True 4711 yellow [0.0, 1.5, 192.0] [33, 33, 33, 33] 4.0 -0.0125\n"
    assert out == expected


def test_foreign_subscriber_of_2026_finds_us_by_its_name_and_port(tmp_path: Path) -> None:
    stack, service = STACKS["openpilot-2026"], "driverCameraState"
    transport = ZmqTransport(f"ipc://{tmp_path}", stack=stack)
    publisher, subscriber = transport.publisher(service), transport.subscriber(service)
    event = new_event(service, mono_time_ns=1)
    event.driverCameraState.frameId = 4711
    data = event.to_bytes()
    out = heard_by(LISTEN + OF_2026, "cabinCameraState", lambda: publisher.send(data), tmp_path)
    # Who listens with our code asks for the same name.
    assert subscriber.receive(1000) == data
    transport.close()
    # The port is compared and not bound: others of this machine may have it.
    elsewhere = ZmqTransport("tcp://host", stack=stack)
    *heard, port = out.split()
    assert heard == [service, "4711"]
    assert elsewhere.endpoint(service) == f"tcp://host:{port}"
    elsewhere.close()

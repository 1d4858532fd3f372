"""A program without any module of ours reads our messages: pyzmq, pycapnp and the schema."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cereal.clock import MonotonicClock
from cereal.pubsub import PubMaster
from cereal.schema import SCHEMA_PATH
from cereal.transport import ZmqTransport

FOREIGN = """
import sys
import capnp, zmq
capnp.remove_import_hook()
schema, endpoint = sys.argv[1:]
assert not any(name.split(".")[0] in ("cereal", "runtime", "modeld") for name in sys.modules)
log = capnp.load(schema)
sub = zmq.Context.instance().socket(zmq.SUB)
sub.setsockopt(zmq.SUBSCRIBE, b"")
sub.connect(endpoint)
print("ready", flush=True)
if not sub.poll(30000):
    sys.exit("nothing came")
parts = sub.recv_multipart()
assert len(parts) == 1, len(parts)
with log.Event.from_bytes(parts[0]) as event:
    model = event.modelV2
    print(event.which(), event.valid, event.logMonoTime > 0, model.frameId, model.confidence,
          [round(x, 3) for x in model.position.x], [len(l.y) for l in model.laneLines],
          model.meta.disengagePredictions.t[1], round(model.action.desiredCurvature, 4))
sub.close(0)
zmq.Context.instance().term()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_foreign_subscriber_decodes_our_messages(scheme: str, tmp_path: Path) -> None:
    port = free_port()
    address = "tcp://127.0.0.1" if scheme == "tcp" else f"ipc://{tmp_path}"
    transport = ZmqTransport(address, ports=lambda _: port)
    endpoint = f"tcp://127.0.0.1:{port}" if scheme == "tcp" else f"ipc://{tmp_path}/modelV2"
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
    with subprocess.Popen(
        [sys.executable, "-I", "-c", FOREIGN, str(SCHEMA_PATH), endpoint],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            publisher.send("modelV2", data)
            time.sleep(0.02)
        out, err = process.communicate()
    transport.close()
    assert process.returncode == 0, err
    assert out.splitlines() == [
        "ready",
        "modelV2 True True 4711 yellow [0.0, 1.5, 192.0] [33, 33, 33, 33] 4.0 -0.0125",
    ]

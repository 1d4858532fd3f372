"""A daemon beside a bridge that has bound every service of its stack, with real processes.

The bridge is pyzmq alone, as that of a device: PUB sockets on every interface, at the ports of a
stack. They are moved here, as another stack may run on this machine.
"""

import asyncio
import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cereal.services import SERVICES
from tests.cereal.shared import free_address
from tests.faults.cameras import Cameras
from tests.modeld.bench import Patch, car_event
from tests.modeld.daemon_process import DEADLINE_S, DaemonProcess
from tests.modeld.fake_program import SMALL
from tests.other_user import line, process_of
from tests.tools.conftest import Modeld
from tests.tools.live.speaker import View
from tests.tools.live.test_view_command import until, watching
from tests.tools.messages import event_of
from tests.tools.tiny_driving import write_tiny_driving

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]

BRIDGE = """
import json, time, zmq
from cereal.services import SERVICES, port_of
context = zmq.Context()
sockets = {name: context.socket(zmq.PUB) for name in SERVICES}
for name, socket in sockets.items():
    socket.bind(f"tcp://*:{port_of(name, moved=int(arguments[0]))}")
print("bound", flush=True)
messages = json.loads(arguments[1])
while True:
    for name, data in messages.items():
        sockets[name].send(bytes.fromhex(data))
    time.sleep(0.02)
"""
SAID = {
    "carParams": bytes(car_event("BRIDGED CAR").to_bytes()),
    "carState": event_of("carState", vEgo=12.5),
    "deviceState": event_of("deviceState", started=True),
}


@pytest.fixture
def bridge() -> Iterator[tuple[str, int]]:
    """The address of a bridge, and its process."""
    address = free_address(*SERVICES)
    moved = address.rpartition("+")[2]
    messages = json.dumps({name: data.hex() for name, data in SAID.items()})
    with process_of(BRIDGE, moved, messages) as process:
        assert line(process) == "bound"
        yield address, process.pid


@pytest.fixture
def start(tmp_path: Path, monkeypatch: Patch) -> Iterator[Callable[..., DaemonProcess]]:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    model = write_tiny_driving(tmp_path / "tiny.pkl", (64, 32))
    started = []

    def begin(*options: str) -> DaemonProcess:
        started.append(DaemonProcess(tmp_path, "--model", str(model), *options))
        return started[-1]

    yield begin
    for process in started:
        process.close()


def test_at_the_bridges_own_ports_it_ends_and_names_the_bridge(
    bridge: tuple[str, int], start: Callable[..., DaemonProcess]
) -> None:
    address, number = bridge
    process = start("--bus", address)
    said = process.wait_for("expected to bind")
    assert re.search(
        rf"Address already in use by process {number} \(.*python.*\); stop it, or", said
    )
    assert process.wait_exit(DEADLINE_S) == 4


@pytest.mark.parametrize("place", ["ports", "directory"])
def test_it_hears_the_bridge_publishes_elsewhere_and_is_heard_there(
    place: str,
    bridge: tuple[str, int],
    start: Callable[..., DaemonProcess],
    modeld: Modeld,
    tmp_path: Path,
) -> None:
    (tmp_path / "bus").mkdir()
    own = free_address(*SERVICES) if place == "ports" else f"ipc://{tmp_path}/bus"
    both = ("--subscribe", bridge[0], "--publish", own)
    process = start(*both)

    async def speed_beside_an_answer(view: View) -> float:
        async with watching(view) as ws:
            columns = (await until(ws, lambda m, _: m["kind"] == "hello"))["columns"]
            # A row is made by an answer, and has what the car said then.
            both = await until(ws, lambda m, _: m.get("health") and m["rows"])
            return float(both["rows"][-1][columns.index("carSpeed")])

    with closing(Cameras(process.server, SMALL)):
        # Of the bus, as no parameter has it.
        process.wait_for("car: BRIDGED CAR")
        process.wait_for("running")
        # Who is told where it publishes hears it; who is told both hears both.
        one = ("--count", "1", "--timeout", "30", "--json")
        assert (
            modeld(0, "subscribe", "modelV2", "--bus", own, *one).objects[0]["service"] == "modelV2"
        )
        health = modeld(1, "status", "--bus", own, "--timeout", "30", "--json").json
        assert health["daemons"]["modeldHealth"]["health"]["processId"] == process.pid
        some = ("--log-only", "carState", "--count", "60", "--timeout", "30", "--json")
        heard = modeld(0, "subscribe", "modelV2", *both, *some).objects[-1]["messages"]
        assert heard.keys() == {"modelV2", "carState"}
        with View(*both, "--camera-server", process.server) as view:
            assert view.about["source"] == f"{own} and {bridge[0]}"
            assert asyncio.run(speed_beside_an_answer(view)) == 12.5
    assert process.stop_by(signal.SIGTERM) == 0

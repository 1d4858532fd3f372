"""`modeld view` as a process: who may watch, who stalls, what comes and goes, and how it ends."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cereal.shared import write_log
from tests.tools.conftest import Modeld
from tests.tools.live.speaker import View, drive_log, speaking, unpacked
from tests.tools.tiny_driving import write_tiny_driving
from tools.lib.processes import Child
from tools.live.server import MAX_VIEWERS
from tools.live.viewers import STALL_S

PATIENCE_S = 40.0


def get(view: View, path: str = "/", **headers: str) -> tuple[int, Any, str]:
    connection = http.client.HTTPConnection("127.0.0.1", view.port, timeout=PATIENCE_S)
    with closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


@asynccontextmanager
async def watching(view: View) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{view.port}/socket", max_msg_size=0) as ws,
    ):
        yield ws


async def shown(ws: aiohttp.ClientWebSocketResponse, message: dict[str, Any]) -> None:
    """Say what a page says when it has shown a message."""
    if "number" in message:
        await ws.send_str(json.dumps({"got": message["number"]}))


async def until(ws: aiohttp.ClientWebSocketResponse, true: Any) -> dict[str, Any]:
    """Return the first message of which something holds, and leave out those before it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message, jpeg = unpacked(await ws.receive_bytes())
            await shown(ws, message)
            if true(message, jpeg):
                return message


def stalled(view: View) -> socket.socket:
    """Return a viewer that never reads, and whose own room for what comes is small."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", view.port))
    host = f"127.0.0.1:{view.port}"
    lines = [f"GET /socket HTTP/1.1\r\nHost: {host}", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    one.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    return one


def resident_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS:")).split()[1])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "drive.rlog", drive_log(range(60)))


@pytest.fixture(scope="module")
def logged(log: Path) -> Iterator[View]:
    """The view of a log."""
    with View(str(log)) as view:
        yield view
        assert view.stop(signal.SIGTERM) == (0, "")


@dataclass(frozen=True)
class Place:
    """Where a daemon of this test would speak: an address, and the name of its frame rings."""

    bus: str
    server: str

    def view(self, *more: str) -> View:
        return View("--bus", self.bus, "--camera-server", self.server, *more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(f"ipc://{tmp_path}", f"view-{os.getpid()}")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_ends_by_signals_also_while_somebody_watches(
    place: Place, number: int, code: int
) -> None:
    with View("--bus", place.bus) as view, stalled(view):
        assert view.about == {"url": view.url, "mode": "live", "source": place.bus}
        assert get(view)[0] == 200
        assert view.stop(number) == (code, "")


def test_a_port_in_use_is_one_line_and_2(log: Path, modeld: Modeld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"127.0.0.1 port {port}: expected a free port, found it in use by process "
        said += f"{os.getpid()} ("
        other = f"open http://127.0.0.1:{port}/, or choose another --port (0: any that is free)"
        for text in (said, other):
            modeld.refused(2, text, "view", log, "--port", port)


@pytest.mark.slow
def test_without_its_package_it_says_what_to_install(log: Path) -> None:
    # A package of that name that cannot be imported, found before the real one.
    script = "import sys; sys.modules['aiohttp'] = None; from tools.cli import main; "
    script += f"sys.exit(main(['view', {str(log)!r}]))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert "pip install 'modeld[view]'" in done.stderr


def test_only_its_own_page_is_answered(logged: View) -> None:
    _, about, text = get(logged)
    policy = about["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    # Everything that the page names is its own.
    assert "http" not in text.replace("http-equiv", "")
    assert get(logged, "/page/main.js")[1]["Content-Type"].startswith("text/javascript")
    for path in ("/page/..%2Fserver.py", "/page/server.py"):
        assert get(logged, path)[0] == 404
    assert get(logged, Host="rebound.example")[0] == 403
    assert get(logged, Origin="http://elsewhere.example")[0] == 403
    assert get(logged, "/socket", Origin="http://localhost:1")[0] == 403
    assert get(logged, Origin=f"http://127.0.0.1:{logged.port}")[0] == 200


def test_a_ninth_viewer_is_told_so_and_has_a_place_when_another_goes(logged: View) -> None:
    async def watch() -> None:
        async with aiohttp.ClientSession() as session:
            address = f"http://127.0.0.1:{logged.port}/socket"
            first = [await session.ws_connect(address) for _ in range(MAX_VIEWERS)]
            for one in first:
                await one.receive_bytes()
            more = await session.ws_connect(address)
            closed = await more.receive()
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1013)
            assert closed.extra == "8 pages are connected already"
            await first[0].close()
            again = await session.ws_connect(address)
            hello, _ = unpacked(await again.receive_bytes())
            assert hello["kind"] == "hello"

    asyncio.run(watch())


@pytest.mark.alone
@pytest.mark.slow
def test_the_page_waits_for_a_daemon_which_comes_goes_and_returns(place: Place) -> None:
    async def watch(view: View) -> None:
        async with watching(view) as ws:
            message = await until(ws, lambda m, _: m["kind"] == "moment")
            assert message["waiting"] == {
                "service": "modelV2", "address": place.bus, "since": 0, "seen": False
            }  # fmt: skip
            assert place.server in message["picture"]["whyNot"]
            await until(ws, lambda m, _: m["waiting"]["since"] >= 1)
            with speaking(place.bus, place.server) as speaker:
                message = await until(ws, lambda m, jpeg: not m["waiting"] and jpeg)
                assert message["model"]["frameId"] == message["picture"]["frameId"]
                assert len(message["overlay"]["path"]) > 40
                await until(ws, lambda m, _: m["health"] is not None)
                assert [row[1] for row in message["rows"]] == sorted(
                    row[1] for row in message["rows"]
                )
                speaker.answers = False
                message = await until(ws, lambda m, _: m["waiting"])
                assert message["waiting"]["seen"]
                # The camera goes on, without what was said of frames before.
                message = await until(ws, lambda _, jpeg: jpeg)
                assert message["overlay"] is message["model"] is None
                speaker.answers = True
                await until(ws, lambda m, _: not m["waiting"])
            message = await until(ws, lambda m, _: m["picture"]["whyNot"])
            assert "no frame of this camera" in message["picture"]["whyNot"]

    with place.view() as view:
        asyncio.run(watch(view))


@pytest.mark.alone
@pytest.mark.slow
def test_a_viewer_that_stalls_is_left_behind_and_others_go_on(place: Place) -> None:
    async def watch(view: View, still: socket.socket) -> None:
        async with watching(view) as fast, watching(view) as slow:
            loop = asyncio.get_running_loop()

            def age_of(message: dict[str, Any]) -> float:
                return float(loop.time() - came_s - (message["now"] - first["now"]))

            async def take_now_and_then() -> float:
                while True:
                    message, _ = unpacked(await slow.receive_bytes())
                    if message.get("skipped", 0) > 100:
                        return age_of(message)
                    await asyncio.sleep(0.7)
                    await shown(slow, message)

            slowly = asyncio.create_task(take_now_and_then())
            first = await until(fast, lambda _, jpeg: jpeg)
            came_s = loop.time()
            before = resident_kib(view.process.pid)
            last = await until(fast, lambda m, _: m["now"] > first["now"] + STALL_S + 3.0)
            assert last["skipped"] < 20
            # What a viewer does not take is nowhere.
            assert resident_kib(view.process.pid) - before < 40 * 1024
            # It passed over most of them, and what it got was new.
            async with asyncio.timeout(PATIENCE_S):
                assert await slowly < 3.0
        # The one that never read is gone: what had been sent, then the end.
        still.settimeout(PATIENCE_S)
        with suppress(ConnectionResetError):
            while still.recv(1 << 20):
                pass

    with (
        speaking(place.bus, place.server),
        place.view("--picture-rate", "20") as view,
        stalled(view) as still,
    ):
        asyncio.run(watch(view, still))


@pytest.mark.alone
@pytest.mark.slow
def test_who_pauses_gets_nothing_and_no_row_is_lost(place: Place) -> None:
    rows: list[list[float]] = []

    def shows(message: dict[str, Any], jpeg: bytes) -> bool:
        rows.extend(message.get("rows", ()))
        return bool(jpeg)

    async def pause(view: View) -> None:
        async with watching(view) as ws:
            await until(ws, shows)
            await ws.send_str('{"paused": true}')
            # What was under way arrives.
            end = asyncio.get_running_loop().time() + 0.7
            while asyncio.get_running_loop().time() < end:
                with suppress(TimeoutError):
                    shows(*unpacked(await ws.receive_bytes(timeout=0.2)))
            with pytest.raises(TimeoutError):
                await ws.receive(timeout=0.7)
            before = len(rows)
            await ws.send_str('{"paused": false, "rate": 2}')
            await until(ws, shows)
            await until(ws, shows)
            assert len(rows) - before > 5
            # Nothing was lost for the plots in between: each frame has its row.
            numbers = [row[1] for row in rows]
            assert numbers == list(range(int(numbers[0]), int(numbers[-1]) + 1))

    with speaking(place.bus, place.server), place.view() as view:
        asyncio.run(pause(view))
        assert view.process.poll() is None


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_the_real_daemon_and_a_camera_process_are_watched(tmp_path: Path, place: Place) -> None:
    model = write_tiny_driving(tmp_path / "tiny.pkl", (1928, 1208))
    camera = ["--server", place.server, "--bus", place.bus, "--frames", "4", "--rate-hz", "10"]
    camera += ["--size", "1928", "1208"]
    daemon = ["run", "--model", str(model), "--demo", "-q", "--bus", place.bus]
    daemon += ["--camera-server", place.server]

    async def watch(view: View) -> None:
        async with watching(view) as ws:
            for _ in range(2):
                with Child("daemon", "tools.cli", daemon):
                    message = await until(ws, lambda m, jpeg: jpeg and m.get("overlay"))
                    assert message["picture"]["frameId"] == message["model"]["frameId"]
                    assert message["hardware"] == "device pc, sensor unknown"
                    message = await until(ws, lambda m, _: m["health"])
                    assert message["health"]["model"] == "tiny.pkl"
                    await until(ws, lambda m, _: m["cameras"] == ["road", "wideRoad"])
                    await ws.send_str('{"camera": "wideRoad"}')
                    await until(ws, lambda m, jpeg: jpeg and m["picture"]["camera"] == "wideRoad")
                    await ws.send_str('{"camera": "road"}')
                # It went away; the second one is followed as the first was.
                await until(ws, lambda m, _: m["waiting"])

    with place.view() as view, Child("camera", "tools.bench.camera", camera):
        asyncio.run(watch(view))

"""`modeld view` as a process: who may watch, who stalls, what comes and goes, and how it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from email.message import Message
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.tools.live.speaker import (
    View,
    drive_log,
    speaking,
    unpacked,
    write_log,
)
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main
from tools.lib.processes import Child
from tools.live.server import MAX_VIEWERS
from tools.live.viewers import STALL_S

pytestmark = pytest.mark.alone

PATIENCE_S = 40.0


def get(view: View, path: str = "/", **headers: str) -> tuple[int, Message, str]:
    """Return status, headers and body."""
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


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "drive.rlog", drive_log(range(60)))


# --- how it begins and ends -------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_ends_by_signals_also_while_somebody_watches(
    tmp_path: Path, number: int, code: int
) -> None:
    with View("--bus", f"ipc://{tmp_path}") as view, stalled(view):
        assert view.about == {"url": view.url, "mode": "live", "source": f"ipc://{tmp_path}"}
        assert get(view)[0] == 200
        assert view.stop(number) == (code, "")


def test_a_port_in_use_is_one_line_and_2(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with View(str(log)) as view:
        assert main(["view", str(log), "--port", str(view.port)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"127.0.0.1 port {view.port}: expected a free port, found it in use" in said
    assert "--port (0: any that is free)" in said


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["nothing.rlog"], 4, "nothing.rlog: expected a segment directory"),
        (["no-log.txt"], 4, "no-log.txt: expected a log"),
        (["--drive", "a.mp4"], 2, "--drive: expected a log beside it"),
        (["--host", "0.0.0.0"], 2, "add --expose if all of them may watch"),  # noqa: S104 - refused
        (["--port", "70000"], 2, "--port: expected 0 to 65535"),
        (["--picture-rate", "nan"], 2, "--picture-rate: expected above 0"),
        (["--picture-width", "9"], 2, "--picture-width: expected 64 to 1928"),
        (["--camera-server", "../x"], 2, "--camera-server: frame ring: expected a name of letters"),
        (["--bus", "nowhere"], 4, "expected tcp://HOST or ipc:///DIR"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str],
    code: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no-log.txt").write_bytes(b"what is this? " * 9)
    assert main(["view", "--port", "0", *words]) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert text in said


def test_without_its_package_it_says_what_to_install(log: Path) -> None:
    # A package of that name that cannot be imported, found before the real one.
    script = "import sys; sys.modules['aiohttp'] = None; from tools.cli import main; "
    script += f"sys.exit(main(['view', {str(log)!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3
    assert "pip install 'modeld[view]'" in done.stderr


# --- who may ask ------------------------------------------------------------------------------


def test_only_its_own_page_is_answered(log: Path) -> None:
    with View(str(log)) as view:
        _, about, text = get(view)
        policy = about["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        # Everything that the page names is its own.
        assert "http" not in text.replace("http-equiv", "")
        assert get(view, "/page/main.js")[1]["Content-Type"].startswith("text/javascript")
        assert get(view, "/page/..%2Fserver.py")[0] == 404
        assert get(view, "/page/server.py")[0] == 404
        assert get(view, Host="rebound.example")[0] == 403
        assert get(view, Origin="http://elsewhere.example")[0] == 403
        assert get(view, "/socket", Origin="http://localhost:1")[0] == 403
        assert get(view, Origin=f"http://127.0.0.1:{view.port}")[0] == 200


def test_a_ninth_viewer_is_told_so_and_has_a_place_when_another_goes(log: Path) -> None:
    async def watch(view: View) -> None:
        async with aiohttp.ClientSession() as session:
            address = f"http://127.0.0.1:{view.port}/socket"
            first = [await session.ws_connect(address) for _ in range(MAX_VIEWERS)]
            for one in first:
                await one.receive_bytes()
            more = await session.ws_connect(address)
            closed = await more.receive()
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1013)
            assert closed.extra == "8 pages watch already"
            await first[0].close()
            again = await session.ws_connect(address)
            hello, _ = unpacked(await again.receive_bytes())
            assert hello["kind"] == "hello"

    with View(str(log)) as view:
        asyncio.run(watch(view))


# --- daemons that come and go -----------------------------------------------------------------


def test_the_page_waits_for_a_daemon_which_comes_goes_and_returns(tmp_path: Path) -> None:
    bus, server = f"ipc://{tmp_path}", f"view-{os.getpid()}"

    async def watch(view: View) -> None:
        async with watching(view) as ws:
            message = await until(ws, lambda m, _: m["kind"] == "moment")
            assert message["waiting"] == {
                "service": "modelV2", "address": bus, "since": 0, "seen": False
            }  # fmt: skip
            assert server in message["picture"]["whyNot"]
            await until(ws, lambda m, _: m["waiting"]["since"] >= 1)
            with speaking(bus, server) as speaker:
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

    with View("--bus", bus, "--camera-server", server) as view:
        asyncio.run(watch(view))


def test_a_viewer_that_stalls_is_left_behind_and_others_go_on(tmp_path: Path) -> None:
    bus, server = f"ipc://{tmp_path}", f"view-{os.getpid()}"

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
            before = resident_kib(view.pid)
            last = await until(fast, lambda m, _: m["now"] > first["now"] + STALL_S + 3.0)
            assert last["skipped"] < 20
            # What a viewer does not take is nowhere.
            assert resident_kib(view.pid) - before < 40 * 1024
            # It passed over most of them, and what it got was new.
            async with asyncio.timeout(PATIENCE_S):
                assert await slowly < 3.0
        # The one that never read is gone: what had been sent, then the end.
        still.settimeout(PATIENCE_S)
        try:
            while still.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass

    with (
        speaking(bus, server),
        View("--bus", bus, "--camera-server", server, "--picture-rate", "20") as view,
        stalled(view) as still,
    ):
        asyncio.run(watch(view, still))


def test_who_pauses_gets_nothing_and_no_row_is_lost(tmp_path: Path) -> None:
    bus, server = f"ipc://{tmp_path}", f"view-{os.getpid()}"

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

    with speaking(bus, server), View("--bus", bus, "--camera-server", server) as view:
        asyncio.run(pause(view))
        assert view.is_running


@pytest.mark.opencl
def test_the_real_daemon_and_a_camera_process_are_watched(tmp_path: Path) -> None:
    bus, server = f"ipc://{tmp_path}", f"view-{os.getpid()}"
    model = write_tiny_driving(tmp_path / "tiny.pkl", (1928, 1208))
    camera = ["--server", server, "--bus", bus, "--frames", "4", "--rate-hz", "10"]
    camera += ["--size", "1928", "1208"]
    daemon = ["run", "--model", str(model), "--demo", "--bus", bus, "--camera-server", server, "-q"]

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

    with (
        View("--bus", bus, "--camera-server", server) as view,
        Child("camera", "tools.lib.bench_camera", camera),
    ):
        asyncio.run(watch(view))

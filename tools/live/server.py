"""Serves the page and its messages to browsers on this machine.

Requests that do not come from the page itself are refused: those whose Host is not a loopback name
(a foreign name can resolve to this machine), and sockets opened by other pages (Origin).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Final
from urllib.parse import urlsplit

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.typedefs import Handler, Middleware

from cereal.access import holder_of_port
from tools.errors import UsageError
from tools.lib.json_output import json_text
from tools.live.fields import catalogue
from tools.live.viewers import STALL_S, Source, Viewer

logger = logging.getLogger(__name__)

MAX_VIEWERS: Final = 8
# A command from the page has a few hundred bytes. The largest is a layout, with escaped quotes.
MAX_COMMAND_BYTES: Final = 32_768
# Bytes that can wait in this process for a viewer, in addition to one message.
WRITE_LIMIT_BYTES: Final = 1 << 16
# Bytes that can wait in the kernel for a viewer.
SEND_BUFFER_BYTES: Final = 1 << 18
PING_S: Final = 20.0
STOP_S: Final = 1.0

_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_LOCAL_NAMES: Final = frozenset({"localhost"})


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which the page is served."""

    host: str  # an address of this machine
    port: int  # 0: any free port
    is_exposed: bool = False  # whether other machines can connect


def open_socket(address: Address) -> socket.socket:
    """Return a listening socket.

    Raises:
        UsageError: the address is not of this machine, is not loopback although not exposed, or the
            port is in use.
    """
    host, port = address.host, address.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--host {host}: expected an address of this machine, found none ({error}); "
            "127.0.0.1 is usual"
        ) from error
    family, kind, protocol, _, place = found
    if not ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback:
        if not address.is_exposed:
            raise UsageError(
                f"--host {host}: expected a loopback address, as 127.0.0.1, found one that other "
                "machines reach; add --expose to let them watch"
            )
        logger.warning(
            "%s: whoever reaches this address sees the camera and everything else; there is no "
            "password and no encryption",
            host,
        )
    listening = socket.socket(family, kind, protocol)
    # Connections of a previous view can still be closing.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it, so a stalled browser cannot hold more than this in the kernel.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        listening.bind(place)
        listening.listen()
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        advice = "choose another --host or --port"
        if error.errno == errno.EADDRINUSE:
            holder = holder_of_port(port, str(place[0]))
            reason = f"it in use{f' by {holder}' if holder else ''}"
            advice = (
                f"another view may be running, open {url_of(host, port)}, or choose another "
                "--port (0: any that is free)"
            )
        raise UsageError(
            f"{host} port {port}: expected a free port, found {reason}; {advice}"
        ) from error
    return listening


def url_of(host: str, port: int) -> str:
    """Return the page's URL."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class Server:
    """Serves the page, and a socket for each viewer.

    `source`: the source of messages. `address`: the address of the page.
    """

    def __init__(self, source: Source, address: Address) -> None:
        self._source, self._address = source, address
        self._sockets: set[web.WebSocketResponse] = set()
        self._files = _page_files()
        app = web.Application(middlewares=[_guard(address)])
        app.router.add_get("/", self._file)
        app.router.add_get("/page/{name}", self._file)
        app.router.add_get("/fields", self._fields)
        app.router.add_get("/socket", self._watch)
        app.on_response_prepare.append(_add_headers)
        self._app = app

    async def run(self, listening: socket.socket, until: Awaitable[None]) -> None:
        """Serve until `until` is done, and raise its error, if any."""
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=STOP_S)
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            await until
        finally:
            for one in tuple(self._sockets):
                with suppress(TimeoutError, ConnectionError):
                    await asyncio.wait_for(
                        one.close(code=WSCloseCode.GOING_AWAY, message=b"the view has ended"),
                        STOP_S,
                    )
            await runner.cleanup()

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        found = self._files.get(name)
        if found is None:
            raise web.HTTPNotFound(text=f"there is no {name!r} here\n")
        content_type, body = found
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    async def _fields(self, request: web.Request) -> web.Response:  # noqa: ARG002 - as aiohttp asks
        """Return all fields that can be selected, some 200 KB."""
        # Sets change while a log is read, so the thread gets a copy.
        services = frozenset(self._source.services())
        found = await asyncio.to_thread(catalogue, services)
        return web.Response(text=json_text(found), content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse(
            timeout=STOP_S,
            heartbeat=PING_S,
            compress=False,
            max_msg_size=MAX_COMMAND_BYTES,
            writer_limit=WRITE_LIMIT_BYTES,
        )
        await ws.prepare(request)
        if len(self._sockets) >= MAX_VIEWERS:
            full = f"{MAX_VIEWERS} pages are connected already".encode()
            await ws.close(code=WSCloseCode.TRY_AGAIN_LATER, message=full)
            return ws
        self._sockets.add(ws)
        viewer = Viewer()
        own = self._source.open(viewer)
        sending = asyncio.create_task(self._send(ws, request, viewer, own))
        try:
            async for message in ws:
                if message.type is WSMsgType.TEXT:
                    viewer.order(message.data)
        finally:
            self._sockets.discard(ws)
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
            self._source.close(viewer, own)
        return ws

    async def _send(
        self, ws: web.WebSocketResponse, request: web.Request, viewer: Viewer, own: object
    ) -> None:
        """Send the newest messages to one viewer, at its rate."""
        loop = asyncio.get_running_loop()
        data = self._source.hello()
        try:
            while True:
                begun_s = loop.time()
                async with asyncio.timeout(STALL_S):
                    await ws.send_bytes(data)
                await asyncio.sleep(begun_s + 1.0 / viewer.rate_hz - loop.time())
                data = await self._source.next(viewer, own)
        except TimeoutError:
            logger.info("a page showed nothing for %g s; its connection is closed", STALL_S)
            # A regular close would wait for the viewer again.
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            return
        except Exception:
            logger.exception("a page can no longer be served; its connection is closed")
            if request.transport is not None:
                request.transport.abort()


def _guard(address: Address) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = _name_of(request.headers.get("Host", ""))
        if not _is_allowed(host, address):
            raise web.HTTPForbidden(
                text="expected a request to an address of this machine, such as 127.0.0.1\n"
            )
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("Host"):
            raise web.HTTPForbidden(text="expected a request from this page, found another page\n")
        return await handler(request)

    return guard


def _is_allowed(host: str, address: Address) -> bool:
    if host in _LOCAL_NAMES:
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        # Anyone can make another name resolve to this machine.
        return address.is_exposed and host == address.host
    return found.is_loopback or address.is_exposed


def _name_of(host: str) -> str:
    """Return a Host header without its port."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    host = request.headers.get("Host", "")
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        # Some browsers do not treat sockets as 'self'. The host name was checked.
        "connect-src": f"'self' ws://{host}" if response.status < 400 else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    response.headers["Content-Security-Policy"] = "; ".join(map(" ".join, policy.items()))
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    response.headers["Cache-Control"] = "no-store"
    response.headers["Server"] = "modeld"


def _page_files() -> dict[str, tuple[str, bytes]]:
    found = {}
    for file in resources.files("tools.live").joinpath("page").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            found[file.name] = _TYPES[suffix], file.read_bytes()
    return found

"""A headless Chromium of the system, told what to do over a pipe (Chrome DevTools Protocol).

Nothing is put into the pages: their elements are measured and their pictures taken from outside.
"""

import base64
import contextlib
import io
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Of one answer. A loaded machine starts a browser slowly.
PATIENCE_S = 60.0


def find_browser() -> str | None:
    """Return the path of a Chromium; None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class BrowserError(Exception):
    """The browser ended, or does not answer."""


@dataclass
class Seen:
    """What a page did while it was open: its errors, and what it asked for, itself first."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


class Browser:
    """A running browser with one page."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int) -> None:
        self._process = process
        self._reading, self._writing = reading, writing
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []

    def open(self, place: Path | str, width: int, height: int = 900) -> Seen:
        """Open a file or an address in a window of a width, and wait until it is loaded."""
        if self._session is None:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        # The page before goes first: until then its socket asks again for a server that has ended,
        # and the error may come after this line.
        self._load("about:blank")
        self._load(place if isinstance(place, str) else place.resolve().as_uri())
        return self.seen()

    def _load(self, url: str) -> None:
        """Go to an address and wait until it is loaded; events before are forgotten."""
        self.ask("1")  # what was said so far has arrived by then
        self._events.clear()
        self._call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._receive())

    def seen(self) -> Seen:
        """Return what the page did since it was opened."""
        self.ask("1")  # what was said so far has arrived by then
        seen = Seen()
        for event in self._events:
            about = event.get("params", {})
            if event["method"] == "Network.requestWillBeSent":
                seen.requests.append(about["request"]["url"])
            elif event["method"] == "Runtime.exceptionThrown":
                seen.errors.append(str(about["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and about["entry"]["level"] == "error":
                seen.errors.append(about["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and about["type"] == "error":
                seen.errors.append(str(about["args"]))
        return seen

    def press(self, key: str, code: int, *, shift: bool = False) -> None:
        about: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        about["modifiers"] = 8 if shift else 0
        if len(key) == 1:
            about["text"] = key
        self._call("Input.dispatchKeyEvent", type="keyDown", **about)
        self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def prefer(self, **features: str) -> None:
        """Emulate preferences: ``prefers_color_scheme="dark"``; none: those of the system."""
        chosen = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self._call("Emulation.setEmulatedMedia", features=chosen)

    def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of everything that a screen reader is told of, in its order."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def ask(self, expression: str) -> Any:
        """Return the value of an expression; of a promise, what it comes to."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def picture(self) -> NDArray[np.uint8]:
        """Return the whole page as (h, w, 3) uint8."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        container: Any = av.open(io.BytesIO(base64.b64decode(answer["data"])))
        with container:
            picture: NDArray[np.uint8] = next(container.decode(video=0)).to_ndarray(format="rgb24")
        return picture

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            if "method" in answer:
                self._events.append(answer)

    def _receive(self) -> dict[str, Any]:
        end = time.perf_counter() + PATIENCE_S
        while b"\0" not in self._pending:
            left_s = max(0.0, end - time.perf_counter())
            ready, _, _ = select.select([self._reading], [], [], left_s)
            piece = os.read(self._reading, 1 << 16) if ready else b""
            if not piece:
                found = "its end" if ready else f"nothing for {PATIENCE_S:g} s"
                raise BrowserError(f"browser: expected an answer, found {found}")
            self._pending += piece
        message, _, self._pending = self._pending.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextlib.contextmanager
def browser(executable: str) -> Iterator[Browser]:
    """Start a browser; it has ended when the block ends."""
    from_us, ours = os.pipe()
    theirs, from_them = os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser") as profile, contextlib.ExitStack() as stack:
        for handle in (ours, theirs):
            stack.callback(os.close, handle)
        # The browser reads its orders from 3 and answers on 4.
        script = f'exec "$@" 3<&{from_us} 4>&{from_them}'
        options = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        options += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--disable-background-networking", "--disable-component-update"]
        options += ["--hide-scrollbars", "--force-color-profile=srgb"]
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, "browser", executable, *options, "about:blank"],
            pass_fds=(from_us, from_them),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for handle in (from_us, from_them):
            os.close(handle)
        found = Browser(process, theirs, ours)
        try:
            yield found
        finally:
            with contextlib.suppress(BrowserError, OSError):
                found._session = None
                found._call("Browser.close")
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

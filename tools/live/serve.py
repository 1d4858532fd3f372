"""Connects the server of ``modeld view`` to its source: a daemon on the bus, or a log.

`live_session` and `log_session` open a source; `serve` runs the web server until it is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from cereal.errors import FrameError
from tools.drives.drive import DriveInfo
from tools.drives.open_drive import DriveOptions, expand_drives, open_drive
from tools.drives.openpilot import drive_logs
from tools.drives.routes import SMALL_VIDEO, segment_at
from tools.errors import DriveError, ToolError, UsageError
from tools.live.bus_feed import STREAMS, BusFeed, CameraPictures, Delivery, LiveOptions
from tools.live.drive_pictures import NoPictures, Pictures, picture_maker
from tools.live.log_index import IndexThread, LogIndex
from tools.live.log_source import WARM_UP_ROWS, LogSource
from tools.live.messages import CameraTable, Json
from tools.live.server import Address, Server
from tools.live.viewers import LiveSource, Source
from tools.playback.threads import yield_to_others
from tools.service.options import addresses_of, open_bus, open_camera_server

# Interval at which the stop event is checked.
POLL_S = 0.1
# Longest wait for a log's first rows before the page is served.
FIRST_S = 0.5
NO_FRAMES = "this log has no frames; name the drive that it was made from with --drive"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The command-line options except the source."""

    rate_hz: float  # at most this many pictures a second
    width: int  # maximum width of the pictures in pixels
    drives: DriveOptions  # how drives are opened
    drive: str | None  # the drive that a log was made from; None if not given
    other: str | None = None  # a second log, or its drive, if any
    layout: Json | None = None  # the page's initial layout; None: its default


class Session(Protocol):
    """The source that the page shows."""

    mode: str  # "live" or "log"
    title: str
    source: Source  # the source of the messages

    def start(self, loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]) -> None:
        """Start inside the server's running loop; `fail` may be called from any thread."""


class LiveSession:
    """A session that shows a daemon on a bus; `close` ends the feed's thread."""

    mode = "live"

    def __init__(self, args: argparse.Namespace, options: ServeOptions) -> None:
        table = CameraTable(focal_px=options.drives.focal_px)
        self.title = str(addresses_of(args))
        live = LiveOptions(self.title, table, options.rate_hz, options.width)
        self._live_source = LiveSource(live, {"layout": options.layout})
        self.source: Source = self._live_source
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        with ExitStack() as made:
            transport = open_bus(args)
            made.callback(transport.close)
            try:
                pictures = CameraPictures(open_camera_server(args), STREAMS)
            except FrameError as error:
                raise UsageError(f"--camera-server: {error}") from error
            made.callback(pictures.close)
            self._feed = BusFeed(transport, pictures, live, self._live_source, self._deliver)
            self._resources = made.pop_all()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]) -> None:
        """Start the feed; lower the priority of this serving thread below the daemon's."""
        yield_to_others()
        self._loop = loop

        def follow() -> None:
            try:
                self._feed.run(self._stop)
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                fail(error)

        self._thread = threading.Thread(target=follow, name="bus-feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the feed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._resources.close()

    def _deliver(self, seen: Delivery) -> None:
        loop = self._loop
        # There are no viewers after the loop has ended.
        if loop is not None and not self._stop.is_set() and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(self._live_source.deliver, seen)
            except RuntimeError:
                if not loop.is_closed():
                    raise


class LogSession:
    """A log, read by its own threads."""

    mode = "log"

    def __init__(self, title: str, source: LogSource) -> None:
        self.title = title
        self.source: Source = source

    def start(self, loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]) -> None:
        """Do nothing: the logs' threads already run."""


def live_session(args: argparse.Namespace, options: ServeOptions, stack: ExitStack) -> Session:
    """Open the bus and the cameras; `stack` closes them.

    Raises:
        TransportError: the bus address is invalid.
    """
    session = LiveSession(args, options)
    stack.callback(session.close)
    return session


def log_session(text: str, options: ServeOptions, stack: ExitStack) -> Session:
    """Read a log, and open the drive that has its frames.

    `text`: path of a log, or a drive that has a log. `stack` releases both.

    Raises:
        ToolError: log or drive cannot be read.
        LogError: the log cannot be read, or is not a log.
    """
    logs, drive_text = _logs_of(text, options)
    indexes = [_index_of(text, logs, stack)]
    if options.other is not None:
        others, _ = _logs_of(options.other, options)
        indexes.append(_index_of(options.other, others, stack))
    table = CameraTable(focal_px=options.drives.focal_px)
    about: Json = {"cameras": [], "layout": options.layout, "other": options.other}
    make, info, why_not = _pictures_of(drive_text, options, stack)
    about["whyNoFrames"] = why_not
    if info is not None:
        about["cameras"] = [name for name in STREAMS if name in info.formats]
        table = CameraTable(info.cameras, options.drives.focal_px)
    return LogSession(text, LogSource(text, indexes, table, make, about))


def _index_of(text: str, logs: list[Path], stack: ExitStack) -> LogIndex:
    """Start reading logs; return once there are rows to show.

    Raises:
        DriveError: the logs have no rows.
    """
    index = LogIndex(logs)
    reading = IndexThread(index)
    stack.callback(reading.close)
    # Give the first rows time to arrive; then wait for one row, or for the end of the log.
    reading.wait(lambda: len(index) > WARM_UP_ROWS, FIRST_S)
    reading.wait(lambda: len(index), math.inf)
    if not len(index):
        heard = ", ".join(sorted(index.counts)) or "no messages"
        raise DriveError(
            f"{text}: expected messages of a model, a camera or a car, found {heard}; name the log "
            "of a drive"
        )
    return index


def _logs_of(text: str, options: ServeOptions) -> tuple[list[Path], str | None]:
    """Return the logs, and the drive that has their frames (None if unknown)."""
    path = Path(text)
    if path.is_file():
        segment = segment_at(path)
        videos = (".hevc", SMALL_VIDEO)
        has_video = segment is not None and any(name.endswith(videos) for name in segment.files)
        drive = str(segment.path) if segment is not None and has_video else None
        return [path], options.drive or drive
    (one,) = _single(text, options.drives)
    logs = drive_logs(one, options.drives)
    if not logs:
        raise UsageError(
            f"{text}: expected a log, or segments with a log, found a drive without one; "
            "replay it first, then: modeld view LOG --drive DRIVE"
        )
    return logs, options.drive or one


def _single(text: str, options: DriveOptions) -> list[str]:
    found = expand_drives([text], options)
    if len(found) != 1:
        raise UsageError(
            f"{text}: expected one drive, found {len(found)}: {', '.join(found[:4])} ...; name one"
        )
    return found


def _pictures_of(
    text: str | None, options: ServeOptions, stack: ExitStack
) -> tuple[Callable[[], Pictures], DriveInfo | None, str]:
    """Open the drive with the frames; if there is none, return the reason."""
    why_not = NO_FRAMES
    if text is not None:
        try:
            # Opening all segments of a long route together would take minutes.
            one_by_one = replace(options.drives, split=True)
            texts = expand_drives(_single(text, options.drives), one_by_one)
            make, info = picture_maker(
                texts, lambda one: open_drive(one, options.drives), options.width, stack
            )
        except ToolError as error:
            if options.drive is not None:
                raise
            # The drive was only guessed from the log's directory: show the log without frames.
            why_not = f"this log's frames cannot be shown: {error}"
        else:
            return make, info, ""
    return lambda: NoPictures(why_not), None, why_not


async def serve(
    session: Session,
    address: Address,
    listening: socket.socket,
    stop: threading.Event,
    on_ready: Callable[[], None],
) -> None:
    """Serve until `stop` is set.

    `session` is the source, `listening` a socket bound to `address`. `on_ready` is called once the
    page is served.

    Raises:
        BaseException: the error that ended the feed's thread.
    """
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()

    def fail(error: BaseException) -> None:
        def raise_here() -> None:
            if not failed.done():
                failed.set_exception(error)

        loop.call_soon_threadsafe(raise_here)

    async def until() -> None:
        session.start(loop, fail)
        on_ready()
        while not stop.is_set() and not failed.done():
            await asyncio.sleep(POLL_S)
        if failed.done():
            failed.result()

    await Server(session.source, address).run(listening, until())

"""Who watches: each viewer with its own pace, and a bound on what waits for it.

Nothing is queued for a viewer: it gets the newest when it has taken what came before, and what it
missed in between is counted. Rows for plots it gets all, of the last half minute.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from tools.live.bus_feed import STREAMS, LiveOptions, Seen
from tools.live.cameras import ROAD, CameraTable
from tools.live.drive_pictures import Pictures
from tools.live.health import describe_health
from tools.live.log_index import LogIndex
from tools.live.messages import WINDOW_S, Json, Moment, Shown, hello, pack, rows_json
from tools.live.newest import Row

# Rows of the last half minute, of a camera of at most 40 Hz.
MAX_ROWS: Final = int(WINDOW_S * 40)
# Messages that are on their way to a page, which says what it has shown. With one alone, each would
# wait for the way there and back.
MAX_UNDER_WAY: Final = 2
# A viewer that shows nothing for so long is closed; a page that is seen again connects again.
STALL_S: Final = 5.0
# A picture that takes longer than this follows after the numbers.
PATIENCE_S: Final = 0.15
MAX_RATE_HZ: Final = 60.0


class Viewer:
    """What one page asked for, and what it got.

    Attributes:
        camera: whose pictures it wants.
        is_paused: it wants nothing for now.
        rate_hz: it wants at most this many messages a second.
        wanted: row of a log.
        number: of the last message about a daemon.
        under_way: numbers of those that the page has not shown yet.
        row: number behind the last row it got.
        skipped: messages that it did not get, because it was still busy with one before.
    """

    def __init__(self) -> None:
        self.camera = ROAD
        self.is_paused = False
        self.rate_hz = MAX_RATE_HZ
        self.wanted = 0
        self.number = 0
        self.under_way: deque[int] = deque()
        self.row = 0
        self.skipped = 0
        self.changed = asyncio.Event()

    def order(self, text: str) -> None:
        """Take a message of the page; what is none of ours is passed over."""
        with suppress(ValueError, TypeError):
            order = json.loads(text)
            if not isinstance(order, dict):
                return
            if order.get("camera") in STREAMS:
                self.camera = order["camera"]
            if isinstance(order.get("paused"), bool):
                self.is_paused = order["paused"]
            rate = order.get("rate")
            if isinstance(rate, int | float) and 0 < rate <= MAX_RATE_HZ:
                self.rate_hz = float(rate)
            got = order.get("got")
            while isinstance(got, int) and self.under_way and self.under_way[0] <= got:
                self.under_way.popleft()
            if isinstance(order.get("row"), int):
                self.wanted = order["row"]
            self.changed.set()


class Source(Protocol):
    """What is watched."""

    def hello(self) -> bytes:
        """Return the first message of a connection."""

    def open(self, viewer: Viewer) -> Any:
        """Take a viewer in; return what `next` needs of it."""

    async def next(self, viewer: Viewer, own: Any) -> bytes:
        """Return the next message for a viewer, when there is one."""

    def close(self, viewer: Viewer, own: Any) -> None:
        """Let a viewer go."""


class LiveSource:
    """A daemon.

    Args:
        options: how it is watched.
    """

    def __init__(self, options: LiveOptions) -> None:
        self._options = options
        self._viewers: set[Viewer] = set()
        self._newest: Seen | None = None
        self._rows: deque[Row] = deque(maxlen=MAX_ROWS)
        self._row = 0

    def wanted(self) -> set[str]:
        """Return the cameras that somebody watches now."""
        return {one.camera for one in tuple(self._viewers) if not one.is_paused}

    def deliver(self, seen: Seen) -> None:
        """Take what the feed handed over; in the thread of the viewers."""
        self._rows.extend(seen.rows)
        self._row += len(seen.rows)
        if seen.moments:
            self._newest = seen
            for viewer in self._viewers:
                viewer.changed.set()

    def hello(self) -> bytes:
        """Return the first message of a connection."""
        more = {"rate": self._options.rate_hz, "address": self._options.address}
        return pack(hello("live", self._options.address, more))

    def open(self, viewer: Viewer) -> None:
        """Take a viewer in."""
        self._viewers.add(viewer)

    def close(self, viewer: Viewer, own: None) -> None:  # noqa: ARG002 - as `Source`
        """Let a viewer go."""
        self._viewers.discard(viewer)

    async def next(self, viewer: Viewer, own: None) -> bytes:  # noqa: ARG002 - as `Source`
        """Return the newest, when it is newer than what the viewer has.

        Raises:
            TimeoutError: the viewer shows nothing of what it got.
        """
        async with asyncio.timeout(STALL_S):
            while len(viewer.under_way) >= MAX_UNDER_WAY:
                viewer.changed.clear()
                await viewer.changed.wait()
        while True:
            seen = self._newest
            moment = None
            if seen is not None and seen.number > viewer.number and not viewer.is_paused:
                moment = seen.moments.get(viewer.camera)
            if seen is not None and moment is not None:
                break
            viewer.changed.clear()
            await viewer.changed.wait()
        viewer.skipped += max(0, seen.number - viewer.number - 1) if viewer.number else 0
        viewer.number = seen.number
        viewer.under_way.append(seen.number)
        count = min(self._row - viewer.row, len(self._rows))
        rows = list(self._rows)[len(self._rows) - count :]
        viewer.row = self._row
        message, jpeg = moment
        own_part = {"number": seen.number, "rows": rows_json(rows), "skipped": viewer.skipped}
        return pack({**message, **own_part}, jpeg)


class LogSource:
    """A log, and possibly the drive that it was made of.

    Args:
        title: what is shown.
        index: the log.
        table: intrinsics.
        make_pictures: returns the pictures of one more viewer.
        about: what the page is told of the log beside its rows.
    """

    def __init__(
        self,
        title: str,
        index: LogIndex,
        table: CameraTable,
        make_pictures: Callable[[], Pictures],
        about: Json,
    ) -> None:
        self._title, self._index, self._table = title, index, table
        self._make_pictures, self._about = make_pictures, about

    def hello(self) -> bytes:
        """Return the first message of a connection: all rows of the log."""
        more = {
            "log": self._index.columns(),
            "hasAnswers": self._index.has_answers,
            "notes": self._index.notes,
            **self._about,
        }
        return pack(hello("log", self._title, more))

    def open(self, viewer: Viewer) -> _Place:
        """Take a viewer in, at the beginning of the log."""
        viewer.changed.set()
        return _Place(self._make_pictures)

    def close(self, viewer: Viewer, own: _Place) -> None:  # noqa: ARG002 - as `Source`
        """Let a viewer go."""
        own.close()

    async def next(self, viewer: Viewer, own: _Place) -> bytes:
        """Return what the viewer asked for last; a slow picture follows after the numbers."""
        while True:
            if viewer.changed.is_set() and len(self._index):
                viewer.changed.clear()
                wanted = self._wanted(viewer)
                if own.task is None:
                    own.wanted = wanted
                    build = asyncio.to_thread(self._build, own, *wanted)
                    own.task = asyncio.create_task(build)
                await asyncio.wait({own.task}, timeout=PATIENCE_S)
                if not own.task.done():
                    missing = Shown(wanted[1], why_not="decoding ...")
                    return pack(self._moment(wanted[0], missing, is_decoding=True)[0])
            if own.task is not None and own.task.done():
                task, own.task = own.task, None
                if own.wanted == self._wanted(viewer):
                    return pack(*task.result())
                # Another one was asked for meanwhile.
                viewer.changed.set()
                continue
            await _first(viewer.changed, own.task)

    def _wanted(self, viewer: Viewer) -> tuple[int, str]:
        return min(max(viewer.wanted, 0), len(self._index) - 1), viewer.camera

    def _build(self, own: _Place, row: int, camera: str) -> tuple[Json, bytes]:
        frame_id = self._index.rows[row][1]
        return self._moment(row, own.pictures().show(camera, int(frame_id or 0)))

    def _moment(self, row: int, shown: Shown, *, is_decoding: bool = False) -> tuple[Json, bytes]:
        index = self._index
        health = index.health(row)
        described = None if health is None else describe_health(*health)
        more = {"row": row, "decoding": is_decoding}
        moment = Moment(index.answer(row), index.around(row), shown, described, more)
        return moment.message(self._table), shown.jpeg


class _Place:
    """Of one viewer of a log: its pictures, and what is being made for it.

    Attributes:
        task: makes a message and its picture.
        wanted: row and camera of it.
    """

    def __init__(self, make: Callable[[], Pictures]) -> None:
        self._make = make
        self._pictures: Pictures | None = None
        self.task: asyncio.Task[tuple[Json, bytes]] | None = None
        self.wanted = (-1, "")

    def pictures(self) -> Pictures:
        """Return the viewer's pictures; opened in the thread that decodes."""
        if self._pictures is None:
            self._pictures = self._make()
        return self._pictures

    def close(self) -> None:
        """Release the pictures."""
        if self._pictures is not None:
            self._pictures.close()


async def _first(changed: asyncio.Event, task: asyncio.Task[Any] | None) -> None:
    """Wait for the event, or for the end of the task if there is one."""
    waiting = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait({waiting, *((task,) if task else ())}, return_when="FIRST_COMPLETED")
    finally:
        waiting.cancel()

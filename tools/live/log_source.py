"""Supplies viewers with rows and moments of one log, or of two logs to compare.

Two logs are matched by frame id, wherever they were recorded. The page does it for plots; this
module does it for the answers of one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tools.live.drive_pictures import Pictures
from tools.live.log_index import LogIndex
from tools.live.messages import CameraTable, Json, Moment, Shown, hello, pack
from tools.live.newest import describe_health
from tools.live.viewers import SeriesAsked, Viewer

# Longest wait for a picture, in seconds. A slower one is sent after the numbers.
PATIENCE_S: Final = 0.15
# Maximum number of rows in one message: some 400 KB.
ROWS_AT_ONCE: Final = 4000
# Interval of checking a log that is still being read, in seconds.
LOOK_S: Final = 0.2
# Length of the chunks in which the page requests samples of fields, in seconds of a log.
CHUNK_S: Final = 10.0
# The model's histories hold 5 s, 100 frames at 20 Hz. Earlier outputs mean little.
WARM_UP_ROWS: Final = 100


class LogSource:
    """One log or two, and optionally the drive that the first was made from.

    `title`: title of the page. `indexes`: the logs; the second one is compared with the first.
    `table`: camera intrinsics. `make_pictures`: returns the pictures for a new viewer. `about`:
    further information on the log for the page.
    """

    def __init__(
        self,
        title: str,
        indexes: Sequence[LogIndex],
        table: CameraTable,
        make_pictures: Callable[[], Pictures],
        about: Json,
    ) -> None:
        self._title, self._indexes, self._table = title, indexes, table
        self._make_pictures, self._about = make_pictures, about

    def services(self) -> Iterable[str]:
        """Return the services found so far; their fields can be selected."""
        return {name for index in self._indexes for name in index.services()}

    def hello(self) -> bytes:
        """Return the first message of a connection; rows follow."""
        more = {"logs": len(self._indexes), "warmUp": WARM_UP_ROWS, "chunk": CHUNK_S}
        return pack(hello("log", self._title, {**more, **self._about}))

    def open(self, viewer: Viewer) -> _ViewerState:  # noqa: ARG002 - as `Source`
        """Return the state of a new viewer; the viewer then requests rows."""
        return _ViewerState(self._make_pictures, len(self._indexes))

    def close(self, viewer: Viewer, own: _ViewerState) -> None:  # noqa: ARG002 - as `Source`
        """Release the state of a viewer."""
        own.close()

    async def next(self, viewer: Viewer, own: _ViewerState) -> bytes:
        """Return the viewer's next message: a reply, the moment, rows, or samples, in this order.

        The moment is the one requested last; a slow picture is sent after the numbers.
        """
        while True:
            viewer.changed.clear()
            if viewer.replies:
                return pack(viewer.replies.popleft())
            moment = await self._next_moment(viewer, own)
            if moment is not None:
                return moment
            rows = self._next_rows(own)
            if rows is not None:
                return pack(rows)
            if viewer.series:
                asked = viewer.series.popleft()
                return pack(await asyncio.to_thread(self._series, asked))
            is_reading = not all(one.is_whole for one in self._indexes)
            await _first(viewer.changed, own.task, LOOK_S if is_reading else None)

    async def _next_moment(self, viewer: Viewer, own: _ViewerState) -> bytes | None:
        while True:
            if own.task is None:
                if own.asks == viewer.asks or not len(self._indexes[0]):
                    return None
                own.asks, own.sent_without_picture = viewer.asks, None
                own.wanted = wanted = self._wanted(viewer)
                own.task = asyncio.create_task(asyncio.to_thread(self._build, own, *wanted))
                await asyncio.wait({own.task}, timeout=PATIENCE_S)
            wanted = self._wanted(viewer)
            if not own.task.done():
                if own.sent_without_picture == wanted:
                    return None
                own.sent_without_picture = wanted
                missing = Shown(wanted[1], why_not="decoding ...")
                return pack(self._moment(wanted[0], missing, is_decoding=True)[0])
            task, own.task = own.task, None
            # Otherwise a different moment was requested meanwhile, and the result is discarded.
            if own.asks == viewer.asks or own.wanted == wanted:
                own.asks = viewer.asks
                return pack(*task.result())

    def _next_rows(self, own: _ViewerState) -> Json | None:
        for number, index in enumerate(self._indexes):
            # Read `is_whole` before the length, so that a whole log's length is final.
            is_whole, first = index.is_whole, own.rows[number]
            last = min(len(index), first + ROWS_AT_ONCE)
            is_last = is_whole and last == len(index)
            if last == first and (own.is_complete[number] or not is_last):
                continue
            own.rows[number], own.is_complete[number] = last, is_last
            return {
                "kind": "rows",
                "log": number,
                "first": first,
                "columns": index.columns(first, last),
                "share": round(index.share, 3),
                "whole": is_last,
                "hasAnswers": index.has_answers,
                "notes": list(index.notes),
            }
        return None

    def _series(self, asked: SeriesAsked) -> Json:
        from_s, to_s = asked.chunk * CHUNK_S, (asked.chunk + 1) * CHUNK_S
        found: Json = {}
        is_whole = True
        if 0 <= asked.log < len(self._indexes):
            index = self._indexes[asked.log]
            # Checked before reading, since samples that are missing now can arrive later.
            is_whole = index.is_whole or 1e-9 * index.time.span_ns > to_s + LOOK_S
            for text, pairs in index.samples(asked.fields, from_s, to_s).items():
                found[text] = [[at for at, _ in pairs], [value for _, value in pairs]]
        place = {"log": asked.log, "chunk": asked.chunk, "whole": is_whole}
        return {"kind": "series", **place, "fields": found}

    def _wanted(self, viewer: Viewer) -> tuple[int, str]:
        return min(max(viewer.wanted, 0), len(self._indexes[0]) - 1), viewer.camera

    def _build(self, own: _ViewerState, row: int, camera: str) -> tuple[Json, bytes]:
        frame_id = self._indexes[0].frame_id(row)
        return self._moment(row, own.pictures().show(camera, frame_id))

    def _moment(self, row: int, shown: Shown, *, is_decoding: bool = False) -> tuple[Json, bytes]:
        index = self._indexes[0]
        health = index.health(row)
        described = None if health is None else describe_health(*health)
        other = None
        if len(self._indexes) > 1:
            at = self._indexes[1].row_of(index.frame_id(row))
            other = None if at is None else self._indexes[1].answer(at)
        more = {"row": row, "decoding": is_decoding}
        moment = Moment(index.answer(row), index.around(row), shown, described, other, more)
        return moment.message(self._table), shown.jpeg


class _ViewerState:
    """The state of one viewer of a log: its pictures, and the message in preparation."""

    def __init__(self, make: Callable[[], Pictures], logs: int) -> None:
        self._make = make
        self._pictures: Pictures | None = None
        self.task: asyncio.Task[tuple[Json, bytes]] | None = None  # makes a message and its picture
        self.asks = 0  # value of the viewer's `asks` when the task started
        self.wanted = (-1, "")  # row and camera of the task
        # Row and camera whose numbers were sent while the task is decoding.
        self.sent_without_picture: tuple[int, str] | None = None
        self.rows = [0] * logs  # number of rows sent, per log
        self.is_complete = [False] * logs  # whether the end of the rows was sent, per log

    def pictures(self) -> Pictures:
        """Return the viewer's pictures, which are opened in the decoding thread."""
        if self._pictures is None:
            self._pictures = self._make()
        return self._pictures

    def close(self) -> None:
        """Release the pictures."""
        if self._pictures is not None:
            self._pictures.close()


async def _first(
    changed: asyncio.Event, task: asyncio.Task[Any] | None, timeout_s: float | None
) -> None:
    """Wait for the event, for the end of the task if there is one, or for the timeout."""
    waiting = asyncio.ensure_future(changed.wait())
    try:
        both = {waiting, *((task,) if task else ())}
        await asyncio.wait(both, timeout=timeout_s, return_when="FIRST_COMPLETED")
    finally:
        waiting.cancel()

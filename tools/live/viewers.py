"""Manages the viewers of the page, each with its own rate and bounded queues.

Moments are not queued: a viewer that has finished one message gets the newest, and skipped ones are
counted. Rows for plots and samples of selected fields are all delivered, up to the last half
minute. This module also validates page layouts, which come from a file or from a viewer.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from cereal.services import SERVICES
from tools.errors import UsageError
from tools.lib.given_data import GivenText
from tools.live.bus_feed import STREAMS, Delivery, LiveOptions
from tools.live.fields import MAX_FIELDS, FieldPath, Sample, parse_field, parse_fields
from tools.live.messages import ROAD, WINDOW_S, Json, hello, pack, rows_json, samples_json
from tools.live.newest import Row

# Rows in the last half minute, for a camera of up to 40 Hz.
MAX_ROWS: Final = int(WINDOW_S * 40)
# Messages that can be in transit to a page, which acknowledges those it has shown. With only one,
# each would wait for a round trip.
MAX_IN_TRANSIT: Final = 2
# A viewer that shows nothing for this many seconds is disconnected. A visible page reconnects.
STALL_S: Final = 5.0
MAX_RATE_HZ: Final = 60.0
# Samples in the last half minute, for fields of 100 Hz.
MAX_SAMPLES: Final = int(WINDOW_S * 100) * MAX_FIELDS
# Maximum number of pending requests of a page: more than the chunks in the plots' window of both
# logs.
MAX_ASKED: Final = 32
LAYOUT_FORMAT: Final = "modeld view layout"
LAYOUT_VERSION: Final = 1
MAX_LAYOUT_BYTES: Final = 12_288
DISPLAYS: Final = ("plot", "text")  # how a field can be shown
# Parts of the page that can be hidden, by their names in the page.
CARDS: Final = ("camera", "top", "plots", "fields", "now", "health", "stages", "faults")
_KEYS: Final = ("format", "version", "fields", "hidden")


@dataclass(frozen=True, slots=True)
class SeriesAsked:
    """A request for samples of fields."""

    log: int  # 0, or 1 for the second log
    chunk: int  # position in the log's time, in units of `CHUNK_S`
    fields: tuple[FieldPath, ...]  # the fields to sample


class Viewer:
    """The requests of one page, and its progress."""

    def __init__(self) -> None:
        self.camera = ROAD  # the camera whose pictures it wants
        self.is_paused = False  # whether it wants nothing for now
        self.rate_hz = MAX_RATE_HZ  # the maximum number of messages per second that it wants
        self.wanted = 0  # requested row of a log
        self.number = 0  # number of the last message about a daemon
        self.in_transit: deque[int] = deque()  # numbers of messages not acknowledged yet
        self.row = 0  # index after the last row sent
        self.skipped = 0  # messages skipped because the page was busy with an earlier one
        self.asks = 0  # number of requests for a row or a camera
        self.fields: tuple[FieldPath, ...] = ()  # fields of a daemon whose samples it wants
        self.sample = 0  # index after the last sample sent
        # Pending requests for samples of a log.
        self.series: deque[SeriesAsked] = deque(maxlen=MAX_ASKED)
        self.replies: deque[Json] = deque(maxlen=MAX_ASKED)  # pending replies to other requests
        self.changed = asyncio.Event()

    def order(self, text: str) -> None:
        """Process a message from the page; invalid ones are ignored."""
        with suppress(ValueError, TypeError):
            order = json.loads(text)
            if not isinstance(order, dict):
                return
            self._handle_data(order)
            if order.get("camera") in STREAMS:
                self.camera = order["camera"]
                self.asks += 1
            if isinstance(order.get("paused"), bool):
                self.is_paused = order["paused"]
            rate = order.get("rate")
            if isinstance(rate, int | float) and 0 < rate <= MAX_RATE_HZ:
                self.rate_hz = float(rate)
            got = order.get("got")
            while isinstance(got, int) and self.in_transit and self.in_transit[0] <= got:
                self.in_transit.popleft()
            if isinstance(order.get("row"), int):
                self.wanted = order["row"]
                self.asks += 1
            self.changed.set()

    def _handle_data(self, order: Json) -> None:
        if "fields" in order:
            self.fields = parse_fields(order["fields"])
        series = order.get("series")
        if isinstance(series, dict):
            log, chunk = series.get("log"), series.get("chunk")
            if isinstance(log, int) and isinstance(chunk, int):
                self.series.append(SeriesAsked(log, chunk, parse_fields(series.get("fields"))))
        if isinstance(order.get("layout"), str):
            try:
                found: Json = {"layout": parse_layout(order["layout"])}
            except LayoutError as error:
                found = {"error": str(error)}
            self.replies.append({"kind": "layout", **found})


_Value = TypeVar("_Value")


class Source(Protocol):
    """A source of messages for viewers."""

    def hello(self) -> bytes:
        """Return the first message of a connection."""

    def open(self, viewer: Viewer) -> Any:
        """Add a viewer; return its state for `next`."""

    async def next(self, viewer: Viewer, own: Any) -> bytes:
        """Wait for the next message for a viewer and return it."""

    def close(self, viewer: Viewer, own: Any) -> None:
        """Remove a viewer."""

    def services(self) -> Iterable[str]:
        """Return the services whose fields can be selected."""


class LiveSource:
    """The messages about a daemon.

    `options`: how the daemon is watched. `more`: further keys of the first message.
    """

    def __init__(self, options: LiveOptions, more: Json | None = None) -> None:
        self._options, self._more = options, more or {}
        self._viewers: set[Viewer] = set()
        self._newest: Delivery | None = None
        self._rows: deque[Row] = deque(maxlen=MAX_ROWS)
        self._row = 0
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._sample = 0

    def services(self) -> Iterable[str]:
        """Return all services; their fields can be selected."""
        return SERVICES

    def fields(self) -> dict[str, FieldPath]:
        """Return the selected fields of all viewers, by text; callable from any thread."""
        chosen = (one for viewer in tuple(self._viewers) for one in viewer.fields)
        return {one.text: one for one in chosen}

    def wanted(self) -> set[str]:
        """Return the cameras that viewers currently watch."""
        return {one.camera for one in tuple(self._viewers) if not one.is_paused}

    def deliver(self, seen: Delivery) -> None:
        """Take a delivery of the feed; called in the viewers' thread."""
        self._rows.extend(seen.rows)
        self._row += len(seen.rows)
        self._samples.extend(seen.samples)
        self._sample += len(seen.samples)
        if seen.moments:
            self._newest = seen
            for viewer in self._viewers:
                viewer.changed.set()

    def hello(self) -> bytes:
        """Return the first message of a connection."""
        more = {"rate": self._options.rate_hz, "address": self._options.address, **self._more}
        return pack(hello("live", self._options.address, more))

    def open(self, viewer: Viewer) -> None:
        """Add a viewer."""
        self._viewers.add(viewer)

    def close(self, viewer: Viewer, own: None) -> None:  # noqa: ARG002 - as `Source`
        """Remove a viewer."""
        self._viewers.discard(viewer)

    async def next(self, viewer: Viewer, own: None) -> bytes:  # noqa: ARG002 - as `Source`
        """Wait for a message that is newer than the viewer's last one and return it.

        Raises:
            TimeoutError: the viewer acknowledges nothing.
        """
        async with asyncio.timeout(STALL_S):
            while len(viewer.in_transit) >= MAX_IN_TRANSIT and not viewer.replies:
                viewer.changed.clear()
                await viewer.changed.wait()
        while True:
            if viewer.replies:
                return pack(viewer.replies.popleft())
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
        viewer.in_transit.append(seen.number)
        rows = _last(self._rows, self._row - viewer.row)
        samples = _last(self._samples, self._sample - viewer.sample)
        viewer.row, viewer.sample = self._row, self._sample
        message, jpeg = moment
        own_part = {
            "number": seen.number,
            "rows": rows_json(rows),
            "samples": samples_json(samples, viewer.fields),
            "skipped": viewer.skipped,
        }
        return pack({**message, **own_part}, jpeg)


def _last(values: deque[_Value], count: int) -> list[_Value]:
    return list(values)[len(values) - min(count, len(values)) :]


# --- The layout file of the page: chosen fields and hidden parts ------------------------------
#
# JSON: ``{"format": "modeld view layout", "version": 1, "fields": [{"field": "carState.vEgo", "as":
# "plot"}], "hidden": ["stages"]}``. All names in it must exist. It is small and contains no code.


class LayoutError(Exception):
    """A layout cannot be used; the message has the expected and the found value."""


def parse_layout(text: str) -> dict[str, Any]:
    """Return a layout with all its keys.

    Raises:
        LayoutError: the text is not a layout, or contains unknown names.
    """
    if len(text.encode()) > MAX_LAYOUT_BYTES:
        raise LayoutError(f"expected at most {MAX_LAYOUT_BYTES} bytes, found {len(text.encode())}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"expected JSON, found {error}") from error
    if not isinstance(found, dict) or found.get("format") != LAYOUT_FORMAT:
        raise LayoutError(f'expected "format": "{LAYOUT_FORMAT}", found another file')
    if found.get("version") != LAYOUT_VERSION:
        raise LayoutError(
            f"expected version {LAYOUT_VERSION}, found {_brief(found.get('version'))}; save it "
            "again with this version of modeld"
        )
    unknown = sorted(found.keys() - set(_KEYS))
    if unknown:
        raise LayoutError(f"expected {', '.join(_KEYS)}, found {_brief(unknown[0])}")
    fields, hidden = found.get("fields", []), found.get("hidden", [])
    if not isinstance(fields, list) or len(fields) > MAX_FIELDS:
        raise LayoutError(f"fields: expected a list of at most {MAX_FIELDS}, found another value")
    if not isinstance(hidden, list) or not all(one in CARDS for one in hidden):
        raise LayoutError(f"hidden: expected some of {', '.join(CARDS)}, found {_brief(hidden)}")
    return {
        "format": LAYOUT_FORMAT,
        "version": LAYOUT_VERSION,
        "fields": [_field(one) for one in fields],
        "hidden": sorted(set(hidden)),
    }


def load_layout(path: Path) -> dict[str, Any]:
    """Return the layout in a file.

    Raises:
        UsageError: the file cannot be read, or is not a layout.
    """
    given = GivenText(path, UsageError, MAX_LAYOUT_BYTES, "--layout", "save one on the page")
    try:
        return parse_layout(given.text())
    except LayoutError as error:
        raise UsageError(f"--layout {path}: {error}; {given.advice}") from error


def _field(one: Any) -> dict[str, str]:
    if not isinstance(one, dict) or one.keys() != {"field", "as"} or one["as"] not in DISPLAYS:
        raise LayoutError(f'fields: expected "field" and "as" (plot, text), found {_brief(one)}')
    if parse_field(one["field"]) is None:
        raise LayoutError(
            f"fields: expected a field of a service, as carState.vEgo, found {_brief(one['field'])}"
        )
    return {"field": one["field"], "as": one["as"]}


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

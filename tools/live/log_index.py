"""Indexes a log while it is being read: rows of numbers for plots, and positions of messages.

A thread reads the log once, from start to end; viewers can jump to any part already read. Memory
holds a row of 16 numbers for each answer of the model, and 16 bytes for each message. The messages
themselves stay in files (`LogContent`).
"""

from __future__ import annotations

import logging
import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

from cereal.errors import LogError, MessageError
from cereal.schema import read_event
from tools.live.fields import FieldPath, Shown, read_fields
from tools.live.log_content import LogContent
from tools.live.newest import COLUMNS, HEALTH, SERVICES, Newest, Row, Surroundings
from tools.messages.drive_log import DriveTime
from tools.messages.event_bytes import read_header
from tools.playback.threads import yield_to_others
from tools.service.health import Health
from tools.views.answer import Answer
from tools.views.pass_over import measured_ms

logger = logging.getLogger(__name__)

# Services whose messages define rows, in order of preference: a log without answers (modelV2) has
# rows of its camera or its car. Rows that are not answers are at least `PACE_NS` apart.
PACES: Final = ("modelV2", "roadCameraState", "carState")
PACE_NS: Final = 45_000_000
# Span in which the first answer is searched. A log whose first answer comes later begins with rows
# of its camera or its car.
PEEK_NS: Final = 10_000_000_000
# Number of earlier health messages over which stage times are computed.
EARLIER: Final = 10
# Interval at which newly read parts become visible, in seconds.
PUBLISH_S: Final = 0.1
# Maximum number of samples of a field in one reply to the page: 10 s at 100 Hz are 1000. More are
# thinned.
MAX_SAMPLES: Final = 1500


class _Message(NamedTuple):
    service: str
    time_ns: int
    place: int
    data: bytes


class _Places:
    """The messages of one service: times in seconds of the drive, and places in the content."""

    def __init__(self) -> None:
        self.times = array("d")
        self.places = array("q")

    def append(self, time_s: float, place: int) -> None:
        # Neighboring messages can be out of order; the times here never decrease.
        self.times.append(max(time_s, self.times[-1]) if self.times else time_s)
        self.places.append(place)


class LogIndex:
    """An index of consecutive logs; empty until `fill` runs.

    Attributes:
        time: converts message times to drive time; has the drive's offset in its route.
        has_answers: whether the log has modelV2 messages; otherwise camera or car define the rows.
        counts: number of messages by service.
        notes: defects of the log, for the user.
        is_whole: whether the log has been read to its end.
        share: fraction of the bytes that has been read, 0..1.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.notes: list[str] = []
        self.counts: Counter[str] = Counter()
        self.time = DriveTime()
        self.has_answers = self.is_whole = False
        self.share = 0.0
        self._paths = paths
        self._content = LogContent()
        self._columns = [array("d") for _ in COLUMNS]
        self._answers, self._around_of, self._health_of = array("q"), array("l"), array("l")
        self._around: list[Surroundings] = []
        self._row_of: dict[int, int] = {}
        self._services: defaultdict[str, _Places] = defaultdict(_Places)
        self._newest = Newest()
        self._pending: dict[str, bytes] = {}
        self._times_ms: Mapping[int, float] = {}
        self._pace = ""
        self._last_ns = -PACE_NS
        self._ready = 0
        self._damaged_whole = 0

    def __len__(self) -> int:
        return self._ready

    def fill(self, stop: threading.Event) -> None:
        """Read the logs; to be called once, from any thread.

        Raises:
            LogError: the first file cannot be read or is not a log. A later one only adds a note.
        """
        messages = self._messages(stop)
        try:
            held = list(self._peek(messages))
            heard = {one.service for one in held}
            self._pace = next((name for name in PACES if name in heard), PACES[0])
            if len(self._paths) == 1:
                self._times_ms = measured_ms(self._paths[0])
            published_s = 0.0
            for one in chain(held, messages):
                self._take(one)
                if monotonic() - published_s > PUBLISH_S:
                    self._publish()
                    published_s = monotonic()
            self._note_damage()
            self._publish()
        finally:
            self.is_whole = True

    def _peek(self, messages: Iterator[_Message]) -> Iterator[_Message]:
        """Yield the messages up to the first answer, or of the first `PEEK_NS`."""
        first_ns: int | None = None
        for one in messages:
            yield one
            first_ns = one.time_ns if first_ns is None else first_ns
            if one.service == PACES[0] or one.time_ns - first_ns > PEEK_NS:
                return

    def _messages(self, stop: threading.Event) -> Iterator[_Message]:
        sizes = [path.stat().st_size if path.exists() else 0 for path in self._paths]
        for number, path in enumerate(self._paths):
            before, total = sum(sizes[:number]), max(1, sum(sizes))

            def read(count: int, before: int = before, total: int = total) -> None:
                self.share = min(1.0, (before + count) / total)

            try:
                for place, data in self._content.messages(path, self.notes.append, read):
                    if stop.is_set():
                        return
                    header = read_header(data)
                    if header is None:
                        self._damaged_whole += 1
                        continue
                    self.counts[header.service] += 1
                    time_ns = self.time.take(header.service, header.mono_time_ns)
                    yield _Message(header.service, time_ns, place, data)
            except LogError as error:
                if not self.counts:
                    raise
                self.notes.append(f"the log ends early here: {error}")
                return

    def _note_damage(self) -> None:
        if self._damaged_whole:
            self.notes.append(f"left out {self._damaged_whole} messages that are damaged")
        self.notes += self.time.notes()
        if self.time.route_from_s:
            self.notes.append(f"begins at {self.time.route_from_s:.3f} s of its route")
        if self._newest.damaged:
            count = self._newest.damaged
            self.notes.append(f"left out {count} messages whose content is damaged")

    def _publish(self) -> None:
        self._content.publish()
        self._ready = len(self._answers)

    def _take(self, one: _Message) -> None:
        self._services[one.service].append(1e-9 * one.time_ns, one.place)
        if one.service not in SERVICES:
            return
        if one.service == PACES[0]:
            self._pace = PACES[0]
        # Only the newest message of each service before a row is used.
        self._pending[one.service] = one.data
        if one.service != self._pace:
            return
        if self._pace != PACES[0] and one.time_ns - self._last_ns < PACE_NS:
            return
        is_read = True
        for service in SERVICES:
            data = self._pending.pop(service, None)
            if data is not None:
                is_read = self._read(data)
        # A modelV2 message is read last, so `is_read` is about it. A damaged answer gets no row.
        if is_read or self._pace != PACES[0]:
            self._last_ns = max(0, self._last_ns, one.time_ns)
            self._append(1e-9 * self._last_ns, one.place)

    def _read(self, data: bytes) -> bool:
        try:
            return self._newest.take(read_event(data)) is not None
        except MessageError:
            self._newest.damaged += 1
            return False

    def _append(self, time_s: float, place: int) -> None:
        newest = self._newest
        if not self._around or self._around[-1] is not newest.surroundings:
            self._around.append(newest.surroundings)
        row = newest.row(time_s, self._times_ms.get(newest.frame_id))
        for column, value in zip(self._columns, row, strict=True):
            column.append(math.nan if value is None else value)
        is_answer = newest.answer is not None
        self.has_answers |= is_answer
        before = self._row_of.get(newest.frame_id)
        # If a frame has a row of its camera and one of its answer, the answer's is found.
        if before is None or (is_answer and self._answers[before] < 0):
            self._row_of[newest.frame_id] = len(self._answers)
        self._around_of.append(len(self._around) - 1)
        self._health_of.append(len(self._services[HEALTH].places) - 1)
        self._answers.append(place if is_answer else -1)

    def row(self, at: int) -> Row:
        """Return one row of numbers."""
        return tuple(column[0] for column in self.columns(at, at + 1))

    def columns(self, first: int, last: int) -> list[list[float | None]]:
        """Return the rows from `first` to before `last`, column by column."""
        last = min(last, self._ready)
        return [
            [_plain(value, digits) for value in column[first:last]]
            for column, digits in zip(self._columns, COLUMNS.values(), strict=True)
        ]

    def frame_id(self, at: int) -> int:
        """Return the frame id of a row; 0 if there is none."""
        value = self._columns[1][at]
        return 0 if math.isnan(value) else int(value)

    def row_of(self, frame_id: int) -> int | None:
        """Return the first row of a frame; None if there is none so far."""
        at = self._row_of.get(frame_id)
        return at if at is not None and at < self._ready else None

    def around(self, at: int) -> Surroundings:
        """Return calibration and device at a row."""
        return self._around[self._around_of[at]]

    def answer(self, at: int) -> Answer | None:
        """Return the model's answer of a row; None if there is none or it is damaged."""
        data = self._content.read(self._answers[at])
        if data is None:
            return None
        newest = Newest()
        newest.begin_with(self.around(at))
        newest.take(read_event(data))
        return newest.answer

    def health(self, at: int) -> tuple[Health, Health | None] | None:
        """Return the daemon's health before a row, and its health some seconds earlier."""
        number = self._health_of[at]
        if number < 0:
            return None
        health = self._health(number)
        if health is None:
            return None
        earlier = self._health(max(0, number - EARLIER)) if number else None
        return health, earlier

    def services(self) -> list[str]:
        """Return the services found so far."""
        return sorted(self.counts.copy())

    def samples(
        self, fields: Sequence[FieldPath], from_s: float, to_s: float
    ) -> dict[str, list[tuple[float, Shown]]]:
        """Return the samples of fields from one time to before another: (seconds, value) pairs.

        The last message before `from_s` is included, since its value holds until the next. There
        are at most `MAX_SAMPLES` per field.
        """
        found: dict[str, list[tuple[float, Shown]]] = {one.text: [] for one in fields}
        for service in {one.service for one in fields}:
            kept = self._services.get(service)
            if kept is None:
                continue
            mine = [one for one in fields if one.service == service]
            first = max(0, bisect_right(kept.times, from_s) - 1)
            last = bisect_left(kept.times, to_s)
            every = 1 + max(0, last - first - 1) // MAX_SAMPLES
            for at in range(first, last, every):
                data = self._content.read(kept.places[at])
                if data is None:
                    continue
                try:
                    values = read_fields(data, mine)
                except MessageError:
                    continue
                for text, value in values.items():
                    found[text].append((round(kept.times[at], 4), value))
        return found

    def close(self) -> None:
        """Release the stored messages."""
        self._content.close()

    def _health(self, number: int) -> Health | None:
        data = self._content.read(self._services[HEALTH].places[number])
        if data is None:
            return None
        newest = Newest()
        newest.take(read_event(data))
        return newest.health


class IndexThread:
    """Fills an index in a thread while others read it.

    `index`: an empty index.
    """

    def __init__(self, index: LogIndex) -> None:
        self._index = index
        self._stop = threading.Event()
        self.error: BaseException | None = None  # the error that ended it early, if any
        self._thread = threading.Thread(target=self._run, name="log-index", daemon=True)
        self._thread.start()

    def wait(self, enough: Callable[[], Any], patience_s: float) -> None:
        """Wait until `enough` returns true, the log ends, or `patience_s` has passed.

        Raises:
            LogError: the log cannot be read, or is not a log.
        """
        end_s = monotonic() + patience_s
        while self._thread.is_alive() and not enough() and monotonic() < end_s:
            self._thread.join(0.01)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Stop the thread and release the index."""
        self._stop.set()
        self._thread.join()
        self._index.close()

    def _run(self) -> None:
        yield_to_others()
        try:
            self._index.fill(self._stop)
        except BaseException as error:
            if len(self._index):
                logger.exception("the rest of the log is not shown")
                self._index.notes.append(f"the log ends early here: {error}")
            else:
                self.error = error


def _plain(value: float, digits: int) -> float | None:
    if math.isnan(value):
        return None
    return value if digits else int(value)

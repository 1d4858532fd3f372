"""A log that can be entered anywhere: a row of numbers for each answer, the messages behind it.

Read once from its beginning to its end. What is large lies in a temporary file beyond some size;
memory holds the rows.
"""

from __future__ import annotations

import struct
import tempfile
import threading
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from cereal.errors import MessageError
from cereal.log_reader import read_log_bytes
from cereal.schema import read_event
from tools.drives.event_header import read_header
from tools.lib.drive_time import DriveTime
from tools.lib.health_judge import Health
from tools.live.newest import COLUMNS, HEALTH, SERVICES, Newest, Row, Surroundings
from tools.views.answer import Answer
from tools.views.pass_over import measured_ms

# Some ten minutes of answers.
IN_MEMORY_BYTES: Final = 96 << 20
# Services that set the pace of a log without answers, the first that is there; none is faster.
PACES: Final = ("modelV2", "roadCameraState", "carState")
PACE_NS: Final = 45_000_000
# Times of stages are those of the last ten messages of health.
EARLIER: Final = 10
_SIZE: Final = struct.Struct("<I")


class _Spool:
    """Messages one after the other, in memory or in a file without a name."""

    def __init__(self) -> None:
        spool = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115 - for as long as the index
        self._file = cast("BinaryIO", spool)
        self._lock = threading.Lock()
        self._end = 0

    def append(self, data: bytes) -> int:
        """Keep a message; return where it lies."""
        self._file.seek(self._end)
        self._file.write(_SIZE.pack(len(data)) + data)
        place, self._end = self._end, self._end + _SIZE.size + len(data)
        return place

    def read(self, place: int) -> bytes:
        """Return the message that lies there."""
        with self._lock:
            self._file.seek(place)
            (size,) = _SIZE.unpack(self._file.read(_SIZE.size))
            return self._file.read(size)

    def close(self) -> None:
        """Drop everything."""
        self._file.close()


@dataclass(slots=True)
class _Entries:
    """Where the messages of each row are; -1: there is none."""

    answers: array[int] = field(default_factory=lambda: array("q"))
    around: array[int] = field(default_factory=lambda: array("l"))
    healths: array[int] = field(default_factory=lambda: array("l"))


class LogIndex:
    """An indexed log.

    Args:
        paths: logs that follow each other.

    Attributes:
        rows: in time order.
        time: of the drive: when the rows are, and where they lie in their route.
        has_answers: the log has modelV2 messages; else a camera or the car sets the pace.
        counts: messages by service.
        notes: what is wrong with the log, for a person.

    Raises:
        LogError: a file cannot be read or is no log.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.notes: list[str] = []
        self.counts: Counter[str] = Counter()
        self._paths = paths
        self._spool = _Spool()
        self._entries = _Entries()
        self._around: list[Surroundings] = []
        self._healths: list[int] = []
        self.rows: list[Row] = []
        self.time = DriveTime()
        try:
            services = self._services_in()
            self.has_answers = services["modelV2"] > 0
            pace = next((name for name in PACES if services[name]), None)
            if pace is not None:
                self._read(pace)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.rows)

    def around(self, at: int) -> Surroundings:
        """Return calibration and device at a row."""
        return self._around[self._entries.around[at]]

    def answer(self, at: int) -> Answer | None:
        """Return the model's answer of a row; None where there is none, or it is damaged."""
        place = self._entries.answers[at]
        if place < 0:
            return None
        newest = Newest()
        newest.begin_with(self.around(at))
        newest.take(read_event(self._spool.read(place)))
        return newest.answer

    def health(self, at: int) -> tuple[Health, Health | None] | None:
        """Return what the daemon said of itself before a row, and some seconds earlier."""
        number = self._entries.healths[at]
        if number < 0:
            return None
        health = self._health(number)
        if health is None:
            return None
        earlier = self._health(max(0, number - EARLIER)) if number else None
        return health, earlier

    def close(self) -> None:
        """Drop what was kept."""
        self._spool.close()

    def _health(self, number: int) -> Health | None:
        newest = Newest()
        newest.take(read_event(self._spool.read(self._healths[number])))
        return newest.health

    def _messages(self, on_defect: Any) -> Iterator[tuple[str, int, bytes]]:
        for path in self._paths:
            for data in read_log_bytes(path, on_defect):
                header = read_header(data)
                if header is not None:
                    yield header.service, header.mono_time_ns, data
                else:
                    self.counts["damaged"] += 1

    def _services_in(self) -> Counter[str]:
        """Count in a first pass, which is quick: only the first words of messages are read."""
        for service, _, _ in self._messages(self.notes.append):
            self.counts[service] += 1
        if self.counts["damaged"]:
            self.notes.append(f"left out {self.counts['damaged']} messages that are damaged")
        return self.counts

    def _read(self, pace: str) -> None:
        newest = Newest()
        times_ms: Mapping[int, float] = {}
        if pace == "modelV2" and len(self._paths) == 1:
            times_ms = measured_ms(self._paths[0])
        last_ns = -PACE_NS
        for service, mono_time_ns, data in self._messages(lambda _: None):
            time_ns = self.time.take(service, mono_time_ns)
            if service not in SERVICES:
                continue
            try:
                if newest.take(read_event(data)) is None:
                    continue
            except MessageError:
                newest.damaged += 1
                continue
            if service == HEALTH:
                self._healths.append(self._spool.append(data))
            if service != pace or (pace != "modelV2" and time_ns - last_ns < PACE_NS):
                continue
            # Neighbours of a log may stand in the wrong order; time never runs back here.
            last_ns = max(0, last_ns, time_ns)
            self._append(newest, 1e-9 * last_ns, times_ms, data)
        self.notes += self.time.notes()
        if self.time.route_from_s:
            self.notes.append(f"begins at {self.time.route_from_s:.3f} s of its route")
        if newest.damaged:
            self.notes.append(f"left out {newest.damaged} messages whose content is damaged")

    def _append(
        self, newest: Newest, time_s: float, times_ms: Mapping[int, float], data: bytes
    ) -> None:
        if not self._around or self._around[-1] is not newest.surroundings:
            self._around.append(newest.surroundings)
        is_answer = newest.answer is not None
        self._entries.answers.append(self._spool.append(data) if is_answer else -1)
        self._entries.around.append(len(self._around) - 1)
        self._entries.healths.append(len(self._healths) - 1)
        self.rows.append(newest.row(time_s, times_ms.get(newest.frame_id)))

    def columns(self) -> list[list[float | None]]:
        """Return the rows column by column."""
        return [list(column) for column in zip(*self.rows, strict=True)] or [[] for _ in COLUMNS]

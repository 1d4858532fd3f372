"""The events of a drive's logs as one stream in time order, read piece by piece.

Logs are written as messages arrive, so neighbours may stand in the wrong order; no event is known
to stand more than a fraction of a second from its place. A window of events is sorted.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cereal.errors import LogError
from cereal.log_reader import read_log_bytes
from tools.drives.drive import Message
from tools.drives.event_bytes import read_header
from tools.errors import DriveError

logger = logging.getLogger(__name__)

# Over a second of a full log; a log of damaged or foreign times costs no more than this either.
WINDOW_EVENTS: Final = 2048
WINDOW_BYTES: Final = 16 << 20
# What each file of a drive begins with, the same bytes in all, as old as the route.
_REPEATED: Final = "initData"


def read_messages(path: Path) -> Iterator[Message]:
    """Yield the messages of one log, in the order of the file.

    A log that is cut off gives what precedes the cut, and a line in our own log says so. Events
    whose root is damaged are left out and counted.

    Raises:
        DriveError: the file cannot be read or is no log.
    """
    damaged = 0
    try:
        for data in read_log_bytes(path, logger.warning):
            header = read_header(data)
            if header is None:
                damaged += 1
                continue
            yield Message(header.service, header.mono_time_ns, data)
    except LogError as error:
        raise DriveError(str(error)) from error
    if damaged:
        logger.warning("%s: left out %d damaged events", path, damaged)


def merged_messages(paths: Sequence[Path], skipped: int = 0) -> Iterator[Message]:
    """Yield the messages of logs that follow each other, in time order.

    Args:
        paths: the logs, in order.
        skipped: how many of them are left out, at the start.

    Raises:
        DriveError: as `read_messages`, when that log is reached.
    """
    heap: list[tuple[int, int, Message]] = []
    size_bytes = 0
    for number, message in enumerate(_chained(paths, skipped)):
        heapq.heappush(heap, (message.mono_time_ns, number, message))
        size_bytes += len(message.data)
        while len(heap) > WINDOW_EVENTS or size_bytes > WINDOW_BYTES:
            first = heapq.heappop(heap)[2]
            size_bytes -= len(first.data)
            yield first
    while heap:
        yield heapq.heappop(heap)[2]


def _chained(paths: Sequence[Path], skipped: int) -> Iterator[Message]:
    """Yield what the logs hold; a repeated initData takes the time of the message behind it."""
    last_ns = 0
    for position, path in enumerate(paths[skipped:], skipped):
        waiting: list[Message] = []
        for message in read_messages(path):
            if position and message.service == _REPEATED:
                waiting.append(message)
                continue
            last_ns = message.mono_time_ns
            yield from (one._replace(mono_time_ns=last_ns) for one in waiting)
            waiting.clear()
            yield message
        yield from (one._replace(mono_time_ns=last_ns) for one in waiting)

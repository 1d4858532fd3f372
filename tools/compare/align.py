"""Pairs the messages of two logs, so that they can be compared.

`Aligner` reads both logs side by side and yields a `Pair` for each message that both have, and an
`Unmatched` for the others. Memory holds only messages that wait for their counterpart, at most
`MAX_WAITING_BYTES` for each log. The logs can order their messages differently, for example
interleave messages of several frames or write one service after another.

A message with a frame id is matched by that id; if an id repeats, the first is matched with the
first, the second with the second, and so on. Other services are matched by ``logMonoTime`` if the
first messages of both logs share some times, which is true of forwarded inputs. Otherwise they are
matched by their position in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cereal.errors import MessageError
from cereal.schema import DAMAGED, content, member_name, read_event
from tools.compare.fields import has_frame_id
from tools.messages.drive_log import DriveTime

Side = Literal["left", "right"]
Key = tuple[int, int]

# A minute of modelV2 is 10 MiB, so the order of services can differ within about a minute.
MAX_WAITING_BYTES = 48 << 20
# Exceptions raised by reading a damaged message or one of its fields.
UNREADABLE: tuple[type[Exception], ...] = (MessageError, *DAMAGED)
# Number of messages, of a service without frame ids, that decide whether times are shared.
_PROBE = 8


@dataclass(frozen=True, slots=True)
class Message:
    """One message of one log."""

    service: str  # name of the Event member
    frame_id: int  # id of its camera frame; -1 without one
    position: int  # index among the messages of its service in this log
    repetition: int  # number of earlier messages with the same frame id
    time_ns: int  # ``logMonoTime``
    data: bytes  # serialized Event
    event: Any  # reader of `data`

    @property
    def frame(self) -> int:
        """The number of the message in findings: its frame id, or else its position."""
        return self.frame_id if self.frame_id >= 0 else self.position


@dataclass(frozen=True, slots=True)
class Pair:
    """A message that both logs have."""

    left: Message
    right: Message


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A message that only one log has."""

    side: Side
    message: Message


@dataclass(slots=True)
class Aligned:
    """Counts of messages, complete when the iteration over an `Aligner` has ended."""

    # Number of messages by compared service, in the left and in the right log.
    left: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    evicted: int = 0  # messages reported as unmatched because too many were waiting


class _Log:
    """One of the logs while it is read.

    `events` are serialized Events. `chooses` returns whether a service is compared. `counts` is
    updated with the number of messages by service.
    """

    def __init__(
        self, events: Iterable[bytes], chooses: Callable[[str], bool], counts: Counter[str]
    ) -> None:
        self._events = iter(events)
        self._chooses = chooses
        self._counts = counts
        self._seen: Counter[tuple[str, int]] = Counter()
        self.time = DriveTime()
        self.ended = False
        self.first_valid: dict[str, Message] = {}
        self.frame_id = -1
        self.pulled = 0
        self.unreadable = 0
        self.waiting: dict[str, dict[Key, Message]] = {}
        self.probe: dict[str, list[Message]] = {}
        self.waiting_bytes = 0

    def next(self) -> Message | None:
        """Return the next message of a chosen service; None at the end."""
        for data in self._events:
            try:
                event = read_event(data)
                service = member_name(event)
                self.time.take(service, event.logMonoTime)
                if service is None or not self._chooses(service):
                    continue
                message = self._message(service, data, event)
            except UNREADABLE:
                self.unreadable += 1
                continue
            self.pulled += 1
            if service not in self.first_valid and message.event.valid:
                self.first_valid[service] = message
            return message
        self.ended = True
        return None

    def _message(self, service: str, data: bytes, event: Any) -> Message:
        frame_id = int(content(event).frameId) if has_frame_id(service) else -1
        position = self._counts[service]
        self._counts[service] += 1
        if frame_id < 0:
            return Message(service, -1, position, 0, event.logMonoTime, data, event)
        self.frame_id = frame_id
        repetition = self._seen[service, frame_id]
        self._seen[service, frame_id] += 1
        return Message(service, frame_id, position, repetition, event.logMonoTime, data, event)

    def put(self, key: Key, message: Message) -> None:
        """Keep a message until its counterpart arrives."""
        self.waiting.setdefault(message.service, {})[key] = message
        self.waiting_bytes += len(message.data)

    def take(self, service: str, key: Key) -> Message | None:
        """Remove and return the waiting message with this key, or None."""
        message = self.waiting.get(service, {}).pop(key, None)
        if message is not None:
            self.waiting_bytes -= len(message.data)
        return message

    def evict_oldest(self) -> Message:
        """Remove and return the oldest message of the service with the most waiting messages."""
        waiting = max(self.waiting.values(), key=len)
        message = waiting.pop(next(iter(waiting)))
        self.waiting_bytes -= len(message.data)
        return message


class Aligner:
    """Pairs the messages of two logs.

    Args:
        left: serialized Events of the reference.
        right: serialized Events of the other log.
        chooses: returns whether a service is compared, given the name of its Event member.
        max_waiting_bytes: the most bytes of one log's messages that wait for a counterpart.
    """

    def __init__(
        self,
        left: Iterable[bytes],
        right: Iterable[bytes],
        chooses: Callable[[str], bool],
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self.seen = Aligned()
        self._left = _Log(left, chooses, self.seen.left)
        self._right = _Log(right, chooses, self.seen.right)
        self._limit = max_waiting_bytes
        self._by_time: dict[str, bool] = {}

    @property
    def unreadable(self) -> tuple[int, int]:
        """The number of unreadable events in the left and in the right log."""
        return self._left.unreadable, self._right.unreadable

    @property
    def times(self) -> tuple[DriveTime, DriveTime]:
        """The time spans of the left and the right log, up to the events read so far."""
        return self._left.time, self._right.time

    @property
    def first_valid(self) -> Mapping[str, Message]:
        """The first valid message of each service in the left log, among the events read so far."""
        return self._left.first_valid

    def __iter__(self) -> Iterator[Pair | Unmatched]:
        """Yield each message once, with its counterpart or as unmatched."""
        while not (self._left.ended and self._right.ended):
            side = self._side()
            message = (self._left if side == "left" else self._right).next()
            if message is None:
                continue
            yield from self._offer(side, message)
            yield from self._evict()
        for service in sorted(set(self._left.probe) | set(self._right.probe)):
            yield from self._decide(service)
        for side, log in (("left", self._left), ("right", self._right)):
            for waiting in log.waiting.values():
                for message in waiting.values():
                    yield Unmatched("left" if side == "left" else "right", message)

    def _side(self) -> Side:
        """Return the log to read next: the one that is behind."""
        left, right = self._left, self._right
        if left.ended or right.ended:
            return "right" if left.ended else "left"
        # Compare waiting bytes first: after frame ids restart, the lower id can be further ahead.
        for ahead, behind in ((left, right), (right, left)):
            if ahead.waiting_bytes > self._limit // 2 > behind.waiting_bytes:
                return "right" if ahead is left else "left"
        if left.frame_id >= 0 and right.frame_id >= 0:
            return "left" if left.frame_id <= right.frame_id else "right"
        return "left" if left.pulled <= right.pulled else "right"

    def _offer(self, side: Side, message: Message) -> Iterator[Pair | Unmatched]:
        service = message.service
        if message.frame_id >= 0:
            yield from self._match(side, (message.frame_id, message.repetition), message)
            return
        if service in self._by_time:
            yield from self._match(side, self._key(message), message)
            return
        log = self._left if side == "left" else self._right
        log.probe.setdefault(service, []).append(message)
        log.waiting_bytes += len(message.data)
        probes = [one.probe.get(service, []) for one in (self._left, self._right)]
        if min(map(len, probes)) >= _PROBE or max(map(len, probes)) >= 64 * _PROBE:
            yield from self._decide(service)

    def _key(self, message: Message) -> Key:
        by_time = self._by_time[message.service]
        return (message.time_ns, 0) if by_time else (message.position, 0)

    def _decide(self, service: str) -> Iterator[Pair | Unmatched]:
        """Choose how to match a service, and match its messages read so far."""
        left = self._left.probe.pop(service, [])
        right = self._right.probe.pop(service, [])
        shared = {message.time_ns for message in left} & {message.time_ns for message in right}
        # Times must be unique within each log to identify a message.
        unique = all(len({m.time_ns for m in log}) == len(log) for log in (left, right))
        self._by_time[service] = bool(shared) and unique
        sides: tuple[tuple[Side, _Log, list[Message]], ...] = (
            ("left", self._left, left),
            ("right", self._right, right),
        )
        for side, log, messages in sides:
            for message in messages:
                log.waiting_bytes -= len(message.data)
                yield from self._match(side, self._key(message), message)

    def _match(self, side: Side, key: Key, message: Message) -> Iterator[Pair | Unmatched]:
        own, other = (self._left, self._right) if side == "left" else (self._right, self._left)
        counterpart = other.take(message.service, key)
        if counterpart is None:
            if key in own.waiting.get(message.service, {}):
                yield Unmatched(side, message)  # another message with the same time waits
                return
            own.put(key, message)
        elif side == "left":
            yield Pair(message, counterpart)
        else:
            yield Pair(counterpart, message)

    def _evict(self) -> Iterator[Unmatched]:
        for side, log in (("left", self._left), ("right", self._right)):
            while log.waiting_bytes > self._limit and any(log.waiting.values()):
                self.seen.evicted += 1
                yield Unmatched("left" if side == "left" else "right", log.evict_oldest())

"""Receives, logs and evaluates the answers of a live daemon.

One thread only receives messages and stamps their arrival. Compressing the log takes milliseconds
at a time, so another thread of low priority does it, fed through a queue. A daemon that works well
answers every frame once, at the same intervals as the recorded frames.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cereal.clock import Clock
from cereal.errors import CerealError
from cereal.log_writer import LogWriter
from cereal.schema import content, read_event
from cereal.transport import ZmqTransport
from tools.messages.drive_log import MONITORING_SERVICE
from tools.messages.event_bytes import write_stamp
from tools.playback.outcome import FrameTable
from tools.playback.player.player import Played
from tools.playback.threads import hurry, yield_to_others

_POLL_MS: Final = 50
MODEL_SERVICE: Final = "modelV2"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Answer:
    """A modelV2 or driverStateV2 message that arrived."""

    frame_id: int  # frame id of the daemon's main camera
    arrived_ns: int  # on this machine's monotonic clock
    execution_s: float  # execution time of the model
    drop_percent: float  # ``frameDropPerc``; 0 for driverStateV2
    valid: bool  # whether the message was marked valid


class LiveLog:
    """Writes events to a log in the given order, optionally with new stamps.

    It is a context manager. If the block ends with an exception, no log is left.
    """

    def __init__(self, path: Path) -> None:
        self._writer = LogWriter(path)
        self._events: queue.SimpleQueue[tuple[bytes, int | None] | None] = queue.SimpleQueue()
        self._error: CerealError | None = None
        self._thread = threading.Thread(target=self._run, name="live log", daemon=True)

    def write(self, data: bytes, mono_time_ns: int | None = None) -> None:
        """Append an event; `mono_time_ns` replaces its stamp if given.

        Raises:
            CerealError: an earlier event could not be written.
        """
        if self._error is not None:
            raise self._error
        self._events.put((data, mono_time_ns))

    def __enter__(self) -> LiveLog:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._events.put(None)
        self._thread.join()
        if kind is not None or self._error is not None:
            self._writer.discard()
        else:
            self._writer.close()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        yield_to_others()
        while (item := self._events.get()) is not None:
            if self._error is not None:
                continue
            data, mono_time_ns = item
            try:
                if mono_time_ns is not None:
                    data = write_stamp(data, max(0, mono_time_ns)) or data
                self._writer.write(data)
            except CerealError as error:
                self._error = error


class Listener:
    """Receives services of a bus in a thread. It is a context manager.

    `transport`: the bus; its sockets are created and used only here. `services`: names of the
    services, including ``modelV2``. `clock`: stamps arrivals. `take`: called in the thread with
    every message and its stamp.
    """

    def __init__(
        self,
        transport: ZmqTransport,
        services: Sequence[str],
        clock: Clock,
        take: Callable[[bytes, int], None],
    ) -> None:
        self.answers: list[Answer] = []  # modelV2 so far, in order of arrival
        self.monitored: list[Answer] = []  # the same for driverStateV2
        self._kept = {MODEL_SERVICE: self.answers, MONITORING_SERVICE: self.monitored}
        self._transport, self._clock, self._take = transport, clock, take
        self._subscribers = {name: transport.subscriber(name) for name in services}
        self._stop = threading.Event()
        self._error: CerealError | None = None
        self._thread = threading.Thread(target=self._run, name="live listener", daemon=True)

    def check(self) -> None:
        """Raise the error that ended the thread early, if any.

        Raises:
            CerealError: the error of the thread.
        """
        if self._error is not None:
            raise self._error

    def has_answered(self, frame_id: int | None = None) -> bool:
        """Return whether a recent answer is about a frame; with None, whether any has arrived."""
        answers = self.answers
        if frame_id is None:
            return bool(answers)
        return any(one.frame_id == frame_id for one in answers[-10:])

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for subscriber in self._subscribers.values():
            subscriber.close()

    def _run(self) -> None:
        hurry()
        waiting = list(self._subscribers.values())
        try:
            while not self._stop.is_set():
                if not self._transport.wait(waiting, _POLL_MS):
                    continue
                for name, subscriber in self._subscribers.items():
                    while (data := subscriber.receive()) is not None:
                        self._receive(name, data)
        except CerealError as error:
            self._error = error

    def _receive(self, name: str, data: bytes) -> None:
        arrived_ns = self._clock.now_ns()
        event = read_event(data)
        if name in self._kept:
            model = content(event)
            self._kept[name].append(
                Answer(
                    frame_id=model.frameId,
                    arrived_ns=arrived_ns,
                    execution_s=model.modelExecutionTime,
                    drop_percent=model.frameDropPerc if name == MODEL_SERVICE else 0.0,
                    valid=event.valid,
                )
            )
        self._take(data, event.logMonoTime)


@dataclass(frozen=True, slots=True)
class Jitter:
    """The regularity of the answers to the played frames."""

    table: FrameTable  # one row for each played frame
    # (n,) int64 ids of frames without a modelV2, except after frames missing in the recording,
    # where a model may not answer, as in the car.
    unanswered: NDArray[np.int64]
    repeated: NDArray[np.int64]  # (n,) int64 ids of frames with more than one
    # (n,) difference between the interval of two modelV2 arrivals and the recorded interval of
    # their frames, scaled by the speed. Only for consecutive frames, and not for the first, which
    # is offered until it is answered.
    deviation_ms: Floats
    latency_ms: Floats  # (n,) from publishing a frame to the arrival of its modelV2
    drop_percent: float  # largest ``frameDropPerc``


def judge(played: Sequence[Played], answers: Sequence[Answer], speed: float) -> Jitter:
    """Compare the played frames with the received answers.

    `played`: frames of the main camera in order, with distinct ids. `answers`: in order of arrival.
    `speed`: seconds of the drive per second.
    """
    counts = Counter(one.frame_id for one in answers)
    first: dict[int, Answer] = {}
    for one in answers:
        first.setdefault(one.frame_id, one)
    found = [first.get(one.frame_id) for one in played]
    deviation, latency = [], []
    for index in range(1, len(played)):
        now, before = played[index], played[index - 1]
        answer, previous = found[index], found[index - 1]
        if answer is None:
            continue
        latency.append(answer.arrived_ns - now.clock_ns)
        if previous is not None and now.continues and before.continues:
            recorded_ns = (now.eof_ns - before.eof_ns) / speed
            deviation.append(abs(answer.arrived_ns - previous.arrived_ns - recorded_ns))
    ids = np.array([one.frame_id for one in played], np.int64)
    table = _table(played, found, ids)
    return Jitter(
        table=table,
        unanswered=ids[~table.published & (table.dropped == 0)],
        repeated=np.array([one for one in ids if counts[int(one)] > 1], np.int64),
        deviation_ms=np.array(deviation, np.float64) / 1e6,
        latency_ms=np.array(latency, np.float64) / 1e6,
        drop_percent=max((one.drop_percent for one in answers), default=0.0),
    )


def _table(
    played: Sequence[Played], found: Sequence[Answer | None], ids: NDArray[np.int64]
) -> FrameTable:
    dropped = np.zeros(ids.size, np.int64)
    if ids.size:
        dropped[1:] = np.maximum(0, np.diff(ids) - 1)
    return FrameTable(
        moment=np.array([one.moment for one in played], np.int64),
        frame_id=ids,
        dropped=dropped,
        published=np.array([one is not None for one in found], np.bool_),
        valid=np.array([one is not None and one.valid for one in found], np.bool_),
        execution_s=np.array([0.0 if one is None else one.execution_s for one in found]),
        input_crc={},
    )

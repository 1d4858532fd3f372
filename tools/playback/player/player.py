"""Plays a drive at its recorded pace: messages and frames at their moments on a clock.

A frame is handed over immediately before the camera state that announces it, as in the car, and an
extra camera's frame before the road camera's. Everything is due at an absolute time; what is late
is sent at once, and frames after a late one keep a distance, because a burst of frames would make a
daemon drop some that no camera dropped. Pauses, seeks and loops: docs/adr/0013-replay.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Final

from cereal.clock import Clock
from cereal.frames import Frame
from modeld.startup import DRIVER_STREAM
from tools.drives.drive import DriveInfo, Message, Moment
from tools.playback.player.outlet import Outlet, ServiceFilter
from tools.playback.player.stamps import (
    Continuation,
    Event,
    Offset,
    Timeline,
    events_of,
    main_stream,
    moved,
)

logger = logging.getLogger(__name__)

NS_PER_S: Final = 1_000_000_000
MIN_SPEED: Final = 0.1
MAX_SPEED: Final = 10.0
# Longer silences of a recording are skipped.
MAX_GAP_NS: Final = NS_PER_S
# Frames that follow a late one come at least this share of their recorded interval apart.
MIN_INTERVAL: Final = 0.8
# How often, at least and while there is time for it, the caller is asked what to do.
ATTEND_NS: Final = 50_000_000
ATTEND_ROOM_NS: Final = 2_000_000
# A daemon that starts later must not wait for the recording's next carParams, every 50 s.
CAR_PARAMS_NS: Final = NS_PER_S
# How often the first frame is offered until somebody answers: more than a slow model takes, so
# that a frame is never offered again while it is being worked on.
OFFER_NS: Final = 250_000_000
# Messages go by sockets, frames by memory: so much earlier they are there when a frame wakes the
# daemon. Of the first frame; later ones follow messages that came at their own moments.
AHEAD_NS: Final = 20_000_000

Read = Callable[[int], AbstractContextManager[Iterator[Moment]]]


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """How a drive is played."""

    # Seconds of the drive per second of the clock, ``MIN_SPEED`` to ``MAX_SPEED``.
    speed: float = 1.0
    first: int = 0  # number of the first moment; loops begin there again
    loop: bool = False  # begin again at the end
    limit: int | None = None  # stop after that many frames of the main camera; None: at the end
    services: ServiceFilter = field(default_factory=ServiceFilter)  # which are played
    now: bool = False  # stamps begin at the clock's time instead of the recording's


@dataclass(frozen=True, slots=True)
class Played:
    """A frame of the main camera that was handed over."""

    moment: int  # index of its moment
    frame_id: int  # as it was published
    eof_ns: int  # end of its exposure as it was published
    clock_ns: int  # when
    late_ns: int  # how long after it was due; 0 where it was sent on time
    # The frame before it is the one before it in the drive, and no gap between them was skipped:
    # the recorded interval holds.
    continues: bool


@dataclass(slots=True)
class PlayCounts:
    """What was played so far."""

    frames: dict[str, int] = field(default_factory=dict)  # frames by stream
    # Messages by service, as recorded; carParams sent in between do not count.
    messages: dict[str, int] = field(default_factory=dict)
    slipped_ns: int = 0  # how much later everything is because frames were late
    gaps: int = 0  # silences that were skipped
    jumps: int = 0  # seeks and loops


class Player:
    """Plays one drive.

    The attributes may be read, and the methods but `run` called, from `attend` (see `run`).

    `read`: opens an iterator of its moments from a number on, as ``prefetch`` does. `clock`: paces.
    `options`: how.
    """

    def __init__(
        self, info: DriveInfo, read: Read, outlet: Outlet, clock: Clock, options: PlayOptions
    ) -> None:
        self.info = info  # of the drive
        self.position = options.first  # index of the moment that is played
        self.is_paused = False  # nothing is sent
        self.speed = options.speed  # seconds of the drive per second
        self.counts = PlayCounts()  # what was played
        self.timeline = Timeline(options.speed)  # played time to clock
        # Called after each frame of the main camera.
        self.on_frame: Callable[[Played], None] = lambda _: None
        # Called after each frame of the driver camera beside it.
        self.on_driver_frame: Callable[[Played], None] = lambda _: None
        # Called with each message that was sent, as it was recorded.
        self.on_message: Callable[[bytes], None] = lambda _: None
        # If set, the first frame is offered again until this returns true.
        self.is_answered: Callable[[], bool] | None = None
        self._read, self._outlet, self._clock, self._options = read, outlet, clock, options
        self._main = main_stream(info)
        self._stamps = Continuation(self._main, round(NS_PER_S / info.rate_hz))
        self._stop = threading.Event()
        self._attend: Callable[[Player], None] = lambda _: None
        self._attended_ns = 0
        self._seek_to: int | None = None
        self._previous_ns: int | None = None
        self._continues = False
        # Of the last frame of each stream: when it was sent, and its played time.
        self._sent: dict[str, tuple[int, int]] = {}
        self._car_params_ns: int | None = None
        self._newest: dict[str, bytes] = {}
        self._main_frames = 0

    @property
    def position_s(self) -> float:
        """Seconds from the start of the drive, by the rate of its main camera."""
        return self.position / self.info.rate_hz

    def pause(self) -> None:
        """Send nothing from now on."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on where it was paused."""
        self.is_paused = False

    def seek(self, delta_s: float) -> None:
        """Go on `delta_s` seconds of the drive later (negative: earlier), within its bounds."""
        origin = self.position if self._seek_to is None else self._seek_to
        target = max(0, origin + round(delta_s * self.info.rate_hz))
        if self.info.moments is not None:
            target = min(target, max(0, self.info.moments - 1))
        self._seek_to = target

    def stop(self) -> None:
        """End `run` soon."""
        self._stop.set()

    def run(self, stop: threading.Event, attend: Callable[[Player], None] = lambda _: None) -> None:
        """Play until the end, the limit, or a stop.

        `stop`: ends it, noticed within ``ATTEND_NS``. `attend`: called between events, about every
        ``ATTEND_NS``; should take under a millisecond.

        Raises:
            ToolError: the drive cannot be read on; the outlet cannot send.
        """
        self._stop, self._attend = stop, attend
        first = self._options.first
        while not stop.is_set():
            before = self._main_frames
            with ExitStack() as stack:
                for moment in stack.enter_context(self._read(first)):
                    self._play(moment)
                    if stop.is_set() or self._seek_to is not None or self._is_done():
                        break
            if self._seek_to is not None:
                first, self._seek_to = self._seek_to, None
            elif (
                self._options.loop
                and not self._is_done()
                and (self._main_frames > before or first != self._options.first)
            ):
                # A pass from the start without a frame would be repeated for ever.
                first = self._options.first
            else:
                return
            self.counts.jumps += 1
            self.timeline.clear()

    def _is_done(self) -> bool:
        return self._options.limit is not None and self._main_frames >= self._options.limit

    def _play(self, moment: Moment) -> None:
        self.position = moment.index
        events = events_of(moment)
        if not events:
            return
        if not self.timeline.is_set:
            self._begin(moment, events[0].time_ns)
        self._stamps.meet(moment)
        if self.is_answered is not None and self._main in moment.frames:
            self._offer(events)
            return
        is_filled = False
        for event in events:
            if event.frame is not None and not is_filled:
                # All cameras at once and while there is time, so that handing over takes none.
                is_filled = True
                for stream, frame in moment.frames.items():
                    self._outlet.fill(stream, frame)
            if not self._play_event(event):
                return

    def _begin(self, moment: Moment, first_ns: int) -> None:
        """Make the first event of the drive, or after a jump, due now."""
        if self._options.now and self._previous_ns is None:
            self._stamps.offset = Offset(self._clock.now_ns() - first_ns)
        self._stamps.jump(moment, first_ns)
        self._continues = False
        played_ns = first_ns + self._stamps.offset.time_ns
        self.timeline.set(played_ns, self._clock.now_ns())
        self._previous_ns = played_ns

    def _play_event(self, event: Event) -> bool:
        """Wait for an event and send it; False when something else is to be done instead."""
        played_ns = event.time_ns + self._stamps.offset.time_ns
        self._skip_gap(played_ns)
        if event.frame is None:
            assert event.message is not None
            if not self._wait_until_due(played_ns):
                return False
            self._send(event.message)
        else:
            stream, frame = event.frame
            self._keep_distance(stream, played_ns)
            if not self._wait_until_due(played_ns):
                return False
            self._publish(stream, frame, played_ns)
        self._stamps.note_event(played_ns)
        return True

    def _skip_gap(self, played_ns: int) -> None:
        previous_ns = self._previous_ns
        assert previous_ns is not None
        if played_ns - previous_ns > MAX_GAP_NS:
            # The silence lasts one period: enough to be seen, and frames stay apart.
            due_ns = self.timeline.due_ns(previous_ns + self._stamps.period_ns)
            self.timeline.set(played_ns, max(due_ns, self._clock.now_ns()))
            skipped_ns = played_ns - previous_ns - self._stamps.period_ns
            self._sent = {name: (at, time + skipped_ns) for name, (at, time) in self._sent.items()}
            self.counts.gaps += 1
            self._continues = False
        self._previous_ns = max(previous_ns, played_ns)

    def _keep_distance(self, stream: str, played_ns: int) -> None:
        sent = self._sent.get(stream)
        if sent is None:
            return
        sent_ns, before_ns = sent
        interval_ns = self.timeline.clock_span_ns(played_ns - before_ns)
        earliest_ns = sent_ns + round(MIN_INTERVAL * interval_ns)
        slip_ns = earliest_ns - self.timeline.due_ns(played_ns)
        if slip_ns > 0:
            self.timeline.delay(slip_ns)
            self.counts.slipped_ns += slip_ns

    def _wait_until_due(self, played_ns: int) -> bool:
        """Sleep, attending in between; False when stopped or sent elsewhere."""
        clock = self._clock
        while not self._stop.is_set() and self._seek_to is None:
            now_ns = clock.now_ns()
            due_ns = self.timeline.due_ns(played_ns)
            self._repeat_car_params(now_ns)
            elapsed_ns = now_ns - self._attended_ns
            has_room = due_ns - now_ns > ATTEND_ROOM_NS or elapsed_ns > 4 * ATTEND_NS
            if self.is_paused or (has_room and elapsed_ns >= ATTEND_NS):
                self._attended_ns = now_ns
                self._attend(self)
                if self.is_paused:
                    clock.sleep_until_ns(now_ns + ATTEND_NS)
                    self.timeline.delay(clock.now_ns() - now_ns)
                continue
            if due_ns <= now_ns:
                return True
            clock.sleep_until_ns(min(due_ns, now_ns + ATTEND_NS))
        return False

    def _send(self, message: Message) -> None:
        service = message.service
        if not self._options.services.passes(service):
            return
        offset = self._stamps.offset
        recorded = data = moved(message, offset)
        if message.migrated is not None:
            data = moved(message._replace(data=message.migrated), offset)
        if recorded is None or data is None:
            logger.warning("left out a damaged %s at %d ns", service, message.mono_time_ns)
            return
        self._outlet.send(service, data)
        counts = self.counts.messages
        counts[service] = counts.get(service, 0) + 1
        self.on_message(recorded)
        if self.is_answered is not None:
            self._newest[service] = data

    def _publish(self, stream: str, frame: Frame, played_ns: int) -> None:
        offset = self._stamps.offset
        frame_id = frame.frame_id + offset.frame_id
        eof_ns = frame.timestamp_eof_ns + offset.time_ns
        # Before: whoever this wakes may take our processor at once.
        now_ns = self._clock.now_ns()
        self._outlet.publish(stream, frame_id, frame.timestamp_sof_ns + offset.time_ns, eof_ns)
        self._sent[stream] = (now_ns, played_ns)
        self.counts.frames[stream] = self.counts.frames.get(stream, 0) + 1
        late_ns = max(0, now_ns - self.timeline.due_ns(played_ns))
        told = Played(self.position, frame_id, eof_ns, now_ns, late_ns, continues=self._continues)
        if stream == self._main:
            self._stamps.note_frame(frame)
            self._main_frames += 1
            self.on_frame(told)
            self._continues = True
        elif stream == DRIVER_STREAM:
            self.on_driver_frame(told)

    def _offer(self, events: list[Event]) -> None:
        """Play the first moment with a frame again and again until it is answered.

        Who listens may not be there yet, and a subscriber needs time to connect: each time the
        newest message of each service comes before the frames. A daemon takes a frame once only,
        because those that follow it have its stamps.
        """
        assert self.is_answered is not None
        self._previous_ns = events[-1].time_ns
        for event in events:
            if event.message is not None:
                self._send(event.message)
        # Extra cameras first, as their events come. The driver camera's frame is not theirs: its
        # daemon would answer each time.
        shown = [event.frame for event in events if event.frame is not None]
        frames = [(stream, frame) for stream, frame in shown if stream != DRIVER_STREAM]
        for stream, frame in shown:
            if stream == DRIVER_STREAM:
                self._outlet.fill(stream, frame)
                self._publish(stream, frame, events[-1].time_ns)
        while not (self._stop.is_set() or self.is_answered()):
            self._car_params_ns = None
            self._repeat_car_params(self._clock.now_ns())
            for service, data in self._newest.items():
                self._outlet.send(service, data)
            self._clock.sleep_until_ns(self._clock.now_ns() + AHEAD_NS)
            for stream, frame in frames:
                self._outlet.fill(stream, frame)
            # What is answered from now on is about this time of the drive. Before the frames are
            # there, as whoever they wake may take our processor, and answer, at once.
            self.timeline.set(events[-1].time_ns, self._clock.now_ns())
            for stream, frame in frames:
                self._outlet.publish(
                    stream, frame.frame_id, frame.timestamp_sof_ns, frame.timestamp_eof_ns
                )
            self._wait_for_answer(self._clock.now_ns() + OFFER_NS)
        self.is_answered = None
        self._newest.clear()
        played_ns = events[-1].time_ns
        now_ns = self._clock.now_ns()
        self.timeline.set(played_ns, now_ns)
        self._stamps.note_event(played_ns)
        for stream, frame in frames:
            self._sent[stream] = (now_ns, played_ns)
            self.counts.frames[stream] = self.counts.frames.get(stream, 0) + 1
            if stream == self._main:
                self._stamps.note_frame(frame)
                self._main_frames += 1
                eof_ns = frame.timestamp_eof_ns
                self.on_frame(
                    Played(self.position, frame.frame_id, eof_ns, now_ns, 0, continues=False)
                )

    def _wait_for_answer(self, until_ns: int) -> None:
        assert self.is_answered is not None
        while self._clock.now_ns() < until_ns and not (self._stop.is_set() or self.is_answered()):
            self._attend(self)
            self._clock.sleep_until_ns(self._clock.now_ns() + ATTEND_NS // 10)

    def _repeat_car_params(self, now_ns: int) -> None:
        data = self.info.car_params
        last_ns = self._car_params_ns
        if data is None or (last_ns is not None and now_ns - last_ns < CAR_PARAMS_NS):
            return
        self._car_params_ns = now_ns
        self._outlet.send("carParams", data)

"""Plays a drive in real time: sends messages and frames at their recorded times.

A drive is read moment by moment: one main-camera frame with the messages since the previous one.
A frame is published immediately before the camera state that announces it, as in the car, and an
extra camera's frame before the road camera's. Every event is due at an absolute time. Late events
are sent immediately. Frames after a late one keep a minimum distance, because a burst of frames
would make a daemon drop frames that no camera dropped. Pauses, seeks and loops are described in
docs/adr/0013-replay.md.
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
# Longer gaps in a recording are skipped.
MAX_GAP_NS: Final = NS_PER_S
# The minimum interval of frames after a late one, as a share of their recorded interval.
MIN_INTERVAL: Final = 0.8
# Interval of calls of `attend`, and the time until the next event that a call requires.
ATTEND_NS: Final = 50_000_000
ATTEND_ROOM_NS: Final = 2_000_000
# A daemon that starts later must not wait for the next recorded carParams, which come every 50 s.
CAR_PARAMS_NS: Final = NS_PER_S
# Interval of offers of the first frame until it is answered. A slow model needs less, so a frame is
# never offered again during its processing.
OFFER_NS: Final = 250_000_000
# Messages travel over sockets and frames through memory. Messages sent this much earlier arrive
# before the first frame wakes the daemon. Later frames follow messages with their own times.
AHEAD_NS: Final = 20_000_000

Read = Callable[[int], AbstractContextManager[Iterator[Moment]]]


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """Options for playing a drive."""

    # Seconds of the drive per second of the clock, ``MIN_SPEED`` to ``MAX_SPEED``.
    speed: float = 1.0
    first: int = 0  # number of the first moment; loops restart there
    loop: bool = False  # whether to restart at the end
    limit: int | None = None  # number of frames of the main camera to play; None for all
    services: ServiceFilter = field(default_factory=ServiceFilter)  # the services to play
    now: bool = False  # whether stamps start at the clock's time instead of the recording's


@dataclass(frozen=True, slots=True)
class Played:
    """A published frame of the main camera or the driver camera."""

    moment: int  # index of its moment
    frame_id: int  # as published
    eof_ns: int  # end of exposure, as published
    clock_ns: int  # time of publication
    late_ns: int  # lateness; 0 if it was on time
    # Whether the previous frame also precedes it in the drive and no gap between them was skipped,
    # so that the recorded interval applies.
    continues: bool


@dataclass(slots=True)
class PlayCounts:
    """Counts of what was played so far."""

    frames: dict[str, int] = field(default_factory=dict)  # frames by stream
    # Messages by service, as recorded; repeated carParams are not counted.
    messages: dict[str, int] = field(default_factory=dict)
    slipped_ns: int = 0  # total delay because frames were late
    gaps: int = 0  # number of skipped gaps
    jumps: int = 0  # number of seeks and loops


class Player:
    """Plays one drive.

    `attend` (see `run`) may read the attributes and call all methods except `run`.

    `read`: opens an iterator over the drive's moments from a number on, as ``prefetch`` does.
    `clock`: sets the pace.
    """

    def __init__(
        self, info: DriveInfo, read: Read, outlet: Outlet, clock: Clock, options: PlayOptions
    ) -> None:
        self.info = info
        self.position = options.first  # index of the current moment
        self.is_paused = False  # while true, nothing is sent
        self.speed = options.speed  # seconds of the drive per second
        self.counts = PlayCounts()
        self.timeline = Timeline(options.speed)  # maps played time to the clock
        # Called after each frame of the main camera.
        self.on_frame: Callable[[Played], None] = lambda _: None
        # Called after each frame of the driver camera, if it is not the main camera.
        self.on_driver_frame: Callable[[Played], None] = lambda _: None
        # Called with each sent message, as recorded.
        self.on_message: Callable[[bytes], None] = lambda _: None
        # If set, the first frame is offered repeatedly until this returns true.
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
        # For each stream, the clock time and the played time of the last frame.
        self._sent: dict[str, tuple[int, int]] = {}
        self._car_params_ns: int | None = None
        self._newest: dict[str, bytes] = {}
        self._main_frames = 0

    @property
    def position_s(self) -> float:
        """The position in seconds from the start of the drive, by the rate of its main camera."""
        return self.position / self.info.rate_hz

    def pause(self) -> None:
        """Stop sending until `resume`."""
        self.is_paused = True

    def resume(self) -> None:
        """Continue after a pause."""
        self.is_paused = False

    def seek(self, delta_s: float) -> None:
        """Jump by `delta_s` seconds of the drive, forward or backward, within its bounds."""
        origin = self.position if self._seek_to is None else self._seek_to
        target = max(0, origin + round(delta_s * self.info.rate_hz))
        if self.info.moments is not None:
            target = min(target, max(0, self.info.moments - 1))
        self._seek_to = target

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stop.set()

    def run(self, stop: threading.Event, attend: Callable[[Player], None] = lambda _: None) -> None:
        """Play until the end, the limit, or a stop.

        `stop`: event that ends playing within ``ATTEND_NS``. `attend`: called between events, about
        every ``ATTEND_NS``; it should take less than a millisecond.

        Raises:
            ToolError: the drive cannot be read further, or the outlet cannot send.
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
                # A pass from the start without a frame would otherwise repeat forever.
                first = self._options.first
            else:
                return
            self.counts.jumps += 1
            self.timeline.clear()

    def _is_done(self) -> bool:
        return self._options.limit is not None and self._main_frames >= self._options.limit

    def _play(self, moment: Moment) -> None:
        """Send the events of a moment, each when it is due."""
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
                # Fill all cameras together while there is time, so that publishing is fast.
                is_filled = True
                for stream, frame in moment.frames.items():
                    self._outlet.fill(stream, frame)
            if not self._play_event(event):
                return

    def _begin(self, moment: Moment, first_ns: int) -> None:
        """Make the first event of the drive, or the first after a jump, due now."""
        if self._options.now and self._previous_ns is None:
            self._stamps.offset = Offset(self._clock.now_ns() - first_ns)
        self._stamps.jump(moment, first_ns)
        self._continues = False
        played_ns = first_ns + self._stamps.offset.time_ns
        self.timeline.set(played_ns, self._clock.now_ns())
        self._previous_ns = played_ns

    def _play_event(self, event: Event) -> bool:
        """Wait for an event and send it; return False if playing was stopped or moved elsewhere."""
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
        """Shorten a long gap before an event to one frame period."""
        previous_ns = self._previous_ns
        assert previous_ns is not None
        if played_ns - previous_ns > MAX_GAP_NS:
            # The gap becomes one period, which is visible and keeps frames apart.
            due_ns = self.timeline.due_ns(previous_ns + self._stamps.period_ns)
            self.timeline.set(played_ns, max(due_ns, self._clock.now_ns()))
            skipped_ns = played_ns - previous_ns - self._stamps.period_ns
            self._sent = {name: (at, time + skipped_ns) for name, (at, time) in self._sent.items()}
            self.counts.gaps += 1
            self._continues = False
        self._previous_ns = max(previous_ns, played_ns)

    def _keep_distance(self, stream: str, played_ns: int) -> None:
        """Delay everything if a frame would follow the previous one too closely."""
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
        """Sleep until an event is due, attending meanwhile; return False after a stop or seek."""
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
        """Send a message with its stamps shifted, unless its service is blocked."""
        service = message.service
        if not self._options.services.passes(service):
            return
        offset = self._stamps.offset
        recorded = data = moved(message, offset)
        if message.migrated is not None:
            data = moved(message._replace(data=message.migrated), offset)
        if recorded is None or data is None:
            logger.warning("skipped a damaged %s at %d ns", service, message.mono_time_ns)
            return
        self._outlet.send(service, data)
        counts = self.counts.messages
        counts[service] = counts.get(service, 0) + 1
        self.on_message(recorded)
        if self.is_answered is not None:
            self._newest[service] = data

    def _publish(self, stream: str, frame: Frame, played_ns: int) -> None:
        """Publish a filled frame and report it."""
        offset = self._stamps.offset
        frame_id = frame.frame_id + offset.frame_id
        eof_ns = frame.timestamp_eof_ns + offset.time_ns
        # Taken before publishing, because a woken process can take over our processor.
        now_ns = self._clock.now_ns()
        self._outlet.publish(stream, frame_id, frame.timestamp_sof_ns + offset.time_ns, eof_ns)
        self._sent[stream] = (now_ns, played_ns)
        self.counts.frames[stream] = self.counts.frames.get(stream, 0) + 1
        late_ns = max(0, now_ns - self.timeline.due_ns(played_ns))
        played = Played(self.position, frame_id, eof_ns, now_ns, late_ns, continues=self._continues)
        if stream == self._main:
            self._stamps.note_frame(frame)
            self._main_frames += 1
            self.on_frame(played)
            self._continues = True
        elif stream == DRIVER_STREAM:
            self.on_driver_frame(played)

    def _offer(self, events: list[Event]) -> None:
        """Play the first moment with a frame repeatedly until it is answered.

        Listeners may not be running yet, and subscribers need time to connect. Each time, the
        newest message of each service is sent before the frames. A daemon processes the frame only
        once, because repeated frames have the same stamps.
        """
        assert self.is_answered is not None
        self._previous_ns = events[-1].time_ns
        for event in events:
            if event.message is not None:
                self._send(event.message)
        # Extra cameras come first, as in the events. The driver camera's frame is sent only once,
        # because its daemon would answer each repetition.
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
            # Answers from now on belong to this time of the drive. It is set before publishing,
            # because a woken process can take over our processor and answer at once.
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

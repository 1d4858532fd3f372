"""Stamps and frame ids that go on after a jump, as if the drive had never been interrupted.

Up to the first jump everything is as it was recorded, byte by byte. A loop or a seek would make
ids and stamps jump: back, and the daemon would pair no frames until the old time is reached
again; forth, and it would count the frames in between as dropped. So from then on both are
moved by an offset: the frame after the jump has the id after the last one, and starts one period
after it. Reasons: docs/adr/0013-replay.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from cereal.errors import MessageError
from cereal.frames import Frame
from cereal.schema import DAMAGED, read_event
from tools.drives.drive import DriveInfo, Message, Moment
from tools.messages.event_bytes import write_field, write_stamp

_IDS: Final = ("frameId", "frameIdExtra")
_TIMES: Final = ("timestampSof", "timestampEof")
_FRAME: Final = ("frameId", *_TIMES)
# Which fields of which Event members name frames and their times; the rest have their log stamp.
STAMPED_FIELDS: Final = {
    "roadCameraState": _FRAME,
    "wideRoadCameraState": _FRAME,
    "driverCameraState": _FRAME,
    "roadEncodeIdx": _FRAME,
    "wideRoadEncodeIdx": _FRAME,
    "driverEncodeIdx": _FRAME,
    "qRoadEncodeIdx": _FRAME,
    "thumbnail": ("frameId", "timestampEof"),
    "modelV2": (*_IDS, "timestampEof"),
    "drivingModelData": _IDS,
    "cameraOdometry": ("frameId", "timestampEof"),
    "driverStateV2": ("frameId",),
}
_ID_MODULUS: Final = 1 << 32
# What is so much later than the frames is of a damaged clock: no pass goes on from there.
_FURTHEST_NS: Final = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Offset:
    """What is added to stamps and ids of the recording."""

    time_ns: int = 0
    frame_id: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether everything stays as recorded."""
        return self.time_ns == 0 and self.frame_id == 0


def moved(message: Message, offset: Offset) -> bytes | None:
    """Return the message's bytes with its stamps and frame ids moved.

    A message whose member our schema does not know, or that is damaged inside, is moved in its
    log stamp only. Nothing is copied by a builder: that ends the process where a message is
    damaged.

    The result is None where not even the log stamp can be written.
    """
    if offset.is_zero:
        return message.data
    data = write_stamp(message.data, max(0, message.mono_time_ns + offset.time_ns))
    fields = STAMPED_FIELDS.get(message.service, ())
    if data is None or not fields:
        return data
    try:
        inner = getattr(read_event(message.data), message.service)
    except (MessageError, *DAMAGED):
        return data
    for name in fields:
        value = getattr(inner, name)
        if name in _IDS:
            value = (value + offset.frame_id) % _ID_MODULUS
        elif value:  # 0 is a stamp that was not set
            value = max(0, value + offset.time_ns)
        data = write_field(data, message.service, name, value) or data
    return data


@dataclass(slots=True)
class Continuation:
    """Keeps the offset, and what it has to go on from."""

    main: str  # stream whose frames count
    period_ns: int  # time from one of its frames to the next, where a jump hides the true one
    offset: Offset = Offset()  # in force now
    _last_event_ns: int | None = None
    _last_sof_ns: int | None = None
    _last_id: int | None = None
    _id_pending: bool = False

    def note_event(self, played_ns: int) -> None:
        """Take the played time of an event that was sent."""
        if self._last_sof_ns is not None and played_ns > self._last_sof_ns + _FURTHEST_NS:
            return
        if self._last_event_ns is None or played_ns > self._last_event_ns:
            self._last_event_ns = played_ns

    def note_frame(self, frame: Frame) -> None:
        """Take a frame of the main stream that was sent."""
        self._last_sof_ns = frame.timestamp_sof_ns + self.offset.time_ns
        self._last_id = frame.frame_id + self.offset.frame_id

    def jump(self, moment: Moment, first_ns: int) -> None:
        """Go on with `moment`, whose first event was recorded at `first_ns`."""
        if self._last_event_ns is None:
            return
        time_ns = self._last_event_ns - first_ns
        frame = moment.frames.get(self.main)
        if frame is not None and self._last_sof_ns is not None:
            time_ns = max(time_ns, self._last_sof_ns + self.period_ns - frame.timestamp_sof_ns)
        self.offset = Offset(time_ns, self.offset.frame_id)
        self._id_pending = True
        self.meet(moment)

    def meet(self, moment: Moment) -> None:
        """Settle the ids after a jump with the first moment that has a main frame."""
        frame = moment.frames.get(self.main)
        if not self._id_pending or frame is None:
            return
        if self._last_id is not None:
            self.offset = Offset(self.offset.time_ns, self._last_id + 1 - frame.frame_id)
        self._id_pending = False


# --- The events of a moment of a drive, with their times --------------------------------------

STATE_OF_STREAM: Final = {
    "road": "roadCameraState",
    "wideRoad": "wideRoadCameraState",
    "driver": "driverCameraState",
}


class Event(NamedTuple):
    """What happens at one time: a message, or a frame (the other is None)."""

    time_ns: int
    message: Message | None
    frame: tuple[str, Frame] | None


def main_stream(info: DriveInfo) -> str:
    """Return the stream that paces a drive: the road camera, else the wide one, else any."""
    return next(
        (name for name in ("road", "wideRoad") if name in info.formats),
        next(iter(info.formats), "road"),
    )


def events_of(moment: Moment) -> list[Event]:
    """Return what happens in a moment, in time order.

    A frame comes at the time of the message that announces it, just before it, but not after the
    frames that are to be handed over after it. One that nothing announces comes at the end of its
    exposure, within the time of the moment's messages.
    """
    messages = moment.messages
    announced = {message.service: message.mono_time_ns for message in messages}
    times: list[int] = []
    for stream, frame in moment.frames.items():
        time_ns = announced.get(STATE_OF_STREAM[stream])
        if time_ns is None:
            time_ns = frame.timestamp_eof_ns
            if messages:
                first_ns, last_ns = messages[0].mono_time_ns, messages[-1].mono_time_ns
                time_ns = min(max(time_ns, first_ns), last_ns)
        times.append(time_ns)
    for index in reversed(range(len(times) - 1)):
        times[index] = min(times[index], times[index + 1])
    events = [
        Event(time_ns, None, (stream, frame))
        for time_ns, (stream, frame) in zip(times, moment.frames.items(), strict=True)
    ]
    events += [Event(message.mono_time_ns, message, None) for message in messages]
    # Stable: frames stand first, so they precede messages of the same time.
    events.sort(key=lambda event: event.time_ns)
    return events


# --- Recorded times on the clock; played time is recorded time without its jumps --------------


class Timeline:
    """Maps played time to the clock and back.

    The line is one tuple, replaced as a whole: another thread may map while it is moved.

    `speed`: seconds of the drive per second of the clock.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._anchor: tuple[int, int] | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is an anchor."""
        return self._anchor is not None

    def set(self, played_ns: int, clock_ns: int) -> None:
        """Let `played_ns` be due at `clock_ns`."""
        self._anchor = (played_ns, clock_ns)

    def clear(self) -> None:
        """Forget the anchor: the next event begins anew."""
        self._anchor = None

    def delay(self, delta_ns: int) -> None:
        """Let everything be due `delta_ns` later."""
        played_ns, clock_ns = self._set_anchor()
        self._anchor = (played_ns, clock_ns + delta_ns)

    def due_ns(self, played_ns: int) -> int:
        """Return the clock's time at which `played_ns` is due."""
        anchor_ns, clock_ns = self._set_anchor()
        return clock_ns + self.clock_span_ns(played_ns - anchor_ns)

    def played_ns(self, clock_ns: int) -> int:
        """Return what is due at `clock_ns`."""
        anchor_ns, at_ns = self._set_anchor()
        return anchor_ns + round((clock_ns - at_ns) * self._speed)

    def clock_span_ns(self, played_ns: int) -> int:
        """Return how long a span of played time takes on the clock."""
        return round(played_ns / self._speed)

    def _set_anchor(self) -> tuple[int, int]:
        assert self._anchor is not None, "events are due only after the first one"
        return self._anchor

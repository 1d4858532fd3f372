"""Adjusts stamps and frame ids after a jump, so that the drive seems uninterrupted.

Until the first jump, everything is sent as recorded, byte by byte. A loop or a seek would make ids
and stamps jump. After a backward jump, the daemon would pair no frames until the old time is
reached again. After a forward jump, it would count the skipped frames as dropped. So from then on
both are shifted by an offset: the first frame after a jump has the next id, and starts one period
after the last frame. Reasons: docs/adr/0013-replay.md.
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
# Fields with frame ids and times, by Event member. Other members have only their log stamp.
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
# Messages that are later than the frames by more than this come from a damaged clock, so their
# stamps are not continued.
_FURTHEST_NS: Final = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Offset:
    """The offset that is added to recorded stamps and frame ids."""

    time_ns: int = 0
    frame_id: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether everything stays as recorded."""
        return self.time_ns == 0 and self.frame_id == 0


def moved(message: Message, offset: Offset) -> bytes | None:
    """Return the message's bytes with shifted stamps and frame ids.

    If the member is unknown to our schema or damaged, only the log stamp is shifted. The message is
    not copied with a builder, because that ends the process if a message is damaged.

    Returns None if the log stamp cannot be written either.
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
        elif value:  # 0 means that the stamp is not set
            value = max(0, value + offset.time_ns)
        data = write_field(data, message.service, name, value) or data
    return data


@dataclass(slots=True)
class Continuation:
    """Holds the current offset and the state from which the next one is computed."""

    main: str  # the main stream
    period_ns: int  # frame period, used for the interval across a jump
    offset: Offset = Offset()  # the current offset
    _last_event_ns: int | None = None
    _last_sof_ns: int | None = None
    _last_id: int | None = None
    _id_pending: bool = False

    def note_event(self, played_ns: int) -> None:
        """Record the played time of a sent event."""
        if self._last_sof_ns is not None and played_ns > self._last_sof_ns + _FURTHEST_NS:
            return
        if self._last_event_ns is None or played_ns > self._last_event_ns:
            self._last_event_ns = played_ns

    def note_frame(self, frame: Frame) -> None:
        """Record a sent frame of the main stream."""
        self._last_sof_ns = frame.timestamp_sof_ns + self.offset.time_ns
        self._last_id = frame.frame_id + self.offset.frame_id

    def jump(self, moment: Moment, first_ns: int) -> None:
        """Continue with `moment`, whose first event was recorded at `first_ns`."""
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
        """Set the id offset after a jump, from the first moment with a frame of the main stream."""
        frame = moment.frames.get(self.main)
        if not self._id_pending or frame is None:
            return
        if self._last_id is not None:
            self.offset = Offset(self.offset.time_ns, self._last_id + 1 - frame.frame_id)
        self._id_pending = False


# --- The events of a moment, in time order ----------------------------------------------------

STATE_OF_STREAM: Final = {
    "road": "roadCameraState",
    "wideRoad": "wideRoadCameraState",
    "driver": "driverCameraState",
}


class Event(NamedTuple):
    """A message or a frame at one time; the other one is None."""

    time_ns: int
    message: Message | None
    frame: tuple[str, Frame] | None


def main_stream(info: DriveInfo) -> str:
    """Return the main stream of a drive: the road camera, else the wide one, else any."""
    return next(
        (name for name in ("road", "wideRoad") if name in info.formats),
        next(iter(info.formats), "road"),
    )


def events_of(moment: Moment) -> list[Event]:
    """Return the events of a moment in time order.

    A frame comes just before the message that announces it, but not after frames that must be
    published after it. A frame that no message announces comes at the end of its exposure, limited
    to the time span of the moment's messages.
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
    # The sort is stable, so frames precede messages of the same time.
    events.sort(key=lambda event: event.time_ns)
    return events


# --- Mapping of played time, which is recorded time without jumps, to the clock ---------------


class Timeline:
    """Maps played time to the clock and back.

    The anchor is one tuple that is replaced as a whole, so another thread can use the mapping while
    it changes.

    `speed`: seconds of the drive per second of the clock.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._anchor: tuple[int, int] | None = None

    @property
    def is_set(self) -> bool:
        """Whether an anchor is set."""
        return self._anchor is not None

    def set(self, played_ns: int, clock_ns: int) -> None:
        """Make `played_ns` due at `clock_ns`."""
        self._anchor = (played_ns, clock_ns)

    def clear(self) -> None:
        """Forget the anchor; the next event sets a new one."""
        self._anchor = None

    def delay(self, delta_ns: int) -> None:
        """Make everything due `delta_ns` later."""
        played_ns, clock_ns = self._set_anchor()
        self._anchor = (played_ns, clock_ns + delta_ns)

    def due_ns(self, played_ns: int) -> int:
        """Return the clock time at which `played_ns` is due."""
        anchor_ns, clock_ns = self._set_anchor()
        return clock_ns + self.clock_span_ns(played_ns - anchor_ns)

    def played_ns(self, clock_ns: int) -> int:
        """Return the played time that is due at `clock_ns`."""
        anchor_ns, at_ns = self._set_anchor()
        return anchor_ns + round((clock_ns - at_ns) * self._speed)

    def clock_span_ns(self, played_ns: int) -> int:
        """Return the time on the clock that a span of played time takes."""
        return round(played_ns / self._speed)

    def _set_anchor(self) -> tuple[int, int]:
        assert self._anchor is not None, "events are due only after the first one"
        return self._anchor

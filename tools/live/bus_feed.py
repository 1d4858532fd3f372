"""Follows a daemon and its cameras on the bus, in a thread, and prepares data for the page.

The view is a process of its own with low priority. It sends nothing to the daemon: it subscribes to
the messages that the daemon publishes anyway. The cameras' memory is mapped read-only, and its
writer never waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cereal.cameras import CameraServer, CameraSource
from cereal.errors import CerealError, MessageError
from cereal.frames import Frame
from cereal.schema import read_event
from cereal.transport.base import Transport
from tools.live.fields import FieldPath, FieldSubscriptions, Sample
from tools.live.messages import ROAD, WIDE, CameraTable, Json, Moment, Shown
from tools.live.newest import HEALTH, SERVICES, Newest, Row, describe_health
from tools.playback.threads import yield_to_others
from tools.report.picture import encode_jpeg
from tools.service.health import Health
from tools.views.pass_over import planes

STREAMS: Final = (ROAD, WIDE)
# For these services only the newest message matters. Messages of all other services are read one by
# one, so no row is lost.
_CONFLATED: Final = frozenset({"carState", "roadCameraState", "deviceState"})
POLL_MS: Final = 20
# Interval of keep-alive messages to the page while nothing changes, in seconds.
IDLE_S: Final = 0.5
# A daemon publishes every 50 ms, a slow one every 200 ms. After this many seconds without an answer
# it counts as gone.
SILENT_S: Final = 1.5
# A camera without frames for this many seconds is removed from the list.
CAMERA_S: Final = 2.0
# Number of health messages, one a second, over which stage times are computed.
HEALTHS: Final = 11
# Maximum number of messages of one service read in one pass: more than any service sends in a
# second.
_MAX_PER_PASS: Final = 200
# Frames kept per camera: an answer follows its frame by 50 ms, on a slow machine by a few frames.
KEPT: Final = 8
# Interval of looking for new cameras, in seconds.
LOOK_S: Final = 0.5

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A copied frame."""

    frame_id: int
    planes: Planes  # luma (h, w) and interleaved chroma (h/2, w), uint8

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        rows, columns = self.planes[0].shape
        return columns, rows

    def jpeg(self, width: int) -> bytes:
        """Return the picture as JPEG, scaled down to a width in pixels."""
        return encode_jpeg(*self.planes, width=width)


class CameraPictures:
    """Copies of the newest frames of a server's cameras, to show the frame of an answer.

    `cameras`: the camera server; closed with this object. `streams`: streams of
    `cereal.frames.STREAMS`.

    Raises:
        FrameError: the server's name is invalid.
    """

    def __init__(self, cameras: CameraServer, streams: tuple[str, ...]) -> None:
        self._cameras = cameras
        self._readers: dict[str, CameraSource | None] = dict.fromkeys(streams)
        self._kept: dict[str, deque[Picture]] = {name: deque(maxlen=KEPT) for name in streams}
        self._came_s: dict[str, float] = {}
        self._looked_s = -LOOK_S
        self._unusable: Mapping[str, str] = {}
        cameras.available_streams()

    def update(self, keep: Collection[str]) -> None:
        """Receive all new frames.

        `keep`: cameras whose frames are copied. For other cameras only the arrival is noted.
        """
        if monotonic() - self._looked_s > LOOK_S:
            self._looked_s = monotonic()
            self._connect()
        for stream, reader in self._readers.items():
            if reader is None:
                continue
            while (frame := reader.receive(0)) is not None:
                self._came_s[stream] = monotonic()
                if stream not in keep:
                    continue
                copied = _copy(frame)
                if reader.is_intact():
                    self._kept[stream].append(copied)
            if stream not in keep:
                self._kept[stream].clear()

    def streams(self, within_s: float) -> list[str]:
        """Return the cameras that delivered a frame in the last `within_s` seconds."""
        now = monotonic()
        return [
            name for name in self._readers if now - self._came_s.get(name, -within_s) < within_s
        ]

    def find(self, stream: str, frame_id: int | None) -> Picture | None:
        """Return the picture of a frame, or the newest if `frame_id` is None; None if missing."""
        kept = self._kept[stream]
        if frame_id is None:
            return kept[-1] if kept else None
        return next((one for one in reversed(kept) if one.frame_id == frame_id), None)

    def missing(self, stream: str) -> str:
        """Return the reason why a camera has no picture, for the user."""
        if stream in self._unusable:
            return self._unusable[stream]
        came_s = self._came_s.get(stream)
        if came_s is None:
            return f"no camera process {self._cameras.name!r} offers frames of this camera"
        return f"no frame of this camera for {monotonic() - came_s:.0f} s"

    def close(self) -> None:
        """Release the cameras."""
        for reader in self._readers.values():
            if reader is not None:
                reader.close()
        self._cameras.close()

    def _connect(self) -> None:
        if all(self._readers.values()):
            return
        offered = self._cameras.available_streams()
        for stream, reader in self._readers.items():
            if reader is None and stream in offered:
                try:
                    self._readers[stream] = self._cameras.reader(stream, conflate=False)
                except CerealError:
                    # Possible while one writer replaces another. `missing` reports lasting errors.
                    continue
        self._unusable = self._cameras.unusable_streams()


def _copy(frame: Frame) -> Picture:
    luma, chroma = planes(frame)
    return Picture(frame.frame_id, (luma.copy(), chroma.copy()))


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery from the feed to the viewers."""

    number: int  # number of the delivery, counting up
    rows: list[Row]  # rows since the previous delivery
    moments: dict[str, tuple[Json, bytes]]  # camera -> message and JPEG picture
    # Samples of the selected fields since the previous delivery.
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Options for watching a daemon."""

    address: str  # address of the bus, for the user
    table: CameraTable  # camera intrinsics
    rate_hz: float  # maximum number of pictures per second
    width: int  # maximum width of the pictures in pixels


class Watched(Protocol):
    """The cameras and fields that viewers currently watch; called in the feed's thread."""

    def wanted(self) -> Collection[str]:
        """Return the watched cameras; empty if nobody watches."""

    def fields(self) -> Mapping[str, FieldPath]:
        """Return the selected fields, by their text."""


class BusFeed:
    """Follows the bus in a thread.

    `transport`: the bus, used only by the thread. `pictures`: the cameras' pictures, used only by
    the thread. `options`: rate, size and cameras. `watched`: the cameras and fields to prepare.
    `deliver`: called in the thread with each `Delivery`.
    """

    def __init__(
        self,
        transport: Transport,
        pictures: CameraPictures,
        options: LiveOptions,
        watched: Watched,
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._transport, self._pictures, self._options = transport, pictures, options
        self._watched, self._deliver = watched, deliver
        self._field_subscriptions = FieldSubscriptions(transport)
        self._subscribers = {
            name: transport.subscriber(name, conflate=name in _CONFLATED) for name in SERVICES
        }
        self._newest = Newest()
        self._healths: deque[Health] = deque(maxlen=HEALTHS)
        self._rows: list[Row] = []
        self._start_s = self._silent_since_s = monotonic()
        self._answered_s: float | None = None
        self._heard_s = self._refused_s = self._sent_s = 0.0
        self._refused = ""
        self._number = 0

    def run(self, stop: threading.Event) -> None:
        """Follow the bus until `stop` is set."""
        yield_to_others()
        polled = [self._subscribers["modelV2"]]
        period_s = 1.0 / self._options.rate_hz
        while not stop.is_set():
            self._transport.wait(polled, POLL_MS)
            has_answer = self._receive()
            wanted = self._watched.wanted()
            self._pictures.update(wanted)
            now = monotonic()
            self._field_subscriptions.listen(
                self._watched.fields() if wanted else {}, now - self._start_s
            )
            # Sending slightly early is better than one frame late.
            is_due = now - self._sent_s > period_s - 0.5e-3 * POLL_MS
            if (has_answer and is_due) or now - self._sent_s > self._patience_s(period_s):
                self._send(wanted, now)

    def _patience_s(self, period_s: float) -> float:
        """Return the longest wait for an answer before pictures are sent without one."""
        return IDLE_S if self._is_alive(monotonic()) else max(period_s, 0.1)

    def _is_alive(self, now: float) -> bool:
        return self._answered_s is not None and now - self._answered_s < SILENT_S

    def _receive(self) -> bool:
        has_answer = False
        for name, subscriber in self._subscribers.items():
            for _ in range(_MAX_PER_PASS):
                data = subscriber.receive()
                if data is None:
                    break
                has_answer |= self._take(name, data)
        return has_answer

    def _take(self, name: str, data: bytes) -> bool:
        try:
            member = self._newest.take(read_event(data))
        except MessageError:
            self._newest.damaged += 1
            return False
        if member != name:
            return False
        now = monotonic()
        if name == HEALTH:
            self._heard_s = now
            health: Any = self._newest.health
            if self._healths and self._healths[-1]["processId"] != health["processId"]:
                self._healths.clear()
            self._healths.append(health)
        if name != "modelV2":
            return False
        self._answered_s = now
        self._rows.append(self._newest.row(now - self._start_s))
        return True

    def _send(self, wanted: Collection[str], now: float) -> None:
        self._sent_s = now
        self._number += 1
        rows, self._rows = self._rows, []
        samples = self._field_subscriptions.take()
        if not wanted:
            self._deliver(Delivery(self._number, rows, {}, samples))
            return
        answer = self._newest.answer if self._is_alive(now) else None
        more = {
            "waiting": self._waiting(now),
            "cameras": self._pictures.streams(CAMERA_S),
            "now": round(now - self._start_s, 3),
            "notes": self._notes(now),
        }
        moments = {}
        for stream in wanted:
            shown = self._show(stream, None if answer is None else answer.frame_id)
            health, around = self._health(now), self._newest.surroundings
            moment = Moment(answer, around, shown, health, more=more)
            moments[stream] = moment.message(self._options.table), shown.jpeg
        self._deliver(Delivery(self._number, rows, moments, samples))

    def _show(self, stream: str, frame_id: int | None) -> Shown:
        picture = self._pictures.find(stream, frame_id)
        if picture is None and stream in self._pictures.streams(CAMERA_S):
            # The wide camera can have its own frame ids; a slow daemon can answer a dropped frame.
            picture = self._pictures.find(stream, None)
        if picture is None or stream not in self._pictures.streams(CAMERA_S):
            return Shown(stream, why_not=self._pictures.missing(stream))
        jpeg = picture.jpeg(self._options.width)
        return Shown(stream, picture.frame_id, picture.size, jpeg)

    def _health(self, now: float) -> Json | None:
        if not self._healths:
            return None
        health, earlier = self._healths[-1], self._healths[0]
        found = describe_health(health, earlier if earlier is not health else None)
        found["age"] = round(now - self._heard_s, 1)
        return found

    def _waiting(self, now: float) -> Json | None:
        if self._is_alive(now):
            return None
        since_s = self._start_s if self._answered_s is None else self._answered_s
        return {
            "service": "modelV2",
            "address": self._options.address,
            "since": round(now - since_s),
            "seen": self._answered_s is not None,
        }

    def _notes(self, now: float) -> list[str]:
        if now - self._refused_s > 1.0:
            self._refused_s = now
            self._refused = "; ".join(self._transport.refused().values())
        notes = [self._refused] if self._refused else []
        if self._newest.damaged:
            notes.append(f"{self._newest.damaged} messages could not be read and were left out")
        return notes

"""Smaller reports of the supervisor besides the health message."""

import logging
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from cereal.cameras import CameraServer
from cereal.errors import MessageError
from cereal.schema import content, read_event, reading
from cereal.transport import Transport
from modeld.state.drive_memory import DriveMemory
from modeld.state.loop_state import LoopState, Phase

logger: Final = logging.getLogger(__name__)

# Without a message for this time, 20 periods, the car is not known to be on the road.
_STALE_NS: Final = 10_000_000_000


class DriveKeeper:
    """Remembers how the drive goes as soon as that changes: the next fault may end the process."""

    def __init__(self, memory: DriveMemory, state: LoopState, model: Path) -> None:
        self._memory = memory
        self._state = state
        self._model = model
        self._written = ""
        self._published = 0
        self._is_driving = False

    def __call__(self, is_parked: bool) -> None:
        """Write what is new; forget the drive's model once the car is parked."""
        reason, published = self._state.fallback, self._state.published
        if reason and reason != self._written:
            self._written = reason
            self._memory.fallback.write(reason)
        if is_parked:
            self._published = published
        if self._is_driving == (published > self._published):
            return
        self._is_driving = not self._is_driving
        if self._is_driving:
            self._memory.model.write(str(self._model))
        else:
            self._memory.model.clear()


def why_unusable(cameras: CameraServer, streams: Collection[str]) -> str:
    """Return why streams that are there cannot be read, each reason once; "" if there is none."""
    reasons = cameras.unusable_streams()
    return "; ".join(dict.fromkeys(reasons[one] for one in reasons if one in streams))


class CameraReport:
    """Logs why existing cameras cannot be read, while no valid message goes out.

    A reader silently looks for its camera's next process: one of another user or version, or no
    descriptor left for it, shows as missing frames. Each change is logged. Before the loop runs,
    the wait for cameras does this. `streams` are those that the loop reads.
    """

    def __init__(self, cameras: CameraServer, streams: Iterable[str], state: LoopState) -> None:
        self._cameras = cameras
        self._streams = frozenset(streams)
        self._state = state
        self._valid = 0
        self._said = ""

    def __call__(self, _now_ns: int) -> None:
        """Look, if nothing valid was published since the last call, or some were refused then."""
        state = self._state
        before, self._valid = self._valid, state.valid
        goes_on = state.valid != before and not self._said
        if goes_on or state.phase is not Phase.RUNNING:
            return
        reasons = why_unusable(self._cameras, self._streams)
        if reasons == self._said:
            return
        self._said = reasons
        if reasons:
            logger.warning("cameras cannot be read: %s", reasons)
        else:
            logger.warning("cameras can be read again")


class RoadState:
    """Whether the car is on the road by `deviceState`; `started` is False without a message."""

    def __init__(self, transport: Transport) -> None:
        self.started = False
        self._subscriber = transport.subscriber("deviceState", conflate=True)
        self._heard_ns = 0

    def __call__(self, now_ns: int) -> None:
        """Read the new messages."""
        data = self._subscriber.receive(0)
        if data is None:
            if now_ns - self._heard_ns > _STALE_NS:
                self.started = False
            return
        try:
            with reading("deviceState"):
                self.started = bool(content(read_event(data)).started)
        except (MessageError, AttributeError):
            # Damaged, or another message: the loop counts and tells these.
            return
        self._heard_ns = now_ns

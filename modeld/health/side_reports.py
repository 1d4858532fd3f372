"""Smaller tasks of the supervisor in addition to the health message.

Each class is called about once a second. `DriveKeeper` saves the state of a drive for the next
process, `CameraReport` logs why cameras cannot be read, and `RoadState` reads whether the car is on
the road.
"""

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

# After 20 periods without a message, the car no longer counts as on the road.
_STALE_NS: Final = 10_000_000_000


class DriveKeeper:
    """Saves, on each change, the drive's model and any fallback for the next process.

    It saves immediately because the next fault can end this process.
    """

    def __init__(self, memory: DriveMemory, state: LoopState, model: Path) -> None:
        self._memory = memory
        self._state = state
        self._model = model
        self._written = ""
        self._published = 0
        self._is_driving = False

    def __call__(self, is_parked: bool) -> None:
        """Save changes; clear the saved model once the car is parked."""
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
    """Return why existing `streams` cannot be read, each reason once; "" if all can be."""
    reasons = cameras.unusable_streams()
    return "; ".join(dict.fromkeys(reasons[one] for one in reasons if one in streams))


class CameraReport:
    """Logs why existing cameras cannot be read, while no valid message is published.

    A reader silently waits for its camera process to return. If the new process belongs to another
    user or version, or no file descriptor is left, the only symptom is missing frames. Each change
    of the reasons is logged. Before the loop runs, the wait for cameras logs them instead.
    `streams` are the streams that the loop reads.
    """

    def __init__(self, cameras: CameraServer, streams: Iterable[str], state: LoopState) -> None:
        self._cameras = cameras
        self._streams = frozenset(streams)
        self._state = state
        self._valid = 0
        self._logged = ""

    def __call__(self, _now_ns: int) -> None:
        """Check if no valid message was published since the last call, or a reason was logged."""
        state = self._state
        before, self._valid = self._valid, state.valid
        goes_on = state.valid != before and not self._logged
        if goes_on or state.phase is not Phase.RUNNING:
            return
        reasons = why_unusable(self._cameras, self._streams)
        if reasons == self._logged:
            return
        self._logged = reasons
        if reasons:
            logger.warning("cameras cannot be read: %s", reasons)
        else:
            logger.warning("cameras can be read again")


class RoadState:
    """Reads from `deviceState` whether the car is on the road.

    `started` is the result; False without a recent message.
    """

    def __init__(self, transport: Transport) -> None:
        self.started = False
        self._subscriber = transport.subscriber("deviceState", conflate=True)
        self._received_ns = 0

    def __call__(self, now_ns: int) -> None:
        """Update `started` from the newest message; `now_ns` is on the monotonic clock."""
        data = self._subscriber.receive(0)
        if data is None:
            if now_ns - self._received_ns > _STALE_NS:
                self.started = False
            return
        try:
            with reading("deviceState"):
                self.started = bool(content(read_event(data)).started)
        except (MessageError, AttributeError):
            # The message is damaged or of another type; the loop counts and logs those.
            return
        self._received_ns = now_ns

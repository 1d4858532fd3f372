"""Small things that the supervisor does beside the health message."""

from typing import Final

from cereal.errors import MessageError
from cereal.schema import content, read_event, reading
from cereal.transport import Transport
from modeld.fallback_marker import FallbackMarker
from modeld.loop_state import LoopState

# A car that has said nothing for so long is not known to be on the road: 20 periods of the message.
_STALE_NS: Final = 10_000_000_000


class MarkerKeeper:
    """Remembers a fallback as soon as it has happened: the next fault may end the process."""

    def __init__(self, marker: FallbackMarker, state: LoopState) -> None:
        self._marker = marker
        self._state = state
        self._written = ""

    def __call__(self) -> None:
        """Write the marker if there is something new to remember."""
        reason = self._state.fallback
        if reason and reason != self._written:
            self._written = reason
            self._marker.write(reason)


class RoadState:
    """Whether the car says that it is on the road, by `deviceState`.

    Attributes:
        started: It does; False while it says nothing.
    """

    def __init__(self, transport: Transport) -> None:
        self.started = False
        self._subscriber = transport.subscriber("deviceState", conflate=True)
        self._heard_ns = 0

    def __call__(self, now_ns: int) -> None:
        """Take what has arrived.

        Args:
            now_ns: ns of the monotonic clock.
        """
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

"""Forwards messages unchanged from one bus to another, such as from shared memory to TCP.

A `Bridge` subscribes to a service only while the other bus has a subscriber for it, because a
shared-memory ring has only 15 places for subscribers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cereal.errors import MessageSizeError, TransportError
from cereal.transport.base import Publisher, Subscriber, Transport

logger = logging.getLogger(__name__)

# Interval of checks for subscribers, and the longest delay until a signal is noticed.
LOOK_MS: Final = 100
# Maximum number of messages of one service per round, so a fast service does not delay the others.
ROUND_MESSAGES: Final = 50
# Interval of checks for sockets without permission and for replaced rings, in seconds.
_CHECK_S: Final = 1.0


@dataclass(slots=True)
class Lane:
    """The forwarding of one service."""

    service: str
    publisher: Publisher  # on the target
    subscriber: Subscriber | None = None  # on the source; None while the target has no subscriber
    messages: int = 0  # number of forwarded messages
    dropped: int = 0  # number of messages of a size that the target does not support
    lost: int = 0  # number of times that messages were overwritten before they were read

    def pass_on(self) -> None:
        """Forward the messages that have arrived, up to `ROUND_MESSAGES`.

        Raises:
            TransportError: Another publisher has taken over the service.
        """
        for _ in range(ROUND_MESSAGES):
            data = None if self.subscriber is None else self.subscriber.receive()
            if data is None:
                return
            try:
                self.publisher.send(data)
            except MessageSizeError as error:
                if not self.dropped:
                    logger.warning("dropped, as are others like it: %s", error)
                self.dropped += 1
            else:
                self.messages += 1

    def stop_listening(self) -> None:
        """Close the subscriber, if any."""
        if self.subscriber is not None:
            self.lost += self.subscriber.lost
            self.subscriber.close()
            self.subscriber = None

    def close(self) -> None:
        """Close subscriber and publisher."""
        self.stop_listening()
        self.publisher.close()


class Bridge:
    """Forwards services from the transport `source` to `target`.

    The messages of a service keep their order and their bytes. The caller closes the transports.
    With `leave_out`, services that already have a publisher on the target are omitted.

    Attributes:
        lanes: The forwarded services.
        left_out: Services omitted because of `leave_out`.
        given_up: Services that another publisher has taken over.

    Raises:
        TransportError: A service cannot be published on the target; with `leave_out`: none can.
    """

    def __init__(
        self,
        source: Transport,
        target: Transport,
        services: Iterable[str],
        *,
        leave_out: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self.lanes: list[Lane] = []
        self.left_out: list[str] = []
        self.given_up: list[str] = []
        refusal = None
        for service in services:
            try:
                self.lanes.append(Lane(service, target.publisher(service)))
            except TransportError as error:
                if not leave_out:
                    raise
                refusal = error
                self.left_out.append(service)
                logger.warning("left out: %s", error)
        if refusal is not None and not self.lanes:
            raise refusal
        self._carried = list(self.lanes)
        self._looked_s = self._checked_s = 0.0

    def run(self, stop: threading.Event) -> None:
        """Forward messages until `stop` is set.

        Raises:
            TransportError: The last service was taken over.
        """
        while not stop.is_set():
            self.step(LOOK_MS)

    def step(self, timeout_ms: int) -> None:
        """Do one round: wait for messages and forward them.

        Raises:
            TransportError: The last service was taken over.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_MS / 1000:
            self._looked_s = now_s
            self.look()
        if now_s - self._checked_s >= _CHECK_S:
            self._checked_s = now_s
            self._source.log_refused()
            self._target.log_refused()
        lanes = {lane.subscriber: lane for lane in self._carried if lane.subscriber is not None}
        for end in self._source.wait(list(lanes), timeout_ms):
            try:
                lanes[end].pass_on()
            except TransportError as error:
                self._give_up(lanes[end], error)

    def look(self) -> None:
        """Subscribe to the services that have a subscriber on the target; drop the others.

        Raises:
            TransportError: The last service was taken over.
        """
        for lane in tuple(self._carried):
            try:
                if not lane.publisher.has_readers():
                    lane.stop_listening()
                elif lane.subscriber is None:
                    lane.subscriber = self._source.subscriber(lane.service)
            except TransportError as error:
                self._give_up(lane, error)

    def close(self) -> None:
        """Close all publishers and subscribers, but not the transports."""
        for lane in self._carried:
            lane.close()
        self._carried.clear()

    def _give_up(self, lane: Lane, error: TransportError) -> None:
        lane.close()
        self._carried.remove(lane)
        self.given_up.append(lane.service)
        if not self._carried:
            raise error
        logger.warning("given up, the others go on: %s", error)

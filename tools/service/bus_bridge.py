"""Carries messages unchanged from one bus to another: between rings, sockets and queues.

It subscribes to a service only while somebody listens to it on the other side: on rings each
subscription takes one of 15 places. Called by ``tools.commands.bridge``.
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

# Interval of checks for listeners, and how soon a signal is noticed.
LOOK_MS: Final = 100
# Messages of one service per round, so that a fast one does not hold up the others.
ROUND_MESSAGES: Final = 50
# How often it is looked for sockets that may not be used, and for rings that were replaced.
_CHECK_S: Final = 1.0


@dataclass(slots=True)
class Lane:
    """One service on its way; without a listener there is no subscriber.

    `dropped` messages have a size that the other side does not carry, `lost` counts how often
    messages were gone before they were taken.
    """

    service: str
    publisher: Publisher
    subscriber: Subscriber | None = None
    messages: int = 0
    dropped: int = 0
    lost: int = 0

    def pass_on(self) -> None:
        """Send what has come, up to `ROUND_MESSAGES`.

        Raises:
            TransportError: Somebody else publishes the service now.
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
        """Give the subscription up."""
        if self.subscriber is not None:
            self.lost += self.subscriber.lost
            self.subscriber.close()
            self.subscriber = None

    def close(self) -> None:
        """Give both ends up."""
        self.stop_listening()
        self.publisher.close()


class Bridge:
    """Takes services of one transport to another, in their order and byte by byte.

    Both transports stay the caller's. With `leave_out` it omits services that have a publisher on
    the target. `given_up` are services that another publisher has taken over.

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
        """Carry messages until an event is set.

        Raises:
            TransportError: The last service was taken over.
        """
        while not stop.is_set():
            self.step(LOOK_MS)

    def step(self, timeout_ms: int) -> None:
        """Wait for messages and send them on: one round.

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
        """Subscribe to what somebody listens to now, and to nothing else.

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
        """Give all ends up; the transports stay open."""
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

"""Hears the health messages of the daemons on a bus."""

from __future__ import annotations

import logging
from collections.abc import Collection
from threading import Event
from time import monotonic

from cereal.errors import MessageError
from cereal.schema import content, member_name, read_event
from cereal.transport import Transport
from cereal.transport.base import Subscriber
from modeld.health.reporter import HEALTH_SERVICES
from tools.messages.message_values import to_plain
from tools.service.health_judge import Health

logger = logging.getLogger(__name__)

SERVICES = tuple(HEALTH_SERVICES.values())
# How soon a signal is noticed.
POLL_MS = 100
# Of two daemons the second speaks within a second of the first.
OTHER_S = 1.2


class HealthEar:
    """Hears what the daemons say.

    Args:
        transport: where; the caller closes it.
        stop: ends listening early.
    """

    def __init__(self, transport: Transport, stop: Event) -> None:
        self._transport = transport
        self._stop = stop
        self._subscribers: dict[str, Subscriber] = {
            name: transport.subscriber(name, conflate=True) for name in SERVICES
        }

    def listen(self, timeout_s: float, expected: Collection[str] = SERVICES) -> dict[str, Health]:
        """Return the next message of each daemon that speaks; empty: none did in time.

        Args:
            timeout_s: Longest wait for the first one.
            expected: With all of these it is enough.
        """
        heard: dict[str, Health] = {}
        deadline = monotonic() + timeout_s
        while not heard.keys() >= set(expected) and not self._stop.is_set():
            left_s = deadline - monotonic()
            if left_s <= 0:
                break
            self._transport.wait(
                list(self._subscribers.values()), max(1, min(POLL_MS, int(1e3 * left_s)))
            )
            for name, subscriber in self._subscribers.items():
                data = subscriber.receive()
                health = None if data is None else _health_of(name, data)
                if health is not None:
                    deadline = min(deadline, monotonic() + OTHER_S) if not heard else deadline
                    heard[name] = health
        return {name: heard[name] for name in SERVICES if name in heard}


def _health_of(name: str, data: bytes) -> Health | None:
    try:
        event = read_event(data)
        if member_name(event) == name:
            return to_plain(content(event))
        logger.warning("%s: expected that message, found %s", name, member_name(event))
    except MessageError as error:
        logger.warning("%s: %s", name, error)
    return None

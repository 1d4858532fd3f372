"""Hears fields of any service on the bus, while somebody looks at them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from cereal.errors import MessageError, TransportError
from cereal.services import SERVICES
from cereal.transport.base import Subscriber, Transport
from tools.live.fields import FieldPath, Shown, read_fields

logger = logging.getLogger(__name__)

Sample = tuple[str, float, Shown]
"""A field's text, seconds since the view's start, and its value."""

# Of messages of one service that are read at once: more than a second of any.
_AT_ONCE: Final = 200
# Samples that wait to be taken; older ones are dropped.
_MAX_WAITING: Final = 20_000


class FieldEar:
    """Subscribers of services, each while one of its fields is looked at; used by one thread.

    Args:
        transport: the bus.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._subscribers: dict[str, Subscriber] = {}
        self._refused: set[str] = set()
        self._samples: list[Sample] = []

    def listen(self, fields: Mapping[str, FieldPath], now_s: float) -> None:
        """Read what has come of these fields' services, and of no others.

        Args:
            fields: that somebody looks at.
            now_s: time of what came.
        """
        # Members of Event that are no service any more have fields, too.
        wanted = {one.service for one in fields.values()} & SERVICES.keys() - self._refused
        for service in self._subscribers.keys() - wanted:
            self._subscribers.pop(service).close()
        for service in sorted(wanted):
            subscriber = self._subscriber(service)
            if subscriber is None:
                continue
            mine = [one for one in fields.values() if one.service == service]
            for _ in range(_AT_ONCE):
                data = subscriber.receive()
                if data is None:
                    break
                self._take(data, mine, now_s)

    def take(self) -> list[Sample]:
        """Return the samples since the last call."""
        samples, self._samples = self._samples, []
        return samples

    def _subscriber(self, service: str) -> Subscriber | None:
        found = self._subscribers.get(service)
        if found is None:
            try:
                found = self._subscribers[service] = self._transport.subscriber(service)
            except TransportError as error:
                logger.warning("fields of %s cannot be shown: %s", service, error)
                self._refused.add(service)
        return found

    def _take(self, data: bytes, fields: list[FieldPath], now_s: float) -> None:
        try:
            values = read_fields(data, fields)
        except MessageError:
            # The feed counts damage of its own services, and a plot has a gap.
            return
        if len(self._samples) < _MAX_WAITING:
            self._samples += [(text, round(now_s, 3), value) for text, value in values.items()]

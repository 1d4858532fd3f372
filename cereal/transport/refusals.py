"""Says in the log once what a subscriber may not receive, and when it may."""

import logging
from collections.abc import Mapping

from cereal.transport.base import Transport

logger = logging.getLogger(__name__)


class RefusalLog:
    """Looks now and then whether sockets may be used; a line for each change.

    Args:
        transport: The bus.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        # What subscribing has said already is not said again.
        self._known: Mapping[str, str] = transport.refused()

    def look(self) -> Mapping[str, str]:
        """Look again; return of each service that is refused why.

        Some microseconds for each subscriber: for once a second, and not for the loop of frames.
        """
        found = self._transport.refused()
        for service, reason in found.items():
            if self._known.get(service) != reason:
                logger.warning("%s", reason)
        for service in self._known.keys() - found.keys():
            logger.info("%s: its socket is no longer refused", service)
        self._known = found
        return found

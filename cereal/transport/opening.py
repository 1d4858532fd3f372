"""Opens the bus at an address, with the transport that the address selects.

If the daemon publishes at one address and subscribes at another, and the two need different
transports, a `SplitTransport` combines them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from cereal.stacks import Addresses, BusAddress, Stack
from cereal.transport.base import Publisher, Subscriber, Transport
from cereal.transport.msgq import Gates, MsgqTransport
from cereal.transport.zmq import ZmqTransport

if TYPE_CHECKING:
    from cereal.transport.curve import CurveKeys

# Polling interval while waiting for subscribers of two transports.
_TURN_MS = 1


def open_transport(
    addresses: Addresses,
    published: Collection[str],
    stack: Stack,
    *,
    prefix: str = "",
    gates: Gates | None = None,
    keys: "CurveKeys | None" = None,
) -> Transport:
    """Open the bus at `addresses`.

    Args:
        addresses: The address of the services in `published`, and that of all other services.
        published: Names of the services that this process publishes.
        stack: The stack whose names, ports and files are used.
        prefix: The value of OPENPILOT_PREFIX, for msgq addresses without a prefix of their own.
        gates: The lock-step gates of msgq rings; see `MsgqTransport`.
        keys: CURVE keys for addresses that leave the machine; see `ZmqTransport`.

    Raises:
        TransportError: An address is malformed.
    """
    publish, subscribe = (BusAddress.parse(text) for text in addresses)
    if publish.prefix is None and subscribe.prefix is None:
        elsewhere = dict.fromkeys(published, addresses.publish)
        return ZmqTransport(addresses.subscribe, elsewhere=elsewhere, stack=stack, keys=keys)

    def opened(address: BusAddress, text: str) -> Transport:
        if address.prefix is None:
            return ZmqTransport(text, stack=stack, keys=keys)
        return MsgqTransport(stack=stack, prefix=address.prefix or prefix, gates=gates)

    first = opened(subscribe, addresses.subscribe)
    if publish == subscribe:
        return first
    return SplitTransport(first, opened(publish, addresses.publish), frozenset(published))


class SplitTransport:
    """Two transports as one. It owns both; the services in `on_second` use the second one."""

    def __init__(self, first: Transport, second: Transport, on_second: frozenset[str]) -> None:
        self._first = first
        self._second = second
        self._on_second = on_second
        # Open subscribers of the second transport; weak, so those no longer in use drop out.
        self._seconds: WeakSet[Subscriber] = WeakSet()

    def publisher(self, service: str) -> Publisher:
        """Open the sending end of `service` on its transport."""
        return self._of(service).publisher(service)

    def subscriber(self, service: str, *, conflate: bool = False) -> Subscriber:
        """Open a receiving end of `service` on its transport."""
        end = self._of(service).subscriber(service, conflate=conflate)
        if service in self._on_second:
            self._seconds.add(end)
        return end

    def wait(self, subscribers: Sequence[Subscriber], timeout_ms: int) -> Sequence[Subscriber]:
        """Wait until one of `subscribers` has a message; return those that have one."""
        on_second = [end for end in subscribers if end in self._seconds]
        on_first = [end for end in subscribers if end not in self._seconds]
        if not on_first or not on_second:
            one = self._second if on_second else self._first
            return one.wait(subscribers, timeout_ms)
        left_ms = timeout_ms
        while True:
            # No system call waits for a signal and a socket together, so poll them in turn.
            found = {*self._first.wait(on_first, 0)}
            found.update(self._second.wait(on_second, 0 if found else min(left_ms, _TURN_MS)))
            if found or left_ms <= 0:
                return [end for end in subscribers if end in found]
            left_ms -= _TURN_MS

    def refused(self) -> Mapping[str, str]:
        """Return the refused services of both transports, with the reason for each."""
        return {**self._first.refused(), **self._second.refused()}

    def log_refused(self) -> None:
        """Log the refused services of both transports, once per change."""
        self._first.log_refused()
        self._second.log_refused()

    def close(self) -> None:
        """Close both transports."""
        self._first.close()
        self._second.close()

    def _of(self, service: str) -> Transport:
        return self._second if service in self._on_second else self._first

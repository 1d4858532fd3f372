"""Opens the bus at an address, whichever transport that names."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from cereal.stacks import Addresses, BusAddress, Stack
from cereal.transport.base import Publisher, Subscriber, Transport
from cereal.transport.msgq import Gates, MsgqTransport
from cereal.transport.zmq import ZmqTransport

if TYPE_CHECKING:
    from cereal.transport.curve import CurveKeys

# Where subscribers of two transports are waited for, each is looked at so often.
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
    """Open a bus.

    Args:
        addresses: Of the services in `published`, and of all others.
        published: Services.
        stack: Its names, ports and files are used.
        prefix: OPENPILOT_PREFIX, for rings whose address names none.
        gates: Of rings, see `MsgqTransport`.
        keys: For what leaves the machine, see `ZmqTransport`.

    Raises:
        TransportError: An address has another form.
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
    """Two transports as one: the services in `on_second` are on the second. It owns both."""

    def __init__(self, first: Transport, second: Transport, on_second: frozenset[str]) -> None:
        self._first = first
        self._second = second
        self._on_second = on_second
        # Without those that were closed and forgotten.
        self._seconds: WeakSet[Subscriber] = WeakSet()

    def publisher(self, service: str) -> Publisher:
        """Open the sending end of `service` where that is."""
        return self._of(service).publisher(service)

    def subscriber(self, service: str, *, conflate: bool = False) -> Subscriber:
        """Open a receiving end of `service` where that is."""
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
            # Nothing in the system waits for a signal and a socket at once; turns do.
            found = {*self._first.wait(on_first, 0)}
            found.update(self._second.wait(on_second, 0 if found else min(left_ms, _TURN_MS)))
            if found or left_ms <= 0:
                return [end for end in subscribers if end in found]
            left_ms -= _TURN_MS

    def refused(self) -> Mapping[str, str]:
        """Return what either refuses."""
        return {**self._first.refused(), **self._second.refused()}

    def log_refused(self) -> None:
        """Log what either refuses, each change of it once."""
        self._first.log_refused()
        self._second.log_refused()

    def close(self) -> None:
        """Close both."""
        self._first.close()
        self._second.close()

    def _of(self, service: str) -> Transport:
        return self._second if service in self._on_second else self._first

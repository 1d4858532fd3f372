"""The protocols of transports, and a transport within one process.

A transport carries messages, as whole blocks of bytes, from the publisher of a service to its
subscribers.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final, Protocol

from cereal.errors import TransportError


class Publisher(Protocol):
    """The only sender of a service. Not thread-safe."""

    def send(self, data: bytes) -> None:
        """Send one message to the current readers. Never blocks; a slow reader loses messages.

        Raises:
            MessageSizeError: the transport cannot carry a message of this size.
            TransportError: the endpoint no longer belongs to this publisher.
        """
        ...

    def has_readers(self) -> bool:
        """Return whether the service has subscribers now."""
        ...

    def is_read(self) -> bool:
        """Return whether there are readers, and all of them have received every message.

        Raises TransportError if this transport cannot know that.
        """
        ...

    def close(self) -> None:
        """Release the endpoint; further calls do nothing."""
        ...


class Subscriber(Protocol):
    """One receiver of a service. Not thread-safe."""

    @property
    def lost(self) -> int:
        """How many times messages were lost before being received; 0 if that is unknown."""
        ...

    def receive(self, timeout_ms: int = 0) -> bytes | None:
        """Return the next message, or None if none comes within `timeout_ms` (0 = do not wait)."""
        ...

    def close(self) -> None:
        """Stop receiving; further calls do nothing."""
        ...


class Transport(Protocol):
    """Creates publishers and subscribers, and owns them."""

    def publisher(self, service: str) -> Publisher:
        """Open the sending end of `service`; raise TransportError if it is taken or unusable."""
        ...

    def subscriber(self, service: str, *, conflate: bool = False) -> Subscriber:
        """Open a receiving end of `service`, which does not need a publisher yet.

        If `conflate` is set, it keeps only the newest message instead of a queue.
        """
        ...

    def wait(self, subscribers: Sequence[Subscriber], timeout_ms: int) -> Sequence[Subscriber]:
        """Wait for a message (0: do not wait); return the subscribers that have one, in order."""
        ...

    def refused(self) -> Mapping[str, str]:
        """Return the reason, in one line, for each service that this process may not receive."""
        ...

    def log_refused(self) -> None:
        """Log the reasons that `refused` returns, each once until it changes."""
        ...

    def close(self) -> None:
        """Close everything that this transport opened."""
        ...


# --- Within one process: for replay and tests. Deterministic, nothing is ever dropped ---------


class MemoryTransport:
    """Queues between publishers and subscribers of one process. Thread-safe.

    A message reaches the subscribers that exist when it is sent. Queues are unbounded, because a
    replay must not lose messages. Conflating subscribers hold one message.
    """

    def __init__(self) -> None:
        # All queues share one condition, so a wait on several subscribers works like any other.
        self._changed = threading.Condition()
        self._subscribers: dict[str, list[MemorySubscriber]] = {}
        self._published: set[str] = set()

    def publisher(self, service: str) -> "MemoryPublisher":
        """Open the sending end of `service`; raise TransportError if it already has one."""
        with self._changed:
            if service in self._published:
                raise TransportError(
                    f"memory transport, {service}: expected one publisher, got a second; "
                    "close the first or use another transport"
                )
            self._published.add(service)
        return MemoryPublisher(self, service)

    def subscriber(self, service: str, *, conflate: bool = False) -> "MemorySubscriber":
        """Open a receiving end of `service`."""
        subscriber = MemorySubscriber(self, service, conflate=conflate)
        with self._changed:
            self._subscribers.setdefault(service, []).append(subscriber)
        return subscriber

    def wait(self, subscribers: Sequence[Subscriber], timeout_ms: int) -> Sequence[Subscriber]:
        """Wait until one of `subscribers` has a message; return those that have one."""
        own = [one for one in subscribers if isinstance(one, MemorySubscriber)]
        return self._wait(own, timeout_ms)

    def refused(self) -> Mapping[str, str]:
        """Return {}: nothing is refused within one process."""
        return {}

    def log_refused(self) -> None:
        """Do nothing: nothing is refused."""

    def close(self) -> None:
        """Forget all publishers and subscribers."""
        with self._changed:
            self._subscribers.clear()
            self._published.clear()
            self._changed.notify_all()

    def _wait(
        self, subscribers: "list[MemorySubscriber]", timeout_ms: int
    ) -> "list[MemorySubscriber]":
        deadline = monotonic() + timeout_ms * 1e-3
        with self._changed:
            while not (ready := [one for one in subscribers if one.queue]):
                remaining = deadline - monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            return ready

    def _deliver(self, service: str, data: bytes) -> None:
        with self._changed:
            for subscriber in self._subscribers.get(service, ()):
                subscriber.queue.append(data)
            self._changed.notify_all()

    def _readers(self, service: str) -> "tuple[MemorySubscriber, ...]":
        with self._changed:
            return tuple(self._subscribers.get(service, ()))

    def _forget(self, service: str, subscriber: "MemorySubscriber | None") -> None:
        with self._changed:
            if subscriber is None:
                self._published.discard(service)
                return
            listening = self._subscribers.get(service, [])
            if subscriber in listening:
                listening.remove(subscriber)


class MemoryPublisher:
    """Sending end of a service in a `MemoryTransport`."""

    def __init__(self, transport: MemoryTransport, service: str) -> None:
        self._transport = transport
        self._service = service
        self._open = True

    def send(self, data: bytes) -> None:
        """Append `data` to the queue of every subscriber; raise TransportError if closed."""
        if not self._open:
            raise TransportError(
                f"memory transport, {self._service}: expected an open publisher, got a closed one; "
                "open another"
            )
        self._transport._deliver(self._service, data)

    def has_readers(self) -> bool:
        """Return whether there is a subscriber."""
        return bool(self._transport._readers(self._service))

    def is_read(self) -> bool:
        """Return whether there are subscribers, and none of them holds a message."""
        readers = self._transport._readers(self._service)
        return bool(readers) and not any(reader.queue for reader in readers)

    def close(self) -> None:
        """Free the service for another publisher."""
        if self._open:
            self._open = False
            self._transport._forget(self._service, None)


class MemorySubscriber:
    """Receiving end of a service in a `MemoryTransport`. It loses nothing: queues are unbounded."""

    lost: Final = 0

    def __init__(self, transport: MemoryTransport, service: str, *, conflate: bool) -> None:
        self.queue: deque[bytes] = deque(maxlen=1 if conflate else None)
        self._transport = transport
        self._service = service

    def receive(self, timeout_ms: int = 0) -> bytes | None:
        """Return the oldest held message, waiting up to `timeout_ms` for one."""
        if timeout_ms > 0 and not self.queue:
            self._transport._wait([self], timeout_ms)
        try:
            return self.queue.popleft()
        except IndexError:
            return None

    def close(self) -> None:
        """Stop receiving and drop the held messages."""
        self._transport._forget(self._service, self)
        self.queue.clear()

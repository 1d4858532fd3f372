"""The protocols of a transport: publishers and subscribers of whole messages, by service."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Publisher(Protocol):
    """The one sender of a service. Not to be shared between threads."""

    def send(self, data: bytes) -> None:
        """Send one message to the current readers. Never blocks; a slow reader loses messages.

        Raises:
            MessageSizeError: this transport carries no message of this size.
            TransportError: the endpoint is not this publisher's any more.
        """
        ...

    def has_readers(self) -> bool:
        """Return whether anybody subscribes to the service now."""
        ...

    def is_read(self) -> bool:
        """Return whether there are readers, and each has taken all that was sent.

        Raises TransportError if this transport cannot tell.
        """
        ...

    def close(self) -> None:
        """Release the endpoint; further calls do nothing."""
        ...


class Subscriber(Protocol):
    """One receiver of a service. Not to be shared between threads."""

    @property
    def lost(self) -> int:
        """How often messages were lost before they were received; 0 where nobody hears of it."""
        ...

    def receive(self, timeout_ms: int = 0) -> bytes | None:
        """Return the next message, or None if none comes within `timeout_ms` (0 = do not wait)."""
        ...

    def close(self) -> None:
        """Stop receiving; further calls do nothing."""
        ...


class Transport(Protocol):
    """Makes publishers and subscribers; owns them."""

    def publisher(self, service: str) -> Publisher:
        """Open the sending end of `service`; raise TransportError if it is taken or unusable."""
        ...

    def subscriber(self, service: str, *, conflate: bool = False) -> Subscriber:
        """Open a receiving end of `service`; it need not have a publisher yet.

        If it conflates, it keeps the newest message only, instead of a queue.
        """
        ...

    def wait(self, subscribers: Sequence[Subscriber], timeout_ms: int) -> Sequence[Subscriber]:
        """Return those `subscribers` that have a message, in order; wait for one (0: only look)."""
        ...

    def refused(self) -> Mapping[str, str]:
        """Return of each subscribed service that this process may not receive why, in one line."""
        ...

    def log_refused(self) -> None:
        """Log what `refused` says, each change of it once."""
        ...

    def close(self) -> None:
        """Close everything that this transport opened."""
        ...

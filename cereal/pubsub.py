"""Publishes several services (PubMaster) and follows the newest messages of others (SubMaster).

The semantics are those of openpilot's messaging (docs/formats/bus.md). Subscribers keep only the
newest message of each service. A service is alive while that message is younger than ten periods.
Its rate is checked as an average, and its sender decides whether a message is valid.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from cereal.clock import Clock
from cereal.errors import MessageError, ServiceError
from cereal.schema import content, member_name, new_event, read_event
from cereal.services import members_of, service
from cereal.transport.base import Publisher, Transport

# --- The check of a service's rate ------------------------------------------------------------

_TOLERANCE: Final = 0.2
_LONG_WINDOW_S: Final = 10
_SHORT_WINDOW_S: Final = 1
_SHORTEST_INTERVAL_NS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


class FrequencyTracker:
    """The average rate of a service's messages over 10 s and over 1 s, compared with bounds.

    `bounds_hz` is the lowest and highest acceptable average, including 20 % of tolerance. An owner
    that updates `update_hz` times a second sees at most one message per update. With `is_polled` it
    updates whenever the service has a message. Examples: at 60 updates a second, a 100 Hz service
    may have 24 to 72 Hz; at 100 updates a second, a 20 Hz service may have 16 to 24 Hz.
    """

    def __init__(self, frequency_hz: float, update_hz: float, *, is_polled: bool) -> None:
        seen_hz = max(min(frequency_hz, update_hz), 1.0)
        low_hz = high_hz = seen_hz
        if not is_polled:
            high_hz = min(seen_hz, update_hz)
            if frequency_hz >= 2 * update_hz:
                low_hz = update_hz
            elif update_hz < 2 * frequency_hz:
                # Similar rates beat: in the worst phase every other message replaces an unread one.
                low_hz = seen_hz / 2
        self.bounds_hz = (low_hz * (1 - _TOLERANCE), high_hz * (1 + _TOLERANCE))
        self._long = _Window(int(_LONG_WINDOW_S * seen_hz))
        self._short = _Window(int(_SHORT_WINDOW_S * seen_hz))
        self._last_ns: int | None = None

    def record(self, now_ns: int) -> None:
        """Record a message that arrived at `now_ns`."""
        if self._last_ns is not None:
            self._long.append(now_ns - self._last_ns)
            self._short.append(now_ns - self._last_ns)
        self._last_ns = now_ns

    def is_ok(self) -> bool:
        """Return whether either average is within the bounds; False before the second message."""
        return self._is_within(self._long) or self._is_within(self._short)

    def _is_within(self, window: "_Window") -> bool:
        mean_ns = window.mean_ns()
        if mean_ns is None:
            return False
        low_hz, high_hz = self.bounds_hz
        return low_hz <= _NS_PER_S / max(mean_ns, _SHORTEST_INTERVAL_NS) <= high_hz


class _Window:
    """The last `length` intervals and their exact sum."""

    def __init__(self, length: int) -> None:
        self._intervals_ns: deque[int] = deque(maxlen=length)
        self._sum_ns = 0

    def append(self, interval_ns: int) -> None:
        if len(self._intervals_ns) == self._intervals_ns.maxlen:
            self._sum_ns -= self._intervals_ns[0]
        self._intervals_ns.append(interval_ns)
        self._sum_ns += interval_ns

    def mean_ns(self) -> float | None:
        count = len(self._intervals_ns)
        return self._sum_ns / count if count else None


# --- Publishing and subscribing ---------------------------------------------------------------

_ALIVE_PERIODS: Final = 10
_SLOWEST_CHECKED_HZ: Final = 0.99
_LOOK_AGAIN_NS: Final = 5_000_000


class PubMaster:
    """The sending ends of several services that only this process publishes.

    The caller owns the transport. The clock provides `logMonoTime` and times the waits for readers.
    Raises ServiceError if a name is unknown and TransportError if an endpoint is taken. Methods
    raise ServiceError for a service that was not passed to the constructor.
    """

    def __init__(self, services: Iterable[str], transport: Transport, clock: Clock) -> None:
        self._clock = clock
        self._publishers = {service(name).name: transport.publisher(name) for name in services}

    def new(self, service: str, size: int | None = None) -> Any:
        """Build an Event for `service`, stamped now and not yet valid; see `schema.new_event`."""
        return new_event(service, mono_time_ns=self._clock.now_ns(), size=size)

    def send(self, service: str, message: Any) -> None:
        """Send an Event, either the builder that `new` returns or bytes. Never blocks."""
        self._of(service).send(message if isinstance(message, bytes) else message.to_bytes())

    def wait_for_readers(self, services: Iterable[str] | None = None, *, timeout_s: float) -> bool:
        """Wait until each service (default: all) has a subscriber; False on timeout."""
        publishers = [
            self._of(name) for name in (self._publishers if services is None else services)
        ]
        return self._wait(lambda: all(one.has_readers() for one in publishers), timeout_s)

    def all_readers_updated(self, service: str) -> bool:
        """Return whether `service` has readers and all of them have received every message.

        Raises TransportError if the transport cannot know that.
        """
        return self._of(service).is_read()

    def wait_for_readers_to_update(self, service: str, timeout_s: float) -> bool:
        """Wait until `all_readers_updated`; False on timeout. Raises the same errors."""
        return self._wait(self._of(service).is_read, timeout_s)

    def close(self) -> None:
        """Close the publishers; the transport stays open."""
        for publisher in self._publishers.values():
            publisher.close()

    def _of(self, service: str) -> Publisher:
        publisher = self._publishers.get(service)
        if publisher is None:
            raise ServiceError(
                f"publisher: expected one of {sorted(self._publishers)}, got {service!r}; "
                "name it when the PubMaster is made"
            )
        return publisher

    def _wait(self, is_met: Callable[[], bool], timeout_s: float) -> bool:
        deadline_ns = self._clock.now_ns() + round(timeout_s * _NS_PER_S)
        while not is_met():
            now_ns = self._clock.now_ns()
            if now_ns >= deadline_ns:
                return False
            self._clock.sleep_until_ns(min(now_ns + _LOOK_AGAIN_NS, deadline_ns))
        return True


class SubMaster:
    """The newest message of each of several services, and whether it can be relied on.

    `sm["carState"].vEgo` reads the newest carState, or the schema's defaults before the first. The
    dictionaries, by service name: `seen` (ever), `updated` (by the last `update`), `valid`,
    `alive`, `freq_ok`, `recv_time_ns` (by `clock`), `recv_frame` (value of `frame` then) and
    `mono_time_ns` (the sender's timestamp). `frame` counts the updates from 0; -1 before the first.

    A service is not valid before its first message. Services published on demand (rate 0) are
    always alive and at their rate, and valid before their first message.

    Do not keep the result of `sm["carState"]`; request it again when needed. It is a new reader
    each time, and a reader follows only a bounded number of pointers (`schema.TRAVERSAL_BYTES`), so
    that a hostile message cannot take unbounded time.

    Args:
        services: Names of the services.
        transport: The transport to subscribe to; the caller owns it.
        clock: The clock for times of reception.
        poll: The service that `update(timeout_ms > 0)` waits for. By default it waits for all, and
            the rate checks treat none as polled.
        ignore_alive: Services that `all_alive` and `all_freq_ok` leave out.
        ignore_valid: Services that `all_valid` leaves out.
        ignore_freq: Services that `all_freq_ok` leaves out.
        frequency_hz: Rate of `update`; default: that of the fastest polled service. Cannot be
            combined with `poll`, which determines the rate.
        simulation: Whether time can run unevenly: every seen service is alive and every rate right.

    Raises:
        ServiceError: a name is unknown, or both `poll` and `frequency_hz` are given.
    """

    def __init__(  # noqa: PLR0913 -- independent options, each with its default
        self,
        services: Iterable[str],
        transport: Transport,
        clock: Clock,
        *,
        poll: str | None = None,
        ignore_alive: Collection[str] = (),
        ignore_valid: Collection[str] = (),
        ignore_freq: Collection[str] = (),
        frequency_hz: float | None = None,
        simulation: bool = False,
    ) -> None:
        self._services = {name: service(name) for name in services}
        self._transport = transport
        self._clock = clock
        polled = self._polled_names(poll, frequency_hz)
        self._simulation = simulation
        self._names = {transport.subscriber(name, conflate=True): name for name in self._services}
        self._ends = tuple(self._names)
        self._polled = [end for end, name in self._names.items() if name in polled]
        self._members = {name: members_of(name) for name in self._services}
        self._ignore_alive = frozenset(ignore_alive)
        self._ignore_valid = frozenset(ignore_valid)
        slow = {n for n, s in self._services.items() if s.frequency_hz <= _SLOWEST_CHECKED_HZ}
        self._ignore_freq = self._ignore_alive | frozenset(ignore_freq) | slow

        update_hz = frequency_hz or max(
            (self._services[name].frequency_hz for name in polled), default=1.0
        )
        self._trackers = {
            name: FrequencyTracker(one.frequency_hz, update_hz, is_polled=name == poll)
            for name, one in self._services.items()
            if one.frequency_hz > 0
        }
        on_demand = {name: one.frequency_hz == 0 for name, one in self._services.items()}
        self._updated_ns = 0
        self.frame = -1
        self.seen: dict[str, bool] = dict.fromkeys(self._services, False)
        self.updated: dict[str, bool] = dict.fromkeys(self._services, False)
        self.valid: dict[str, bool] = dict(on_demand)
        self.recv_time_ns: dict[str, int] = dict.fromkeys(self._services, 0)
        self.recv_frame: dict[str, int] = dict.fromkeys(self._services, 0)
        self.mono_time_ns: dict[str, int] = dict.fromkeys(self._services, 0)
        self.rejected: dict[str, int] = dict.fromkeys(self._services, 0)
        """Number of rejected messages: not an Event, or an Event of another service; by service."""
        self.rejected_why: dict[str, str] = dict.fromkeys(self._services, "")
        """The reason for the last rejection, by service."""
        self._defaults: dict[str, Any] = {
            name: content(new_event(name, mono_time_ns=0).as_reader()) for name in self._services
        }
        # The newest message, and the name of the Event member that it holds.
        self._data: dict[str, tuple[bytes, str]] = {}
        # Readers that `update` made to check a message; the first request gets this unused reader.
        self._checked_messages: dict[str, Any] = {}

    def __getitem__(self, service: str) -> Any:
        """Return a new reader of the newest message of `service`."""
        checked = self._checked_messages.pop(service, None)
        if checked is not None:
            return checked
        newest = self._data.get(service)
        if newest is None:
            return self._defaults[service]
        data, member = newest
        return content(read_event(data), member)

    def __contains__(self, service: str) -> bool:
        return service in self._services

    @property
    def alive(self) -> dict[str, bool]:
        """Whether the newest message was recent at the last `update`, by service."""
        return {name: self._is_alive(name) for name in self._services}

    @property
    def freq_ok(self) -> dict[str, bool]:
        """Whether messages arrived at their rate up to the last `update`, by service."""
        return {name: self._is_freq_ok(name) for name in self._services}

    def update(self, timeout_ms: int = 0) -> None:
        """Receive new messages; wait for a polled service up to `timeout_ms` if there are none."""
        if timeout_ms > 0:
            self._transport.wait(self._polled, timeout_ms)
        now_ns = self._updated_ns = self._clock.now_ns()
        self.frame += 1
        for name in self.updated:
            self.updated[name] = False
        for subscriber in self._transport.wait(self._ends, 0):
            data, name = subscriber.receive(0), self._names[subscriber]
            self.updated[name] = data is not None and self._take(name, data, now_ns)

    def all_alive(self, services: Iterable[str] | None = None) -> bool:
        """Return whether `services` (default: all) are alive, apart from those to ignore."""
        return all(self._is_alive(name) for name in self._checked(services, self._ignore_alive))

    def all_valid(self, services: Iterable[str] | None = None) -> bool:
        """Return whether `services` (default: all) are valid, apart from those to ignore."""
        return all(self.valid[name] for name in self._checked(services, self._ignore_valid))

    def all_freq_ok(self, services: Iterable[str] | None = None) -> bool:
        """Return whether `services` (default: all) keep their rate, apart from those to ignore."""
        return all(self._is_freq_ok(name) for name in self._checked(services, self._ignore_freq))

    def all_checks(self, services: Iterable[str] | None = None) -> bool:
        """Return whether `services` (default: all) are alive, valid and at their rate."""
        names = None if services is None else tuple(services)
        return self.all_alive(names) and self.all_valid(names) and self.all_freq_ok(names)

    def close(self) -> None:
        """Close the subscribers; the transport stays open."""
        for subscriber in self._ends:
            subscriber.close()

    def _polled_names(self, poll: str | None, frequency_hz: float | None) -> Collection[str]:
        if poll is None:
            return tuple(self._services)
        if poll not in self._services:
            raise ServiceError(
                f"subscriber: expected to poll one of {sorted(self._services)}, got {poll!r}; "
                "add it to the services"
            )
        if frequency_hz is not None:
            raise ServiceError(
                f"subscriber: expected a service to poll or a rate of updates, found {poll!r} and "
                f"{frequency_hz:g} Hz; leave one out"
            )
        return (poll,)

    def _take(self, name: str, data: bytes, now_ns: int) -> bool:
        try:
            event, member, message = self._read(name, data)
        except MessageError as error:
            self.rejected[name] += 1
            self.rejected_why[name] = str(error)
            return False
        self._data[name] = data, member
        self._checked_messages[name] = message
        self.seen[name] = True
        self.valid[name] = event.valid
        self.mono_time_ns[name] = event.logMonoTime
        self.recv_time_ns[name] = now_ns
        self.recv_frame[name] = self.frame
        tracker = self._trackers.get(name)
        if tracker is not None:
            tracker.record(now_ns)
        return True

    def _read(self, name: str, data: bytes) -> tuple[Any, str, Any]:
        """Return a service's Event, the name of its member, and the member itself."""
        event = read_event(data)
        member = member_name(event)
        if member is None or member not in self._members[name]:
            raise MessageError(
                f"event: expected {' or '.join(self._members[name])}, got "
                f"{member or 'a member newer than our schema'}; stop its sender"
            )
        # Reading the member here detects a damaged pointer now and not when it is requested.
        return event, member, content(event, member)

    def _is_alive(self, name: str) -> bool:
        frequency_hz = self._services[name].frequency_hz
        if frequency_hz == 0:
            return True
        age_ns = self._updated_ns - self.recv_time_ns[name]
        is_recent = self._simulation or age_ns < _ALIVE_PERIODS * _NS_PER_S / frequency_hz
        return self.seen[name] and is_recent

    def _is_freq_ok(self, name: str) -> bool:
        tracker = self._trackers.get(name)
        if tracker is None:
            return True
        return self.frame >= 0 and (self._simulation or tracker.is_ok())

    def _checked(self, services: Iterable[str] | None, ignored: frozenset[str]) -> Iterable[str]:
        names = self._services if services is None else services
        return (name for name in names if name not in ignored)

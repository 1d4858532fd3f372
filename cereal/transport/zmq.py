"""Transport between processes: ZeroMQ PUB/SUB, with one single-part message per Event.

By default it uses the loopback interface. Addresses that leave the machine can be protected by
keys. See docs/formats/bus.md for the wire format.
"""

import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

import zmq

from cereal.access import holder_of_lock, holder_of_port, set_mode, why_refused
from cereal.errors import TransportError
from cereal.stacks import DEFAULT_STACK, BusAddress, Stack
from cereal.transport.base import Subscriber

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

    from cereal.transport.curve import CurveKeys

logger = logging.getLogger(__name__)

_RECONNECT_MAX_MS: Final = 500
_UNBIND_MS: Final = 1000
_SUBSCRIBES: Final = b"\x01"
_NOWHERE_ELSE: Final[Mapping[str, str]] = MappingProxyType({})

_End = TypeVar("_End", "ZmqPublisher", "ZmqSubscriber")


class ZmqTransport:
    """A transport whose publishers bind and whose subscribers connect, in any order.

    Args:
        address: "tcp://HOST" (one port per service), "tcp://HOST:+N" (N added to all ports) or
            "ipc:///DIR" (one socket file per service; the directory must exist). "tcp://*"
            publishes on all interfaces; without keys, everybody who reaches the machine can read.
        elsewhere: Service -> address, for services at another address.
        stack: The stack that gives endpoints their names and ports; services keep the 2025 names.
        keys: Keys for addresses that leave the machine. Loopback and socket files do not use them.
            None leaves such addresses unprotected and logs a warning.

    Raises:
        TransportError: an address is malformed.
    """

    def __init__(
        self,
        address: str = "tcp://127.0.0.1",
        *,
        elsewhere: Mapping[str, str] = _NOWHERE_ELSE,
        stack: Stack = DEFAULT_STACK,
        keys: "CurveKeys | None" = None,
    ) -> None:
        self._address = BusAddress.parse(address)
        self._elsewhere = {name: BusAddress.parse(text) for name, text in elsewhere.items()}
        self._stack = stack
        self._keys = keys
        self._guard: ThreadAuthenticator | None = None
        texts = dict.fromkeys((address, *elsewhere.values()))
        outside = [text for text in texts if BusAddress.parse(text).leaves_machine]
        if outside and keys is None:
            logger.warning(
                "zmq transport: anyone who can reach %s can read and forge messages; create keys "
                "with modeld keys DIRECTORY, and set bus_keys",
                " and ".join(outside),
            )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._open: list[ZmqPublisher | ZmqSubscriber] = []
        self._logged: Mapping[str, str] = {}

    def endpoint(self, service: str, *, bind: bool = False) -> str:
        """Return the ZeroMQ endpoint of `service`, to bind or to connect to."""
        return self._address_of(service).endpoint(service, self._stack, bind=bind)

    def publisher(self, service: str) -> "ZmqPublisher":
        """Bind the endpoint of `service`.

        Raises TransportError if it is taken, its path is too long, or permission is missing.
        """
        endpoint = self.endpoint(service, bind=True)
        path = _path_of(endpoint)
        lock = None if path is None else _claim(service, path)
        # XPUB is a PUB that reports subscriptions. It drops messages that a reader has no room for.
        socket = self._context.socket(zmq.XPUB)
        socket.setsockopt(zmq.LINGER, 0)
        if self._keys is not None and self._address_of(service).leaves_machine:
            self._guard = self._guard or self._keys.guard(self._context)
            self._keys.protect_publisher(socket)
        try:
            socket.bind(endpoint)
            if path is not None:
                # Without this, the umask would determine the mode.
                path.chmod(SOCKET_MODE)
        except (zmq.ZMQError, OSError) as error:
            socket.close()
            if lock is not None:
                os.close(lock)
            reason = zmq.strerror(error.errno or 0)  # without the endpoint, which is stated already
            if path is not None:
                advice = _binding_advice(path)
            else:
                holder, advice = _of_port(endpoint, error)
                reason += holder
            raise _error(service, f"to bind {endpoint}", reason, advice) from error
        return self._keep(ZmqPublisher(socket, service, lock))

    def subscriber(self, service: str, *, conflate: bool = False) -> "ZmqSubscriber":
        """Connect to the endpoint of `service`; retries in the background until it is bound.

        A socket file without permission is logged. The subscriber remains, because the file may be
        replaced; `log_refused` reports it later. Raises TransportError if the endpoint is invalid,
        its directory is missing or inaccessible, or the other machine's key is not known.
        """
        endpoint = self.endpoint(service)
        path = _path_of(endpoint)
        if path is not None:
            _check_directory(service, path)
        address = self._address_of(service)
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        if conflate:
            # Must be set before connecting. It works only because messages have a single part.
            socket.setsockopt(zmq.CONFLATE, 1)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            if self._keys is not None and address.leaves_machine:
                self._keys.protect_subscriber(socket, to_itself=address.is_any_interface)
            socket.connect(endpoint)
        except TransportError:
            socket.close()
            raise
        except zmq.ZMQError as error:
            socket.close()
            raise _error(
                service, f"to connect to {endpoint}", error, "check the address"
            ) from error
        subscriber = self._keep(ZmqSubscriber(socket, service))
        self.log_refused()
        return subscriber

    def refused(self) -> Mapping[str, str]:
        """Return the reason, in one line, for each service whose socket this process may not use.

        ZeroMQ itself retries silently forever. This makes one system call per subscriber, and can
        be called from another thread than the receiving one.
        """
        reasons = {}
        for end in tuple(self._open):
            if isinstance(end, ZmqSubscriber) and end.is_open:
                path = _path_of(self.endpoint(end.service))
                reason = None if path is None else _why_no_connection(end.service, path)
                if reason is not None:
                    reasons[end.service] = reason
        return reasons

    def log_refused(self) -> None:
        """Log the reasons that `refused` returns, once per change. Not for every frame."""
        found = self.refused()
        for service, reason in found.items():
            if self._logged.get(service) != reason:
                logger.warning("%s", reason)
        for service in self._logged.keys() - found.keys():
            logger.info("%s: its socket is no longer refused", service)
        self._logged = found

    def wait(self, subscribers: Sequence[Subscriber], timeout_ms: int) -> Sequence[Subscriber]:
        """Wait until one of `subscribers` has a message; return those that have one.

        Polling all subscribers together takes half as long as an empty `receive` from each.
        """
        ends = {
            end.socket: end for end in subscribers if isinstance(end, ZmqSubscriber) and end.is_open
        }
        if not ends:
            # pyzmq returns immediately if there is nothing to poll.
            time.sleep(timeout_ms * 1e-3)
            return []
        poller = zmq.Poller()
        for socket in ends:
            poller.register(socket, zmq.POLLIN)
        return [ends[socket] for socket, _ in poller.poll(timeout_ms)]

    def close(self) -> None:
        """Close all sockets and drop unsent messages."""
        for end in self._open:
            end.close()
        self._open.clear()
        if self._guard is not None:
            self._guard.stop()
            self._guard = None
        self._context.term()

    def _address_of(self, service: str) -> BusAddress:
        return self._elsewhere.get(service, self._address)

    def _keep(self, end: _End) -> _End:
        # Drop closed ends, so that the list stays bounded.
        self._open = [one for one in self._open if one.is_open]
        self._open.append(end)
        return end


class ZmqPublisher:
    """Sending end: a bound XPUB socket."""

    def __init__(self, socket: "zmq.Socket[bytes]", service: str, lock: int | None) -> None:
        self._socket = socket
        self._lock = lock
        self._service = service
        self._pid = os.getpid()
        self._has_readers = False

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return not self._socket.closed

    def send(self, data: bytes) -> None:
        """Send `data`; a subscriber whose queue is full misses it.

        Raises TransportError if the process was forked, or the publisher is closed.
        """
        if os.getpid() != self._pid:
            # A ZeroMQ context does not survive a fork: both processes would write to one stream.
            expected = f"to send from process {self._pid}"
            advice = "open a transport in the new process"
            raise _error(self._service, expected, os.getpid(), advice)
        try:
            self._socket.send(data, zmq.DONTWAIT)
        except zmq.Again:
            # PUB drops messages for each full reader. No room anywhere also means dropping.
            return
        except zmq.ZMQError as error:
            expected = f"to send {len(data)} bytes"
            raise _error(self._service, expected, error, "open another publisher") from error
        # Reports of subscriptions pile up unless they are read.
        self.has_readers()

    def has_readers(self) -> bool:
        """Return whether there is a connected subscriber; connecting takes some time."""
        socket = self._socket
        while not socket.closed and int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            # Everybody subscribes to everything, so only the first and the last are reported.
            self._has_readers = socket.recv(zmq.DONTWAIT)[:1] == _SUBSCRIBES
        return self._has_readers

    def is_read(self) -> bool:
        """Raise TransportError: ZeroMQ does not report what subscribers have received."""
        expected = "a transport that knows what its readers have taken"
        advice = "use msgq or memory, or wait for an answer"
        raise _error(self._service, expected, "ZeroMQ, which does not", advice)

    def close(self) -> None:
        """Unbind, and return when the endpoint is free."""
        if self._socket.closed:
            return
        # ZeroMQ unbinds in the background and removes the socket file by name. Without waiting, it
        # could remove the file of the next publisher.
        monitor = self._socket.get_monitor_socket(zmq.EVENT_CLOSED)
        self._socket.unbind(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))
        monitor.poll(_UNBIND_MS)
        self._socket.disable_monitor()
        monitor.close(linger=0)
        self._socket.close(linger=0)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class ZmqSubscriber:
    """Receiving end: a connected SUB socket. ZeroMQ does not count lost messages."""

    lost: Final = 0

    def __init__(self, socket: "zmq.Socket[bytes]", service: str) -> None:
        self.socket = socket
        self.service = service

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return not self.socket.closed

    def receive(self, timeout_ms: int = 0) -> bytes | None:
        """Return the next message; None after `timeout_ms` or if closed."""
        if self.socket.closed:
            return None
        if timeout_ms > 0 and not self.socket.poll(timeout_ms, zmq.POLLIN):
            return None
        # Reading EVENTS also processes what the I/O thread has queued. `recv` alone does so only
        # every hundredth message, so a conflating socket that is rarely read would fill up.
        if not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return None
        try:
            return self.socket.recv(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def close(self) -> None:
        """Disconnect."""
        self.socket.close(linger=0)


# --- Socket files in a directory: their modes, locks and permissions --------------------------
# Connecting requires permission to write the socket file. Without it ZeroMQ retries silently, so
# this module checks the permission itself (docs/formats/bus.md, ADR 0092).

# Owner and group only: nobody else may listen, or impersonate a sensor.
SOCKET_MODE: Final = 0o660
_SCHEME: Final = "ipc://"
# The longest path of a unix socket, without the terminator: 108 bytes with it (unix(7)).
_MAX_PATH: Final = 107
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def _path_of(endpoint: str) -> Path | None:
    """Return the socket file of an endpoint; None for a TCP endpoint."""
    return Path(endpoint.removeprefix(_SCHEME)) if endpoint.startswith(_SCHEME) else None


def _check_directory(service: str, path: Path) -> None:
    """Raise TransportError if the directory of a socket file is missing or inaccessible.

    It is never created: after a typing error, two processes would each use their own directory.
    """
    directory = path.parent
    try:
        found = None if stat.S_ISDIR(directory.stat().st_mode) else "another file"
    except (FileNotFoundError, NotADirectoryError):
        found = "none"
    except OSError as error:
        raise _closed(service, directory, error.strerror) from error
    if found is not None:
        advice = "make it, or correct the address of the bus"
        raise _error(service, f"the directory {directory}", found, advice)
    if not os.access(directory, os.X_OK, effective_ids=True):
        raise _closed(service, directory, os.strerror(errno.EACCES))


def _why_no_connection(service: str, path: Path) -> str | None:
    """Return the reason that this process may not connect to the socket at `path`; else None."""
    if os.access(path, os.W_OK, effective_ids=True):
        return None
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        found = error.strerror
    else:
        found = os.strerror(errno.EACCES)
    return str(_error(service, f"to connect to {path}", found, why_refused(path)))


def _claim(service: str, path: Path) -> int:
    """Lock the lock file next to a socket file, because ZeroMQ silently steals a bound path.

    Returns the descriptor, whose closing releases the lock. Raises TransportError if there is
    another publisher, or this process may not publish here.
    """
    if len(os.fsencode(path)) > _MAX_PATH:
        expected = f"a socket path of at most {_MAX_PATH} bytes"
        raise _error(service, expected, path, "choose a shorter directory")
    _check_directory(service, path)
    lock_path = Path(f"{path}.lock")
    try:
        lock = _open_lock(lock_path)
    except OSError as error:
        is_denied = isinstance(error, PermissionError)
        advice = why_refused(lock_path) if is_denied else "choose a directory that can be written"
        raise _error(service, f"to open or make {lock_path}", error.strerror, advice) from error
    try:
        set_mode(lock, SOCKET_MODE)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = holder_of_lock(lock) or "another publisher"
        os.close(lock)
        found = f"{error.strerror}: its lock is held by {holder}"
        advice = "stop that, or use another directory"
        raise _error(service, f"to bind {_SCHEME}{path}", found, advice) from error
    return lock


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, _LOCK_FLAGS)
    except FileNotFoundError:
        # Only if missing: Linux can refuse O_CREAT for another user's file in a shared directory.
        return os.open(path, _LOCK_FLAGS | os.O_CREAT, SOCKET_MODE)


def _closed(service: str, directory: Path, found: str | None) -> TransportError:
    return _error(service, f"to use the directory {directory}", found, why_refused(directory))


def _binding_advice(path: Path) -> str:
    """Return advice for a socket file that could not be bound."""
    if not os.access(path.parent, os.W_OK, effective_ids=True):
        return why_refused(path.parent)
    if path.is_socket():
        # It belongs to another user. In a sticky directory, only that user may remove it.
        return f"remove what is there: {why_refused(path)}"
    return "remove what is there, or use another directory"


def _of_port(endpoint: str, error: OSError | zmq.ZMQError) -> tuple[str, str]:
    """Return " by PROCESS" for an endpoint's port in use ("" if unknown), and advice."""
    if error.errno != errno.EADDRINUSE:
        return "", "publish at an address of this machine, such as tcp://127.0.0.1"
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    holder = holder_of_port(int(port), host)
    by, what = (f" by {holder}", "it") if holder else ("", "the process that has the port")
    return by, f"stop {what}, or publish at other ports, such as tcp://127.0.0.1:+1000"


def _error(service: str, expected: str, found: object, advice: str) -> TransportError:
    return TransportError(f"zmq transport, {service}: expected {expected}, got {found}; {advice}")

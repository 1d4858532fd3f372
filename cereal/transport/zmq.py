"""Transport between processes: ZeroMQ PUB/SUB, one single-part message per Event.

Wire facts in docs/formats/bus.md. Loopback by default: only between machines there are keys.
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
    """Publishers bind, subscribers connect; either may come first.

    Args:
        address: "tcp://HOST" (port by service; "tcp://HOST:+N" with all ports moved by N) or
            "ipc:///DIR" (one socket file per service; the directory must exist). "tcp://*"
            publishes on all interfaces: anyone who reaches the machine can then read, without keys.
        elsewhere: Service -> its address, where that is another one.
        stack: Gives names and ports of the endpoints; services keep their names of 2025.
        keys: For addresses that leave the machine; loopback and socket files need none. Without,
            such addresses are used as they are, which the log says.

    Raises:
        TransportError: the address has another form.
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
                "zmq transport: whoever reaches %s can read what is sent and send in its place; "
                "make keys with modeld keys DIRECTORY, and set bus_keys",
                " and ".join(outside),
            )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._open: list[ZmqPublisher | ZmqSubscriber] = []
        self._said: Mapping[str, str] = {}

    def endpoint(self, service: str, *, bind: bool = False) -> str:
        """Return the ZeroMQ endpoint of `service`, to bind or to connect to."""
        return self._address_of(service).endpoint(service, self._stack, bind=bind)

    def publisher(self, service: str) -> "ZmqPublisher":
        """Bind the endpoint of `service`.

        Raises TransportError if it is taken, this process may not make it, or its path is too long.
        """
        endpoint = self.endpoint(service, bind=True)
        path = _path_of(endpoint)
        lock = None if path is None else _claim(service, path)
        # An XPUB is a PUB that sees subscriptions; it drops what a slow reader has no room for.
        socket = self._context.socket(zmq.XPUB)
        socket.setsockopt(zmq.LINGER, 0)
        if self._keys is not None and self._address_of(service).leaves_machine:
            self._guard = self._guard or self._keys.guard(self._context)
            self._keys.protect_publisher(socket)
        try:
            socket.bind(endpoint)
            if path is not None:
                # ZeroMQ leaves the mode to the umask.
                path.chmod(SOCKET_MODE)
        except (zmq.ZMQError, OSError) as error:
            socket.close()
            if lock is not None:
                os.close(lock)
            reason = zmq.strerror(error.errno or 0)  # without the endpoint, which is said already
            if path is not None:
                advice = _binding_advice(path)
            else:
                holder, advice = _of_port(endpoint, error)
                reason += holder
            raise _error(service, f"to bind {endpoint}", reason, advice) from error
        return self._keep(ZmqPublisher(socket, service, lock))

    def subscriber(self, service: str, *, conflate: bool = False) -> "ZmqSubscriber":
        """Connect to the endpoint of `service`; retries in the background until it is bound.

        A socket that exists but may not be used is logged; it may be replaced, so the subscriber
        stays. `log_refused` reports it later. Raises TransportError if the endpoint is not one, its
        directory is missing or closed, or the key of its machine is not known.
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
            # Must come before connect; possible because messages have a single part.
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
        """Return, in one line for each service, why this process may not use its socket.

        ZeroMQ retries for ever and silently. This takes one system call for each subscriber, and
        may be called from another thread than the one that receives.
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
        """Log what `refused` says, each change of it once; for now and then, not for each frame."""
        found = self.refused()
        for service, reason in found.items():
            if self._said.get(service) != reason:
                logger.warning("%s", reason)
        for service in self._said.keys() - found.keys():
            logger.info("%s: its socket is no longer refused", service)
        self._said = found

    def wait(self, subscribers: Sequence[Subscriber], timeout_ms: int) -> Sequence[Subscriber]:
        """Wait until one of `subscribers` has a message; return those that have one.

        Asking all at once takes half the time of a `receive` from each that finds nothing.
        """
        ends = {
            end.socket: end for end in subscribers if isinstance(end, ZmqSubscriber) and end.is_open
        }
        if not ends:
            # pyzmq does not wait for nothing.
            time.sleep(timeout_ms * 1e-3)
            return []
        poller = zmq.Poller()
        for socket in ends:
            poller.register(socket, zmq.POLLIN)
        return [ends[socket] for socket, _ in poller.poll(timeout_ms)]

    def close(self) -> None:
        """Close all sockets and drop what was not sent yet."""
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
        # Callers that keep opening ends close them, too.
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

        Raises TransportError if the process was forked since, or the publisher is closed.
        """
        if os.getpid() != self._pid:
            # A ZeroMQ context does not survive a fork: both processes would write one stream.
            expected = f"to send from process {self._pid}"
            advice = "open a transport in the new process"
            raise _error(self._service, expected, os.getpid(), advice)
        try:
            self._socket.send(data, zmq.DONTWAIT)
        except zmq.Again:
            # PUB drops by itself; this is the case of no room anywhere, which is dropping too.
            return
        except zmq.ZMQError as error:
            expected = f"to send {len(data)} bytes"
            raise _error(self._service, expected, error, "open another publisher") from error
        # Messages of subscribers pile up unless they are read.
        self.has_readers()

    def has_readers(self) -> bool:
        """Return whether anybody is connected and subscribes; a connection takes some time."""
        socket = self._socket
        while not socket.closed and int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            # All subscribe to everything, so only the first and the last of them are reported.
            self._has_readers = socket.recv(zmq.DONTWAIT)[:1] == _SUBSCRIBES
        return self._has_readers

    def is_read(self) -> bool:
        """Raise TransportError: ZeroMQ does not tell."""
        expected = "a transport that knows what its readers have taken"
        advice = "use msgq or memory, or wait for an answer"
        raise _error(self._service, expected, "ZeroMQ, which does not", advice)

    def close(self) -> None:
        """Unbind, and return when the endpoint is free again."""
        if self._socket.closed:
            return
        # ZeroMQ unbinds in the background, and removes a socket file by name: without waiting, it
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
        """Return the next message, or None after `timeout_ms` or when closed."""
        if self.socket.closed:
            return None
        if timeout_ms > 0 and not self.socket.poll(timeout_ms, zmq.POLLIN):
            return None
        # Asking also takes in what the io thread has announced: receiving alone does so at each
        # hundredth message, and of a conflating end that is seldom looked at it would pile up.
        if not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return None
        try:
            return self.socket.recv(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def close(self) -> None:
        """Disconnect."""
        self.socket.close(linger=0)


# --- Socket files in a directory: their modes, locks, and who may use them --------------------
# Connecting needs permission to write the socket. ZeroMQ retries without a word where it is not
# given, so it is looked for here (docs/formats/bus.md, ADR 0092).

# The owner and the group: nobody else may listen, or pretend to be a sensor.
SOCKET_MODE: Final = 0o660
_SCHEME: Final = "ipc://"
# Longest path of a unix socket is 108 bytes with the terminator (unix(7)).
_MAX_PATH: Final = 107
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def _path_of(endpoint: str) -> Path | None:
    """Return the socket file of an endpoint; None of one without."""
    return Path(endpoint.removeprefix(_SCHEME)) if endpoint.startswith(_SCHEME) else None


def _check_directory(service: str, path: Path) -> None:
    """Raise TransportError for a directory that is missing, or that this process may not look into.

    Nothing makes it: with a misspelt address two processes would each talk to nobody.
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
    """Return why this process may not connect to the socket at `path`; None if it may or is new."""
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
    """Take the lock file beside a socket file: ZeroMQ would silently steal a bound path.

    Returns the descriptor that holds the lock until it is closed. Raises TransportError if there is
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
        # Not at first: Linux may refuse O_CREAT on another user's file in a shared directory.
        return os.open(path, _LOCK_FLAGS | os.O_CREAT, SOCKET_MODE)


def _closed(service: str, directory: Path, found: str | None) -> TransportError:
    return _error(service, f"to use the directory {directory}", found, why_refused(directory))


def _binding_advice(path: Path) -> str:
    """Return what to do where binding a socket file failed."""
    if not os.access(path.parent, os.W_OK, effective_ids=True):
        return why_refused(path.parent)
    if path.is_socket():
        # Left by another user in a sticky directory, where only that user may remove it.
        return f"remove what is there: {why_refused(path)}"
    return "remove what is there, or use another directory"


def _of_port(endpoint: str, error: OSError | zmq.ZMQError) -> tuple[str, str]:
    """Return the holder of an endpoint's port that was not bound, and what to do."""
    if error.errno != errno.EADDRINUSE:
        return "", "publish at an address of this machine, such as tcp://127.0.0.1"
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    holder = holder_of_port(int(port), host)
    by, what = (f" by {holder}", "it") if holder else ("", "what has the port")
    return by, f"stop {what}, or publish at other ports, such as tcp://127.0.0.1:+1000"


def _error(service: str, expected: str, found: object, advice: str) -> TransportError:
    return TransportError(f"zmq transport, {service}: expected {expected}, got {found}; {advice}")

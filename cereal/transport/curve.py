"""Keys of the bus between machines: ZeroMQ's CURVE, which encrypts and authenticates.

A directory holds the keys of one machine (docs/formats/bus.md, ADR 0092). `own.key_secret` is
readable by its owner only. `own.key` is given to other machines. `peers/*.key` are the public keys
of the machines that may subscribe here, and `server.key` is that of the machine to subscribe to.
pyzmq creates, reads and checks all keys.
"""

import logging
import stat
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import zmq
from zmq.auth import create_certificates, load_certificate
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from cereal.access import why_refused
from cereal.errors import TransportError

logger = logging.getLogger(__name__)

SECRET_NAME: Final = "own.key_secret"  # noqa: S105 -- a file's name
PUBLIC_NAME: Final = "own.key"
SERVER_NAME: Final = "server.key"
PEERS_NAME: Final = "peers"
# The ZAP domain. Without one, ZeroMQ admits everybody if no authenticator runs.
_DOMAIN: Final = "modeld"
_KEY_BYTES: Final = 32
_MAX_BYTES: Final = 1 << 16
_MAX_LOGGED: Final = 16


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """The keys of a machine, each in the 40 characters of ZeroMQ's text encoding (Z85)."""

    directory: Path  # the directory that the keys were read from
    public: bytes
    secret: bytes = field(repr=False)
    peers: frozenset[bytes]  # public keys that may subscribe; includes the machine's own
    server: bytes | None  # public key of the machine to subscribe to; None: not known

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the keys from a directory.

        Raises TransportError if a key is missing or damaged, or others can read the secret one.
        """
        public, secret = _own(directory / SECRET_NAME)
        peers = directory / PEERS_NAME
        if not peers.is_dir():
            raise TransportError(f"bus keys: expected the directory {peers}, found none; {_MAKE}")
        listeners = frozenset(_load(path)[0] for path in sorted(peers.glob("*.key")))
        server = directory / SERVER_NAME
        known = _load(server)[0] if server.exists() else None
        return cls(directory, public, secret, listeners | {public}, known)

    def protect_publisher(self, socket: "zmq.Socket[bytes]") -> None:
        """Restrict a socket to clients that the context's `guard` admits; call before binding."""
        socket.curve_secretkey = self.secret
        socket.curve_server = True
        socket.zap_domain = _DOMAIN.encode()

    def protect_subscriber(self, socket: "zmq.Socket[bytes]", *, to_itself: bool) -> None:
        """Restrict a socket to the machine whose key is known; call before connecting.

        With `to_itself` that is this machine. Raises TransportError if the key is not known.
        """
        server = self.public if to_itself else self.server
        if server is None:
            raise TransportError(
                f"bus keys: expected {self.directory / SERVER_NAME}, found none; copy "
                f"{PUBLIC_NAME} of the publishing machine there"
            )
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret
        socket.curve_serverkey = server

    def guard(self, context: "zmq.Context[zmq.Socket[bytes]]") -> ThreadAuthenticator:
        """Start checking clients of a context's sockets; stop the result before the context."""
        guard = ThreadAuthenticator(context)
        guard.configure_curve_callback(_DOMAIN, _SubscriberCheck(self))
        guard.start()
        return guard


class _SubscriberCheck:
    """Decides which clients may subscribe. Runs on the authenticator's thread."""

    def __init__(self, keys: CurveKeys) -> None:
        self._keys = keys
        self._logged: set[bytes] = set()

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether the holder of `key` may subscribe."""
        if key in self._keys.peers:
            return True
        if key not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(key)
            place = self._keys.directory / PEERS_NAME
            logger.warning(
                "bus keys: a client with the unknown key %s tried to subscribe; to admit it, copy "
                "the key to %s and restart",
                key.decode(),
                place,
            )
        return False


def make_keys(directory: Path) -> bool:
    """Create the missing keys of a machine; return whether it had no secret key before.

    Raises:
        TransportError: An existing key is damaged.
        OSError: The directory cannot be written.
    """
    (directory / PEERS_NAME).mkdir(parents=True, exist_ok=True)
    secret, public = directory / SECRET_NAME, directory / PUBLIC_NAME
    is_new = not secret.exists()
    if is_new:
        # The file is private from the start, because nobody else can enter a temporary directory.
        with tempfile.TemporaryDirectory(dir=directory) as place:
            made = Path(create_certificates(place, "own")[1])
            made.chmod(0o600)
            secret.hardlink_to(made)
    key, _ = _own(secret)
    if not public.exists():
        with public.open("x", encoding="ascii") as file:
            file.write(f'curve\n    public-key = "{key.decode()}"\n')
    elif _load(public)[0] != key:
        raise TransportError(
            f"bus keys: expected {public} to have the public key of {secret}, found another; "
            "remove it to have it rewritten"
        )
    return is_new


_MAKE: Final = "make keys with: modeld keys DIRECTORY"


def _own(path: Path) -> tuple[bytes, bytes]:
    """Return the public and the secret key of this machine."""
    public, secret = _load(path)
    if mode := stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise TransportError(
            f"bus keys: expected that only its owner can access {path}, found access for others "
            f"({mode:04o}); chmod 600 it, or make a new key if others may have read it"
        )
    if secret is None or zmq.curve_public(secret) != public:
        raise TransportError(
            f"bus keys: expected a matching secret and public key in {path}, found others; remove "
            f"it and {_MAKE}"
        )
    return public, secret


def _load(path: Path) -> tuple[bytes, bytes | None]:
    """Return the public key in a file, and the secret one if the file has it."""
    try:
        return _parsed(path)
    except FileNotFoundError as error:
        raise TransportError(f"bus keys: expected {path}, found none; {_MAKE}") from error
    except OSError as error:
        raise TransportError(
            f"bus keys: expected to read {path}, got {error.strerror}; {why_refused(path)}"
        ) from error
    except (ValueError, KeyError, struct.error) as error:
        raise TransportError(
            f"bus keys: expected a key in ZeroMQ's format in {path}, found none; copy it again, "
            f"or remove it and {_MAKE}"
        ) from error


def _parsed(path: Path) -> tuple[bytes, bytes | None]:
    """Return the keys in a file, as `_load` does, but with the libraries' own exceptions."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
        raise ValueError
    public, secret = load_certificate(path)
    found = [public] if secret is None else [public, secret]
    if any(len(z85.decode(key)) != _KEY_BYTES for key in found):
        raise ValueError
    return public, secret

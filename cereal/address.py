"""Where services of the bus are: a host with a rule for ports, a directory of sockets, or rings."""

import re
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple, Self, cast, get_args

from cereal.errors import AddressError
from cereal.services import PORT_SPAN, HashName
from cereal.stacks import Stack

ADDRESS_FORM: Final = (
    f"tcp://HOST, tcp://HOST:[HASH][+N] (N up to {PORT_SPAN - 1}), ipc:///DIRECTORY, msgq: or "
    "msgq:PREFIX"
)

_ANY_INTERFACE: Final = frozenset({"*", "0.0.0.0"})  # noqa: S104 -- compared with, not bound to
_LOOPBACK_NAMES: Final = frozenset({"localhost", "lo"})
_TCP: Final = re.compile(
    r"tcp://(?P<host>\[[^][/]+\]|[^][:/]+)"
    rf"(:(?=.)(?P<hash>{'|'.join(get_args(HashName))})?(\+(?P<moved>[0-9]{{1,5}}))?)?/?"
)
_MSGQ: Final = re.compile(r"msgq:(?P<prefix>[A-Za-z0-9_.-]{0,64})")
_IPC: Final = re.compile(r"ipc://(?P<directory>/*[^/].*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BusAddress:
    """An address of the bus, taken apart."""

    host: str = ""  # of TCP: a number, an interface or a name; "" for a directory
    directory: Path | None = None  # of socket files; None for a host
    hash_name: HashName | None = None  # hash that gives TCP ports; None: the stack's
    moved: int = 0  # the stack's ports plus this, in a circle
    # Of rings in shared memory, "" the one of the environment; None: no rings.
    prefix: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what an address says; raise AddressError if it has another form."""
        if found := _IPC.fullmatch(text):
            return cls(directory=Path(found["directory"]))
        if found := _MSGQ.fullmatch(text):
            return cls(prefix=found["prefix"])
        found = _TCP.fullmatch(text)
        moved = int(found["moved"] or 0) if found else 0
        if found is None or moved >= PORT_SPAN:
            raise AddressError(
                f"bus: expected {ADDRESS_FORM}, got {text!r}; use tcp://127.0.0.1 for this "
                "machine, tcp://127.0.0.1:+1000 for ports that are moved by 1000, msgq: for the "
                "rings of openpilot"
            )
        return cls(found["host"], None, cast("HashName | None", found["hash"]), moved)

    @property
    def is_any_interface(self) -> bool:
        """Whether it is every interface of this machine to bind, and this machine to connect to."""
        return self.host in _ANY_INTERFACE

    @property
    def leaves_machine(self) -> bool:
        """Whether other machines may be at the other end; of a name that is not known, yes."""
        with suppress(ValueError):
            return not ip_address(self.host.strip("[]")).is_loopback
        return bool(self.host) and self.host not in _LOOPBACK_NAMES

    def endpoint(self, service: str, stack: Stack, *, bind: bool = False) -> str:
        """Return the ZeroMQ endpoint of a service, of 2025, to bind or to connect to."""
        if self.directory is not None:
            return f"ipc://{self.directory}/{stack.endpoint(service)}"
        host = self.host
        if self.is_any_interface:
            host = "*" if bind else "127.0.0.1"
        return f"tcp://{host}:{stack.port(service, self.hash_name, self.moved)}"


class Addresses(NamedTuple):
    """Where the daemons publish, and where they subscribe."""

    publish: str
    subscribe: str

    def __str__(self) -> str:
        return " and ".join(dict.fromkeys(self))

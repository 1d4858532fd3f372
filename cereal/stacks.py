"""The stacks that modeld works with, and their bus addresses.

A stack is a generation of openpilot or sunnypilot. All differences between stacks are in `STACKS`:
the names, ports and ring files of services. openpilot renamed services in 2026; our code always
uses the names of 2025, and a transport translates them to the names of its stack (ADR 0082).
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self, cast, get_args

from cereal.errors import AddressError
from cereal.services import (
    BIG_QUEUE,
    PORT_SPAN,
    RENAMED_2026,
    SERVICES,
    HashName,
    member_of,
    port_of,
)

_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
VISION_ENDPOINT: Final = "visionipc_"
"""Prefix of the endpoints on which VisionIPC announces frames."""
_VISION_PORT: Final = 9000
_VISION_STREAM: Final = re.compile(rf"{VISION_ENDPOINT}.*_([0-9])")
_DEVICE_PARAMS: Final = Path("/data/params")


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack: its names, ports, queue sizes and paths."""

    name: str  # the stack's name in the configuration
    # Service name of 2025 -> its name on this stack, if different.
    renames: Mapping[str, str] = field(default_factory=lambda: _NO_NAMES)
    # Service name of 2025 -> Event member, if different.
    members: Mapping[str, str] = field(default_factory=lambda: _NO_NAMES)
    hash_name: HashName = "fnv1a"  # the hash that maps an endpoint's name to its TCP port
    has_small_queues: bool = False  # ring sizes are `Service.queue_bytes`; otherwise all 10 MiB
    queue_prefix: str = ""  # prefix of the ring files' names in /dev/shm
    default_queue_bytes: int = BIG_QUEUE  # ring size of an endpoint that is not a service
    vision_buffer_bytes: int = 136  # size of VisionIPC's description of a buffer
    # The user can set the lateral delay (LagdToggle, LagdValueCache).
    has_delay_params: bool = False

    def endpoint(self, name: str) -> str:
        """Return the stack's name for service `name` of 2025; other names are unchanged."""
        return self.renames.get(name, name)

    def port(self, name: str, hash_name: HashName | None = None, moved: int = 0) -> int:
        """Return the TCP port on which this stack publishes service `name` of 2025.

        A VisionIPC endpoint has port 9000 plus the number of its stream. `hash_name` replaces the
        stack's hash, and `moved` is added to the ports of all services.
        """
        if found := _VISION_STREAM.fullmatch(name):
            return _VISION_PORT + int(found[1])
        return port_of(self.endpoint(name), hash_name or self.hash_name, moved)

    def member(self, name: str) -> str:
        """Return the Event member in which this stack publishes service `name`."""
        return self.members.get(name) or member_of(name)

    def queue_bytes(self, name: str) -> int:
        """Return the data bytes of an endpoint's ring.

        `name` is a service or another endpoint, such as one of VisionIPC (`VISION_ENDPOINT`).
        """
        row = SERVICES.get(name)
        if row is None:
            return self.default_queue_bytes
        return row.queue_bytes if self.has_small_queues else BIG_QUEUE

    def queue_path(self, name: str, prefix: str = "") -> Path:
        """Return the path of the ring file of service `name` of 2025.

        `prefix` is the value of OPENPILOT_PREFIX, which separates several stacks on one machine.
        """
        place = Path("/dev/shm")  # noqa: S108 -- memory shared with the stack
        if self.queue_prefix:
            return place / f"{self.queue_prefix}{prefix and prefix + '/'}{self.endpoint(name)}"
        return place / prefix / self.endpoint(name)

    def params_dir(self, home: Path, *, root: str = "", prefix: str = "") -> Path:
        """Return the directory of the stack's parameters, which has one file for each key.

        `home` is the user's home directory. `root` is the value of PARAMS_ROOT; if it is empty,
        the result is below /data/params if that exists, as on the device, and below `home`
        otherwise. `prefix` is the value of OPENPILOT_PREFIX.
        """
        place = Path(root) if root else home / f".comma{prefix}" / "params"
        if not root and _DEVICE_PARAMS.is_dir():
            place = _DEVICE_PARAMS
        return place / (prefix or "d")


_NAMES_2026: Final = MappingProxyType({old: new for new, old in RENAMED_2026.items()})
_OPENPILOT_2026: Final = Stack(
    "openpilot-2026",
    renames=_NAMES_2026,
    members=MappingProxyType({"driverMonitoringState": "driverMonitoringStateV2"}),
    has_small_queues=True,
    queue_prefix="msgq_",
    default_queue_bytes=1 << 20,
    vision_buffer_bytes=112,
)

STACKS: Final[Mapping[str, Stack]] = MappingProxyType(
    {
        stack.name: stack
        for stack in (
            Stack("openpilot-2025"),
            _OPENPILOT_2026,
            Stack("sunnypilot", has_delay_params=True),
            replace(_OPENPILOT_2026, name="sunnypilot-2026", has_delay_params=True),
        )
    }
)
"""The known stacks by name."""

DEFAULT_STACK: Final = STACKS["openpilot-2025"]

# --- Bus addresses: a host with a port for each service, a directory of sockets, or rings -----

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
    """A parsed bus address."""

    host: str = ""  # TCP: an IP address, an interface or a host name; "" otherwise
    directory: Path | None = None  # the directory of socket files; None for TCP and rings
    hash_name: HashName | None = None  # the hash that gives TCP ports; None: the stack's
    moved: int = 0  # offset added to the stack's ports, modulo `PORT_SPAN`
    # The prefix of rings in shared memory, "" for that of the environment; None: no rings.
    prefix: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address; raise AddressError if it is malformed."""
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
        """Whether the host means all interfaces when binding and this machine when connecting."""
        return self.host in _ANY_INTERFACE

    @property
    def leaves_machine(self) -> bool:
        """Whether the address can reach other machines; true for unknown host names."""
        with suppress(ValueError):
            return not ip_address(self.host.strip("[]")).is_loopback
        return bool(self.host) and self.host not in _LOOPBACK_NAMES

    def endpoint(self, service: str, stack: Stack, *, bind: bool = False) -> str:
        """Return the ZeroMQ endpoint of service `service` of 2025, to bind or to connect to."""
        if self.directory is not None:
            return f"ipc://{self.directory}/{stack.endpoint(service)}"
        host = self.host
        if self.is_any_interface:
            host = "*" if bind else "127.0.0.1"
        return f"tcp://{host}:{stack.port(service, self.hash_name, self.moved)}"


class Addresses(NamedTuple):
    """The addresses at which the daemons publish and subscribe."""

    publish: str
    subscribe: str

    def __str__(self) -> str:
        return " and ".join(dict.fromkeys(self))

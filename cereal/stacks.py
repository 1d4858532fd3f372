"""Where the services of the bus are: names, ports and directories of each stack, and addresses.

Everything that differs from one stack to the next stands in `STACKS`. Our code uses the names of
2025 everywhere; a transport asks its stack for the name that others know (ADR 0082).
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
    """One stack: its names, ports, queues and paths."""

    name: str  # as in the configuration
    # Name of 2025 -> name on this stack, if another.
    renames: Mapping[str, str] = field(default_factory=lambda: _NO_NAMES)
    # Name of 2025 -> Event member, if another.
    members: Mapping[str, str] = field(default_factory=lambda: _NO_NAMES)
    hash_name: HashName = "fnv1a"  # hash of an endpoint's name that gives its TCP port
    has_small_queues: bool = False  # rings have `Service.queue_bytes`; else all have 10 MiB
    queue_prefix: str = ""  # prefix of a ring's file name in /dev/shm
    default_queue_bytes: int = BIG_QUEUE  # ring of an endpoint that is no service
    vision_buffer_bytes: int = 136  # VisionIPC's description of a buffer
    # The user may set the lateral delay (LagdToggle, LagdValueCache).
    has_delay_params: bool = False

    def endpoint(self, name: str) -> str:
        """Return what service `name`, of 2025, is called on this stack; other names as they are."""
        return self.renames.get(name, name)

    def port(self, name: str, hash_name: HashName | None = None, moved: int = 0) -> int:
        """Return the TCP port on which this stack publishes service `name`, of 2025.

        An endpoint of VisionIPC has port 9000 plus the number of its stream. `hash_name` replaces
        the stack's hash; `moved` is added to all ports of services.
        """
        if found := _VISION_STREAM.fullmatch(name):
            return _VISION_PORT + int(found[1])
        return port_of(self.endpoint(name), hash_name or self.hash_name, moved)

    def member(self, name: str) -> str:
        """Return the Event member in which this stack publishes service `name`."""
        return self.members.get(name) or member_of(name)

    def queue_bytes(self, name: str) -> int:
        """Return the bytes of an endpoint's ring, without its header.

        `name` is a service or another endpoint, such as one of VisionIPC (`VISION_ENDPOINT`).
        """
        row = SERVICES.get(name)
        if row is None:
            return self.default_queue_bytes
        return row.queue_bytes if self.has_small_queues else BIG_QUEUE

    def queue_path(self, name: str, prefix: str = "") -> Path:
        """Return the file of the ring of service `name`, of 2025.

        `prefix`, the value of OPENPILOT_PREFIX, keeps several stacks on one machine apart.
        """
        place = Path("/dev/shm")  # noqa: S108 -- memory shared with the stack
        if self.queue_prefix:
            return place / f"{self.queue_prefix}{prefix and prefix + '/'}{self.endpoint(name)}"
        return place / prefix / self.endpoint(name)

    def params_dir(self, home: Path, *, root: str = "", prefix: str = "") -> Path:
        """Return the directory in which this stack keeps its parameters, one file for each key.

        `home` is the user's directory. `root` is the value of PARAMS_ROOT; "" uses /data/params if
        it exists, as on the device, else a place in `home`. `prefix` is the value of
        OPENPILOT_PREFIX.
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

# --- An address: a host with a rule for ports, a directory of sockets, or rings ---------------

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

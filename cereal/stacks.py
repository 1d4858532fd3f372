"""The supported stacks: each one's service names, ports and directories.

Everything that differs from one stack to the next stands in `STACKS`. Our code uses the names of
2025 everywhere; a transport asks its stack for the name that others know (ADR 0082).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cereal.services import BIG_QUEUE, RENAMED_2026, SERVICES, HashName, member_of, port_of

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

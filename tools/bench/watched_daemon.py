"""A daemon process that is measured from outside: its messages and what it holds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cereal.schema import content, read_event

if TYPE_CHECKING:
    from cereal.transport.base import Subscriber
    from tools.lib.processes import Child


@dataclass(slots=True)
class Received:
    """The messages that arrived: one value of each per message.

    ``host_ms`` stays empty where messages do not say when their frame came.
    """

    frame_ids: list[int] = field(default_factory=list)
    execution_ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)

    def take(self, data: bytes, received_ns: int) -> None:
        """Add a message that arrived at `received_ns` of the monotonic clock."""
        event = read_event(data)
        message = content(event)
        execution_ms = 1e3 * message.modelExecutionTime
        self.frame_ids.append(message.frameId)
        self.execution_ms.append(execution_ms)
        if "timestampEof" in message.schema.fields:
            self.host_ms.append((received_ns - message.timestampEof) / 1e6 - execution_ms)
        self.valid.append(event.valid)


@dataclass(slots=True)
class WatchedDaemon:
    """A daemon, the service it publishes once a frame, and what has arrived of it."""

    child: Child
    service: str
    subscriber: Subscriber
    received: Received = field(default_factory=Received)

    def take_messages(self) -> None:
        """Take what has arrived."""
        while (data := self.subscriber.receive()) is not None:
            self.received.take(data, time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds: resident memory in MiB, open file descriptors."""

    rss_mib: float
    fds: int


def usage_of(pid: int) -> Usage:
    """Return the memory and descriptors of a process (Linux: /proc)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Usage(int(line.split()[1]) / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())))

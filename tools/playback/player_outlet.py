"""The outlet of a player: services on the bus, frames into shared-memory rings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cereal.errors import TransportError
from cereal.frames import DIRECTORY, Frame, FrameFormat, FrameRingWriter
from cereal.schema import log
from cereal.services import SERVICES, service_of_member
from cereal.transport.base import Publisher, Transport
from modeld.bus import DAEMON_SERVICES
from modeld.inputs import SUBSCRIPTIONS
from tools.errors import DriveError, ToolError, UsageError

# Without them nobody can make sense of the rest; no filter takes them away.
ALWAYS_PLAYED: Final = frozenset({"initData", "carParams"})
# What the daemons that listen publish themselves: a service has one publisher.
BLOCKED_BY_DEFAULT: Final = frozenset(DAEMON_SERVICES)
# Opened before anything is sent: who subscribed earlier needs up to half a second to connect.
OPENED_FIRST: Final = (*SUBSCRIPTIONS, "wideRoadCameraState", "carParams", "initData")


@dataclass(frozen=True, slots=True)
class ServiceFilter:
    """Which services of a drive are played.

    Attributes:
        allow: only these; empty: all.
        block: not these.
        made: by who listens: not these, unless they are allowed by name.
    """

    allow: frozenset[str] = frozenset()
    block: frozenset[str] = frozenset()
    made: frozenset[str] = BLOCKED_BY_DEFAULT

    def __post_init__(self) -> None:
        """Refuse names that are none.

        Raises:
            UsageError: no service and no message has that name.
        """
        known = {*SERVICES, *log.Event.schema.union_fields}
        for option, names in (("--allow", self.allow), ("--block", self.block)):
            unknown = sorted(names - known)
            if unknown:
                raise UsageError(
                    f"{option}: expected names of services, found {', '.join(unknown)}; names are "
                    "those of cereal/services.py"
                )

    def passes(self, service: str) -> bool:
        """Tell whether messages of `service` are played; an Event member or its service."""
        names = {service, topic_of(service)}
        if names & ALWAYS_PLAYED:
            return True
        if names & self.block:
            return False
        return bool(names & self.allow) if self.allow else not names & self.made


def topic_of(member: str) -> str:
    """Return the service on which messages of an Event member are published."""
    service = service_of_member(member)
    return member if service is None else service.name


class Outlet(Protocol):
    """What a player needs of the world."""

    def send(self, service: str, data: bytes) -> None:
        """Send one message."""
        ...

    def fill(self, stream: str, frame: Frame) -> None:
        """Copy a frame to where it will be published from."""
        ...

    def publish(self, stream: str, frame_id: int, sof_ns: int, eof_ns: int) -> None:
        """Hand over the frame filled last."""
        ...


class BusOutlet:
    """The real bus and real rings.

    Args:
        transport: the bus; stays the caller's.
        server: name of the rings.
        formats: layout of the frames by stream; a ring is made for each.
        first: services to open now; others are opened with their first message.
        directory: where the rings lie.

    Raises:
        FrameError: a ring has another writer, or memory is short.
        ToolError: a service has another publisher.
    """

    def __init__(
        self,
        transport: Transport,
        server: str,
        formats: Mapping[str, FrameFormat],
        first: Iterable[str] = (),
        *,
        directory: Path = DIRECTORY,
    ) -> None:
        self._transport = transport
        self._publishers: dict[str, Publisher] = {}
        self._rings: dict[str, FrameRingWriter] = {}
        try:
            for service in first:
                self._publisher(service)
            for stream, layout in formats.items():
                self._rings[stream] = FrameRingWriter(server, stream, layout, directory=directory)
        except BaseException:
            self.close()
            raise

    def send(self, service: str, data: bytes) -> None:
        """Send one message; `service` may be the Event member that it holds.

        Raises:
            ToolError: the service has another publisher.
        """
        self._publisher(topic_of(service)).send(data)

    def fill(self, stream: str, frame: Frame) -> None:
        """Copy a frame into the next buffer of its ring.

        Raises:
            DriveError: the drive did not announce the stream, or with another layout.
        """
        ring = self._rings.get(stream)
        if ring is None or ring.format != frame.format:
            announced = "no such stream" if ring is None else str(ring.format)
            raise DriveError(
                f"frame {frame.frame_id} of {stream}: expected {announced}, as the drive announced,"
                f" found {frame.format}; the camera changed within the drive: play its parts"
            )
        ring.next_buffer()[:] = frame.data

    def publish(self, stream: str, frame_id: int, sof_ns: int, eof_ns: int) -> None:
        """Hand the frame filled last to the readers."""
        self._rings[stream].publish(frame_id, sof_ns, eof_ns)

    def close(self) -> None:
        """Remove the rings, give up the services."""
        for ring in self._rings.values():
            ring.close()
        for publisher in self._publishers.values():
            with contextlib.suppress(TransportError):
                publisher.close()
        self._rings.clear()
        self._publishers.clear()

    def _publisher(self, service: str) -> Publisher:
        publisher = self._publishers.get(service)
        if publisher is None:
            try:
                publisher = self._transport.publisher(service)
            except TransportError as error:
                raise ToolError(f"{error}; or leave it out: --block {service}") from error
            self._publishers[service] = publisher
        return publisher

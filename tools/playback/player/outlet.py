"""The outputs of a player: messages to services on the bus, and frames to shared memory.

`ServiceFilter` selects the services of a drive that are played. `BusOutlet` sends them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cereal.cameras import CameraWriter, open_outlet
from cereal.errors import TransportError
from cereal.frames import DIRECTORY, Frame, FrameFormat
from cereal.schema import log
from cereal.services import SERVICES, service_of_member
from cereal.stacks import DEFAULT_STACK, Stack
from cereal.transport.base import Publisher, Transport
from modeld.bus import DAEMON_SERVICES
from modeld.vehicle.inputs import SUBSCRIPTIONS
from tools.errors import DriveError, ToolError, UsageError

# Other messages cannot be interpreted without these, so no filter blocks them.
ALWAYS_PLAYED: Final = frozenset({"initData", "carParams"})
# Services that a listening daemon publishes itself. A service has a single publisher.
BLOCKED_BY_DEFAULT: Final = frozenset(DAEMON_SERVICES)
# Opened before anything is sent: a running subscriber needs up to half a second to connect to a new
# publisher.
OPENED_FIRST: Final = (*SUBSCRIPTIONS, "wideRoadCameraState", "carParams", "initData")


@dataclass(frozen=True, slots=True)
class ServiceFilter:
    """Selects the services of a drive that are played."""

    allow: frozenset[str] = frozenset()  # play only these; empty for all
    block: frozenset[str] = frozenset()  # do not play these
    # Services that listening daemons publish; they are played only if named in `allow`.
    made: frozenset[str] = BLOCKED_BY_DEFAULT

    def __post_init__(self) -> None:
        """Reject unknown names with UsageError."""
        known = {*SERVICES, *log.Event.schema.union_fields}
        for option, names in (("--allow", self.allow), ("--block", self.block)):
            unknown = sorted(names - known)
            if unknown:
                raise UsageError(
                    f"{option}: expected names of services, found {', '.join(unknown)}; names are "
                    "those of cereal/services.py"
                )

    def passes(self, service: str) -> bool:
        """Return whether messages of `service`, an Event member or its service, are played."""
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
    """The interface that a player sends through."""

    def send(self, service: str, data: bytes) -> None:
        """Send one message."""
        ...

    def fill(self, stream: str, frame: Frame) -> None:
        """Copy a frame into the buffer that will be published next."""
        ...

    def publish(self, stream: str, frame_id: int, sof_ns: int, eof_ns: int) -> None:
        """Publish the frame that was filled last."""
        ...


class BusOutlet:
    """Sends to a real bus and real frame rings.

    `transport`: the bus, which the caller closes. `server`: address of the cameras, as for
    `camera_server`. `formats`: frame layout of each stream. `first`: services to open immediately;
    others are opened with their first message. `stack`: the software whose readers use VisionIPC.
    `prefix`: OPENPILOT_PREFIX, for VisionIPC. `directory`: directory of the frame rings.

    Raises:
        FrameError: the address is invalid, a stream has another writer, or memory is short.
        ToolError: a service has another publisher.
    """

    def __init__(  # noqa: PLR0913 -- what an address does not say
        self,
        transport: Transport,
        server: str,
        formats: Mapping[str, FrameFormat],
        first: Iterable[str] = (),
        *,
        stack: Stack = DEFAULT_STACK,
        prefix: str = "",
        directory: Path = DIRECTORY,
    ) -> None:
        self._transport = transport
        self._publishers: dict[str, Publisher] = {}
        self._cameras: dict[str, CameraWriter] = {}
        self._opened = contextlib.ExitStack()
        try:
            for service in first:
                self._publisher(service)
            self._cameras = open_outlet(
                server, formats, self._opened, stack=stack, prefix=prefix, directory=directory
            )
        except BaseException:
            self.close()
            raise

    def send(self, service: str, data: bytes) -> None:
        """Send one message; `service` can be the Event member that it holds.

        Raises:
            ToolError: the service has another publisher.
        """
        self._publisher(topic_of(service)).send(data)

    def fill(self, stream: str, frame: Frame) -> None:
        """Copy a frame into the next buffer of its camera.

        Raises:
            DriveError: the drive did not announce the stream, or announced another layout.
        """
        camera = self._cameras.get(stream)
        if camera is None or camera.format != frame.format:
            announced = "no such stream" if camera is None else str(camera.format)
            raise DriveError(
                f"frame {frame.frame_id} of {stream}: expected {announced}, as the drive announced,"
                f" found {frame.format}; the camera changed within the drive: play its segments "
                "separately"
            )
        camera.next_buffer()[:] = frame.data

    def publish(self, stream: str, frame_id: int, sof_ns: int, eof_ns: int) -> None:
        """Publish the frame that was filled last."""
        self._cameras[stream].publish(frame_id, sof_ns, eof_ns)

    def close(self) -> None:
        """Close the cameras and the services."""
        self._opened.close()
        for publisher in self._publishers.values():
            with contextlib.suppress(TransportError):
                publisher.close()
        self._cameras.clear()
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

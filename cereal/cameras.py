"""Cameras of a server: one protocol, whether frames come from a ring or by VisionIPC.

Which one it is says the address in the configuration (ADR 0012). A replay has no server, and gives
sources in memory (`cereal.frames.MemoryFrameSource`) to the loop.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from cereal import frames
from cereal.errors import CameraAddressError
from cereal.frames import DIRECTORY, FrameRingReader, FrameSource
from cereal.stacks import Stack
from cereal.transport import MsgqTransport, Transport, ZmqTransport
from cereal.transport.msgq import Gates
from cereal.visionipc import VisionIpcCameras

CAMERA_FORM: Final = "NAME of a frame ring, visionipc:NAME or visionipc+zmq:NAME"

_ZMQ_SCHEME: Final = "visionipc+zmq"
_ADDRESS: Final = re.compile(r"(?:(?P<scheme>visionipc(?:\+zmq)?):)?(?P<name>[^/:\0]+)")
# Their packets have fixed ports, which the number of the stream gives: others would share them.
_ZMQ_NAMES: Final = ("camerad", "navd")


class CameraSource(FrameSource, Protocol):
    """A source whose frames lie in memory that the camera process writes to."""

    def is_intact(self) -> bool:
        """Tell whether the data of the frame received last is still that frame's."""
        ...


class CameraServer(Protocol):
    """Where the cameras of one process are; it may start later, end and be replaced.

    Attributes:
        name: What messages call it.
    """

    name: str

    def available_streams(self) -> set[str]:
        """Return the streams, of `cereal.frames.STREAMS`, that a living process offers."""
        ...

    def unusable_streams(self) -> dict[str, str]:
        """Return why streams that are there cannot be read: one line for each such stream."""
        ...

    def reader(self, stream: str, *, conflate: bool) -> CameraSource:
        """Return a reader of a stream.

        Args:
            stream: One of `cereal.frames.STREAMS`.
            conflate: Always take the newest frame; else one after the other.

        Raises:
            FrameError: there is no such stream, or it cannot be read.
        """
        ...

    def close(self) -> None:
        """Close what looking took; readers are closed by themselves, before."""
        ...


class RingCameras:
    """The frame rings of one camera process.

    Args:
        name: Of the process.
        directory: Where the rings lie.
    """

    def __init__(self, name: str, *, directory: Path = DIRECTORY) -> None:
        self.name = name
        self._directory = directory

    def available_streams(self) -> set[str]:
        """Return the streams that a living process writes."""
        return frames.available_streams(self.name, directory=self._directory)

    def unusable_streams(self) -> dict[str, str]:
        """Return why rings that are there cannot be read."""
        return frames.unusable_streams(self.name, directory=self._directory)

    def reader(self, stream: str, *, conflate: bool) -> FrameRingReader:
        """Return a reader of a stream.

        Raises:
            FrameError: there is no such stream, or its file is damaged.
        """
        return FrameRingReader(self.name, stream, conflate=conflate, directory=self._directory)

    def close(self) -> None:
        """Do nothing, as looking keeps nothing open."""


class CameraAddress(NamedTuple):
    """An address of cameras, taken apart.

    Attributes:
        scheme: "visionipc" or "visionipc+zmq"; "" of frame rings.
        name: Of the camera process.
    """

    scheme: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what an address says.

        Raises:
            CameraAddressError: It has another form.
        """
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise CameraAddressError(f"cameras: expected {CAMERA_FORM}, got {text!r}; correct it")
        scheme, name = found["scheme"] or "", found["name"]
        if scheme == _ZMQ_SCHEME and name not in _ZMQ_NAMES:
            raise CameraAddressError(
                f"cameras: expected {' or '.join(_ZMQ_NAMES)} over zmq, where others have no "
                f"ports, got {name!r}; use visionipc:{name}"
            )
        return cls(scheme, name)


def open_cameras(
    address: str, stack: Stack, *, prefix: str = "", gates: Gates | None = None
) -> CameraServer:
    """Return the cameras at an address; nothing is connected yet.

    Args:
        address: Of the form `CAMERA_FORM`.
        stack: Whose rings of messages, or ports, VisionIPC's packets come on.
        prefix: Value of OPENPILOT_PREFIX.
        gates: Of the rings of messages, see `MsgqTransport`.

    Raises:
        CameraAddressError: the address is not usable.
    """
    where = CameraAddress.parse(address)
    if not where.scheme:
        return RingCameras(where.name)
    packets = open_packets(where, stack, prefix=prefix, gates=gates)
    in_lock_step = gates is not None
    return VisionIpcCameras(
        where.name, packets, name=address, prefix=prefix, in_lock_step=in_lock_step
    )


def open_packets(
    address: CameraAddress, stack: Stack, *, prefix: str = "", gates: Gates | None = None
) -> Transport:
    """Open what VisionIPC's packets come over; arguments as of `open_cameras`."""
    if address.scheme == _ZMQ_SCHEME:
        return ZmqTransport(stack=stack)
    return MsgqTransport(stack=stack, prefix=prefix, gates=gates)

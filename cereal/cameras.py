"""Cameras of a server: one protocol, whether frames come from a ring or by VisionIPC.

The address in the configuration decides which (ADR 0012). A replay has no server, and gives
sources in memory (`cereal.frames.MemoryFrameSource`) to the loop.
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cereal import frames
from cereal.errors import CameraAddressError
from cereal.frame_ring import FrameFormat
from cereal.frames import DIRECTORY, FrameRingReader, FrameRingWriter, FrameSource
from cereal.stacks import DEFAULT_STACK, Stack
from cereal.transport import MsgqTransport, Transport, ZmqTransport
from cereal.transport.msgq import Gates
from cereal.visionipc import VisionIpcCameras, VisionIpcServer

CAMERA_FORM: Final = "NAME of a frame ring, visionipc:NAME or visionipc+zmq:NAME"

_ZMQ_SCHEME: Final = "visionipc+zmq"
_ADDRESS: Final = re.compile(r"(?:(?P<scheme>visionipc(?:\+zmq)?):)?(?P<name>[^/:\0]+)")
# Their packets have fixed ports, which the number of the stream gives: others would share them.
_ZMQ_NAMES: Final = ("camerad", "navd")


class CameraSource(FrameSource, Protocol):
    """A source whose frames lie in memory that the camera process writes to."""

    def is_intact(self) -> bool:
        """Return whether the data of the frame received last is still that frame's."""
        ...


class CameraServer(Protocol):
    """The cameras of one process, which may start later, end and be replaced."""

    name: str  # what messages call it

    def available_streams(self) -> set[str]:
        """Return the streams, of `cereal.frames.STREAMS`, that a living process offers."""
        ...

    def unusable_streams(self) -> dict[str, str]:
        """Return why streams that are there cannot be read: one line for each such stream."""
        ...

    def reader(self, stream: str, *, conflate: bool) -> CameraSource:
        """Return a reader of a stream, one of `cereal.frames.STREAMS`.

        It yields every frame in order, or only the newest if it conflates. Raises FrameError if the
        stream is missing or cannot be read.
        """
        ...

    def close(self) -> None:
        """Close what looking took; readers are closed by themselves, before."""
        ...


class RingCameras:
    """The frame rings of the camera process `name`, which lie in `directory`."""

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
        """Return a reader of a stream; raise FrameError if it is missing or its file is damaged."""
        return FrameRingReader(self.name, stream, conflate=conflate, directory=self._directory)

    def close(self) -> None:
        """Do nothing, as looking keeps nothing open."""


class CameraAddress(NamedTuple):
    """An address of cameras, taken apart."""

    scheme: str  # "visionipc" or "visionipc+zmq"; "" of frame rings
    name: str  # of the camera process

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what an address says; raise CameraAddressError if it has another form."""
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
    """Return the cameras at an address of the form `CAMERA_FORM`; nothing is connected yet.

    Args:
        address: Where the cameras are.
        stack: Owner of the rings of messages, or of the ports, on which VisionIPC's packets come.
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
    """Open the transport of VisionIPC's packets; arguments as in `open_cameras`."""
    if address.scheme == _ZMQ_SCHEME:
        return ZmqTransport(stack=stack)
    return MsgqTransport(stack=stack, prefix=prefix, gates=gates)


# --- Where a camera process sends frames: rings or VisionIPC ----------------------------------

# As many as openpilot's camera process has.
_VISION_BUFFERS: Final = 18


class CameraWriter(Protocol):
    """The one writer of a camera stream, as `FrameRingWriter`."""

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames."""
        ...

    def next_buffer(self) -> NDArray[np.uint8]:
        """Return the buffer of the next frame to fill, (format.size,) uint8, with old content."""
        ...

    def publish(self, frame_id: int, timestamp_sof_ns: int, timestamp_eof_ns: int) -> None:
        """Hand the buffer of the last `next_buffer` to the readers."""
        ...


class _VisionWriter:
    """One stream of a VisionIPC server."""

    def __init__(self, server: VisionIpcServer, stream: str, form: FrameFormat) -> None:
        self._server = server
        self._stream = stream
        self.format = form

    def next_buffer(self) -> NDArray[np.uint8]:
        return self._server.next_buffer(self._stream)

    def publish(self, frame_id: int, timestamp_sof_ns: int, timestamp_eof_ns: int) -> None:
        self._server.send(self._stream, frame_id, timestamp_sof_ns, timestamp_eof_ns)


def open_outlet(
    address: str,
    formats: Mapping[str, FrameFormat],
    resources: ExitStack,
    *,
    stack: Stack = DEFAULT_STACK,
    prefix: str = "",
    directory: Path = DIRECTORY,
) -> dict[str, CameraWriter]:
    """Open the writers of the streams in `formats`; `resources` closes them.

    `address` has the form `CAMERA_FORM`. VisionIPC uses `stack` and `prefix` (OPENPILOT_PREFIX),
    rings use `directory`.

    Raises:
        FrameError: the address is not usable, another process has it, or memory is short.
        TransportError: another process announces frames by VisionIPC.
    """
    where = CameraAddress.parse(address)
    writers: dict[str, CameraWriter] = {}
    if not where.scheme:
        for stream, form in formats.items():
            ring = FrameRingWriter(where.name, stream, form, directory=directory)
            resources.callback(ring.close)
            writers[stream] = ring
        return writers
    packets = open_packets(where, stack, prefix=prefix)
    resources.callback(packets.close)
    server = resources.enter_context(
        VisionIpcServer(where.name, packets, stack=stack, prefix=prefix)
    )
    for stream, form in formats.items():
        server.create_buffers(stream, _VISION_BUFFERS, form)
        writers[stream] = _VisionWriter(server, stream, form)
    server.start()
    return writers

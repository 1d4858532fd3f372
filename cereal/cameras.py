"""Opens the cameras at a configured address, for reading or writing.

Frames come from a frame ring (`cereal.frames`) or over openpilot's VisionIPC. The address selects
one of them, and both implement the same protocols (ADR 0012). A replay does not use this module: it
passes sources in memory (`cereal.frames.MemoryFrameSource`) to the daemon's loop.
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
# VisionIPC packets over ZeroMQ have one port per stream, so other camera names would share them.
_ZMQ_NAMES: Final = ("camerad", "navd")


class CameraSource(FrameSource, Protocol):
    """A source whose frames are views of memory that the camera process writes."""

    def is_intact(self) -> bool:
        """Return whether the data of the last received frame has not been overwritten."""
        ...


class CameraServer(Protocol):
    """The cameras of one process, which can start later, stop and be replaced."""

    name: str  # the name used in messages

    def available_streams(self) -> set[str]:
        """Return the streams, a subset of `cereal.frames.STREAMS`, that a living process offers."""
        ...

    def unusable_streams(self) -> dict[str, str]:
        """Return the reason, in one line, for each existing stream that cannot be read."""
        ...

    def reader(self, stream: str, *, conflate: bool) -> CameraSource:
        """Return a reader of a stream, one of `cereal.frames.STREAMS`.

        It yields every frame in order, or only the newest if `conflate` is set. Raises FrameError
        if the stream is missing or cannot be read.
        """
        ...

    def close(self) -> None:
        """Release the resources used to look for streams. Close the readers first."""
        ...


class RingCameras:
    """The frame rings that the camera process `name` keeps in `directory`."""

    def __init__(self, name: str, *, directory: Path = DIRECTORY) -> None:
        self.name = name
        self._directory = directory

    def available_streams(self) -> set[str]:
        """Return the streams that a living process writes."""
        return frames.available_streams(self.name, directory=self._directory)

    def unusable_streams(self) -> dict[str, str]:
        """Return the reason, in one line, for each existing ring that cannot be read."""
        return frames.unusable_streams(self.name, directory=self._directory)

    def reader(self, stream: str, *, conflate: bool) -> FrameRingReader:
        """Return a reader of a stream; raise FrameError if its file is missing or damaged."""
        return FrameRingReader(self.name, stream, conflate=conflate, directory=self._directory)

    def close(self) -> None:
        """Do nothing: looking for streams keeps nothing open."""


class CameraAddress(NamedTuple):
    """A parsed camera address."""

    scheme: str  # "visionipc" or "visionipc+zmq"; "" for frame rings
    name: str  # name of the camera process

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address; raise CameraAddressError if it is malformed."""
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
        address: A camera address.
        stack: The stack whose msgq rings or ports carry VisionIPC's packets.
        prefix: Value of OPENPILOT_PREFIX.
        gates: The lock-step gates of msgq rings; see `MsgqTransport`.

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
    """Open the transport of VisionIPC's packets, with the arguments of `open_cameras`."""
    if address.scheme == _ZMQ_SCHEME:
        return ZmqTransport(stack=stack)
    return MsgqTransport(stack=stack, prefix=prefix, gates=gates)


# --- Writing frames to rings or VisionIPC -----------------------------------------------------

# The number of buffers in openpilot's camera process.
_VISION_BUFFERS: Final = 18


class CameraWriter(Protocol):
    """The only writer of a camera stream; same interface as `FrameRingWriter`."""

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames."""
        ...

    def next_buffer(self) -> NDArray[np.uint8]:
        """Return the next buffer to fill, (format.size,) uint8. It holds an old frame."""
        ...

    def publish(self, frame_id: int, timestamp_sof_ns: int, timestamp_eof_ns: int) -> None:
        """Publish the buffer that `next_buffer` returned last. The exposure times are in ns."""
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

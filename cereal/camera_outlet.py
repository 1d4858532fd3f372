"""Where a camera process sends frames, rings or VisionIPC, as the address of the cameras says."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cereal.cameras import CameraAddress, open_packets
from cereal.frame_format import FrameFormat
from cereal.frames import DIRECTORY, FrameRingWriter
from cereal.stacks import DEFAULT_STACK, Stack
from cereal.visionipc import VisionIpcServer

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
    """Open the writers of some streams.

    Args:
        address: Of the form `cereal.cameras.CAMERA_FORM`.
        formats: Layout of the frames, by stream.
        resources: Closes what was opened.
        stack: Whose readers come by VisionIPC.
        prefix: Value of OPENPILOT_PREFIX, for VisionIPC.
        directory: Of rings.

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

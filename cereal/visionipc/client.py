"""A client of VisionIPC servers of both generations: a server's cameras, and readers of streams.

Readers reconnect when the server restarts.
"""

import mmap
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cereal.errors import FrameError
from cereal.frame_ring import Fence, FrameFormat
from cereal.frames import STREAMS, Frame
from cereal.transport.base import Subscriber, Transport
from cereal.visionipc.protocol import (
    DIRECTORY,
    FRAME_ID,
    LIST_REQUESTS,
    STREAM_NUMBERS,
    Answer,
    Conversation,
    Description,
    Identity,
    Packet,
    check_stream,
    endpoint,
    parse_descriptions,
    parse_streams,
    socket_path,
)

# --- The buffers of one stream, mapped for reading --------------------------------------------


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of one stream that a server has shared."""

    server_id: int  # same as in `Packet`
    format: FrameFormat
    # The payload of each buffer, (format.size,) uint8, a read-only view.
    frames: list[NDArray[np.uint8]]
    frame_ids: list[memoryview]  # the uint64 ID after each buffer's payload, read-only
    identity: Identity  # identity of the server's socket


def _map_buffers(answer: Answer, stream: str, where: Path) -> Buffers:
    """Map the buffers of an answer. The caller closes the answer's descriptors.

    Raises FrameError if there are no buffers, or their description is invalid.
    """
    if not answer.data and not answer.descriptors:
        raise FrameError(
            f"{where}: expected the stream {stream}, got none; check why the camera process "
            "does not offer it"
        )
    described = parse_descriptions(answer.data, len(answer.descriptors), stream, where)
    frames, frame_ids = [], []
    for one, descriptor in zip(described, answer.descriptors, strict=True):
        memory = _map(descriptor, one, where)
        frames.append(np.frombuffer(memory, np.uint8, one.size))
        frame_ids.append(memoryview(memory)[one.size :].cast("Q"))
    first = described[0]
    return Buffers(first.server_id, first.format, frames, frame_ids, answer.identity)


def _map(descriptor: int, one: Description, where: Path) -> mmap.mmap:
    """Map the payload and the frame ID of one buffer."""
    length = one.size + FRAME_ID.size
    status = os.fstat(descriptor)
    reason = ""
    # Reading beyond the end of a file would kill this process, so its size is checked. Device
    # memory reports no size, but the kernel maps only as much as exists.
    if stat.S_ISREG(status.st_mode) and status.st_size < length:
        reason = f"a file of {status.st_size}"
    else:
        try:
            return mmap.mmap(descriptor, length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            # Out of memory, out of descriptors (mmap duplicates it), or the file cannot be mapped.
            reason = str(error)
    raise FrameError(
        f"{where}: expected to map {length} bytes of buffer {one.idx}, got {reason}; fix the "
        "camera process, or free memory or descriptors"
    )


# --- A reader of one stream -------------------------------------------------------------------

# Pause after a request that returned buffers of another server.
_ASK_AGAIN_S: Final = 0.02
# Maximum number of packets to skip in one call, because they are overwritten or of another server.
_MAX_PACKETS: Final = 256


class VisionIpcReader:
    """A reader of a camera stream; a CameraSource.

    Packets arrive over a transport; the frames are in the camera process's memory. A frame's data
    is a view of that memory: use it promptly and call `is_intact` afterwards. `lapped` is the
    number of frames that were overwritten before they were received.

    Args:
        conversation: Connection to the server; the reader closes it.
        stream: One of STREAMS.
        packets: Subscriber of the stream's endpoint. It determines whether the reader conflates;
            the reader closes it.
        in_lock_step: Whether the server fills no buffer until the next frame is requested.

    Raises:
        FrameError: there is no server or no such stream, or the answer is invalid. Both
            `conversation` and `packets` are then closed.
    """

    def __init__(
        self,
        conversation: Conversation,
        stream: str,
        packets: Subscriber,
        *,
        in_lock_step: bool = False,
    ) -> None:
        self._in_lock_step = in_lock_step
        self._conversation = conversation
        self._stream = stream
        self._packets = packets
        self._fence = Fence()
        self._failed_request_s = -_ASK_AGAIN_S
        self._is_open = True
        self.lapped = 0
        try:
            self._buffers = self._ask()
        except BaseException:
            packets.close()
            conversation.close()
            raise
        # The frame's buffer ID, the previous buffer's ID, the stored ID and the announced ID.
        self._held: tuple[memoryview, memoryview, int, int] | None = None

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames; can change when the server is replaced."""
        return self._buffers.format

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame (the newest if conflating); None if none arrives in `timeout_ms`.

        If the first packet is usable it receives only once from the transport, as lock step
        requires.
        """
        deadline = time.monotonic() + timeout_ms * 1e-3
        wait_ms = timeout_ms
        for _ in range(_MAX_PACKETS):
            data = self._packets.receive(wait_ms) if self._is_open else None
            if data is None:
                self._look_for_restart()
                return None
            frame = self._take(data)
            if frame is not None:
                return frame
            wait_ms = max(0, int((deadline - time.monotonic()) * 1e3))
        return None

    def is_intact(self) -> bool:
        """Return whether the data of the last received frame has not been overwritten.

        A server writes the ID when a buffer is complete, so a newer ID in the previous buffer means
        that this one is being filled. IDs much further ahead are left over from before a seek.
        """
        if self._held is None:
            return False
        own, before, written, frame_id = self._held
        self._fence.order()
        ahead = before[0] - frame_id
        is_filled = 0 < ahead <= len(self._buffers.frames) and not self._in_lock_step
        return own[0] == written and not is_filled

    def close(self) -> None:
        """Stop receiving. Frames received earlier remain readable."""
        if self._is_open:
            self._is_open = False
            self._packets.close()
            self._conversation.close()
            self._held = None
            self._buffers = replace(self._buffers, frames=[], frame_ids=[])

    def _take(self, data: bytes) -> Frame | None:
        """Return the frame that a packet announces; None if it is gone or another server's."""
        packet = Packet.unpack(data)
        if packet is None or not (self._has(packet) or self._reconnected_to(packet)):
            return None
        buffers = self._buffers
        own = buffers.frame_ids[packet.idx]
        written = own[0]
        # Servers that do not write IDs leave zero there.
        if written not in (packet.frame_id, 0):
            self.lapped += 1
            return None
        self._fence.order()
        self._held = (own, buffers.frame_ids[packet.idx - 1], written, packet.frame_id)
        return Frame(
            buffers.frames[packet.idx],
            buffers.format,
            packet.frame_id,
            packet.sof_ns,
            packet.eof_ns,
        )

    def _has(self, packet: Packet) -> bool:
        buffers = self._buffers
        return packet.server_id == buffers.server_id and packet.idx < len(buffers.frames)

    def _reconnected_to(self, packet: Packet) -> bool:
        """Connect to the server that sent a packet, if necessary; return whether that worked."""
        if packet.server_id != self._buffers.server_id:
            self._connect(lambda: self._has(packet))
        return self._has(packet)

    def _look_for_restart(self) -> None:
        """Reconnect if another socket is now at the path. Called when no packet arrives."""
        identity: Identity | None = None
        with suppress(FrameError):
            identity = self._conversation.identity() if self._is_open else None
        if identity not in (None, self._buffers.identity):
            self._connect(lambda: self._buffers.identity == identity)

    def _connect(self, is_right: Callable[[], bool]) -> None:
        """Request the server's current buffers; keep the old ones if that fails.

        Errors are ignored here; `VisionIpcCameras.unusable_streams` reports them.
        """
        now_s = time.monotonic()
        if now_s - self._failed_request_s < _ASK_AGAIN_S:
            return
        with suppress(FrameError):
            self._buffers = self._ask()
        if not is_right():
            self._failed_request_s = now_s

    def _ask(self) -> Buffers:
        path = self._conversation.path
        answer = self._conversation.ask(STREAM_NUMBERS[self._stream])
        if answer is None:
            raise FrameError(f"{path}: expected a camera process, got none; start it")
        with answer:
            return _map_buffers(answer, self._stream, path)


# --- The cameras of a server: a `CameraServer` ------------------------------------------------


class VisionIpcCameras:
    """The streams of a VisionIPC server, which can start later, stop and be replaced.

    It owns `transport`, which carries the server's packets. `name` is used in messages. `prefix`
    is the value of OPENPILOT_PREFIX, `directory` that of the socket; see `VisionIpcReader` for
    `in_lock_step`. Raises FrameError if the server's name or the prefix is not usable.
    """

    def __init__(
        self,
        server: str,
        transport: Transport,
        *,
        name: str = "",
        prefix: str = "",
        directory: Path = DIRECTORY,
        in_lock_step: bool = False,
    ) -> None:
        self._in_lock_step = in_lock_step
        self.name = name or server
        self._server = server
        self._transport = transport
        self._path = socket_path(server, prefix, directory)
        self._conversation = Conversation(self._path)
        # The order of requests to try; an answer shows which one the server understands.
        self._requests: tuple[int, ...] = LIST_REQUESTS

    def available_streams(self) -> set[str]:
        """Return the streams of a running server; an empty set if it cannot be queried."""
        try:
            return self._streams()
        except FrameError:
            return set()

    def unusable_streams(self) -> dict[str, str]:
        """Return the reason, in one line, for each existing stream that cannot be read.

        If the socket is unusable, all streams have the same reason, because each may exist.
        """
        try:
            offered = self._streams()
        except FrameError as error:
            return dict.fromkeys(STREAMS, str(error))
        refused = self._transport.refused()
        reasons = {}
        for stream in STREAMS:
            packets = endpoint(self._server, stream)
            if packets in refused:
                reasons[stream] = refused[packets]
            try:
                if stream in offered:
                    self._check_buffers(stream)
            except FrameError as error:
                reasons[stream] = str(error)
        return reasons

    def reader(self, stream: str, *, conflate: bool) -> VisionIpcReader:
        """Return a reader of a stream, one of STREAMS. It may skip to the newest (`conflate`).

        Raises:
            FrameError: the stream is missing or cannot be read.
            TransportError: its packets cannot be subscribed to.
        """
        check_stream(stream)
        # Check the list first: servers print a line when a missing stream is requested.
        if stream not in self._streams():
            raise FrameError(
                f"{self._path}: expected the stream {stream}, got none; start the camera process"
            )
        packets = self._transport.subscriber(endpoint(self._server, stream), conflate=conflate)
        return VisionIpcReader(
            Conversation(self._path), stream, packets, in_lock_step=self._in_lock_step
        )

    def close(self) -> None:
        """Close the transport and any pending request."""
        self._conversation.close()
        self._transport.close()

    def _streams(self) -> set[str]:
        """Request the list of streams, first in the newer servers' form, then in the older.

        A server that does not know the request, or has no streams, returns an empty answer.
        """
        for request in self._requests:
            answer = self._conversation.ask(request)
            if answer is None:
                break
            with answer:
                # An answer with descriptors is about a stream that has the request's number.
                if answer.data and not answer.descriptors:
                    others = (one for one in LIST_REQUESTS if one != request)
                    self._requests = (request, *others)
                    return parse_streams(answer.data, self._path)
        return set()

    def _check_buffers(self, stream: str) -> None:
        answer = self._conversation.ask(STREAM_NUMBERS[stream])
        if answer is not None:
            with answer:
                _map_buffers(answer, stream, self._path)

"""A client of a VisionIPC server of either generation: its cameras, and a reader of one stream.

Readers follow the server over its restarts.
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
    """The buffers that a server handed over."""

    server_id: int  # as of `Packet`
    format: FrameFormat
    # Of each buffer its payload, (format.size,) uint8, a read-only view.
    frames: list[NDArray[np.uint8]]
    frame_ids: list[memoryview]  # of each buffer the uint64 id behind the payload, read-only
    identity: Identity  # of their socket


def _map_buffers(answer: Answer, stream: str, where: Path) -> Buffers:
    """Map what came with an answer; its descriptors stay the caller's to close.

    Raises FrameError if there are no buffers, or their description is impossible.
    """
    if not answer.data and not answer.descriptors:
        raise FrameError(
            f"{where}: expected the stream {stream}, got none; see why the camera process "
            "does not have it"
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
    """Map payload and frame id of one buffer."""
    length = one.size + FRAME_ID.size
    status = os.fstat(descriptor)
    reason = ""
    # Reading beyond the end of a file ends a process. Of memory of a device, which has no size
    # here, the kernel maps no more than there is.
    if stat.S_ISREG(status.st_mode) and status.st_size < length:
        reason = f"a file of {status.st_size}"
    else:
        try:
            return mmap.mmap(descriptor, length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            # No memory, no descriptor for the copy that mmap keeps, or nothing that can be mapped.
            reason = str(error)
    raise FrameError(
        f"{where}: expected to map {length} bytes of buffer {one.idx}, got {reason}; mend the "
        "camera process, or free memory or descriptors"
    )


# --- A reader of one stream -------------------------------------------------------------------

# Pause after a server offered the wrong buffers.
_ASK_AGAIN_S: Final = 0.02
# Packets that one call skips (overwritten, or from another server) before it returns None.
_MAX_PACKETS: Final = 256


class VisionIpcReader:
    """A reader of a camera stream; a CameraSource.

    The packets come over a transport, the frames lie in memory of the camera process. A frame's
    data is a view of that memory: use it at once and ask `is_intact` afterwards. `lapped` counts
    frames that were overwritten before they were received.

    Args:
        conversation: With the server; the reader closes it.
        stream: One of STREAMS.
        packets: Subscriber of the stream's endpoint, which decides whether frames conflate; the
            reader closes it.
        in_lock_step: The server fills no buffer before the next frame is asked for.

    Raises:
        FrameError: there is no server or no such stream, or its answer is impossible; both
            arguments are closed then.
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
        self._asked_in_vain_s = -_ASK_AGAIN_S
        self._is_open = True
        self.lapped = 0
        try:
            self._buffers = self._ask()
        except BaseException:
            packets.close()
            conversation.close()
            raise
        # A buffer and the one that is filled before it, with the id of the frame received last.
        self._held: tuple[memoryview, memoryview, int, int] | None = None

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames; may change when the server is replaced."""
        return self._buffers.format

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next (conflating: the newest) frame, None if none comes within `timeout_ms`.

        Receives once from the transport where the first packet can be used, as lock step asks.
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
        """Return whether the data of the frame received last is still that frame's.

        A server writes an id when a buffer is full, so a newer id in the previous buffer means that
        ours is being filled. Ids further ahead are of a time before a seek.
        """
        if self._held is None:
            return False
        own, before, written, frame_id = self._held
        self._fence.order()
        ahead = before[0] - frame_id
        is_filled = 0 < ahead <= len(self._buffers.frames) and not self._in_lock_step
        return own[0] == written and not is_filled

    def close(self) -> None:
        """Stop receiving; frames received before keep their memory."""
        if self._is_open:
            self._is_open = False
            self._packets.close()
            self._conversation.close()
            self._held = None
            self._buffers = replace(self._buffers, frames=[], frame_ids=[])

    def _take(self, data: bytes) -> Frame | None:
        """Return the frame that a packet announces, if it is still there."""
        packet = Packet.unpack(data)
        if packet is None or not (self._has(packet) or self._reconnected_to(packet)):
            return None
        buffers = self._buffers
        own = buffers.frame_ids[packet.idx]
        written = own[0]
        # A server that does not write ids leaves zero there.
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
        """Ask for the buffers of the server that sent a packet; True if these are its."""
        if packet.server_id != self._buffers.server_id:
            self._connect(lambda: self._has(packet))
        return self._has(packet)

    def _look_for_restart(self) -> None:
        """Where nothing comes, ask again if another socket lies at the path."""
        identity: Identity | None = None
        with suppress(FrameError):
            identity = self._conversation.identity() if self._is_open else None
        if identity not in (None, self._buffers.identity):
            self._connect(lambda: self._buffers.identity == identity)

    def _connect(self, is_right: Callable[[], bool]) -> None:
        """Take the buffers that the server has now; keep the old ones if that fails.

        Silent: `VisionIpcCameras.unusable_streams` says why a server cannot be used.
        """
        now_s = time.monotonic()
        if now_s - self._asked_in_vain_s < _ASK_AGAIN_S:
            return
        with suppress(FrameError):
            self._buffers = self._ask()
        if not is_right():
            self._asked_in_vain_s = now_s

    def _ask(self) -> Buffers:
        path = self._conversation.path
        answer = self._conversation.ask(STREAM_NUMBERS[self._stream])
        if answer is None:
            raise FrameError(f"{path}: expected a camera process, got none; start it")
        with answer:
            return _map_buffers(answer, self._stream, path)


# --- The cameras; a `CameraServer` ------------------------------------------------------------


class VisionIpcCameras:
    """The streams of a VisionIPC server, which may start later, end and be replaced.

    It owns the transport of the server's packets. Messages call it `name`. `prefix` is the value of
    OPENPILOT_PREFIX; `directory` is that of the socket, and `in_lock_step` is as of
    `VisionIpcReader`. Raises FrameError if the server's name or the prefix is not usable.
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
        # The answer shows which request the server understands.
        self._requests: tuple[int, ...] = LIST_REQUESTS

    def available_streams(self) -> set[str]:
        """Return the streams that a living server has; none of one that cannot be asked."""
        try:
            return self._streams()
        except FrameError:
            return set()

    def unusable_streams(self) -> dict[str, str]:
        """Return why existing streams cannot be read: one line for each such stream.

        An unusable socket gives the same line for each, as any may be behind it.
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
                    self._try(stream)
            except FrameError as error:
                reasons[stream] = str(error)
        return reasons

    def reader(self, stream: str, *, conflate: bool) -> VisionIpcReader:
        """Return a reader of a stream, one of STREAMS; if it conflates, it takes the newest frame.

        Raises:
            FrameError: the stream is missing or cannot be read.
            TransportError: its packets cannot be subscribed to.
        """
        check_stream(stream)
        # The list first: servers print a line on their console for a request of a missing stream.
        if stream not in self._streams():
            raise FrameError(
                f"{self._path}: expected the stream {stream}, got none; start the camera process"
            )
        packets = self._transport.subscriber(endpoint(self._server, stream), conflate=conflate)
        return VisionIpcReader(
            Conversation(self._path), stream, packets, in_lock_step=self._in_lock_step
        )

    def close(self) -> None:
        """Close the transport, and end a question that was not answered."""
        self._conversation.close()
        self._transport.close()

    def _streams(self) -> set[str]:
        """Ask for the streams, as the newer servers want it, then as the older ones do.

        A server without such a request, or without streams, answers with nothing.
        """
        for request in self._requests:
            answer = self._conversation.ask(request)
            if answer is None:
                break
            with answer:
                # Descriptors belong to a stream that has the number.
                if answer.data and not answer.descriptors:
                    others = (one for one in LIST_REQUESTS if one != request)
                    self._requests = (request, *others)
                    return parse_streams(answer.data, self._path)
        return set()

    def _try(self, stream: str) -> None:
        answer = self._conversation.ask(STREAM_NUMBERS[stream])
        if answer is not None:
            with answer:
                _map_buffers(answer, stream, self._path)

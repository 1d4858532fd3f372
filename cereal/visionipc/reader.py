"""A reader of one camera stream of a VisionIPC server; follows the server over its restarts."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from cereal.errors import FrameError
from cereal.frame_ring import Fence, FrameFormat
from cereal.frames import Frame
from cereal.transport.base import Subscriber
from cereal.visionipc.buffers import Buffers, map_buffers
from cereal.visionipc.conversation import Conversation, Identity
from cereal.visionipc.layout import STREAM_NUMBERS, Packet

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
            return map_buffers(answer, self._stream, path)

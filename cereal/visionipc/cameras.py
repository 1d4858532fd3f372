"""The cameras of a VisionIPC server, whichever generation it is of; a `CameraServer`."""

from pathlib import Path

from cereal.errors import FrameError
from cereal.frames import STREAMS
from cereal.transport.base import Transport
from cereal.visionipc.buffers import map_buffers
from cereal.visionipc.conversation import Conversation
from cereal.visionipc.layout import (
    DIRECTORY,
    LIST_REQUESTS,
    STREAM_NUMBERS,
    check_stream,
    endpoint,
    parse_streams,
    socket_path,
)
from cereal.visionipc.reader import VisionIpcReader


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
                map_buffers(answer, stream, self._path)

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
    """What a VisionIPC server offers. It may start later, end and be replaced.

    Args:
        server: Name of the camera process.
        transport: That its packets come over; closed with this.
        name: What messages call it.
        prefix: Value of OPENPILOT_PREFIX.
        directory: Of its socket; /tmp unless a test says otherwise.
        in_lock_step: As of `VisionIpcReader`.

    Raises:
        FrameError: the name or the prefix is not usable.
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
        # What the server takes for a request to list is seen by its answer.
        self._requests: tuple[int, ...] = LIST_REQUESTS

    def available_streams(self) -> set[str]:
        """Return the streams that a living server has; none of one that cannot be asked."""
        try:
            return self._streams()
        except FrameError:
            return set()

    def unusable_streams(self) -> dict[str, str]:
        """Return why streams that are there cannot be read: one line for each such stream.

        Of a socket that cannot be used the same line for each, as any may be behind it.
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
        """Return a reader of a stream.

        Args:
            stream: One of STREAMS.
            conflate: Always take the newest frame.

        Raises:
            FrameError: the stream is not there, or cannot be read.
            TransportError: its packets cannot be subscribed to.
        """
        check_stream(stream)
        # The list first: servers say on their console that somebody asked for what they lack.
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

        What is no such request to a server it takes for a stream that it lacks, and answers with
        nothing. So does one without streams.
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

"""What tests of VisionIPC need: servers that say anything, and the bytes of good ones."""

import contextlib
import gc
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cereal.frames import Frame, FrameFormat
from cereal.transport import MemoryTransport
from cereal.visionipc import VisionIpcCameras, VisionIpcReader, VisionIpcServer
from tests.cereal.shared import MS, SMALL

LONG_MS = 20_000  # what is waited where something should come sooner
SERVER_ID = 0x0123456789ABCDEF
SOCKET = "visionipc_camerad"
# Where each number lies in a description, whatever its size.
_NAMES = ("len", "mmap_len", "width", "height", "stride", "uv_offset", "server_id", "idx", "type")
OFFSETS = dict(zip(_NAMES, (0, 8, 40, 48, 56, 64, 88, 96, 104), strict=True))

Reply = tuple[bytes, list[int]]


def description(number: int, size: int, **change: int) -> bytes:
    """Return a description of a SMALL buffer with a stranger's pointers in it."""
    found = bytearray(b"\xab" * size)
    numbers = (192, 200, 16, 8, 16, 128, SERVER_ID, number, 0)
    values = dict(zip(OFFSETS, numbers, strict=True)) | change
    for name, offset in OFFSETS.items():
        form = "<I" if name == "type" else "<Q"
        struct.pack_into(form, found, offset, values[name])
    return bytes(found)


def packet(
    idx: int, frame_id: int, server_id: int = SERVER_ID, sof_ns: int = 0, eof_ns: int = 0
) -> bytes:
    """Return the packet that announces a frame, written down by hand."""
    found = bytearray(48)
    for offset, value in ((0, server_id), (8, idx), (16, frame_id), (24, sof_ns), (32, eof_ns)):
        struct.pack_into("<I" if offset == 16 else "<Q", found, offset, value)
    found[40] = 1
    return bytes(found)


def memory(size: int = 200) -> int:
    """Return a descriptor of so many bytes of zeros."""
    descriptor = os.memfd_create("frame")
    os.truncate(descriptor, size)
    return descriptor


class Stranger:
    """A server that answers each request with whatever `reply` returns; None: never."""

    def __init__(self, place: Path, reply: Callable[[int], Reply | None]) -> None:
        self.requests: list[int] = []
        self._reply = reply
        self._held: list[socket.socket] = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(str(place / SOCKET))
        self.socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def answer_late(self, reply: Reply) -> None:
        with self._held.pop(0) as client:
            socket.send_fds(client, [reply[0]], reply[1])

    @property
    def waiting(self) -> int:
        """How many clients have not been answered."""
        return len(self._held)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                data = client.recv(16)
                if len(data) != 4:
                    client.close()
                    continue
                self.requests.append(int.from_bytes(data, "little"))
                reply = self._reply(self.requests[-1])
                if reply is None:
                    self._held.append(client)
                    continue
                with client:
                    socket.send_fds(client, [reply[0]], reply[1])

    def close(self) -> None:
        """End it, as a killed process does."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.socket.close()
        for client in self._held:
            client.close()


def publish(server: VisionIpcServer, *frame_ids: int, stream: str = "road") -> None:
    """Send frames whose bytes and times follow from their ids."""
    for frame_id in frame_ids:
        server.next_buffer(stream)[:] = frame_id % 251
        server.send(stream, frame_id, frame_id * 50 * MS, frame_id * 50 * MS + 10)


def received(reader: VisionIpcReader) -> Frame:
    frame = reader.receive(LONG_MS)
    assert frame is not None
    assert (frame.data == frame.frame_id % 251).all()
    assert frame.timestamp_sof_ns == frame.frame_id * 50 * MS
    assert frame.timestamp_eof_ns == frame.frame_id * 50 * MS + 10
    return frame


class Bench:
    """A server in a directory, and what reads it, on one bus of memory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.bus = MemoryTransport()
        self.cameras = VisionIpcCameras("camerad", self.bus, directory=place)
        self._made = contextlib.ExitStack()

    def serve(self, count: int = 4, form: FrameFormat = SMALL, *streams: str) -> VisionIpcServer:
        server = VisionIpcServer("camerad", self.bus, directory=self.place)
        self._made.callback(server.close)
        for stream in streams or ("road",):
            server.create_buffers(stream, count, form)
        server.start()
        return server

    def strange(self, reply: Callable[[int], Reply | None]) -> Stranger:
        stranger = Stranger(self.place, reply)
        self._made.callback(stranger.close)
        return stranger

    def read(self, stream: str = "road", *, conflate: bool = False) -> VisionIpcReader:
        reader = self.cameras.reader(stream, conflate=conflate)
        self._made.callback(reader.close)
        return reader

    def close(self) -> None:
        self._made.close()
        self.cameras.close()


def benches(place: Path) -> Iterator[Bench]:
    """Yield a bench; the body of a fixture."""
    bench = Bench(place)
    yield bench
    bench.close()


def open_descriptors() -> list[str]:
    """Return what this process has open, but the directory that is read for it."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(link))  # noqa: PTH115 -- no file need be there
    return sorted(found)


def until_closed(before: list[str]) -> None:
    """Wait until this process has open what it had; a server in a thread takes a moment."""
    deadline_s = time.monotonic() + LONG_MS * 1e-3
    while open_descriptors() != before and time.monotonic() < deadline_s:
        gc.collect()
    assert open_descriptors() == before

"""VisionIPC: its bytes, frames from server to reader, and readers that follow a server."""

import itertools
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cereal.errors import FrameError
from cereal.frames import FrameFormat, nv12_format, nv12_unpadded
from cereal.stacks import STACKS
from cereal.transport import MemoryTransport
from cereal.visionipc import VisionIpcCameras, VisionIpcServer
from cereal.visionipc.protocol import Packet
from tests.cereal.shared import SMALL
from tests.cereal.vision import (
    OFFSETS,
    SERVER_ID,
    SOCKET,
    Bench,
    benches,
    description,
    memory,
    packet,
    publish,
    received,
)

BIGGER = FrameFormat(width=30, height=10, stride=64, uv_offset=700, size=1100)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from benches(tmp_path)


def asked(path: Path, request: bytes) -> tuple[bytes, list[int]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(20)
        client.connect(str(path))
        client.send(request)
        data, descriptors, _, _ = socket.recv_fds(client, 1 << 16, 128)
    return data, descriptors


def test_bytes_of_a_packet() -> None:
    data = bytes.fromhex(
        "efcdab8967452301"  # server_id
        "0500000000000000"  # idx
        "ffffffff00000000"  # frame_id, and a gap
        "80f0fa0200000000"  # start of the exposure, 50 ms
        "0065cd1d00000000"  # its end, 500 ms
        "0100000000000000"  # valid, and a gap
    )
    facts = Packet(SERVER_ID, 5, 0xFFFFFFFF, 50_000_000, 500_000_000, valid=True)
    assert facts.pack() == data
    assert Packet.unpack(data) == facts
    # What is in the gaps is nothing.
    assert Packet.unpack(data[:20] + b"\xff" * 4 + data[24:41] + b"\xff" * 7) == facts
    assert [Packet.unpack(data[:47]), Packet.unpack(data + b"\0")] == [None, None]


@pytest.mark.parametrize(
    ("stack", "size"), [("openpilot-2025", 136), ("sunnypilot", 136), ("openpilot-2026", 112)]
)
def test_bytes_of_an_answer(tmp_path: Path, stack: str, size: int) -> None:
    bus = MemoryTransport()
    with VisionIpcServer("camerad", bus, stack=STACKS[stack], prefix="P", directory=tmp_path) as it:
        it.create_buffers("wideRoad", 3, BIGGER)
        it.create_buffers("driver", 1, SMALL)
        it.start()
        path = tmp_path / f"P_{SOCKET}"
        assert it.path == path
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        for request in ("04000000", "ffffffff"):
            data, _ = asked(path, bytes.fromhex(request))
            assert data.hex() == "0200000001000000"
        assert asked(path, bytes.fromhex("00000000")) == (b"", [])
        data, descriptors = asked(path, bytes.fromhex("02000000"))
        publish(it, 7, stream="wideRoad")
    assert len(data) == 3 * size
    for idx, descriptor in enumerate(descriptors):
        values = {
            name: int.from_bytes(data[idx * size + at :][: 4 if name == "type" else 8], "little")
            for name, at in OFFSETS.items()
        }
        numbers = (1100, 1108, 30, 10, 64, 700, it.server_id, idx, 2)
        assert tuple(values.values()) == numbers
        content = bytes([7] * 1100) + (7).to_bytes(8, "little") if idx == 0 else bytes(1108)
        # Others map it for writing.
        assert os.pread(descriptor, 2000, 0) == content
        os.pwrite(descriptor, b"x", 0)
        os.close(descriptor)
    assert len(descriptors) == 3
    assert not path.exists()


@pytest.mark.parametrize(("size", "listing"), [(112, 4), (112, 0xFFFFFFFF), (136, 4)])
def test_servers_of_each_generation_are_read(bench: Bench, size: int, listing: int) -> None:
    buffers = [memory() for _ in range(3)]

    def reply(request: int) -> tuple[bytes, list[int]]:
        if request == listing:
            return bytes.fromhex("02000000000000000300000009000000"), []
        if request == 0:
            return b"".join(description(idx, size) for idx in range(3)), buffers
        return b"", []

    stranger = bench.strange(reply)
    reader = bench.read()
    assert reader.format == SMALL
    send = bench.bus.publisher("visionipc_camerad_0").send
    for idx, frame_id in ((0, 40), (1, 41), (2, 42), (0, 0xFFFFFFFF)):
        os.pwrite(buffers[idx], bytes([idx + 1] * 192) + frame_id.to_bytes(8, "little"), 0)
        send(packet(idx, frame_id, sof_ns=3, eof_ns=2**63))
        frame = reader.receive(0)
        assert frame is not None
        assert (frame.frame_id, frame.timestamp_sof_ns, frame.timestamp_eof_ns) == (
            frame_id,
            3,
            2**63,
        )
        assert frame.data.tobytes() == bytes([idx + 1] * 192)
        assert reader.is_intact()
    assert bench.cameras.available_streams() == {"road", "wideRoad"}
    # What it takes for a list is found out once.
    assert stranger.requests.count(0xFFFFFFFF) == (1 if listing == 4 else 2)
    assert stranger.requests.count(4) == (2 if listing == 4 else 0)
    for one in buffers:
        os.close(one)


def test_ports_of_packets_over_tcp() -> None:
    for stack in STACKS.values():
        assert [stack.port(f"visionipc_camerad_{n}") for n in range(3)] == [9000, 9001, 9002]
        # Whatever is done to the ports of services.
        assert stack.port("visionipc_navd_1", "murmur", 1000) == 9001


@pytest.mark.parametrize(
    ("conflate", "sent", "expected", "lapped"),
    [
        (False, [1, 2, 3], [1, 2, 3], 0),
        (True, [1, 2, 3], [3], 0),
        # Four buffers: what was written over is counted and not handed out.
        (False, [1, 2, 3, 4, 5, 6], [3, 4, 5, 6], 2),
        (True, list(range(1, 7)), [6], 0),
        (False, [0, 0xFFFFFFFF, 3], [0, 0xFFFFFFFF, 3], 0),
    ],
)
def test_frames_come_in_order_or_the_newest_alone(
    bench: Bench, conflate: bool, sent: list[int], expected: list[int], lapped: int
) -> None:
    server = bench.serve()
    publish(server, 100)  # before the reader
    reader = bench.read(conflate=conflate)
    publish(server, *sent)
    assert [received(reader).frame_id for _ in expected] == expected
    assert reader.receive(0) is None
    assert reader.lapped == lapped
    reader.close()
    publish(server, 7)
    assert reader.receive(10) is None


def test_a_frame_is_not_copied_and_whether_it_is_still_there_is_known(bench: Bench) -> None:
    form = nv12_format(1928, 1208)
    server = bench.serve(3, form)
    reader = bench.read()
    assert not reader.is_intact()
    publish(server, 1)
    frame = received(reader)
    assert frame.data.shape == (form.size,)
    assert not frame.data.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        frame.data[0] = 1
    publish(server, 2)
    assert reader.is_intact()
    # The one before ours is full, so ours may be in the making.
    publish(server, 3)
    assert not reader.is_intact()
    assert frame.data[0] == 1
    # The memory is the server's.
    server.next_buffer("road")[:] = 99
    assert (frame.data == 99).all()
    server.send("road", 4, 0, 0)
    assert not reader.is_intact()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_newest_frame_is_intact_with_any_number_of_buffers(bench: Bench, count: int) -> None:
    server = bench.serve(count)
    reader = bench.read(conflate=True)
    for frame_id in (0, 1, 2, 3, 9, 10, 4, 5, 6, 11, 12):  # a drop, and a replay that goes back
        publish(server, frame_id)
        assert received(reader).frame_id == frame_id
        assert reader.is_intact()


def test_a_server_that_writes_no_ids_is_believed(bench: Bench) -> None:
    buffers = [memory() for _ in range(2)]
    replies = {
        0xFFFFFFFF: (b"\0" * 4, []),
        0: (description(0, 112) + description(1, 112), buffers),
    }
    bench.strange(lambda request: replies.get(request, (b"", [])))
    reader = bench.read()
    send = bench.bus.publisher("visionipc_camerad_0").send
    for idx, frame_id in ((0, 7), (1, 8), (0, 9)):
        send(packet(idx, frame_id))
    frames = [reader.receive(0) for _ in range(3)]
    assert [frame and frame.frame_id for frame in frames] == [7, 8, 9]
    assert reader.is_intact()
    for one in buffers:
        os.close(one)


@pytest.mark.parametrize("form", [nv12_unpadded(40, 20), nv12_format(40, 20), BIGGER])
def test_any_layout_is_handed_on(bench: Bench, form: FrameFormat) -> None:
    server = bench.serve(2, form, "road", "wideRoad", "driver")
    assert bench.cameras.available_streams() == {"road", "wideRoad", "driver"}
    assert bench.cameras.unusable_streams() == {}
    for stream in ("driver", "wideRoad", "road"):
        reader = bench.read(stream)
        publish(server, 5, stream=stream)
        assert received(reader).format == reader.format == form


def test_a_restarted_server_is_followed_with_its_first_frame(bench: Bench) -> None:
    server = bench.serve()
    reader = bench.read()
    publish(server, 1)
    old = received(reader)
    for round_ in range(1, 4):
        server.close()
        assert bench.cameras.available_streams() == set()
        form, count = (BIGGER, 3) if round_ % 2 else (SMALL, 6)
        server = bench.serve(count, form)
        publish(server, *range(round_, round_ + 2))
        for frame_id in range(round_, round_ + 2):
            frame = received(reader)
            assert frame.frame_id == frame_id
            assert frame.format == reader.format == form
            assert reader.is_intact()
    # What was handed out stays what it was.
    assert old.format == SMALL
    assert (old.data == 1).all()


def test_in_silence_a_new_server_is_noticed_by_its_socket(bench: Bench) -> None:
    server = bench.serve()
    reader = bench.read()
    server.close()
    assert reader.receive(30) is None
    assert reader.format == SMALL
    bench.serve(2, BIGGER)
    assert any(reader.receive(30) or reader.format == BIGGER for _ in range(100))


def test_packets_of_a_server_that_is_not_there_are_dropped(bench: Bench) -> None:
    server = bench.serve()
    reader = bench.read()
    server.close()
    send = bench.bus.publisher("visionipc_camerad_0").send
    strange = [
        packet(0, 1),
        packet(9, 1, server.server_id),
        packet(2**64 - 1, 1, 0),
        b"",
        b"x" * 48,
    ]
    for data in strange * 3:
        send(data)
    assert reader.receive(50) is None
    assert reader.receive(0) is None
    # Of a living stranger, too: with as many as it likes no call goes on for ever.
    for data in itertools.islice(itertools.cycle(strange), 400):
        send(data)
    assert reader.receive(0) is None
    assert reader.lapped == 0


def test_a_path_has_one_living_server(bench: Bench) -> None:
    first = bench.serve()
    second = VisionIpcServer("camerad", MemoryTransport(), directory=bench.place)
    second.create_buffers("road", 2, SMALL)
    with pytest.raises(FrameError, match="expected no other camera process, got a running one"):
        second.start()
    first.close()
    # What a killed one left.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(bench.place / SOCKET))
    second.start()
    assert bench.cameras.available_streams() == {"road"}
    # Only its own socket goes with a server.
    (bench.place / SOCKET).unlink()
    third = bench.serve()
    second.close()
    assert bench.cameras.available_streams() == {"road"}
    third.close()
    assert not list(bench.place.iterdir())


def test_clients_that_say_nothing_keep_nobody_waiting(bench: Bench) -> None:
    bench.serve()
    with ExitStack() as opened:
        silent = []
        for _ in range(70):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            silent.append(opened.enter_context(client))
            client.connect(str(bench.place / SOCKET))
        # Their number may keep others waiting for a moment, and they themselves nobody.
        deadline_s = time.monotonic() + 20
        while bench.cameras.available_streams() != {"road"}:
            assert time.monotonic() < deadline_s
        # The oldest had to make room.
        silent[0].settimeout(20)
        assert silent[0].recv(1) == b""
    for request in (b"", b"abc", b"12345", bytes(64)):
        assert asked(bench.place / SOCKET, request or b"\1") == (b"", [])
    assert bench.cameras.available_streams() == {"road"}


@pytest.mark.parametrize(
    ("stream", "count", "form"),
    [
        ("rear", 2, SMALL),
        ("road", 0, SMALL),
        ("road", 128, SMALL),
        ("driver", 2, SMALL),  # has some
        ("road", 2, FrameFormat(16, 8, 15, 128, 192)),
        ("road", 2, FrameFormat(16, 8, 16, 128, 191)),
    ],
)
def test_what_no_server_can_have_is_refused(
    bench: Bench, stream: str, count: int, form: FrameFormat
) -> None:
    with VisionIpcServer("camerad", bench.bus, directory=bench.place) as server:
        server.create_buffers("driver", 127, SMALL)
        with pytest.raises(FrameError, match="expected"):
            server.create_buffers(stream, count, form)
        with pytest.raises(FrameError, match="expected one of the streams"):
            server.next_buffer("road")
        with pytest.raises(FrameError, match="next_buffer before"):
            server.send("driver", 1, 0, 0)
        server.next_buffer("driver")
        with pytest.raises(FrameError, match="an id of 0 to"):
            server.send("driver", 1 << 32, 0, 0)
        server.start()
        with pytest.raises(FrameError, match="before the start"):
            server.create_buffers("road", 2, SMALL)


@pytest.mark.parametrize(("name", "prefix"), [("a/b", ""), ("", ""), ("x" * 65, ""), ("a", "../p")])
def test_names_that_are_no_paths_are_refused(tmp_path: Path, name: str, prefix: str) -> None:
    for kind in (VisionIpcServer, VisionIpcCameras):
        with pytest.raises(FrameError, match="expected a name of letters"):
            kind(name, MemoryTransport(), prefix=prefix, directory=tmp_path)
    with pytest.raises(FrameError, match="at most 107 bytes"):
        VisionIpcCameras("cam", MemoryTransport(), directory=tmp_path / ("y" * 100))

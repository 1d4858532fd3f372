"""What a VisionIPC server may do wrong: each is one line, soon, and leaves nothing open."""

import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cereal.errors import FrameError
from cereal.visionipc.protocol import Conversation
from tests.cereal.shared import SMALL
from tests.cereal.vision import (
    OFFSETS,
    SERVER_ID,
    SOCKET,
    Bench,
    Reply,
    benches,
    description,
    memory,
    open_descriptors,
    packet,
    publish,
    received,
    until_closed,
)

LIST: Reply = (b"\0" * 4, [])
NOT_MAPPED = "expected to map 200 bytes of buffer 0"
HUGE = 2**64 - 1


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from benches(tmp_path)


def two(size: int = 112, **change: int) -> bytes:
    """Descriptions of two buffers, something being different in the second."""
    return description(0, size) + description(1, size, **change)


WRONG = {
    **{name: [HUGE, 2**63, 77, 0] for name in OFFSETS},
    "mmap_len": [199, 0],  # more is what it likes
    "type": [2, 2**32 - 1],
    "len": [HUGE, 191, 0],
    "stride": [HUGE, 15, 17, 0],
    "uv_offset": [HUGE, 127, 129],
    "height": [HUGE, 10, 0],
}
ANSWERS: list[tuple[bytes, int, str]] = [
    (b"", 0, "expected the stream road, got none"),
    (b"", 2, "got 0 bytes with 2 descriptors"),
    (two(), 0, "got 224 bytes with 0 descriptors"),
    (two(), 1, "got 224 bytes with 1 descriptors"),
    (two(), 3, "got 224 bytes with 3 descriptors"),
    (two()[:-1], 2, "got 223 bytes with 2 descriptors"),
    (two(120), 2, "got 240 bytes with 2 descriptors"),
    (bytes(224), 2, "buffer 0 of 2 .* which is impossible"),
    (bytes(20_000), 2, "expected at most 17272 bytes and 127 descriptors"),
    (two(), 130, "expected at most 17272 bytes and 127 descriptors"),
    # 17 of 112 bytes with three descriptors lost are as long as 14 of 136.
    (
        b"".join(description(n, 112) for n in range(17)),
        14,
        "buffer [01] of 14 .* which is impossible",
    ),
    *(
        (two(**{name: value}), 2, "buffer 1 of 2 .* which is impossible")
        for name, values in WRONG.items()
        for value in values
    ),
]


@pytest.mark.parametrize(("data", "count", "message"), ANSWERS)
def test_an_answer_that_cannot_be_is_one_line(
    bench: Bench, data: bytes, count: int, message: str
) -> None:
    buffers = [memory() for _ in range(count)]
    bench.strange(lambda request: LIST if request == 0xFFFFFFFF else (data, buffers))
    before = open_descriptors()
    with pytest.raises(FrameError, match=message):
        bench.read()
    # A camera that has gone since it was listed is none that cannot be used.
    assert list(bench.cameras.unusable_streams()) == ["road"]
    until_closed(before)
    for one in buffers:
        os.close(one)


@pytest.mark.parametrize(
    "make",
    [
        lambda: memory(199),
        lambda: os.open("/dev", os.O_RDONLY),
        lambda: os.eventfd(0),
        lambda: socket.socket(socket.AF_UNIX).detach(),
        lambda: os.open("/dev/zero", os.O_WRONLY),
    ],
)
def test_descriptors_that_are_no_such_memory_are_refused(
    bench: Bench, make: Callable[[], int]
) -> None:
    buffers = [memory(), make()]
    bench.strange(lambda request: LIST if request == 0xFFFFFFFF else (two(), buffers))
    before = open_descriptors()
    with pytest.raises(FrameError, match="expected to map 200 bytes of buffer 1"):
        bench.read()
    until_closed(before)
    for one in buffers:
        os.close(one)


@pytest.mark.parametrize("data", [b"\0", bytes(7), bytes(4 * 65), bytes(20_000)])
def test_a_list_that_cannot_be_is_one_line(bench: Bench, data: bytes) -> None:
    bench.strange(lambda _: (data, []))
    assert bench.cameras.available_streams() == set()
    reasons = bench.cameras.unusable_streams()
    assert set(reasons) == {"road", "wideRoad", "driver"}
    assert len(set(reasons.values())) == 1
    assert "expected a" in reasons["road"]


@pytest.mark.parametrize(
    ("left", "message"),
    [
        (0, "let this process open more files"),
        # The connection and its other end, which is in this process, too.
        (2, "raise the limit of open files"),
        (50, "free memory or descriptors"),
    ],
)
def test_too_few_descriptors_left_are_said(bench: Bench, left: int, message: str) -> None:
    bench.serve(40)
    before = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    fill = [os.dup(0)]
    while fill[-1] < highest:
        fill.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fill[-1] + 1 + left, hard))
    try:
        reasons = bench.cameras.unusable_streams()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in fill:
            os.close(one)
    assert message in reasons["road"]
    until_closed(before)
    assert bench.cameras.unusable_streams() == {}


def test_a_server_that_does_not_answer_is_asked_once_and_may_be_late(bench: Bench) -> None:
    stranger = bench.strange(lambda _: None)
    for _ in range(3):
        assert bench.cameras.available_streams() == set()
    reason = bench.cameras.unusable_streams()["road"]
    assert "expected an answer within 100 ms, got none yet" in reason
    # Ended before its answer a connection takes some camera processes with it.
    assert stranger.requests == [0xFFFFFFFF]
    assert stranger.waiting == 1
    stranger.answer_late(LIST)
    assert bench.cameras.available_streams() == {"road"}
    # Another server at the path is not kept waiting by the one before.
    assert bench.cameras.available_streams() == set()
    (bench.place / SOCKET).unlink()
    bench.serve()
    assert bench.cameras.available_streams() == {"road"}


def test_a_late_answer_to_another_question_is_passed_over(bench: Bench) -> None:
    buffers = [memory()]
    stranger = bench.strange(lambda request: LIST if request == 4 else None)
    conversation = Conversation(bench.place / SOCKET)
    before = open_descriptors()
    with pytest.raises(FrameError, match="got none yet"):
        conversation.ask(0)
    with pytest.raises(FrameError, match="got none yet"):
        conversation.ask(4)
    stranger.answer_late((description(0, 112), buffers))
    answer = conversation.ask(4)
    assert answer is not None
    assert answer[:2] == LIST
    until_closed(before)
    conversation.close()
    os.close(buffers[0])


def _dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"x"), "expected a socket, got a file; remove it"),
        (lambda path: path.symlink_to("/dev/null"), "expected a socket, got a link; remove it"),
        (lambda path: path.symlink_to("nowhere"), "expected a socket, got a link; remove it"),
        (lambda path: path.mkdir(), "expected a socket, got a directory; remove it"),
        (os.mkfifo, "expected a socket, got something else; remove it"),
        (_dead, ""),
        (lambda _: None, ""),
    ],
)
def test_what_is_no_server_is_said(
    bench: Bench, make: Callable[[Path], object], message: str
) -> None:
    path = bench.place / SOCKET
    make(path)
    assert bench.cameras.available_streams() == set()
    reasons = bench.cameras.unusable_streams()
    assert set(reasons.values()) == ({f"{path}: {message}"} if message else set())
    with pytest.raises(FrameError, match=message or "expected the stream road, got none"):
        bench.read()
    if message:
        with pytest.raises(FrameError, match=message):
            bench.serve()


def test_a_socket_of_another_kind_is_said(bench: Bench) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(bench.place / SOCKET))
        other.listen()
        assert "wrong type for socket" in bench.cameras.unusable_streams()["road"]


DYING = """
import os, socket, sys
from array import array
path, state = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(path)
def die():
    os.kill(os.getpid(), 9)
def at(name):
    if state == name:
        print(name, flush=True)
        sys.stdin.read()
def ready():
    print("ready", flush=True)
at("bound")
listener.listen(3)
at("listening")
ready()
asked = 0
while True:
    client, _ = listener.accept()
    if state == "accepted": die()
    request = client.recv(4)
    if state == "asked": die()
    if request == bytes([255] * 4):
        client.send(bytes(4))
        if state == "listed": die()
        continue
    if state == "asked for buffers": die()
    data = sys.stdin.buffer.read(112)
    buffer = os.memfd_create("x")
    os.truncate(buffer, 200)
    socket.send_fds(client, [data], [buffer])
    if state == "answered": die()
"""
STATES = ["bound", "listening", "accepted", "asked", "listed", "asked for buffers", "answered"]


@pytest.mark.parametrize("state", STATES)
def test_a_server_may_be_killed_in_every_state(bench: Bench, state: str) -> None:
    path = bench.place / SOCKET
    before = open_descriptors()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", DYING, path, state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(description(0, 112))
        process.stdin.flush()
        assert process.stdout.readline().strip() in (b"ready", state.encode())
        began_s = time.monotonic()
        if state == "listening":
            assert bench.cameras.available_streams() == set()
        if state in ("bound", "listening"):
            process.kill()
        if state == "answered":
            # Its frames may still be looked at.
            reader = bench.read()
            assert reader.format == SMALL
            assert reader.receive(10) is None
            reader.close()
        else:
            with pytest.raises(FrameError):
                bench.read()
        assert bench.cameras.available_streams() == set()
        assert time.monotonic() - began_s < 20
        assert process.wait() == -signal.SIGKILL
    until_closed(before)
    server = bench.serve()
    reader = bench.read()
    publish(server, 3)
    assert received(reader).frame_id == 3


def _garbled(numbers: random.Random) -> tuple[bytes, list[int]]:
    """An answer in which a few things are not as they should be."""
    count = numbers.choice([0, 1, 2, 3, 4, 5])
    size = numbers.choice([112, 136, 112, 136, numbers.randrange(200)])
    change = {}
    for name in numbers.sample(list(OFFSETS), numbers.choice([0, 0, 1, 2])):
        bits = 32 if name == "type" else numbers.choice([8, 32, 64])
        change[name] = numbers.getrandbits(bits)
    data = bytearray(b"".join(description(n, max(size, 108), **change) for n in range(count)))
    for _ in range(numbers.choice([0, 0, 0, 1, 8]) if data else 0):
        data[numbers.randrange(len(data))] ^= 1 << numbers.randrange(8)
    del data[len(data) - numbers.choice([0, 0, 0, 0, 1, 100]) :]
    count = numbers.choice([count, count, count, 1])
    return bytes(data), [memory(numbers.choice([200, 200, 0, 1 << 20])) for _ in range(count)]


def test_no_answer_ends_a_reader_or_leaves_anything_open(bench: Bench) -> None:
    numbers = random.Random(34)  # noqa: S311 -- the same on every run
    opened: list[int] = []

    def reply(request: int) -> tuple[bytes, list[int]]:
        if request == 0xFFFFFFFF:
            return LIST
        data, buffers = _garbled(numbers)
        opened[:] = buffers
        return data, buffers

    bench.strange(reply)
    before = open_descriptors()
    taken = refused = 0
    for _ in range(3000):
        try:
            bench.read().close()
            taken += 1
        except FrameError:
            refused += 1
        while opened:
            os.close(opened.pop())
    assert taken > 100
    assert refused > 500
    until_closed(before)


def test_no_packet_ends_a_reader_or_makes_it_show_another_frame(bench: Bench) -> None:
    numbers = random.Random(34)  # noqa: S311 -- the same on every run
    buffers = [memory(), memory()]
    bench.strange(lambda request: LIST if request == 0xFFFFFFFF else (two(), buffers))
    before = open_descriptors()
    reader = bench.read()
    send = bench.bus.publisher("visionipc_camerad_0").send
    ids = [0, 0]
    taken = 0
    frame = None
    for round_ in range(1, 20_001):
        if round_ % 8 == 0:
            idx = numbers.randrange(2)
            ids[idx] = round_
            os.pwrite(buffers[idx], struct.pack("<Q", round_), 192)
        idx = numbers.choice([0, 1, 1, 2, numbers.getrandbits(64)])
        frame_id = numbers.choice([*ids, numbers.getrandbits(32)])
        server_id = numbers.choice([SERVER_ID] * 9 + [numbers.getrandbits(64)])
        data = packet(idx, frame_id, server_id, numbers.getrandbits(64), numbers.getrandbits(64))
        send(numbers.choice([data] * 9 + [numbers.randbytes(numbers.randrange(100))]))
        frame = reader.receive(0)
        if frame is None:
            continue
        taken += 1
        assert (frame.frame_id, server_id) == (frame_id, SERVER_ID)
        assert ids[idx] in (frame_id, 0)
    assert 2000 < taken < 12_000
    reader.close()
    frame = None  # it has kept its memory
    until_closed(before)
    for one in buffers:
        os.close(one)

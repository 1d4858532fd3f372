"""Rings of messages: their bytes, their files, whom they wake, and rings that no writer leaves."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cereal.errors import TransportError
from cereal.msgq import wake
from cereal.msgq.ring import RingWriter
from cereal.msgq.ring_memory import RingMemory
from cereal.stacks import STACKS
from cereal.transport import MsgqTransport
from tests.cereal.shared import own_rings
from tests.support.waiting import until

STACK = STACKS["openpilot-2026"]
SERVICE = "liveDelay"  # which this stack calls lateralDelay
RING_BYTES = 250 * 1024


@pytest.fixture
def prefix() -> Iterator[str]:
    with own_rings(STACK) as made:
        yield made


@pytest.fixture
def transport(prefix: str) -> Iterator[MsgqTransport]:
    made = MsgqTransport(stack=STACK, prefix=prefix)
    yield made
    made.close()


@pytest.fixture
def file(prefix: str) -> Path:
    return Path(f"/dev/shm/msgq_{prefix}/lateralDelay")  # noqa: S108 - where rings are


def words(file: Path, *indices: int) -> tuple[int, ...]:
    whole = struct.unpack("<48Q", file.read_bytes()[:384])
    return tuple(whole[index] for index in indices)


def test_bytes_of_a_ring(transport: MsgqTransport, file: Path) -> None:
    subscriber, publisher = transport.subscriber(SERVICE), transport.publisher(SERVICE)
    assert file.stat().st_size == 384 + RING_BYTES
    beside = file.with_name("made with the same umask")
    beside.touch(0o664)
    assert file.stat().st_mode == beside.stat().st_mode
    # The writer has sent all readers away: they register when they look next.
    assert words(file, 0, 1) == (0, 0)
    assert subscriber.receive(0) is None
    publisher.send(b"twelve bytes")
    publisher.send(b"x")
    count, head, write_uid, *_ = words(file, *range(48))
    assert (count, head) == (1, 24 + 16)
    assert write_uid & 0xFFFFFFFF == threading.get_native_id()
    assert words(file, 3, 3 + 15) == (0, 1)  # has taken nothing, and lost nothing
    # Nobody waits, so nobody is to be woken; the upper half tells readers apart.
    uid = words(file, 3 + 30)[0]
    assert uid & 0xFFFFFFFF == 0
    assert uid >> 32
    assert file.read_bytes()[384 : 384 + 40] == (
        struct.pack("<q", 12) + b"twelve bytes" + bytes(4) + struct.pack("<q", 1) + b"x" + bytes(7)
    )
    assert [subscriber.receive(0), subscriber.receive(0)] == [b"twelve bytes", b"x"]
    assert words(file, 3) == (40,)
    assert subscriber.receive(1) is None
    assert words(file, 3 + 30)[0] & 0xFFFFFFFF == threading.get_native_id()


def test_the_end_of_a_ring(transport: MsgqTransport, file: Path) -> None:
    """A record and the mark after it do not fit any more: a mark of -1, and the next cycle."""
    publisher, subscriber = transport.publisher(SERVICE), transport.subscriber(SERVICE)
    third = bytes(RING_BYTES // 3 // 8 * 8 - 8)  # the largest there may be: 85 320 bytes
    assert len(third) == 85_320
    for _ in range(3):
        publisher.send(third)
    assert [subscriber.receive(0) for _ in range(3)] == [third] * 3
    offset = 3 * 85_328  # 16 bytes before the end
    assert words(file, 1) == (offset,)
    publisher.send(third)
    assert words(file, 1) == (1 << 32 | 85_328,)
    assert struct.unpack_from("<q", file.read_bytes(), 384 + offset) == (-1,)
    assert subscriber.receive(0) == third
    with pytest.raises(TransportError, match=r"1 to 85320 bytes, got 85321"):
        publisher.send(bytes(85_321))
    with pytest.raises(TransportError, match=r"1 to 85320 bytes, got 0"):
        publisher.send(b"")


@pytest.mark.parametrize(("found", "size"), [(384 + 4096, 384 + 4096), (0, 384 + RING_BYTES)])
def test_a_ring_that_is_there_keeps_its_size(
    transport: MsgqTransport, file: Path, found: int, size: int
) -> None:
    """An empty one is given its size: whoever made it may have been killed before."""
    file.write_bytes(bytes(found))
    publisher, subscriber = transport.publisher(SERVICE), transport.subscriber(SERVICE)
    publisher.send(b"x")
    assert subscriber.receive(0) == b"x"
    assert file.stat().st_size == size


def sparse(file: Path, size: int) -> None:
    file.touch()
    os.truncate(file, size)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda file: file.write_bytes(bytes(100)), "found 100 bytes"),
        (lambda file: sparse(file, 5 << 30), f"found {5 << 30} bytes"),
        (lambda file: file.mkdir(), "Is a directory"),
        (lambda file: file.symlink_to("/etc/passwd"), "Too many levels of symbolic links"),
        (lambda file: file.parent.rmdir(), "OPENPILOT_PREFIX"),
    ],
)
def test_what_is_no_ring_is_refused(
    transport: MsgqTransport, file: Path, make: Callable[[Path], object], found: str
) -> None:
    make(file)
    for open_end in (transport.publisher, transport.subscriber):
        with pytest.raises(TransportError, match=rf"msgq transport, {file}: .*{found}"):
            open_end(SERVICE)


def test_memory_that_is_not_there_is_refused(
    transport: MsgqTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", short)
    with pytest.raises(TransportError, match="No space left on device; free some, or enlarge it"):
        transport.publisher(SERVICE)


OTHER = """
import signal, sys, time
from cereal.stacks import STACKS
from cereal.transport import MsgqTransport
transport = MsgqTransport(stack=STACKS["openpilot-2026"], prefix=sys.argv[1])
publisher = transport.publisher("liveDelay")
"""
WRITER = """
while not publisher.has_readers():
    pass
for number in range(int(sys.argv[2])):
    data = number.to_bytes(8, "little") * (1 + number % 50)
    publisher.send(data)
while True:  # again, for a reader that was overtaken by the last ones
    time.sleep(0.01)
    publisher.send(data)
"""


@pytest.fixture
def start(prefix: str) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """Start a process that sends so many messages, the last one again and again."""
    with contextlib.ExitStack() as started:

        def process(count: int) -> subprocess.Popen[bytes]:
            one = subprocess.Popen([sys.executable, "-c", OTHER + WRITER, prefix, str(count)])
            started.enter_context(one)
            started.callback(one.kill)
            return one

        yield process


def test_another_process_is_named_and_its_end_frees_the_ring(
    transport: MsgqTransport, start: Callable[[int], subprocess.Popen[bytes]]
) -> None:
    subscriber, process = transport.subscriber(SERVICE), start(2)
    assert subscriber.receive(20_000) == bytes(8)
    with pytest.raises(TransportError, match=rf"found process {process.pid} \(.*python.*BLOCK="):
        transport.publisher(SERVICE)
    process.kill()
    process.wait()
    transport.publisher(SERVICE).send(b"x")
    # The message before the kill is still there, unless the new writer sent its reader away first.
    assert subscriber.receive(100) in (b"x", None)


def test_messages_of_another_process_are_whole_and_in_order(
    transport: MsgqTransport, start: Callable[[int], subprocess.Popen[bytes]]
) -> None:
    """Over many rounds of the ring; some are lost, none is torn."""
    ends = [transport.subscriber(SERVICE), transport.subscriber(SERVICE, conflate=True)]
    start(20_000)
    last, received = [-1, -1], 0
    while max(last) < 19_999:
        ready = transport.wait(ends, 20_000)
        assert ready, "it ended, or nobody was woken"
        for which, end in enumerate(ends):
            data = end.receive(0)
            if data is not None:
                number = int.from_bytes(data[:8], "little")
                assert data == number.to_bytes(8, "little") * (1 + number % 50)
                assert number > last[which]
                last[which] = number
                received += 1
    assert received > 100
    assert not any(end.damaged for end in ends)


def test_who_is_evicted_by_another_writer_is_told_by_whom(prefix: str) -> None:
    """As C++ does it, without asking whether anybody publishes."""
    mine = MsgqTransport(stack=STACK, prefix=prefix)
    publisher = mine.publisher(SERVICE)
    memory = RingMemory(STACK.queue_path(SERVICE, prefix), RING_BYTES)
    RingWriter(memory, wake.new_uid(threading.get_native_id())).claim()
    with pytest.raises(TransportError, match=rf"but process {os.getpid()} .* has taken the ring"):
        publisher.send(b"x")
    mine.close()
    assert memory.words[2] != 0, "the ring is the other's now"


def test_a_ring_that_was_replaced_is_opened_anew(transport: MsgqTransport, file: Path) -> None:
    """As by a stack that clears its shared memory when it starts."""
    publisher, subscriber = transport.publisher(SERVICE), transport.subscriber(SERVICE)
    file.unlink()
    transport.log_refused()
    assert not publisher.has_readers()
    publisher.send(b"to nobody: the file is another one")
    assert subscriber.receive(0) is None
    publisher.send(b"x")
    assert subscriber.receive(0) == b"x"


def test_a_ring_whose_directory_goes_is_waited_for(transport: MsgqTransport, file: Path) -> None:
    subscriber, moved = transport.subscriber(SERVICE), file.parent.with_suffix(".moved")
    file.parent.rename(moved)
    transport.log_refused()
    assert subscriber.receive(0) is None
    moved.rename(file.parent)
    file.unlink()
    transport.log_refused()
    assert subscriber.receive(0) is None
    transport.publisher(SERVICE).send(b"to nobody: readers begin after it")
    assert subscriber.receive(0) is None
    assert words(file, 0) == (1,)


def test_a_replaced_ring_is_not_taken_from_a_living_publisher(prefix: str, file: Path) -> None:
    mine, other = (MsgqTransport(stack=STACK, prefix=prefix) for _ in range(2))
    publisher = mine.publisher(SERVICE)
    file.unlink()
    other.publisher(SERVICE)
    mine.log_refused()
    with pytest.raises(TransportError, match=rf"only publisher, found process {os.getpid()} "):
        publisher.send(b"x")
    mine.close()
    other.close()


def test_a_reader_that_does_not_read_is_no_load(transport: MsgqTransport) -> None:
    """It holds a place, loses what it has not read, and goes on with what is sent next."""
    publisher, reader = transport.publisher(SERVICE), transport.subscriber(SERVICE)
    publisher.send(b"x")
    assert not publisher.is_read()
    for _ in range(1000):
        publisher.send(bytes(1000))
    assert reader.receive(0) is None
    assert (reader.lost, reader.damaged) == (1, 0)
    publisher.send(b"x")
    assert reader.receive(0) == b"x"
    assert (publisher.is_read(), publisher.has_readers()) == (True, True)
    reader.close()
    assert (publisher.is_read(), publisher.has_readers()) == (False, False)


def test_all_places_taken_means_that_all_register_anew(transport: MsgqTransport) -> None:
    publisher = transport.publisher(SERVICE)
    readers = [transport.subscriber(SERVICE) for _ in range(16)]
    publisher.send(b"the first fifteen do not hear this")
    assert readers[15].receive(0) is not None
    assert [reader.receive(0) for reader in readers[:14]] == [None] * 14
    publisher.send(b"x")
    assert [reader.receive(0) for reader in readers if reader is not readers[14]] == [b"x"] * 15


def test_the_signal_reaches_who_waits_and_kills_nobody(transport: MsgqTransport) -> None:
    """Messages for a thread that does not wait stay pending; a handler is never run."""
    publisher, subscriber = transport.publisher(SERVICE), transport.subscriber(SERVICE)
    heard: list[float] = []

    def listen() -> None:
        while len(heard) < 20:
            if subscriber.receive(20_000):
                heard.append(time.monotonic())

    thread = threading.Thread(target=listen)
    thread.start()
    until(publisher.has_readers, 20)
    sent = []
    for _ in range(20):
        count = len(heard)
        sent.append(time.monotonic())
        publisher.send(b"x")
        until(lambda: len(heard) > count, 20)  # noqa: B023 - called at once
    thread.join()
    # Without the signal each would take what is left of 100 ms.
    delays = sorted(b - a for a, b in zip(sent, heard, strict=True))
    assert delays[10] < wake.LONGEST_WAIT_S / 2


def test_another_owner_of_the_signal_keeps_it(prefix: str) -> None:
    """Then readers ask for no signal, and look again and again."""
    ran: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: ran.append(number))
    try:
        transport = MsgqTransport(stack=STACK, prefix=prefix)
        publisher, subscriber = transport.publisher(SERVICE), transport.subscriber(SERVICE)
        threading.Timer(0.05, publisher.send, [b"x"]).start()
        assert subscriber.receive(20_000) == b"x"
        assert words(STACK.queue_path(SERVICE, prefix), 3 + 30)[0] & 0xFFFFFFFF == 0
        transport.close()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not ran


UNBLOCKED = """
transport.subscriber("liveDelay").receive(1)
publisher.send(b"x")
if sys.argv[2] == "closed":
    transport.close()
    # As a library that has a handler of its own restores it.
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
print("lives")
"""


@pytest.mark.parametrize("state", ["open", "closed"])
def test_a_pending_signal_ends_nobody_who_is_unblocked(prefix: str, state: str) -> None:
    """As the compiler inside PoCL does it to the thread that gets one of its own signals."""
    command = [sys.executable, "-c", OTHER + UNBLOCKED, prefix, state]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "lives\n"


def test_a_thread_that_has_ended_is_not_signalled_again() -> None:
    """Its number may come to be another program's."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    number = thread.native_id
    assert number is not None
    thread.join()
    until(lambda: not wake.is_alive(number), 20)
    waker, uid = wake.Waker(), wake.new_uid(number)
    assert waker.living([uid, 0, wake.new_uid()]) == [False, False, True]
    waker.wake([uid])
    assert waker._ended == {uid}


def test_damage_is_counted_said_once_and_over_with_the_next_message(
    transport: MsgqTransport, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, subscriber = transport.publisher(SERVICE), transport.subscriber(SERVICE)
    subscriber.receive(0)
    publisher.send(b"x")
    with file.open("r+b") as opened:
        opened.seek(384)
        opened.write(struct.pack("<q", 1 << 50))
    assert subscriber.receive(0) is None
    assert subscriber.damaged == 1
    for _ in range(3):
        transport.log_refused()
    assert caplog.text.count(f"expected messages in {file}, found what no publisher writes") == 1
    publisher.send(b"y")
    assert subscriber.receive(0) == b"y"

"""The ring in every order in which its processes can take their steps, and of any content."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cereal.msgq.ring import (
    HEADER_BYTES,
    HEADER_WORDS,
    NUM_READERS,
    READ_POINTER,
    READ_UID,
    READ_VALID,
    WRITE_POINTER,
    WRITE_UID,
    Memory,
    RingReader,
    RingWriter,
)
from cereal.msgq.ring_memory import RingMemory
from tests.cereal.interleave import Explorer, Process
from tests.support.selection import quick_cases

SIZE = 56  # three messages of 8 bytes, and the end of a ring
WRITER, READER = 7 << 32, 9 << 32


def message(number: int) -> bytes:
    return bytes([number]) * 8


def writes(*numbers: int, claims: bool = False, kind: type[RingWriter] = RingWriter) -> Process:
    def call_of(number: int) -> Callable[[Memory, Any], Any]:
        return lambda memory, _: kind(memory, WRITER).send(message(number))

    claim = [lambda memory, _: kind(memory, WRITER).claim()] if claims else []
    return [*claim, *map(call_of, numbers)]


class Reading(NamedTuple):
    """What a reader is between two receives."""

    slot: int = 0
    received: int = 0
    last: int = 0


def reads(
    times: int, *, conflate: bool = False, uid: int = READER, slot: int = 0,
    kind: type[RingReader] = RingReader,
) -> Process:  # fmt: skip
    """Receive so many times whole messages, in the order in which they were sent, none twice.

    Slot -1 registers first.
    """

    def receive(memory: Memory, before: Reading | None) -> Reading:
        before = before or Reading(slot)
        reader = kind(memory, uid, conflate, _slot=before.slot)
        if before.slot < 0:
            reader.register()
            return before._replace(slot=reader._slot)
        found = reader.receive()
        assert not reader.damaged, "what a living writer leaves was taken for damage"
        if found is None:
            return before._replace(slot=reader._slot)
        assert found == message(found[0])
        assert found[0] > before.last
        return Reading(reader._slot, before.received + 1, found[0])

    return [receive] * (times + (slot < 0))


def header(*, readers: int = 0, at: int = 0) -> list[int]:
    """A ring with a writer, and readers 9 << 32, 10 << 32 ... that have taken all."""
    words = [0] * HEADER_WORDS
    words[NUM_READERS], words[WRITE_POINTER], words[WRITE_UID] = readers, at, WRITER
    for slot in range(readers):
        words[READ_POINTER + slot], words[READ_VALID + slot] = at, 1
        words[READ_UID + slot] = READER + (slot << 32)
    return words


@pytest.mark.parametrize("conflate", quick_cases([False, True], False))
def test_a_reader_that_is_overtaken_reads_whole_messages_or_none(conflate: bool) -> None:
    explorer = Explorer(SIZE, [writes(1, 2, 3, 4, 5), reads(2, conflate=conflate)])
    ends = {reading for _, reading in explorer.outcomes(header(readers=1))}
    assert {reading.last for reading in ends} == {0, 1, 2, 3, 4, 5}
    assert {reading.received for reading in ends} == {0, 1, 2}
    assert explorer.states > 10_000


def test_nothing_is_lost_while_the_ring_holds_it() -> None:
    explorer = Explorer(SIZE, [writes(1, 2), reads(4)])
    for _, reading in explorer.outcomes(header(readers=1)):
        assert reading.received == reading.last


def test_readers_that_register_at_once_come_to_places_of_their_own() -> None:
    """Both may take one. Who is pushed out finds out, and registers again."""

    def registers(uid: int) -> Process:
        def look(memory: Memory, before: int | None) -> int:
            reader = RingReader(memory, uid, _slot=before or 0)
            if before is None:
                reader.register()
            else:
                reader.is_waiting()
            return reader._slot

        return [look] * 2

    found = Explorer(SIZE, [registers(READER), registers(10 << 32)]).outcomes()
    # (0, 0): the first was done when the second took its place, and has not looked since.
    assert found == {(0, 1), (1, 0), (0, 0)}
    memory = Explorer(SIZE, [[lambda memory, _: pushed_out(memory)]]).outcomes()
    assert memory == {((1, 0),)}


def pushed_out(memory: Memory) -> tuple[int, int]:
    """Two readers whose first steps took one place, and where they are after a look of each."""
    readers = [RingReader(memory, READER), RingReader(memory, 10 << 32)]
    for reader in readers:
        memory.words[NUM_READERS] = 0
        reader.register()
    for reader in readers:
        reader.is_waiting()
    return readers[0]._slot, readers[1]._slot


@pytest.mark.slow
def test_the_sixteenth_reader_sends_the_others_to_register_anew() -> None:
    sixteenth = reads(1, uid=99 << 32, slot=-1)
    found = Explorer(SIZE, [writes(1), sixteenth, reads(1)]).outcomes(header(readers=15))
    assert any(new.received for _, new, _ in found)
    # Two that come at once may be in one place until the one that was pushed out looks again.
    assert {old.slot for _, _, old in found} == {0, 1}


def test_a_writer_that_begins_anew_misleads_nobody() -> None:
    found = Explorer(SIZE, [writes(1, 2, claims=True), reads(2)]).outcomes(header(readers=1))
    assert {reading.last for _, reading in found} == {0, 1, 2}


@pytest.mark.parametrize("conflate", quick_cases([False, True], True))
def test_stores_that_others_see_late_change_nothing(conflate: bool) -> None:
    explorer = Explorer(SIZE, [writes(1, 2, 3, 4), reads(2, conflate=conflate)], buffered=True)
    last = {reading.last for _, reading in explorer.outcomes(header(readers=1))}
    assert last == {0, 1, 2, 3, 4}


class NeverTells(RingWriter):
    """Writes over what has not been read without a word."""

    def _invalidate(self, at: int, count: int) -> None:
        pass


class NeverLooks(RingReader):
    """Does not look again whether it was overtaken while it read."""

    def _is_sound(self) -> bool:
        return True


class Unordered(RingWriter):
    def __init__(self, memory: Memory, uid: int) -> None:
        super().__init__(memory, uid)
        memory.fence = lambda: None  # type: ignore[method-assign]


FAULTS = {
    "silent writer": ([writes(1, 2, 3, 4, kind=NeverTells), reads(2)], False),
    "reader that does not look again": ([writes(1, 2, 3, 4), reads(2, kind=NeverLooks)], False),
    "writer without fences": ([writes(1, 2, kind=Unordered), reads(1)], True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault: str) -> None:
    processes, buffered = FAULTS[fault]
    with pytest.raises(AssertionError):
        Explorer(SIZE, processes, buffered).outcomes(header(readers=1))


class WatchedMemory(RingMemory):
    """A ring of any content, none of whose accesses may leave the data."""

    def fill(self, content: bytearray) -> None:
        self._mapping[:] = content

    def read(self, offset: int, count: int) -> bytes:
        assert 0 <= offset <= offset + count <= self.size
        return super().read(offset, count)

    def write(self, offset: int, data: bytes) -> None:
        assert 0 <= offset <= offset + len(data) <= self.size
        super().write(offset, data)


def test_any_content_of_a_ring_is_survived(tmp_path: Path) -> None:
    """20 000 rings of noise and of almost right words; no access leaves the data, all calls end."""
    numbers = random.Random(7)  # noqa: S311 - a repeatable choice
    edges = (0, 1, 8, 15, 16, 24, 1016, 1024, 2**31, 2**32 - 8, 2**32, 2**63, 2**64 - 1)
    memory = WatchedMemory(tmp_path / "ring", 1024)
    damaged = taken = 0
    for _ in range(20_000):
        content = bytearray(numbers.randbytes(HEADER_BYTES + 1024))
        if numbers.random() < 0.8:
            content[HEADER_BYTES:] = bytes(1024)
        memory.fill(content)
        reader = RingReader(memory, READER, conflate=numbers.random() < 0.5, _slot=0)
        for index in range(HEADER_WORDS):
            if numbers.random() < 0.7:
                memory.words[index] = numbers.choice(edges)
        for offset in range(0, 128, 8):
            memory.sizes[offset // 8] = numbers.choice((-1, -2, 0, 1, 8, 1000, 1016, 1 << 40))
        if numbers.random() < 0.8:
            memory.words[READ_UID], memory.words[READ_VALID] = reader.uid, 1
        for _ in range(3):
            taken += reader.receive() is not None
        damaged += reader.damaged
        writer = RingWriter(memory, WRITER)
        memory.words[WRITE_UID] = writer.uid
        writer.send(b"x" * numbers.choice((1, 8, 300)))
        while reader.receive():
            pass
        # Sound from here on.
        writer.send(b"whole")
        assert reader.receive() == b"whole"
        assert writer.readers().count(reader.uid) == 1
    assert damaged > 1000
    assert taken > 200

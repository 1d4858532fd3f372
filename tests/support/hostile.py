"""What nobody should send on the bus, repeatably: messages and rings of every wrong kind."""

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from cereal.msgq.ring import HEADER_BYTES, MAX_READERS, READ_POINTER, READ_UID, READ_VALID, Memory
from tests.faults.vehicle import ORDINARY
from tests.tools.messages import event_of

EDGES = (0, 1, 7, 8, 15, 16, 24, 2**31, 2**32 - 8, 2**32, 2**63, 2**64 - 1)
# Mostly of the size of messages; a few as large as a ring carries.
SIZES = (1, 7, 8, 16, 24, 64, 120, 400, 4096, 80_000)


class HostileMessages:
    """Makes messages, each of a kind that is drawn.

    Args:
        seed: Of everything that is drawn.
        services: Whose messages are bent, and sent on the others.
        smallest: Bytes of a message at the least: rings carry none without.
    """

    def __init__(self, seed: int, services: Sequence[str], *, smallest: int = 0) -> None:
        self._numbers = random.Random(seed)  # noqa: S311 - a repeatable choice
        self._smallest = smallest
        self._whole = {name: event_of(name, 7, **ORDINARY.get(name, {})) for name in services}
        others = [event_of(name) for name in ("modelV2", "can", "thumbnail", "carParams")]
        self._others = [*self._whole.values(), *others]
        self._kinds: tuple[Callable[[bytes], bytes], ...] = (
            self._noise,
            self._truncated,
            self._flipped,
            self._of_another,
            self._segments,
            self._pointers,
            self._deep,
            self._values,
            lambda whole: whole,
        )

    def next(self, service: str) -> bytes:
        data = self._numbers.choice(self._kinds)(self._whole[service])
        return data if len(data) >= self._smallest else bytes(self._smallest)

    def _noise(self, _: bytes) -> bytes:
        weights = (1,) * (len(SIZES) - 1) + (0.02,)
        return self._numbers.randbytes(self._numbers.choices((0, *SIZES[1:]), weights)[0])

    def _truncated(self, whole: bytes) -> bytes:
        cut = self._numbers.randrange(len(whole))
        return whole[: cut & ~7 if self._numbers.random() < 0.7 else cut]

    def _flipped(self, whole: bytes) -> bytes:
        data = bytearray(whole)
        for _ in range(self._numbers.randint(1, 8)):
            data[self._numbers.randrange(len(data))] ^= 1 << self._numbers.randrange(8)
        return bytes(data)

    def _of_another(self, _: bytes) -> bytes:
        return self._numbers.choice(self._others)

    def _segments(self, whole: bytes) -> bytes:
        """A table of segments that are too many, too large, or one over the other."""
        count = self._numbers.choice((0, 1, 2, 3, 510, 511, 512, 2**31, 2**32 - 1))
        sizes = self._numbers.choices((0, 1, 2, len(whole) // 8 - 1, 2**29, 2**32 - 1), k=5)
        listed = min(count + 1, self._numbers.choice((2, 5, 600)))
        table = struct.pack("<I", count)
        table += b"".join(struct.pack("<I", sizes[n % 5] & 0xFFFFFFFF) for n in range(listed))
        return table + bytes(-len(table) % 8) + whole[8:]

    def _pointers(self, whole: bytes) -> bytes:
        """Pointers to anywhere: far, into themselves, to lists of nothing without end."""
        data = bytearray(whole)
        for _ in range(self._numbers.randint(1, 4)):
            at = self._numbers.randrange(8, len(data), 8)
            kind, target = (
                self._numbers.randrange(4),
                self._numbers.choice((-1, 0, 1, 3, 2**29 - 1)),
            )
            upper = self._numbers.choice((0, 1, 0xFFFF, 0xFFFFFFF8, 0xFFFFFFFF, 0x00010001))
            data[at : at + 8] = struct.pack("<II", (target << 2 | kind) & 0xFFFFFFFF, upper)
        return bytes(data)

    def _deep(self, whole: bytes) -> bytes:
        """Each structure's only word is a pointer to the next one, a thousand times."""
        depth = self._numbers.choice((10, 100, 1000))
        head = whole[16:32] if len(whole) >= 32 else bytes(16)
        words = [0x0001_0002_0000_0000, *struct.unpack("<2Q", head), *[1 << 48] * depth, 0]
        return struct.pack(f"<II{len(words)}Q", 0, len(words), *words)

    def _values(self, whole: bytes) -> bytes:
        """A sound structure with numbers that cannot be: NaN, infinity, enumerants without end."""
        data = bytearray(whole)
        value = self._numbers.choice((2**64 - 1, 0x7FF0 << 48, 0x7FC00000_7FC00000, 0xFFFF))
        if len(data) > 48:
            at = self._numbers.randrange(40, len(data), 8)
            data[at : at + 8] = struct.pack("<Q", value)
        return bytes(data)


def ruin(memory: Memory, numbers: random.Random) -> None:
    """Write what no writer leaves into a ring: its header, the sizes of its first records, or both.

    Places of readers keep their uids as a rule, so that readers believe the rest of it; no uid
    names a thread, which a writer would signal.
    """
    words, sizes = memory.words, memory.sizes
    for index in range(HEADER_BYTES // 8):
        if READ_UID <= index < READ_UID + MAX_READERS:
            if numbers.random() < 0.1:
                words[index] = numbers.choice((0, 1 << 32, numbers.getrandbits(31) << 32))
        elif numbers.random() < 0.5:
            words[index] = numbers.choice((*EDGES, numbers.getrandbits(64), memory.size))
    for word in range(8):
        sizes[word] = numbers.choice((-(2**63), -2, -1, 0, 1, 8, 1000, memory.size, 2**40))
    if numbers.random() < 0.5:
        # So that the first readers come to the sizes.
        for slot in range(2):
            words[READ_VALID + slot] = 1
            words[READ_POINTER + slot] = 8 * numbers.randrange(8)
        words[0], words[1] = 2, numbers.choice((64, 2**32, 1 << 32 | 8))


def own_memory_mib(pid: int) -> float:
    """Return the memory that is a process's own: rings count when their pages are first read."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) / 1024

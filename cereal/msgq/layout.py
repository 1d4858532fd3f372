"""The bytes of a ring of messages, and the accesses that its algorithm is made of.

A ring file is a header of 48 words and the data. Words are 64 bits, little endian. A pointer is a
cycle, how often the ring has been gone round, in the upper half, and an offset into the data in the
lower. A record is the size of the message as a signed word, and the message, filled up to whole
words; a size of `WRAP` says that the next record is at offset 0. Source: msgq, 2024-2026.
"""

from typing import Final, Protocol

MAX_READERS: Final = 15
HEADER_WORDS: Final = 48
HEADER_BYTES: Final = 8 * HEADER_WORDS
# Indices of words.
NUM_READERS: Final = 0
WRITE_POINTER: Final = 1
WRITE_UID: Final = 2
READ_POINTER: Final = 3
READ_VALID: Final = READ_POINTER + MAX_READERS
READ_UID: Final = READ_VALID + MAX_READERS

SIZE_BYTES: Final = 8
WRAP: Final = -1
# The writer wants room for three messages, so that a reader has time for one of them.
MESSAGES_THAT_FIT: Final = 3
OFFSET_MASK: Final = 0xFFFFFFFF


class Words(Protocol):
    """Words of 64 bits; each access is one instruction."""

    def __getitem__(self, index: int, /) -> int:
        """Read a word."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Write a word."""
        ...


class Memory(Protocol):
    """A mapped ring.

    Other processes may come between any two accesses. `words` is the unsigned header. `sizes` is
    the data as signed words: a record begins with its size.
    """

    size: int  # bytes of data

    @property
    def words(self) -> Words:
        """As above."""

    @property
    def sizes(self) -> Words:
        """As above."""

    def read(self, offset: int, count: int) -> bytes:
        """Return a copy of bytes of the data."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes of the data."""
        ...

    def fence(self) -> None:
        """Order all accesses before with all after, for other processes."""
        ...


def after_wrap(pointer: int) -> int:
    """Return the pointer to the start of the next cycle; cycles wrap after 32 bits."""
    return ((pointer >> 32) + 1 & OFFSET_MASK) << 32


def can_be_unread(pointer: int, head: int) -> bool:
    """Return whether the ring still holds all from a reader's pointer to the writer's, `head`."""
    cycles = (head >> 32) - (pointer >> 32) & OFFSET_MASK
    if cycles == 0:
        return pointer <= head
    return cycles == 1 and pointer & OFFSET_MASK >= head & OFFSET_MASK


def record_bytes(count: int) -> int:
    """Return the bytes that a message of `count` bytes takes."""
    return count + SIZE_BYTES + 7 & ~7


def largest_message(size: int) -> int:
    """Return the bytes of the largest message that a ring of `size` bytes takes."""
    return (size // MESSAGES_THAT_FIT & ~7) - SIZE_BYTES


def is_inside(offset: int, size: int) -> bool:
    """Return whether an offset can be where a record begins."""
    return offset % 8 == 0 and offset + SIZE_BYTES <= size


def thread_of(uid: int) -> int:
    """Return the id of the thread that a uid names; 0 of one that does not want to be woken."""
    return uid & OFFSET_MASK

"""A ring of messages: its bytes, the accesses that its algorithm is made of, and its two ends.

A ring file is a header of 48 words and the data. Words are 64 bits, little endian. A pointer is a
cycle, how often the ring has been gone round, in the upper half, and an offset into the data in the
lower. A record is the size of the message as a signed word, and the message, filled up to whole
words; a size of `WRAP` says that the next record is at offset 0. Source: msgq, 2024-2026.
"""

from dataclasses import dataclass
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

    Other processes may access it between any two accesses of ours. A record of the data begins with
    its size.
    """

    size: int  # bytes of data

    @property
    def words(self) -> Words:
        """The header, in unsigned words."""

    @property
    def sizes(self) -> Words:
        """The data, in signed words."""

    def read(self, offset: int, count: int) -> bytes:
        """Return a copy of bytes of the data."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes of the data."""
        ...

    def fence(self) -> None:
        """Order all accesses before with all after, for other processes."""
        ...


def _after_wrap(pointer: int) -> int:
    """Return the pointer to the start of the next cycle; cycles wrap after 32 bits."""
    return ((pointer >> 32) + 1 & OFFSET_MASK) << 32


def _can_be_unread(pointer: int, head: int) -> bool:
    """Return whether the ring still holds all from a reader's pointer to the writer's, `head`."""
    cycles = (head >> 32) - (pointer >> 32) & OFFSET_MASK
    if cycles == 0:
        return pointer <= head
    return cycles == 1 and pointer & OFFSET_MASK >= head & OFFSET_MASK


def _record_bytes(count: int) -> int:
    """Return the bytes that a message of `count` bytes takes."""
    return count + SIZE_BYTES + 7 & ~7


def largest_message(size: int) -> int:
    """Return the bytes of the largest message that a ring of `size` bytes takes."""
    return (size // MESSAGES_THAT_FIT & ~7) - SIZE_BYTES


def _is_inside(offset: int, size: int) -> bool:
    """Return whether an offset can be where a record begins."""
    return offset % 8 == 0 and offset + SIZE_BYTES <= size


def thread_of(uid: int) -> int:
    """Return the id of the thread that a uid names; 0 of one that does not want to be woken."""
    return uid & OFFSET_MASK


# --- The ends ---------------------------------------------------------------------------------

# How often a reader looks for a position that stays the newest while it is taken. A writer that
# overtakes it so often leaves it for the next call.
_RESET_TRIES = 4


def _send_away(words: Words) -> None:
    """Empty all places: their readers find their uid gone, and register again."""
    words[NUM_READERS] = 0
    for slot in range(MAX_READERS):
        words[READ_VALID + slot] = 0
        words[READ_UID + slot] = 0


@dataclass(slots=True)
class RingReader:
    """One of the readers of a ring.

    It receives messages sent after its registration. Its place is one of 15 in the header: uid,
    position, and a flag that the writer clears before it writes over what has not been read. The
    reader then loses what it has not read, and goes on with the newest.
    """

    memory: Memory
    uid: int  # a random upper half, and the thread to wake
    conflate: bool = False  # take the newest message only
    lost: int = 0  # how often the writer has overtaken it
    damaged: int = 0  # how often the ring held what no writer leaves there
    _slot: int = -1

    def register(self) -> None:
        """Take a place. The sixteenth reader makes all others register again."""
        words = self.memory.words
        count = words[NUM_READERS]
        if count >= MAX_READERS:
            # Some of the readers there may have ended long ago.
            _send_away(words)
            count = 0
        # Python has no compare-and-swap: two that register at once may take one place, or one
        # beyond those that the writer looks at. They find out at their next look.
        words[NUM_READERS] = count + 1
        self._slot = count
        words[READ_VALID + count] = 0
        words[READ_POINTER + count] = 0
        words[READ_UID + count] = self.uid
        self.memory.fence()
        self._reset()

    def is_waiting(self) -> bool:
        """Return whether there is something to receive; registers again if the place is gone."""
        words, slot = self.memory.words, self._slot
        if words[READ_UID + slot] != self.uid or words[NUM_READERS] <= slot:
            self.register()
            return False
        if not words[READ_VALID + slot]:
            self.lost += 1
            self._reset()
            return False
        return words[READ_POINTER + slot] != words[WRITE_POINTER]

    def receive(self) -> bytes | None:
        """Return the next message, of a conflating reader the newest; None if there is none."""
        if not self.is_waiting():
            return None
        words, slot = self.memory.words, self._slot
        start, head = words[READ_POINTER + slot], words[WRITE_POINTER]
        # The message must not be read before the pointer that announces it.
        self.memory.fence()
        found = self._walk(start, head)
        if found is None:
            # Either it was written over while it was read, or no writer has left it so.
            if self._is_sound():
                self.damaged += 1
                self._reset()
            return None
        offset, size, after = found
        data = self.memory.read(offset + SIZE_BYTES, size) if size else None
        if not self._is_sound():
            return None
        words[READ_POINTER + slot] = after
        return data

    def close(self) -> None:
        """Give the place up: nobody is to be woken, and nothing waits to be read."""
        words, slot = self.memory.words, self._slot
        if words[READ_UID + slot] == self.uid:
            words[READ_VALID + slot] = 0
            words[READ_UID + slot] = 0

    def rename(self, uid: int) -> None:
        """Use another uid, so that another thread is woken."""
        words, slot = self.memory.words, self._slot
        if words[READ_UID + slot] == self.uid:
            words[READ_UID + slot] = uid
        self.uid = uid
        self.memory.fence()

    def _is_sound(self) -> bool:
        """Return whether all that was read before is as it was written."""
        words, slot = self.memory.words, self._slot
        # The writer clears the flag before it writes over the first byte.
        self.memory.fence()
        has_place = words[READ_UID + slot] == self.uid and words[NUM_READERS] > slot
        return has_place and words[READ_VALID + slot] != 0

    def _reset(self) -> None:
        """Go on with what is sent from now on."""
        words, slot = self.memory.words, self._slot
        for _ in range(_RESET_TRIES):
            head = words[WRITE_POINTER]
            words[READ_POINTER + slot] = head
            words[READ_VALID + slot] = 1
            self.memory.fence()
            if words[WRITE_POINTER] == head:
                # The writer has not moved, so that from here on it sees this position.
                return
        words[READ_VALID + slot] = 0

    def _walk(self, at: int, head: int) -> tuple[int, int, int] | None:
        """Find the record to take: its offset, its size and the pointer to what follows it.

        The size is 0 at the end of the ring; None is an impossible ring. The reader's own position
        stays, so the writer meets that first.
        """
        size, sizes = self.memory.size, self.memory.sizes
        offset = count = 0
        if not _can_be_unread(at, head):
            return None
        while at != head:
            start = at & OFFSET_MASK
            found = sizes[start // SIZE_BYTES] if _is_inside(start, size) else 0
            if found == WRAP and at >> 32 != head >> 32:
                at = _after_wrap(at)
                continue
            if not 0 < found <= size - start - SIZE_BYTES:
                return None
            offset, count = start, found
            at += _record_bytes(count)
            if not self.conflate:
                break
        return offset, count, at


@dataclass(slots=True)
class RingWriter:
    """The one writer of a ring."""

    memory: Memory
    uid: int

    def claim(self) -> None:
        """Become the writer; the previous one notices. All readers have to register again."""
        words = self.memory.words
        words[WRITE_UID] = self.uid
        _send_away(words)

    def is_owner(self) -> bool:
        """Return whether no other writer has claimed the ring since."""
        return self.memory.words[WRITE_UID] == self.uid

    def fits(self, count: int) -> bool:
        """Return whether a message of this many bytes can be sent: at least 1."""
        return count > 0 and MESSAGES_THAT_FIT * _record_bytes(count) <= self.memory.size

    def send(self, data: bytes) -> bool:
        """Write a message; readers that have not read what it overwrites lose that.

        Returns False and writes nothing if another writer has the ring or it does not fit.
        """
        memory = self.memory
        words, size = memory.words, memory.size
        total = _record_bytes(len(data))
        if words[WRITE_UID] != self.uid or not self.fits(len(data)):
            return False
        at = words[WRITE_POINTER]
        offset = at & OFFSET_MASK
        is_sound = _is_inside(offset, size)
        if not is_sound or size - offset - total - SIZE_BYTES <= 0:
            if is_sound:
                self._invalidate(at, size - offset)
                memory.sizes[offset // SIZE_BYTES] = WRAP
                memory.fence()
            at, offset = _after_wrap(at), 0
            words[WRITE_POINTER] = at
        self._invalidate(at, total)
        memory.sizes[offset // SIZE_BYTES] = len(data)
        memory.write(offset + SIZE_BYTES, data)
        # A reader that sees the pointer must see the message.
        memory.fence()
        words[WRITE_POINTER] = at + total
        return True

    def readers(self) -> list[int]:
        """Return the uids of the readers that have a place."""
        words = self.memory.words
        count = min(words[NUM_READERS], MAX_READERS)
        return [words[READ_UID + slot] for slot in range(count)]

    def is_read_by(self, slot: int) -> bool:
        """Return whether the reader in a place has taken all, or has been told of its loss."""
        words = self.memory.words
        head = words[WRITE_POINTER]
        return not words[READ_VALID + slot] or words[READ_POINTER + slot] == head

    def close(self) -> None:
        """Give the ring up for another writer."""
        if self.is_owner():
            self.memory.words[WRITE_UID] = 0

    def _invalidate(self, at: int, count: int) -> None:
        """Clear the flags of readers before their unread messages are overwritten."""
        words = self.memory.words
        offset, cycle = at & OFFSET_MASK, at >> 32
        for slot in range(min(words[NUM_READERS], MAX_READERS)):
            read = words[READ_POINTER + slot]
            if offset <= read & OFFSET_MASK < offset + count and read >> 32 != cycle:
                words[READ_VALID + slot] = 0
        self.memory.fence()

"""The algorithm of a msgq ring: its layout, its reader and its writer.

A ring file is a header of 48 words, followed by the data. Words are 64 bits, little endian. A
pointer has a cycle in its upper half, which counts the passes through the ring, and an offset into
the data in its lower half. A record is the message size as a signed word, then the message, padded
to whole words. The size `WRAP` means that the next record is at offset 0. Source: msgq, 2024-2026.
"""

from dataclasses import dataclass
from typing import Final, Protocol

MAX_READERS: Final = 15
HEADER_WORDS: Final = 48
HEADER_BYTES: Final = 8 * HEADER_WORDS
# Indices of header words.
NUM_READERS: Final = 0
WRITE_POINTER: Final = 1
WRITE_UID: Final = 2
READ_POINTER: Final = 3
READ_VALID: Final = READ_POINTER + MAX_READERS
READ_UID: Final = READ_VALID + MAX_READERS

SIZE_BYTES: Final = 8
WRAP: Final = -1
# Three of the largest messages fit into a ring, so that a reader has time to read one.
MESSAGES_THAT_FIT: Final = 3
OFFSET_MASK: Final = 0xFFFFFFFF


class Words(Protocol):
    """64-bit words. Each access is a single instruction."""

    def __getitem__(self, index: int, /) -> int:
        """Read a word."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Write a word."""
        ...


class Memory(Protocol):
    """A mapped ring.

    Other processes may access it between any two of our accesses. Each record in the data begins
    with its size.
    """

    size: int  # number of data bytes

    @property
    def words(self) -> Words:
        """The header, in unsigned words."""

    @property
    def sizes(self) -> Words:
        """The data, in signed words."""

    def read(self, offset: int, count: int) -> bytes:
        """Return a copy of `count` bytes of the data, starting at `offset`."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Write `data` at `offset` of the ring's data."""
        ...

    def fence(self) -> None:
        """Order all earlier accesses before all later ones, as seen by other processes."""
        ...


def _after_wrap(pointer: int) -> int:
    """Return the pointer to the start of the next cycle; cycles wrap after 32 bits."""
    return ((pointer >> 32) + 1 & OFFSET_MASK) << 32


def _can_be_unread(pointer: int, head: int) -> bool:
    """Return whether the data from a reader's pointer to the writer's, `head`, is still there."""
    cycles = (head >> 32) - (pointer >> 32) & OFFSET_MASK
    if cycles == 0:
        return pointer <= head
    return cycles == 1 and pointer & OFFSET_MASK >= head & OFFSET_MASK


def _record_bytes(count: int) -> int:
    """Return the size of the record for a message of `count` bytes."""
    return count + SIZE_BYTES + 7 & ~7


def largest_message(size: int) -> int:
    """Return the size of the largest message that fits a ring of `size` data bytes."""
    return (size // MESSAGES_THAT_FIT & ~7) - SIZE_BYTES


def _is_inside(offset: int, size: int) -> bool:
    """Return whether a record can begin at `offset`."""
    return offset % 8 == 0 and offset + SIZE_BYTES <= size


def thread_of(uid: int) -> int:
    """Return the thread ID in a uid; 0 if its reader is not to be woken."""
    return uid & OFFSET_MASK


# --- The reader and the writer ----------------------------------------------------------------

# How many times a reader tries to set its position to the newest message. If the writer is faster
# each time, the next call tries again.
_RESET_TRIES = 4


def _clear_slots(words: Words) -> None:
    """Clear all slots. The readers find their uid gone and register again."""
    words[NUM_READERS] = 0
    for slot in range(MAX_READERS):
        words[READ_VALID + slot] = 0
        words[READ_UID + slot] = 0


@dataclass(slots=True)
class RingReader:
    """One of the readers of a ring.

    It receives messages sent after its registration. It occupies one of 15 slots in the header: a
    uid, a position, and a valid flag that the writer clears before it overwrites unread messages.
    The reader then loses its unread messages and continues with the next one sent.
    """

    memory: Memory
    uid: int  # a random upper half, and the ID of the thread to wake in the lower half
    conflate: bool = False  # receive only the newest message
    lost: int = 0  # number of times the writer has overtaken the reader
    damaged: int = 0  # number of times the ring held data that no writer produces
    _slot: int = -1

    def register(self) -> None:
        """Occupy a slot. The sixteenth reader forces all others to register again."""
        words = self.memory.words
        count = words[NUM_READERS]
        if count >= MAX_READERS:
            # Some of the registered readers may have ended long ago.
            _clear_slots(words)
            count = 0
        # Python has no compare-and-swap. Readers that register simultaneously may take the same
        # slot, or one beyond those that the writer checks. They notice that at their next access.
        words[NUM_READERS] = count + 1
        self._slot = count
        words[READ_VALID + count] = 0
        words[READ_POINTER + count] = 0
        words[READ_UID + count] = self.uid
        self.memory.fence()
        self._reset()

    def is_waiting(self) -> bool:
        """Return whether a message is waiting; register again if the slot is lost."""
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
        """Return the next message (the newest if `conflate` is set), or None if there is none."""
        if not self.is_waiting():
            return None
        words, slot = self.memory.words, self._slot
        start, head = words[READ_POINTER + slot], words[WRITE_POINTER]
        # The message must not be read before the pointer.
        self.memory.fence()
        found = self._walk(start, head)
        if found is None:
            # If the reader was not overtaken during the read, the data is damaged.
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
        """Free the slot, so that the writer neither wakes this reader nor waits for it."""
        words, slot = self.memory.words, self._slot
        if words[READ_UID + slot] == self.uid:
            words[READ_VALID + slot] = 0
            words[READ_UID + slot] = 0

    def rename(self, uid: int) -> None:
        """Use another uid, which names another thread to wake."""
        words, slot = self.memory.words, self._slot
        if words[READ_UID + slot] == self.uid:
            words[READ_UID + slot] = uid
        self.uid = uid
        self.memory.fence()

    def _is_sound(self) -> bool:
        """Return whether everything read so far was still intact."""
        words, slot = self.memory.words, self._slot
        # The writer clears the valid flag before it overwrites the first byte.
        self.memory.fence()
        has_place = words[READ_UID + slot] == self.uid and words[NUM_READERS] > slot
        return has_place and words[READ_VALID + slot] != 0

    def _reset(self) -> None:
        """Continue with the next message sent."""
        words, slot = self.memory.words, self._slot
        for _ in range(_RESET_TRIES):
            head = words[WRITE_POINTER]
            words[READ_POINTER + slot] = head
            words[READ_VALID + slot] = 1
            self.memory.fence()
            if words[WRITE_POINTER] == head:
                # The writer has not moved, so it will see this position before it overwrites it.
                return
        words[READ_VALID + slot] = 0

    def _walk(self, at: int, head: int) -> tuple[int, int, int] | None:
        """Find the record to receive: its offset, its size and the pointer after it.

        The size is 0 if there is none. Returns None if the ring's content is invalid. The position
        in the header stays unchanged, so that the writer still protects it.
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
        """Become the writer. The previous writer notices, and all readers register again."""
        words = self.memory.words
        words[WRITE_UID] = self.uid
        _clear_slots(words)

    def is_owner(self) -> bool:
        """Return whether no other writer has claimed the ring since `claim`."""
        return self.memory.words[WRITE_UID] == self.uid

    def fits(self, count: int) -> bool:
        """Return whether a message of `count` bytes, at least 1, can be sent."""
        return count > 0 and MESSAGES_THAT_FIT * _record_bytes(count) <= self.memory.size

    def send(self, data: bytes) -> bool:
        """Write a message. Readers lose unread messages that it overwrites.

        Returns False and writes nothing if another writer owns the ring or the message does not
        fit.
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
        # A reader that sees the new pointer must also see the message.
        memory.fence()
        words[WRITE_POINTER] = at + total
        return True

    def readers(self) -> list[int]:
        """Return the uids of the registered readers."""
        words = self.memory.words
        count = min(words[NUM_READERS], MAX_READERS)
        return [words[READ_UID + slot] for slot in range(count)]

    def is_read_by(self, slot: int) -> bool:
        """Return whether the reader in `slot` has received everything or been overtaken."""
        words = self.memory.words
        head = words[WRITE_POINTER]
        return not words[READ_VALID + slot] or words[READ_POINTER + slot] == head

    def close(self) -> None:
        """Release the ring for another writer."""
        if self.is_owner():
            self.memory.words[WRITE_UID] = 0

    def _invalidate(self, at: int, count: int) -> None:
        """Clear the valid flags of readers whose unread messages are about to be overwritten."""
        words = self.memory.words
        offset, cycle = at & OFFSET_MASK, at >> 32
        for slot in range(min(words[NUM_READERS], MAX_READERS)):
            read = words[READ_POINTER + slot]
            if offset <= read & OFFSET_MASK < offset + count and read >> 32 != cycle:
                words[READ_VALID + slot] = 0
        self.memory.fence()

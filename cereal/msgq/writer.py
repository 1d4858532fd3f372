"""The writing end of a ring."""

from dataclasses import dataclass

from cereal.msgq.layout import (
    MAX_READERS,
    MESSAGES_THAT_FIT,
    NUM_READERS,
    OFFSET_MASK,
    READ_POINTER,
    READ_UID,
    READ_VALID,
    SIZE_BYTES,
    WRAP,
    WRITE_POINTER,
    WRITE_UID,
    Memory,
    after_wrap,
    is_inside,
    record_bytes,
)


@dataclass(slots=True)
class RingWriter:
    """The one writer of a ring."""

    memory: Memory
    uid: int

    def claim(self) -> None:
        """Become the writer; the previous one notices. All readers have to register again."""
        words = self.memory.words
        words[WRITE_UID] = self.uid
        words[NUM_READERS] = 0
        for slot in range(MAX_READERS):
            words[READ_VALID + slot] = 0
            words[READ_UID + slot] = 0

    def is_owner(self) -> bool:
        """Return whether no other writer has claimed the ring since."""
        return self.memory.words[WRITE_UID] == self.uid

    def fits(self, count: int) -> bool:
        """Return whether a message of this many bytes can be sent: at least 1."""
        return count > 0 and MESSAGES_THAT_FIT * record_bytes(count) <= self.memory.size

    def send(self, data: bytes) -> bool:
        """Write a message; readers that have not read what it overwrites lose that.

        Returns False and writes nothing if another writer has the ring or it does not fit.
        """
        memory = self.memory
        words, size = memory.words, memory.size
        total = record_bytes(len(data))
        if words[WRITE_UID] != self.uid or not self.fits(len(data)):
            return False
        at = words[WRITE_POINTER]
        offset = at & OFFSET_MASK
        is_sound = is_inside(offset, size)
        if not is_sound or size - offset - total - SIZE_BYTES <= 0:
            if is_sound:
                self._invalidate(at, size - offset)
                memory.sizes[offset // SIZE_BYTES] = WRAP
                memory.fence()
            at, offset = after_wrap(at), 0
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

"""The reading end of a ring."""

from dataclasses import dataclass

from cereal.msgq.layout import (
    MAX_READERS,
    NUM_READERS,
    OFFSET_MASK,
    READ_POINTER,
    READ_UID,
    READ_VALID,
    SIZE_BYTES,
    WRAP,
    WRITE_POINTER,
    Memory,
    after_wrap,
    can_be_unread,
    is_inside,
    record_bytes,
)

# How often a reader looks for a position that stays the newest while it is taken. A writer that
# overtakes it so often leaves it for the next call.
_RESET_TRIES = 4


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
            # The readers there find their uid gone. Some of them may have ended long ago.
            words[NUM_READERS] = 0
            for slot in range(MAX_READERS):
                words[READ_VALID + slot] = 0
                words[READ_UID + slot] = 0
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
        if not can_be_unread(at, head):
            return None
        while at != head:
            start = at & OFFSET_MASK
            found = sizes[start // SIZE_BYTES] if is_inside(start, size) else 0
            if found == WRAP and at >> 32 != head >> 32:
                at = after_wrap(at)
                continue
            if not 0 < found <= size - start - SIZE_BYTES:
                return None
            offset, count = start, found
            at += record_bytes(count)
            if not self.conflate:
                break
        return offset, count, at

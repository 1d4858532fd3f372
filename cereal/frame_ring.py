"""The shared memory of a frame ring: its layout, its memory ordering and its wake-up.

A frame ring hands the frames of one camera stream to other processes. Layout (little endian, uint64
words; docs/formats/bus.md): one header, one record of 64 bytes per slot, then the frame buffers,
each starting on a page. A record's sequence number is 2n - 1 while frame n (counted from 1) is
being written and 2n once it is complete. `head` is the number of the newest complete frame.
"""

import ctypes
import mmap
import os
import platform
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cereal.errors import FrameError

# --- The memory layout of an NV12 camera frame ------------------------------------------------

PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """The layout of an NV12 frame in its buffer.

    Luma: `height` rows of `stride` bytes from offset 0. Chroma: `height / 2` rows of `stride` bytes
    from `uv_offset`, U and V alternating. Only the first `width` bytes of a row are pixels.
    """

    width: int  # pixels
    height: int  # pixels
    stride: int  # bytes per row
    uv_offset: int  # bytes
    size: int
    """Bytes of the whole buffer. The padding after the planes differs between producers."""

    @property
    def payload_bytes(self) -> int:
        """Bytes from the start of the buffer to the end of the last row of chroma."""
        return self.uv_offset + self.stride * (self.height // 2)


def nv12_format(width: int, height: int) -> FrameFormat:
    """Return the padded layout that the cameras use for `width` x `height` pixels.

    Source: VENUS NV12 rules of the Snapdragon 845. Rows have a multiple of 128 bytes, luma planes a
    multiple of 32 rows, chroma planes of 16 rows, and the compressor needs extra space. 1928x1208
    takes 4,804,608 bytes. Raises ValueError if a side is odd or not positive: NV12 has one chroma
    sample per 2 x 2 pixels.
    """
    _check_sides(width, height)
    stride = _align(width, 128)
    luma_rows = _align(height, 32)
    chroma_rows = _align(height // 2, 16)
    planes = stride * (luma_rows + chroma_rows)
    size = _align(planes + PAGE + max(16 * 1024, 8 * stride), PAGE)
    size = _align(size + _align(width, 512) * 512, PAGE)
    return FrameFormat(width, height, stride, stride * luma_rows, size)


def nv12_unpadded(width: int, height: int) -> FrameFormat:
    """Return the layout without padding between rows or planes.

    Raises ValueError for the same sides as `nv12_format`.
    """
    _check_sides(width, height)
    return FrameFormat(width, height, width, width * height, width * height * 3 // 2)


def _check_sides(width: int, height: int) -> None:
    if width <= 0 or height <= 0 or width % 2 or height % 2:
        raise ValueError(
            f"frame format: expected positive even sides, got {width}x{height}; crop the frame"
        )


def _align(value: int, step: int) -> int:
    return (value + step - 1) // step * step


MAGIC: Final = int.from_bytes(b"NV12RING", "little")
VERSION: Final = 1
MAX_SLOTS: Final = 256
MAX_SIDE: Final = 1 << 14
# Messages store a frame's ID in 32 bits.
MAX_FRAME_ID: Final = (1 << 32) - 1

# Word indices in the header. `head` and `closed` have separate cache lines.
_MAGIC, _VERSION, _COUNT, _WIDTH, _HEIGHT, _STRIDE, _UV_OFFSET, _SIZE = range(8)
_HEAD: Final = 8
_CLOSED: Final = 16
_HEADER_WORDS: Final = 24
# Word indices in a slot's record.
_SLOT_WORDS: Final = 8
_SEQUENCE, _FRAME_ID, _SOF, _EOF = range(4)

_FUTEX_NUMBERS: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_FUTEX_WAIT: Final = 0
_FUTEX_WAKE: Final = 1
_POLL_S: Final = 1e-3
_LIBC: Final = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Record:
    """The content of a slot's record: the frame's number, ID and exposure times."""

    number: int  # count of frames in this ring, from 1
    frame_id: int  # the camera's frame counter, 32 bits
    sof_ns: int  # start of the exposure, ns of the monotonic clock
    eof_ns: int  # end of the exposure, ns of the monotonic clock


class Mapping:
    """A ring file that a writer or a reader has mapped. Error messages call it `where`.

    `descriptor` stays open (and locked, for the writer) as long as the mapping exists. Raises
    FrameError if the file is not a ring of this version, or its header contradicts its size.
    """

    def __init__(self, descriptor: int, where: Path, *, writable: bool) -> None:
        self.where = where
        self.descriptor = descriptor
        status = os.fstat(descriptor)
        self.inode = status.st_ino
        if status.st_size < _HEADER_WORDS * 8:
            raise FrameError(
                f"{where}: expected a frame ring, got {status.st_size} bytes; remove the file"
            )
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            self._memory = mmap.mmap(descriptor, status.st_size, access=access)
        except (OSError, ValueError) as error:
            # Out of memory, out of descriptors (mmap duplicates it), or the file has just shrunk.
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise FrameError(
                f"{where}: expected to map {status.st_size} bytes, got {reason}; free memory or "
                "descriptors, and look again"
            ) from error
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)
        self.words: NDArray[np.uint64] = np.frombuffer(
            self._memory, "<u8", count=status.st_size // 8
        )
        self.count, self.format = self._checked_header(status.st_size)
        self._slot_bytes = slot_bytes(self.format.size)
        self._data_offset = data_offset(self.count)
        self._head_address = self.words.ctypes.data + _HEAD * 8
        self._fence = Fence()

    def _checked_header(self, file_size: int) -> tuple[int, FrameFormat]:
        header = [int(word) for word in self.words[:_HEADER_WORDS]]
        if header[_MAGIC] != MAGIC or header[_VERSION] != VERSION:
            raise FrameError(
                f"{self.where}: expected a frame ring of version {VERSION}, got magic "
                f"{header[_MAGIC]:#x}, version {header[_VERSION]}; update the writer or the reader"
            )
        count = header[_COUNT]
        form = FrameFormat(*header[_WIDTH : _SIZE + 1])
        if not (
            2 <= count <= MAX_SLOTS and is_sound(form) and file_size == ring_bytes(form, count)
        ):
            raise FrameError(
                f"{self.where}: expected {count} slots of {form} in {file_size} bytes, which "
                "cannot be; the file is damaged, restart the writer"
            )
        return count, form

    @property
    def head(self) -> int:
        """Number of the newest complete frame; 0 before the first."""
        return int(self.words[_HEAD])

    @property
    def is_closed(self) -> bool:
        """Whether the writer has closed the ring properly."""
        return bool(self.words[_CLOSED])

    def buffer(self, number: int) -> NDArray[np.uint8]:
        """Return the buffer of frame `number`: a view, (format.size,) uint8."""
        start = self._data_offset + self._slot(number) * self._slot_bytes
        return self.bytes[start : start + self.format.size]

    def begin(self, number: int) -> None:
        """Mark the slot of frame `number` as being written. Writer only."""
        self.words[self._record(number) + _SEQUENCE] = 2 * number - 1
        # Other processes must see the mark before the first new pixel.
        self._fence.order()

    def finish(self, record: Record) -> None:
        """Mark the frame as complete and newest, and wake the readers. Writer only."""
        start = self._record(record.number)
        self.words[start + _FRAME_ID] = record.frame_id
        self.words[start + _SOF] = record.sof_ns
        self.words[start + _EOF] = record.eof_ns
        self._fence.order()
        self.words[start + _SEQUENCE] = 2 * record.number
        self._fence.order()
        self.words[_HEAD] = record.number
        wake(self._head_address)

    def close_ring(self) -> None:
        """Tell readers that no more frames will follow. Writer only."""
        self.words[_CLOSED] = 1
        wake(self._head_address)

    def read(self, number: int) -> Record | None:
        """Return the record of frame `number`.

        None if a newer frame has its slot, or its ID is out of range.
        """
        start = self._record(number)
        if int(self.words[start + _SEQUENCE]) != 2 * number:
            return None
        self._fence.order()
        record = Record(
            number,
            int(self.words[start + _FRAME_ID]),
            int(self.words[start + _SOF]),
            int(self.words[start + _EOF]),
        )
        if record.frame_id > MAX_FRAME_ID:
            return None
        return record if self.is_whole(number) else None

    def is_whole(self, number: int) -> bool:
        """Return whether the slot still holds frame `number`. Call it after using the content."""
        self._fence.order()
        return int(self.words[self._record(number) + _SEQUENCE]) == 2 * number

    def wait_beyond(self, number: int, timeout_s: float) -> bool:
        """Wait for a frame newer than `number`; False on timeout or early wake-up."""
        if self.head > number:
            return True
        # If a frame was published just now, the word differs from `number` and the kernel returns.
        wait(self._head_address, number & 0xFFFFFFFF, timeout_s)
        return self.head > number

    def _slot(self, number: int) -> int:
        return (number - 1) % self.count

    def _record(self, number: int) -> int:
        return _HEADER_WORDS + self._slot(number) * _SLOT_WORDS


class Fence:
    """Orders earlier memory accesses before later ones, as seen by other processes.

    x86 keeps stores in order by itself; ARM does not. Releasing and then acquiring a lock is a
    store-release followed by a load-acquire, which ARMv8 does not reorder with other accesses.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def order(self) -> None:
        """Order all earlier memory accesses before all later ones."""
        self._lock.release()
        self._lock.acquire()


def is_sound(form: FrameFormat) -> bool:
    """Return whether the planes fit the buffer and the sides are plausible."""
    sides = 0 < form.width <= MAX_SIDE and 0 < form.height <= MAX_SIDE
    rows = form.width <= form.stride <= 4 * MAX_SIDE
    planes = form.stride * form.height <= form.uv_offset <= 1 << 32
    whole = form.uv_offset + form.stride * (form.height // 2) <= form.size <= 1 << 32
    return sides and rows and planes and whole


def slot_bytes(size: int) -> int:
    """Return the distance between two frame buffers, bytes."""
    return _align(size, PAGE)


def data_offset(count: int) -> int:
    """Return the offset of the first frame buffer, bytes."""
    return slot_bytes((_HEADER_WORDS + count * _SLOT_WORDS) * 8)


def ring_bytes(form: FrameFormat, count: int) -> int:
    """Return the size of a ring file, bytes."""
    return data_offset(count) + count * slot_bytes(form.size)


def wait(address: int, expected: int, timeout_s: float) -> None:
    """Sleep while the 32-bit word at `address` equals `expected`, at most `timeout_s`.

    A futex uses no processor time while waiting and wakes within tens of microseconds. On machines
    whose futex system call number is not known, sleep 1 ms and let the caller check again.
    """
    number = _FUTEX_NUMBERS.get(platform.machine())
    if number is None:
        time.sleep(min(timeout_s, _POLL_S))
        return
    whole_s = int(timeout_s)
    timeout = struct.pack("@qq", whole_s, int((timeout_s - whole_s) * 1e9))
    _LIBC.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_int(_FUTEX_WAIT),
        ctypes.c_uint32(expected),
        timeout,
        None,
        ctypes.c_int(0),
    )


def wake(address: int) -> None:
    """Wake all processes that wait on the word at `address`."""
    number = _FUTEX_NUMBERS.get(platform.machine())
    if number is not None:
        _LIBC.syscall(
            ctypes.c_long(number),
            ctypes.c_void_p(address),
            ctypes.c_int(_FUTEX_WAKE),
            ctypes.c_int(2**31 - 1),
            None,
            None,
            ctypes.c_int(0),
        )

"""Detects truncated files and lost data from the bytes of a video's container.

FFmpeg does not do this reliably: it reads a truncated file without an error, and reports damage
where two transport streams were joined. Containers: ISO (mp4, mov), Matroska, AVI, and MPEG
transport streams (ISO 13818-1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

# Elements of Matroska that contain others and can have an unknown size.
_OPEN_ELEMENTS: Final = frozenset({0x18538067, 0x1F43B675})  # Segment, Cluster
# AVI writers disagree on whether the size includes the first eight bytes.
_RIFF_SLACK: Final = 8
TS_PACKET: Final = 188
# (size of a packet, offset of its sync byte): plain, with a leading time stamp, with a checksum.
_PACKETS: Final = ((TS_PACKET, 0), (192, 4), (204, 0))
_SYNC: Final = 0x47


@dataclass(frozen=True, slots=True)
class Extent:
    """The expected and the actual size of a file."""

    stated: int  # size in bytes by its outermost elements; the actual size if they have none
    found: int  # actual size in bytes
    is_fragmented: bool = False  # an ISO file with fragments, whose first index is incomplete

    @property
    def is_cut(self) -> bool:
        """Whether the end of the file is missing."""
        return self.found < self.stated

    @property
    def cut(self) -> str:
        """Text that says where the file is truncated; "" if it is not."""
        return f"the file cut off at byte {self.found:,} of {self.stated:,}" if self.is_cut else ""


def read_extent(path: Path, format_name: str) -> Extent:
    """Return the extent of a file from its outermost elements.

    `format_name` is FFmpeg's name. Formats other than ISO, Matroska and AVI are not checked.
    """
    found = path.stat().st_size
    with path.open("rb") as file:
        if "mp4" in format_name:
            return _walk_iso(file, found)
        if "matroska" in format_name:
            return Extent(max(found, _walk_matroska(file, found)), found)
        if format_name == "avi":
            return Extent(max(found, _walk_riff(file, found)), found)
    return Extent(found, found)


def _walk_iso(file: BinaryIO, found: int) -> Extent:
    position, is_fragmented = 0, False
    while position + 8 <= found:
        file.seek(position)
        head = file.read(16)
        length, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        # Length 0 means up to the end of the file. Data that is not a box was appended by a camera.
        if length < 8 or not kind.isalnum():
            break
        is_fragmented = is_fragmented or kind == b"moof"
        position += length
        if position > found and kind in (b"mdat", b"moof", b"moov"):
            return Extent(position, found, is_fragmented)
    return Extent(found, found, is_fragmented)


def _walk_riff(file: BinaryIO, found: int) -> int:
    position = 0
    while position + 8 <= found:
        file.seek(position)
        head = file.read(8)
        length = int.from_bytes(head[4:], "little")
        if head[:4] != b"RIFF" or not 0 < length < 0xFFFFFFFF:
            return found
        position += 8 + length + length % 2
    return position if position > found + _RIFF_SLACK else found


def _walk_matroska(file: BinaryIO, found: int) -> int:
    position = 0
    while position < found:
        file.seek(position)
        head = file.read(12)
        # The number of leading zero bits gives the length of each of the two numbers.
        id_bytes = 9 - head[0].bit_length()
        if id_bytes > 4 or len(head) <= id_bytes:
            break
        first = head[id_bytes]
        size_bytes = 9 - first.bit_length()
        if size_bytes > 8 or len(head) < id_bytes + size_bytes:
            break
        kind = int.from_bytes(head[:id_bytes], "big")
        bits = 7 * size_bytes
        mask = (1 << bits) - 1
        size = int.from_bytes(head[id_bytes : id_bytes + size_bytes], "big") & mask
        position += id_bytes + size_bytes
        if size == mask:
            if kind not in _OPEN_ELEMENTS:
                break
        else:
            position += size
    return position


def damaged_from(path: Path, pid: int) -> int | None:
    """Return the byte offset of the first incomplete picture of a transport stream, or None.

    The offset is that of the packet with which the picture begins. If only the last packet of the
    file is incomplete, it is that packet's.

    Lost packets are gaps in the packet counter of the stream `pid`. Where two streams were joined,
    the counter restarts although no data is missing. At a joint, there is a table between the two
    packets, the second packet begins a picture, and its counter or the table's restarts. A stream
    can also announce a restart of its counter.
    """
    data = np.memmap(path, np.uint8, "r")
    layout = next((one for one in _PACKETS if _is_layout(data, *one)), None)
    if layout is None:
        return None
    length, sync = layout
    packets = data[: data.size // length * length].reshape(-1, length)[:, sync:]
    pids = (packets[:, 1].astype(np.uint16) & 0x1F) << 8 | packets[:, 2]
    mine = np.flatnonzero((pids == pid) & (packets[:, 3] & 0x10 != 0))
    tables = np.flatnonzero(pids == 0)
    begins = mine[packets[mine, 1] & 0x40 != 0]
    counts = packets[mine, 3] & 15
    for at in np.flatnonzero((counts[1:] - counts[:-1]) & 15 != 1):
        before, after = int(mine[at]), int(mine[at + 1])
        if not (_is_announced(packets[after]) or _is_joint(packets, tables, before, after)):
            return _begin_of(begins, before, length)
    whole = packets.shape[0] * length
    if not mine.size or whole == data.size:
        return None
    if not _is_filled_up(packets[mine[-1]]):
        return _begin_of(begins, int(mine[-1]), length)
    # The last picture is complete. The header of the partial packet after it names its stream.
    head = data[whole + sync + 1 : whole + sync + 3]
    is_other = head.size == 2 and ((int(head[0]) & 0x1F) << 8 | int(head[1])) != pid
    return None if is_other else whole


def _is_layout(data: NDArray[np.uint8], length: int, sync: int) -> bool:
    """Return whether the first 20 packets of this length have their sync byte at `sync`."""
    return data.size >= length and bool((data[sync : 20 * length : length] == _SYNC).all())


def _begin_of(begins: NDArray[np.int64], packet: int, length: int) -> int:
    """Return the byte offset at which the picture of a packet begins."""
    at = int(np.searchsorted(begins, packet, "right")) - 1
    return int(begins[max(at, 0)]) * length if begins.size else 0


def _is_filled_up(packet: NDArray[np.uint8]) -> bool:
    """Return whether a packet has stuffing bytes, as the last packet of a picture can."""
    if not packet[3] & 0x20:
        return False
    clock_bytes = 6 if packet[4] and packet[5] & 0x10 else 0
    return bool(packet[4] == 0 or packet[4] > 1 + clock_bytes)


def _is_announced(packet: NDArray[np.uint8]) -> bool:
    """Return whether a packet has the discontinuity flag in its adaptation field."""
    return bool(packet[3] & 0x20 and packet[4] and packet[5] & 0x80)


def _is_joint(
    packets: NDArray[np.uint8], tables: NDArray[np.int64], before: int, after: int
) -> bool:
    """Return whether two streams were joined between two packets, see `damaged_from`."""
    at = int(np.searchsorted(tables, before))
    if not packets[after, 1] & 0x40 or at >= tables.size or tables[at] > after:
        return False
    table_counts = packets[tables[max(at - 1, 0) : at + 1], 3] & 15
    is_new_table = (int(table_counts[-1]) - int(table_counts[0])) & 15 != 1
    return is_new_table or packets[after, 3] & 15 == 0

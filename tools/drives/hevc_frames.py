"""Reads raw HEVC files (Annex B) picture by picture: the exact picture, or an error.

One pass over the bytes finds where pictures and key frames start. A picture is then decoded from
the nearest key frame before it. Decoders usually hide damage. Here it is an error if the decoder
reports a problem, or if a picture has an unexpected size or is out of order.

Source: ITU-T H.265, 7.3.1.2 (header of a NAL unit), 7.4.2.4.4 (first NAL unit of a picture),
Annex B (start codes).
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from cereal.frames import FrameFormat, nv12_format
from tools.errors import DriveError, MissingPackageError

_START_CODE: Final = b"\0\0\1"
_CHUNK: Final = 1 << 22
# Bytes of a start code (3), the NAL unit's header (2) and the start of its content (3).
_NAL_HEAD: Final = 8
# Random access points: BLA, IDR, CRA and two reserved types.
_KEY_TYPES: Final = range(16, 24)
_PICTURE_TYPES: Final = range(32)
_PARAMETER_TYPES: Final = range(32, 35)
# A suffix SEI unit with the MD5 of each plane: type 132, 49 bytes, method 0 (D.2.19).
_SUFFIX_SEI_TYPE: Final = 40
_MD5_SEI: Final = bytes((132, 49, 0))
# Units that precede the first slice of the picture to which they belong.
_LEADING_TYPES: Final = frozenset((*range(32, 36), 39, *range(41, 45), *range(48, 56)))
# A minute at 20 Hz has 1200 pictures. The limit bounds memory for a file of start codes only.
MAX_PICTURES: Final = 20_000
# More pixels than any camera has; the header of a damaged file can state any size.
_MAX_PIXELS: Final = 1 << 24
# Reject pictures that violate the standard, and verify checksums if the file contains them.
_DECODER_OPTIONS: Final = {"err_detect": "explode+crccheck", "max_pixels": str(_MAX_PIXELS)}


@dataclass(frozen=True, slots=True)
class HevcIndex:
    """The positions of the pictures in a file."""

    path: Path
    sha256: bytes  # digest of the file
    # (n + 1,) int64, first byte of each picture including its leading units, then the file's end.
    starts: NDArray[np.int64]
    is_key: NDArray[np.bool_]  # (n,) bool, whether decoding can start at the picture
    # For each run of parameter sets: its first byte, its end, and the index of the next picture.
    parameters: tuple[tuple[int, int, int], ...]
    is_hashed: NDArray[np.bool_]  # (n,) bool, whether a checksum follows the picture
    trusted: int = MAX_PICTURES  # number of pictures before the first that is known to be damaged

    def __len__(self) -> int:
        return len(self.is_key)

    @property
    def sizes_bytes(self) -> NDArray[np.int64]:
        """(n,) int64, bytes of each picture, including the parameter sets before it."""
        return np.diff(self.starts)

    @property
    def parameters_bytes(self) -> NDArray[np.int64]:
        """(n,) int64, bytes of the parameter sets before each picture."""
        sizes = np.zeros(len(self), np.int64)
        for start, end, picture in self.parameters:
            if picture < len(self):
                sizes[picture] += end - start
        return sizes

    @property
    def has_checksums(self) -> bool:
        """Whether most pictures have checksums."""
        return bool(self.is_hashed.any()) and float(self.is_hashed.mean()) > 0.5

    def key_before(self, picture: int) -> int | None:
        """Return the nearest key frame at or before a picture; None if there is none."""
        keys = np.flatnonzero(self.is_key[: picture + 1])
        return int(keys[-1]) if keys.size else None


@dataclass(slots=True)
class _Scan:
    """Groups NAL units into pictures."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("b"))
    hashed: array[int] = field(default_factory=lambda: array("b"))
    parameters: list[tuple[int, int, int]] = field(default_factory=list)
    _leading_start: int | None = None
    _parameters_start: int | None = None

    def add(self, offset: int, kind: int, content: bytes) -> None:
        """Add the NAL unit that starts at byte `offset`, including its start code.

        `kind` is the type of the unit, `content` its first three bytes.
        """
        if self._parameters_start is not None and kind not in _PARAMETER_TYPES:
            self.parameters.append((self._parameters_start, offset, len(self.starts)))
            self._parameters_start = None
        if kind in _LEADING_TYPES:
            if self._leading_start is None:
                self._leading_start = offset
            if kind in _PARAMETER_TYPES and self._parameters_start is None:
                self._parameters_start = offset
        elif kind in _PICTURE_TYPES and content[0] >= 128:
            # The first bit of a slice, first_slice_segment_in_pic_flag, starts a new picture.
            self.starts.append(offset if self._leading_start is None else self._leading_start)
            self.keys.append(kind in _KEY_TYPES)
            self.hashed.append(0)
            self._leading_start = None
        elif kind == _SUFFIX_SEI_TYPE and content == _MD5_SEI and self.hashed:
            self.hashed[-1] = 1


def scan_hevc(path: Path) -> HevcIndex:
    """Find the pictures of a file in one pass, with bounded memory.

    Raises:
        DriveError: the file cannot be read, or contains more pictures than a segment can have.
    """
    scan = _Scan()
    digest = hashlib.sha256()
    size = 0
    try:
        with path.open("rb") as file:
            for offset, kind, content in _nal_units(file, digest):
                scan.add(offset, kind, content)
                if len(scan.starts) > MAX_PICTURES or len(scan.parameters) > MAX_PICTURES:
                    raise DriveError(
                        f"{path}: expected at most {MAX_PICTURES} pictures, found more; the file "
                        "is damaged or not a segment of a drive"
                    )
            size = file.tell()
    except OSError as error:
        raise DriveError(
            f"{path}: expected a readable video, found {error.strerror or error}; check the file"
        ) from error
    starts = np.array([*scan.starts, size], np.int64)
    return HevcIndex(
        path,
        digest.digest(),
        starts,
        np.array(scan.keys, np.bool_),
        tuple(scan.parameters),
        np.array(scan.hashed, np.bool_),
    )


def _nal_units(file: BinaryIO, digest: Any) -> Iterator[tuple[int, int, bytes]]:
    """Yield (offset, type, first three bytes of the content) of each NAL unit."""
    # The tail of the previous piece, for a start code that crosses the boundary. Its first byte is
    # searched as context only: it can be the zero byte of a start code of four bytes.
    kept = b""
    kept_offset = 0
    while piece := file.read(_CHUNK):
        digest.update(piece)
        data = kept + piece
        position = data.find(_START_CODE, 1 if kept else 0)
        done = max(0, len(data) - _NAL_HEAD)
        while position >= 0:
            if position + _NAL_HEAD > len(data):
                done = min(done, max(0, position - 1))
                break
            has_zero_byte = position > 0 and data[position - 1] == 0
            kind = data[position + 3] >> 1 & 63
            content = data[position + 5 : position + _NAL_HEAD]
            yield kept_offset + position - has_zero_byte, kind, content
            done = max(done, position + 2)
            position = data.find(_START_CODE, position + 3)
        kept = data[done:]
        kept_offset += done


class HevcReader:
    """Decodes the pictures of one file; reading them in order is cheap.

    Raises:
        MissingPackageError: PyAV is not installed.
    """

    def __init__(self, index: HevcIndex) -> None:
        self._index = index
        self._has_checksums = index.has_checksums
        self._file: BinaryIO | None = None
        self._decoder: Any = None
        self._next_fed = 0
        self._next_out = 0
        self._pictures: list[Any] = []
        self._is_flushed = False
        self._is_fresh = True
        # Chroma samples as one 16-bit number per pair; allocated with the first picture.
        self._pairs: NDArray[np.uint16] | None = None
        try:
            import av
        except ImportError as error:
            raise MissingPackageError(
                f"{index.path}: expected the package av for videos, found none; install it with: "
                'pip install "modeld[replay]"'
            ) from error
        self._av = av

    def format_of(self, picture: int) -> FrameFormat:
        """Decode a picture and return its layout.

        Raises:
            DriveError: see `read`.
        """
        decoded = self._decode(picture)
        return nv12_format(decoded.width, decoded.height)

    def read(self, picture: int, target: NDArray[np.uint8], layout: FrameFormat) -> None:
        """Decode one picture into a padded NV12 buffer.

        `picture`: position in the file, from 0. `target`: (>= layout.payload_bytes,) uint8, 2-byte
        aligned; modified. `layout`: the layout of the buffer.

        Raises:
            DriveError: the file ends before the picture, or the picture is damaged, out of order or
                of another size.
        """
        decoded = self._decode(picture)
        if (decoded.width, decoded.height) != (layout.width, layout.height):
            raise self._error(
                picture,
                f"{layout.width}x{layout.height} pixels",
                f"{decoded.width}x{decoded.height}",
            )
        self._copy(decoded, target, layout)

    def close(self) -> None:
        """Release the decoder and the file."""
        self._decoder = None
        self._pictures.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _decode(self, picture: int) -> Any:
        index = self._index
        if picture >= len(index):
            raise self._error(
                picture, "a picture", f"the end of the file after {len(index)} pictures"
            )
        if picture >= index.trusted:
            found = "the end of the file in it" if picture == len(index) - 1 else "damaged bytes"
            if picture > index.trusted:
                found = f"damage at picture {index.trusted}"
            raise self._error(picture, "a complete picture", found)
        key = index.key_before(picture)
        if key is None:
            raise self._error(picture, "a key frame at or before it", "none")
        if self._decoder is None or not key <= self._next_out <= picture:
            self._begin(key)
        while True:
            decoded = self._take(picture)
            number, self._next_out = self._next_out, self._next_out + 1
            if number == picture:
                return decoded

    def _begin(self, key: int) -> None:
        context = self._av.CodecContext.create("hevc", "r")
        context.options = dict(_DECODER_OPTIONS)
        # One thread leaves the other cores to the model's kernels and delays no pictures.
        context.thread_count = 1
        self._decoder = context
        self._pictures.clear()
        self._is_flushed = False
        self._is_fresh = True
        self._next_fed = self._next_out = key

    def _take(self, wanted: int) -> Any:
        """Return the decoder's next picture after checking that it is the next of the file."""
        number = self._next_out
        try:
            while not self._pictures and not self._is_flushed:
                self._feed()
        except (self._av.FFmpegError, ValueError) as error:
            failed, self._decoder = self._next_fed - 1, None
            reason = getattr(error, "strerror", None) or str(error)
            found = f"damage at picture {failed} ({reason})"
            raise self._error(wanted, "a complete picture", found) from error
        decoded = self._pictures.pop(0) if self._pictures else None
        if decoded is None or decoded.pts != number or decoded.is_corrupt:
            self._decoder = None
            if decoded is None:
                found = f"nothing in place of picture {number}"
            elif decoded.is_corrupt:
                found = f"damage at picture {number}"
            else:
                found = f"picture {decoded.pts} in place of picture {number}"
            raise self._error(wanted, "pictures in the order of the file", found)
        if self._has_checksums and not self._index.is_hashed[number]:
            self._decoder = None
            raise self._error(wanted, "checksums as elsewhere", f"none at picture {number}")
        if decoded.format.name not in ("yuv420p", "yuvj420p"):
            raise self._error(wanted, "8-bit 4:2:0 samples", str(decoded.format.name))
        return decoded

    def _feed(self) -> None:
        number = self._next_fed
        if number == len(self._index):
            self._is_flushed = True
            self._pictures += self._decoder.decode(None)
            return
        data = self._bytes_of(number)
        if self._is_fresh:
            data = self._parameters_before(number) + data
            self._is_fresh = False
        packet = self._av.Packet(data)
        packet.pts = packet.dts = number
        self._next_fed += 1
        self._pictures += self._decoder.decode(packet)

    def _parameters_before(self, picture: int) -> bytes:
        """Return the parameter sets in force at a key frame, if they precede another picture."""
        earlier = [run for run in self._index.parameters if run[2] <= picture]
        if not earlier or earlier[-1][2] == picture:
            return b""
        start, end, _ = earlier[-1]
        return self._read_bytes(start, end)

    def _bytes_of(self, picture: int) -> bytes:
        return self._read_bytes(
            int(self._index.starts[picture]), int(self._index.starts[picture + 1])
        )

    def _read_bytes(self, start: int, end: int) -> bytes:
        path = self._index.path
        try:
            if self._file is None:
                self._file = path.open("rb", buffering=0)
            data = os.pread(self._file.fileno(), end - start, start)
        except OSError as error:
            raise DriveError(
                f"{path}: expected to read byte {start} to {end}, found {error.strerror}; "
                "check the file"
            ) from error
        if len(data) != end - start:
            raise DriveError(
                f"{path}: expected {end} bytes as when the drive was opened, found fewer; "
                "another process is writing to the file"
            )
        return data

    def _copy(self, decoded: Any, target: NDArray[np.uint8], layout: FrameFormat) -> None:
        """Write the planes into the buffer; numpy releases the GIL meanwhile."""
        width, height, stride = layout.width, layout.height, layout.stride
        luma, blue, red = (_plane(plane) for plane in decoded.planes)
        target[: stride * height].reshape(height, stride)[:, :width] = luma
        if self._pairs is None or self._pairs.shape != red.shape:
            self._pairs = np.empty(red.shape, np.uint16)
        chroma = target[layout.uv_offset : layout.uv_offset + stride * (height // 2)]
        rows = chroma.view("<u2").reshape(height // 2, stride // 2)[:, : width // 2]
        np.left_shift(red, 8, out=self._pairs, dtype=np.uint16)
        np.bitwise_or(self._pairs, blue, out=rows, dtype=np.uint16)

    def _error(self, picture: int, expected: str, found: str) -> DriveError:
        return DriveError(
            f"{self._index.path}: picture {picture} of {len(self._index)}: expected {expected}, "
            f"found {found}; the video is damaged or incomplete: fetch it again"
        )


def _plane(plane: Any) -> NDArray[np.uint8]:
    rows: NDArray[np.uint8] = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return rows[:, : plane.width]

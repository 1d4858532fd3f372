"""The memory layout of an NV12 camera frame."""

from dataclasses import dataclass
from typing import Final

_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """Where the pixels of an NV12 frame lie in its buffer.

    Luma: `height` rows of `stride` bytes from offset 0. Chroma: `height / 2` rows of `stride` bytes
    from `uv_offset`, U and V alternating. Only the first `width` bytes of a row are pixels.
    """

    width: int
    height: int
    stride: int
    uv_offset: int
    size: int
    """Bytes of the whole buffer, padding included; what follows the planes differs by producer."""

    @property
    def payload_bytes(self) -> int:
        """Bytes from the start of the buffer to the end of the last row of chroma."""
        return self.uv_offset + self.stride * (self.height // 2)


def nv12_format(width: int, height: int) -> FrameFormat:
    """Return the padded layout that the cameras use for `width` x `height` pixels.

    Source: VENUS NV12 rules of the Snapdragon 845 (luma rows in multiples of 128 bytes, planes of
    32 and 16 rows, and the room its compressor asks for); 1928x1208 takes 4,804,608 bytes.

    Raises:
        ValueError: a side is odd or not positive: NV12 has one chroma sample per 2 x 2 pixels.
    """
    _check_sides(width, height)
    stride = _align(width, 128)
    luma_rows = _align(height, 32)
    chroma_rows = _align(height // 2, 16)
    planes = stride * (luma_rows + chroma_rows)
    size = _align(planes + _PAGE + max(16 * 1024, 8 * stride), _PAGE)
    size = _align(size + _align(width, 512) * 512, _PAGE)
    return FrameFormat(width, height, stride, stride * luma_rows, size)


def nv12_unpadded(width: int, height: int) -> FrameFormat:
    """Return the layout without padding: rows end with their pixels, chroma follows luma at once.

    Raises:
        ValueError: as for `nv12_format`.
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

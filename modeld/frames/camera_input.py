"""Converts a camera's frames to the inputs of a compiled model: the pixel bytes and their layout.

Frames are NV12: rows of luma, then rows of interleaved chroma. `CameraInput` checks that a frame
has the size that its format requires and fits the buffer for which the model was compiled.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cereal.frames import Frame, FrameFormat
from modeld.errors import CameraSizeError

# Longest accepted side. Pixel offsets are 32-bit integers on the device.
MAX_SIDE_PX: Final = 16384


@dataclass(slots=True)
class CameraInput:
    """A frame input of a program."""

    camera: str  # "road", "wide" or "driver", for messages
    capacity_bytes: int  # size of the program's buffer
    # Width, height, stride and chroma plane offset, (4,); rewritten when the format changes.
    geometry: NDArray[np.int32] = field(default_factory=lambda: np.zeros(4, np.int32))
    _format: FrameFormat | None = None
    _payload_bytes: int = 0

    def payload(self, frame: Frame) -> NDArray[np.uint8]:
        """Return a view of the frame's pixel bytes, uint8 (n,), and update `geometry`.

        Raises CameraSizeError if the frame contradicts its format or exceeds the program's buffer.
        """
        if frame.format != self._format:
            self._take_format(frame)
        if len(frame.data) < self._payload_bytes:
            raise CameraSizeError(
                f"{self.camera} camera, frame {frame.frame_id}: expected at least "
                f"{self._payload_bytes} bytes, chroma offset + stride * height / 2, found "
                f"{len(frame.data)}; fix the camera process"
            )
        return frame.data[: self._payload_bytes]

    def _take_format(self, frame: Frame) -> None:
        form = frame.format
        where = f"{self.camera} camera, frame {frame.frame_id}"
        sides = (form.width, form.height)
        # The device reads at the offsets given by the geometry, so they must be within the bytes.
        if (
            not all(0 < side <= MAX_SIDE_PX and side % 2 == 0 for side in sides)
            or not form.width <= form.stride <= 2 * MAX_SIDE_PX
            or form.uv_offset < form.stride * form.height
        ):
            raise CameraSizeError(
                f"{where}: expected even sides up to {MAX_SIDE_PX}, stride >= width and chroma "
                f"after the luma rows, found {form}; fix the camera process"
            )
        needed_bytes = form.uv_offset + form.stride * (form.height // 2)
        if needed_bytes > self.capacity_bytes:
            raise CameraSizeError(
                f"{where}: expected at most {self.capacity_bytes} bytes, for which the artifact "
                f"was compiled, found {form.width}x{form.height} with {needed_bytes}; compile it "
                f"with --camera {form.width}x{form.height}"
            )
        self._format, self._payload_bytes = form, needed_bytes
        self.geometry[:] = form.width, form.height, form.stride, form.uv_offset

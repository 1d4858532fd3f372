"""A drive whose frames have no padding, as the harness's camera server and its own have none."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from cereal.frame_ring import FrameFormat, nv12_unpadded
from cereal.frames import Frame
from tools.drives.drive import Drive, DriveInfo, Moment


class Unpadded:
    """A `Drive` over another one; closing stays with that.

    Args:
        drive: it.
        lost: camera state and moment of a frame that is left out.
    """

    def __init__(self, drive: Drive, lost: tuple[str, int] = ("", -1)) -> None:
        self._drive = drive
        self._lost = lost
        self._formats = {
            stream: nv12_unpadded(layout.width, layout.height)
            for stream, layout in drive.info.formats.items()
        }

    @property
    def info(self) -> DriveInfo:
        """As of the drive."""
        return replace(self._drive.info, formats=self._formats)

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """The moments of the drive, each frame in memory of its own."""
        lost_state, lost_index = self._lost
        for moment in self._drive.moments(first):
            lost = lost_state if moment.index == lost_index else ""
            messages = tuple(one for one in moment.messages if one.service != lost)
            frames = self._unpadded(moment.frames)
            yield replace(moment, messages=messages, frames=frames)

    def close(self) -> None:
        """Do nothing."""

    def _unpadded(self, frames: Mapping[str, Frame]) -> dict[str, Frame]:
        return {
            stream: replace(frame, data=without_padding(frame), format=self._formats[stream])
            for stream, frame in frames.items()
        }


def without_padding(frame: Frame) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The pixels of a frame one after the other: luma, then chroma."""
    form: FrameFormat = frame.format
    planes = []
    for at, rows in ((0, form.height), (form.uv_offset, form.height // 2)):
        plane = frame.data[at : at + rows * form.stride].reshape(rows, form.stride)
        planes.append(plane[:, : form.width].reshape(-1))
    return np.concatenate(planes)

"""The buffers of one stream of a VisionIPC server, mapped for reading."""

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cereal.errors import FrameError
from cereal.frame_ring import FrameFormat
from cereal.visionipc.conversation import Answer, Identity
from cereal.visionipc.layout import FRAME_ID, Description, parse_descriptions


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers that a server handed over."""

    server_id: int  # as of `Packet`
    format: FrameFormat
    # Of each buffer its payload, (format.size,) uint8, a read-only view.
    frames: list[NDArray[np.uint8]]
    frame_ids: list[memoryview]  # of each buffer the uint64 id behind the payload, read-only
    identity: Identity  # of their socket


def map_buffers(answer: Answer, stream: str, where: Path) -> Buffers:
    """Map what came with an answer; its descriptors stay the caller's to close.

    Raises FrameError if there are no buffers, or their description is impossible.
    """
    if not answer.data and not answer.descriptors:
        raise FrameError(
            f"{where}: expected the stream {stream}, got none; see why the camera process "
            "does not have it"
        )
    described = parse_descriptions(answer.data, len(answer.descriptors), stream, where)
    frames, frame_ids = [], []
    for one, descriptor in zip(described, answer.descriptors, strict=True):
        memory = _map(descriptor, one, where)
        frames.append(np.frombuffer(memory, np.uint8, one.size))
        frame_ids.append(memoryview(memory)[one.size :].cast("Q"))
    first = described[0]
    return Buffers(first.server_id, first.format, frames, frame_ids, answer.identity)


def _map(descriptor: int, one: Description, where: Path) -> mmap.mmap:
    """Map payload and frame id of one buffer."""
    length = one.size + FRAME_ID.size
    status = os.fstat(descriptor)
    reason = ""
    # Reading beyond the end of a file ends a process. Of memory of a device, which has no size
    # here, the kernel maps no more than there is.
    if stat.S_ISREG(status.st_mode) and status.st_size < length:
        reason = f"a file of {status.st_size}"
    else:
        try:
            return mmap.mmap(descriptor, length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            # No memory, no descriptor for the copy that mmap keeps, or nothing that can be mapped.
            reason = str(error)
    raise FrameError(
        f"{where}: expected to map {length} bytes of buffer {one.idx}, got {reason}; mend the "
        "camera process, or free memory or descriptors"
    )

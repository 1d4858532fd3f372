"""The outcome of one drive through the daemon: a table of frames, beside the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.format.interfaces import HOST_INPUTS
from tools.drives.drive import DriveInfo

# Inputs of a driving program whose digests are recorded, where it has them.
INPUT_NAMES = (
    "road_frame",
    "wide_frame",
    "road_geometry",
    "wide_geometry",
    "road_transform",
    "wide_transform",
    "desire",
    *HOST_INPUTS,
)
# The digest of all that a program with strict numerics gave, beside those of its inputs.
OUTPUTS = "outputs"
MONITORING_INPUT_NAMES = ("driver_frame", "driver_geometry", "driver_transform", "calib")


@dataclass(frozen=True, slots=True)
class FrameTable:
    """One row for each frame that the daemon took."""

    moment: NDArray[np.int64]  # (n,) int64, index of the drive's moment
    frame_id: NDArray[np.int64]  # (n,) int64, of the main camera
    dropped: NDArray[np.int64]  # (n,) int64, frames missing just before it
    published: NDArray[np.bool_]  # (n,) bool
    valid: NDArray[np.bool_]  # (n,) bool, what was published was marked valid
    # (n,) float64, measured time of the model; 0 where it did not run.
    execution_s: NDArray[np.float64]
    # Name of a program input -> (n,) uint32, CRC-32 of its bytes; empty where digests were not
    # asked for. Not part of what a run without them costs. With strict numerics `OUTPUTS`, too: of
    # all outputs, in the order of their names.
    input_crc: Mapping[str, NDArray[np.uint32]]
    # The same of driver monitoring and the driver camera; None: it did not run.
    driver: FrameTable | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One drive through the daemon."""

    drive: DriveInfo  # what was played
    artifact_sha256: str  # of the artifact; of driver monitoring where it ran alone
    device: str  # description of the OpenCL device, as in `Program.stats`
    log: Path  # the event log: the drive's messages and what the daemon said, in time order
    frames: FrameTable  # one row a frame
    wall_s: float  # seconds from the first moment to the last message, without loading
    peak_rss_bytes: int  # of the process, at the end

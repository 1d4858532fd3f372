"""Pictures of drives that changed, as JPEG files: for pages that show no picture of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.files.whole_file import whole_file
from tools.behaviour.headline import worst_frame
from tools.drives.open_drive import DriveOptions
from tools.errors import ToolError, UsageError
from tools.lib.picture import encode_jpeg
from tools.regress.packing import unpack
from tools.regress.pictures import HALF_CAR_M, Shot, plans_of, take_shots
from tools.regress.verdict import DriveVerdict
from tools.views.canvas import Canvas
from tools.views.overlay import ribbon

MAX_DRIVES: Final = 8
MAX_OF_A_DRIVE: Final = 2
# As on the report: the reference's path green below, the new one red over it.
_GREEN, _RED = (34, 197, 94), (220, 38, 38)

# Drive, what is shown, name of the file.
PictureFile = tuple[str, str, str]


def write_pictures(
    directory: Path, drives: Sequence[DriveVerdict], options: DriveOptions
) -> list[PictureFile]:
    """Write the worst frames of drives that changed, with both planned paths over them.

    Args:
        directory: gets ``DRIVE-FRAME.jpg``; made where it is missing.
        drives: judged; one that can no longer be read has no picture.
        options: how drives are opened.

    Raises:
        UsageError: a file cannot be written.
    """
    found: list[PictureFile] = []
    told = [one for one in drives if one.changes and one.reference and one.result]
    for number, drive in enumerate(told[:MAX_DRIVES], 1):
        assert drive.reference is not None
        assert drive.result is not None
        before, now = unpack(drive.reference.outputs), unpack(drive.result.outputs)
        try:
            shots = take_shots(drive.text, options, now, worst_frames(drive, MAX_OF_A_DRIVE))
        except ToolError:
            continue
        plans = plans_of(before), plans_of(now)
        for shot in shots:
            sides = [plan.get(shot.frame_id) for plan in plans]
            safe = re.sub(r"[^A-Za-z0-9]+", "-", drive.name).strip("-")[-40:] or "drive"
            name = f"{number}-{safe}-{shot.frame_id}.jpg"
            _write(directory / name, _painted(shot, sides))
            title = f"frame {shot.frame_id}: the reference's path green, the new one red"
            found.append((drive.name, title, name))
    return found


def worst_frames(drive: DriveVerdict, most: int) -> list[int]:
    """Return the ids of frames that are worth a look: where gates fail, the path moves, fields do.

    Args:
        drive: judged.
        most: how many.
    """
    frames = [change.first_frame for change in drive.changes if change.kind == "gate"]
    # Where the path moves most comes before where the field does that is most beyond its own.
    frames.append(worst_frame(drive.behaviour.rows))
    if drive.comparison is not None:
        frames += [finding.worst_frame for finding in drive.comparison.findings]
    frames += [change.first_frame for change in drive.changes]
    return list(dict.fromkeys(frame for frame in frames if frame >= 0))[:most]


def _painted(shot: Shot, plans: Sequence[NDArray[np.float64] | None]) -> bytes:
    import av

    codec: Any = av.CodecContext.create("mjpeg", "r")
    frames: list[Any] = [*codec.decode(av.Packet(shot.jpeg)), *codec.decode(None)]
    rgb = frames[0].to_ndarray(format="rgb24")
    canvas = Canvas(rgb)
    scale = np.array([rgb.shape[1] / shot.camera.width, rgb.shape[0] / shot.camera.height])
    for plan, color in zip(plans, (_GREEN, _RED), strict=True):
        if plan is not None and plan.size:
            # The plan starts at the camera; on the road it lies one mounting height lower.
            curve = plan + np.array([0.0, 0.0, shot.mounting.height_m])
            outline = ribbon(curve, HALF_CAR_M, shot.camera, shot.mounting.rpy_rad)
            canvas.fill(outline * scale, color, 0.45)
    drawn: Any = av.VideoFrame.from_ndarray(rgb, format="rgb24")
    nv12 = drawn.reformat(format="nv12").to_ndarray()
    return encode_jpeg(nv12[: rgb.shape[0]], nv12[rgb.shape[0] :])


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(data)
    except OSError as error:
        raise UsageError(
            f"{path}: the picture cannot be written ({error.strerror or error}); free some disk "
            "space or name another directory"
        ) from error

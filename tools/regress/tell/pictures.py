"""Draws planned paths of the reference and the new run over camera frames, as SVG or JPEG files."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cereal.frames import Frame
from cereal.schema import read_event
from modeld.errors import ModeldError
from modeld.vehicle.cameras import Camera, find_cameras
from runtime.files.user_file import whole_file
from tools.behaviour.describe import worst_frame
from tools.drives.drive import Drive
from tools.drives.open_drive import DriveOptions, open_drive
from tools.errors import ToolError, UsageError
from tools.messages.camera import project
from tools.messages.drive_messages import Mounting
from tools.regress.judge.packing import Packed, unpack
from tools.regress.judge.verdict import DriveVerdict
from tools.report.picture import encode_jpeg
from tools.report.report_page import path_data
from tools.views.canvas import Canvas
from tools.views.overlay import ribbon

# Range of the drawn path: nearer is under the hood, farther is one pixel wide.
NEAR_M, FAR_M = 3.0, 90.0
HALF_CAR_M = 0.9
# Width of the pictures in pixels.
PICTURE_WIDTH = 720

Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shot:
    """A decoded camera frame."""

    frame_id: int
    jpeg: bytes  # the picture, at any scale
    camera: Camera  # the camera; drawings use its pixels
    mounting: Mounting  # calibration for the drawing


def take_shots(
    text: str, options: DriveOptions, packed: Packed, wanted: Sequence[int]
) -> list[Shot]:
    """Decode frames of a drive again.

    `text`: the drive, as text for `open_drive`. `options`: options for opening it. `packed`: its
    results, which map frames to moments. `wanted`: frame ids; missing ones are omitted.

    Raises:
        ToolError: the drive can no longer be read.
    """
    drive = open_drive(text, options)
    try:
        moments = dict(
            zip(packed.frames.frame_id.tolist(), packed.frames.moment.tolist(), strict=True)
        )
        shots = [
            _shot(drive, frame_id, moments[frame_id])
            for frame_id in sorted(set(wanted))
            if frame_id in moments
        ]
    finally:
        drive.close()
    return [shot for shot in shots if shot is not None]


def _shot(drive: Drive, frame_id: int, index: int) -> Shot | None:
    moment = next(drive.moments(index), None)
    if moment is None:
        return None
    camera = _camera_of(drive)
    for stream, lens in camera.items():
        frame = moment.frames.get(stream)
        if frame is not None:
            return Shot(frame_id, _jpeg(frame), lens, drive.info.mounting)
    return None


def _camera_of(drive: Drive) -> dict[str, Camera]:
    """Return the cameras by stream, in order of preference for drawing."""
    mounting = drive.info.mounting
    try:
        cameras = drive.info.cameras or find_cameras(mounting.device_type, mounting.sensor)
    except ModeldError:
        return {}
    found = {"road": cameras.road}
    if cameras.wide is not None:
        found["wideRoad"] = cameras.wide
    return found


def _jpeg(frame: Frame) -> bytes:
    layout = frame.format
    rows, chroma_rows = layout.height, layout.height // 2
    luma = frame.data[: layout.stride * rows].reshape(rows, layout.stride)
    chroma = frame.data[layout.uv_offset :][: layout.stride * chroma_rows]
    planes = (luma, chroma.reshape(chroma_rows, layout.stride))
    return encode_jpeg(
        *(np.asarray(plane[:, : layout.width], order="C") for plane in planes), width=PICTURE_WIDTH
    )


def plans_of(packed: Packed) -> dict[int, Points]:
    """Return the planned positions by frame id: (33, 3) float64, metres, calibrated frame."""
    plans: dict[int, Points] = {}
    for service, data in zip(packed.services, packed.messages, strict=True):
        if service == "modelV2":
            model = read_event(data).modelV2
            position = model.position
            rows = [list(position.x), list(position.y), list(position.z)]
            plans[int(model.frameId)] = np.array(rows, np.float64).T
    return plans


def draw(shot: Shot, before: Points | None, now: Points | None) -> str:
    """Return an SVG with the picture, the reference's path as an outline and the new one filled."""
    shapes = []
    for plan, css in ((now, "path-now"), (before, "path-before")):
        if plan is not None and plan.size:
            shapes.append(_ribbon(plan, css, shot))
    image = base64.b64encode(shot.jpeg).decode()
    label = f"Frame {shot.frame_id} with the path of the reference and the new one"
    width, height = shot.camera.width, shot.camera.height
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f'<image width="{width}" height="{height}" preserveAspectRatio="none" '
        f'href="data:image/jpeg;base64,{image}"/>{"".join(shapes)}</svg>'
    )


def _ribbon(plan: Points, css: str, shot: Shot) -> str:
    # The plan starts at the camera; on the road it is one mounting height lower.
    curve = plan + np.array([0.0, 0.0, shot.mounting.height_m])
    curve = curve[(curve[:, 0] >= NEAR_M) & (curve[:, 0] <= FAR_M)]
    if len(curve) < 2:
        return ""
    side = np.array([0.0, HALF_CAR_M, 0.0])
    edges = [project(curve + sign * side, shot.camera, shot.mounting.rpy_rad) for sign in (-1, 1)]
    outline = np.concatenate([edges[0], edges[1][::-1]])
    # A wild curve can project to infinity; SVG numbers must stay small to be drawn at all.
    limit = 20.0 * shot.camera.width
    outline = np.clip(outline[np.isfinite(outline).all(axis=1)], -limit, limit)
    return f'<path class="{css}" d="{path_data(outline)}Z"/>'


# --- JPEG files of changed drives, for pages that cannot embed SVG ----------------------------

MAX_DRIVES: Final = 8
MAX_OF_A_DRIVE: Final = 2
# Colors of the report: the reference's path is green, the new one is drawn over it in red.
_GREEN, _RED = (34, 197, 94), (220, 38, 38)

# (drive, description of the picture, file name)
PictureFile = tuple[str, str, str]


def write_pictures(
    directory: Path, drives: Sequence[DriveVerdict], options: DriveOptions
) -> list[PictureFile]:
    """Write the worst frames of changed drives, with both planned paths drawn over them.

    `directory`: directory for ``NUMBER-DRIVE-FRAME.jpg``; created if missing. `drives`: judged
    drives; those that can no longer be read get no picture. `options`: options for opening them.

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
    """Return ids of the most relevant frames: failed gates, then the path, then fields.

    `drive`: a judged drive. `most`: largest number of frames.
    """
    frames = [change.first_frame for change in drive.changes if change.kind == "gate"]
    # The largest displacement of the path precedes the largest excess of a field.
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
            # The plan starts at the camera; on the road it is one mounting height lower.
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

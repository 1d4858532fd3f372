"""Builds messages with Foxglove's well-known schemas: pictures, camera, and the answer in 3D.

Coordinate frames are right-handed as in ROS (REP 103). ``road`` is x forward, y **left**, z up, on
the road below the camera. ``calib`` has the same axes at the camera. ``camera`` is x right, y down,
z into the picture. Bus messages have x forward, y right, z down, so y and z change sign here. Names
and fields are those of Foxglove's published JSON schemas; viewers recognize a message by its
schema's name.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.cameras import VIEW_FROM_DEVICE, Camera, rot_from_euler
from tools.views.answer import Answer, Curve, Rpy

NS_PER_S = 1_000_000_000
# Forward-left-up from forward-right-down: y and z change sign, a half turn about x.
FLU_FROM_FRD: Final = np.diag([1.0, -1.0, -1.0])
# Viewers remove a scene after three frames at 20 Hz without a new one.
LIFETIME_NS = 150_000_000
MIN_LEAD_PROBABILITY = 0.5
# Length, width and height of a passenger car.
CAR_M = (4.5, 1.8, 1.5)

PATH = (0.13, 0.77, 0.37)
LANE = (0.22, 0.74, 0.97)
EDGE = (0.94, 0.27, 0.27)
LEAD = (0.98, 0.75, 0.14)

Json = dict[str, Any]

_NO_TURN: Final[Json] = {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}
_NUMBER: Json = {"type": "number"}
_INTEGER: Json = {"type": "integer"}
_TEXT: Json = {"type": "string"}
_STAMP: Json = {
    "type": "object",
    "title": "time",
    "properties": {"sec": _INTEGER, "nsec": _INTEGER},
}
_DURATION: Json = {**_STAMP, "title": "duration"}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def _list_of(items: Json) -> Json:
    return {"type": "array", "items": items}


_VECTOR = _object(x=_NUMBER, y=_NUMBER, z=_NUMBER)
_QUATERNION = _object(x=_NUMBER, y=_NUMBER, z=_NUMBER, w=_NUMBER)
_POSE = _object(position=_VECTOR, orientation=_QUATERNION)
_COLOR = _object(r=_NUMBER, g=_NUMBER, b=_NUMBER, a=_NUMBER)
_LINE = _object(
    type=_INTEGER,
    pose=_POSE,
    thickness=_NUMBER,
    scale_invariant={"type": "boolean"},
    points=_list_of(_VECTOR),
    color=_COLOR,
    colors=_list_of(_COLOR),
    indices=_list_of(_INTEGER),
)
_CUBE = _object(pose=_POSE, size=_VECTOR, color=_COLOR)
# Other kinds of shapes in an entity; always empty here.
_UNUSED = ("arrows", "spheres", "cylinders", "triangles", "texts", "models")
_ENTITY = _object(
    timestamp=_STAMP,
    frame_id=_TEXT,
    id=_TEXT,
    lifetime=_DURATION,
    frame_locked={"type": "boolean"},
    metadata=_list_of(_object(key=_TEXT, value=_TEXT)),
    lines=_list_of(_LINE),
    cubes=_list_of(_CUBE),
    **{name: _list_of(_object()) for name in _UNUSED},
)

SCHEMAS: Final[dict[str, Json]] = {
    "foxglove.SceneUpdate": _object(
        deletions=_list_of(_object(timestamp=_STAMP, type=_INTEGER, id=_TEXT)),
        entities=_list_of(_ENTITY),
    ),
    "foxglove.FrameTransform": _object(
        timestamp=_STAMP,
        parent_frame_id=_TEXT,
        child_frame_id=_TEXT,
        translation=_VECTOR,
        rotation=_QUATERNION,
    ),
    "foxglove.CompressedImage": _object(
        timestamp=_STAMP,
        frame_id=_TEXT,
        data={"type": "string", "contentEncoding": "base64"},
        format=_TEXT,
    ),
    "foxglove.CameraCalibration": _object(
        timestamp=_STAMP,
        frame_id=_TEXT,
        width=_INTEGER,
        height=_INTEGER,
        distortion_model=_TEXT,
        D=_list_of(_NUMBER),
        K=_list_of(_NUMBER),
        R=_list_of(_NUMBER),
        P=_list_of(_NUMBER),
    ),
}


def transforms(answer: Answer) -> list[Json]:
    """Return the transforms road -> calib and calib -> camera from the log's calibration."""
    stamp = _stamp(answer.mono_time_ns)
    still = {"x": 0.0, "y": 0.0, "z": 0.0}
    return [
        {
            "timestamp": stamp,
            "parent_frame_id": "road",
            "child_frame_id": "calib",
            "translation": {**still, "z": answer.height_m},
            "rotation": _NO_TURN,
        },
        {
            "timestamp": stamp,
            "parent_frame_id": "calib",
            "child_frame_id": "camera",
            "translation": still,
            "rotation": _rotation(calib_from_camera(answer.rpy_rad)),
        },
    ]


def calib_from_camera(rpy_rad: Rpy) -> NDArray[np.float64]:
    """Return the (3, 3) rotation from the camera's axes to the calibrated frame (y left, z up)."""
    view_from_calib = VIEW_FROM_DEVICE @ rot_from_euler(rpy_rad)
    return np.asarray(FLU_FROM_FRD @ view_from_calib.T)


def scene(answer: Answer) -> Json:
    """Return the plan, lane lines, road edges and leads of a frame as foxglove.SceneUpdate."""
    lines = [_line(answer.plan_on_road_m, 0.35, PATH, 0.9)]
    for curve, probability in zip(answer.lane_lines_m, answer.lane_line_probs, strict=False):
        lines.append(_line(curve, 0.12, LANE, max(0.1, min(probability, 1.0))))
    lines += [_line(curve, 0.12, EDGE, 0.8) for curve in answer.road_edges_m]
    cubes = [
        {
            "pose": {
                "position": {
                    "x": lead.x_m + 0.5 * CAR_M[0],
                    "y": -lead.y_m,
                    "z": 0.5 * CAR_M[2] - answer.height_m,
                },
                "orientation": _NO_TURN,
            },
            "size": dict(zip("xyz", CAR_M, strict=True)),
            "color": _color(LEAD, lead.probability),
        }
        for lead in answer.leads
        if lead.probability >= MIN_LEAD_PROBABILITY
    ]
    entity = {
        "timestamp": _stamp(answer.mono_time_ns),
        "frame_id": "calib",
        "id": "model",
        "lifetime": _stamp(LIFETIME_NS),
        "frame_locked": True,
        "metadata": [{"key": "frameId", "value": str(answer.frame_id)}],
        "lines": lines,
        "cubes": cubes,
        **{name: [] for name in _UNUSED},
    }
    return {"deletions": [], "entities": [entity]}


def picture(jpeg: bytes, mono_time_ns: int) -> Json:
    """Return a JPEG picture of the main camera as foxglove.CompressedImage."""
    return {
        "timestamp": _stamp(mono_time_ns),
        "frame_id": "camera",
        "data": base64.b64encode(jpeg).decode("ascii"),
        "format": "jpeg",
    }


def camera_calibration(camera: Camera, size: tuple[int, int], mono_time_ns: int) -> Json:
    """Return the intrinsics of scaled pictures as foxglove.CameraCalibration.

    `camera`: the camera of the frames. `size`: width and height of the pictures in pixels.
    `mono_time_ns`: timestamp.
    """
    width, height = size
    scaling = np.diag([width / camera.width, height / camera.height, 1.0])
    intrinsics = scaling @ camera.intrinsics
    return {
        "timestamp": _stamp(mono_time_ns),
        "frame_id": "camera",
        "width": width,
        "height": height,
        "distortion_model": "",
        "D": [],
        "K": intrinsics.ravel().tolist(),
        "R": np.eye(3).ravel().tolist(),
        "P": np.hstack([intrinsics, np.zeros((3, 1))]).ravel().tolist(),
    }


def quaternion(rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a rotation matrix as a unit quaternion (x, y, z, w), w >= 0.

    It is the eigenvector to the largest eigenvalue of Bar-Itzhack's matrix (New method for
    extracting the quaternion from a rotation matrix, 2000), which needs no special cases.
    """
    r = np.asarray(rotation, np.float64)
    k = np.array(
        [
            [r[0, 0] - r[1, 1] - r[2, 2], 0.0, 0.0, 0.0],
            [r[1, 0] + r[0, 1], r[1, 1] - r[0, 0] - r[2, 2], 0.0, 0.0],
            [r[2, 0] + r[0, 2], r[2, 1] + r[1, 2], r[2, 2] - r[0, 0] - r[1, 1], 0.0],
            [r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1], np.trace(r)],
        ]
    )
    vector = np.linalg.eigh(k)[1][:, -1]
    return np.asarray(vector if vector[3] >= 0 else -vector)


def _rotation(matrix: NDArray[np.float64]) -> Json:
    return dict(zip("xyzw", quaternion(matrix).tolist(), strict=True))


def _line(curve_m: Curve, thickness_m: float, color: tuple[float, ...], alpha: float) -> Json:
    points = curve_m[np.isfinite(curve_m).all(axis=1)] @ FLU_FROM_FRD
    return {
        "type": 0,  # LINE_STRIP
        "pose": {
            "position": {"x": 0.0, "y": 0.0, "z": 0.0},
            "orientation": _NO_TURN,
        },
        "thickness": thickness_m,
        "scale_invariant": False,
        "points": [{"x": x, "y": y, "z": z} for x, y, z in points.round(3).tolist()],
        "color": _color(color, alpha),
        "colors": [],
        "indices": [],
    }


def _color(rgb: tuple[float, ...], alpha: float) -> Json:
    return {"r": rgb[0], "g": rgb[1], "b": rgb[2], "a": alpha}


def _stamp(mono_time_ns: int) -> Json:
    return {"sec": mono_time_ns // NS_PER_S, "nsec": mono_time_ns % NS_PER_S}

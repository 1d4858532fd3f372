"""The matrices from pixels of a model's view to pixels of a camera, from angles and lenses.

device: x forward, y right, z down; view: x right, y down, z forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lens:
    """A pinhole camera whose axis meets the middle of the picture; pixels."""

    width: int
    height: int
    focal: float


def intrinsics(focal: float, cx: float, cy: float) -> Matrix:
    return np.array([[focal, 0, cx], [0, focal, cy], [0, 0, 1]], np.float64)


ROAD_VIEW = intrinsics(910.0, 256.0, 47.6)
WIDE_VIEW = intrinsics(455.0, 256.0, (256.0 + 47.6) / 2)
# Rows: view's x is device's y, view's y is device's z, view's z is device's x.
DEVICE_TO_VIEW = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], np.float64)


def rotation(roll: float, pitch: float, yaw: float) -> Matrix:
    """About x by roll, then about y by pitch, then about z by yaw, axes fixed."""
    cos, sin = np.cos, np.sin
    about_x = np.array([[1, 0, 0], [0, cos(roll), -sin(roll)], [0, sin(roll), cos(roll)]])
    about_y = np.array([[cos(pitch), 0, sin(pitch)], [0, 1, 0], [-sin(pitch), 0, cos(pitch)]])
    about_z = np.array([[cos(yaw), -sin(yaw), 0], [sin(yaw), cos(yaw), 0], [0, 0, 1]])
    found: Matrix = about_z @ about_y @ about_x
    return found


def transform(lens: Lens, model_view: Matrix, rpy: Sequence[float]) -> NDArray[np.float32]:
    """Model pixel -> ray in the level frame -> device frame -> camera pixel, (3, 3) float32."""
    camera = intrinsics(lens.focal, lens.width / 2, lens.height / 2)
    # The message carries the angles in single precision.
    angles = [float(np.float32(angle)) for angle in rpy]
    to_ray = np.linalg.inv(model_view @ DEVICE_TO_VIEW)
    to_camera = camera @ DEVICE_TO_VIEW @ rotation(*angles)
    return (to_camera @ to_ray).astype(np.float32)

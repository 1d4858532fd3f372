"""Rotations, intrinsic matrices and the map from a model's view to a camera's pixels.

Frames of reference: *device* is x forward, y right, z down, fixed to the camera mount; *calib* is
the device frame levelled with the road; *view* is x right, y down, z forward (OpenCV's). A matrix
``a_from_b`` takes coordinates in b to coordinates in a.

Products and inverses are written out in sums that every processor rounds alike: those of numpy's
linear algebra differ in their last bits from one make to the next, and where an entry should be 0
these bits are the whole value, so a drive's inputs would look like changed ones.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Which row or column of the device frame each of the view frame is.
_VIEW_AXES: Final = [1, 2, 0]
VIEW_FROM_DEVICE: Final[NDArray[np.float64]] = np.eye(3)[_VIEW_AXES]


def pinhole_matrix(
    focal_px: float, cx_px: float, cy_px: float, focal_y_px: float | None = None
) -> NDArray[np.float64]:
    """Return the 3x3 float64 intrinsic matrix without skew.

    The focal lengths in pixels are of rows and of columns, None if pixels are square; (`cx_px`,
    `cy_px`) is column and row of the principal point.
    """
    vertical_px = focal_px if focal_y_px is None else focal_y_px
    return np.array([[focal_px, 0.0, cx_px], [0.0, vertical_px, cy_px], [0.0, 0.0, 1.0]])


# The two views of the network, both 512x256 pixels.
MED_MODEL_INTRINSICS: Final = pinhole_matrix(910.0, 256.0, 47.6)
SBIG_MODEL_INTRINSICS: Final = pinhole_matrix(455.0, 256.0, 0.5 * (256.0 + 47.6))


def rot_from_euler(euler_rad: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return ``Rz(yaw) @ Ry(pitch) @ Rx(roll)``, 3x3 float64, for (roll, pitch, yaw) in rad."""
    angles = [float(angle) for angle in euler_rad]
    cr, cp, cy = (math.cos(angle) for angle in angles)
    sr, sp, sy = (math.sin(angle) for angle in angles)
    return np.array(
        [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    )


def warp_matrix(
    device_from_calib_euler_rad: Sequence[float] | NDArray[np.floating],
    camera_intrinsics: NDArray[np.float64],
    model_intrinsics: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return the matrix from model pixels to camera pixels, (3, 3) float32, row-major.

    ``K_camera @ view_from_device @ R(euler) @ inv(K_model @ view_from_device)``: the inverse map,
    which a warp evaluates once per destination pixel. The angles are (roll, pitch, yaw), as in
    ``liveCalibration.rpyCalib``. The product is formed in float64, from both matrices of intrinsics
    (3x3, view coordinates to pixels) as `pinhole_matrix` makes them, the model's with square
    pixels.
    """
    rotation = rot_from_euler(device_from_calib_euler_rad)[np.ix_(_VIEW_AXES, _VIEW_AXES)]
    camera_from_view = matrix_product(camera_intrinsics, rotation)
    return matrix_product(camera_from_view, inverse_pinhole(model_intrinsics)).astype(np.float32)


def inverse_pinhole(intrinsics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the 3x3 float64 matrix from pixels to view coordinates; pixels are square."""
    focal_px, cx_px, cy_px = intrinsics[0, 0], intrinsics[0, 2], intrinsics[1, 2]
    return pinhole_matrix(1.0 / focal_px, -cx_px / focal_px, -cy_px / focal_px)


def matrix_product(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``a @ b`` of 3x3 float64 matrices, each product rounded, added from left to right."""
    terms = a.T[:, :, None] * b[:, None, :]
    total: NDArray[np.float64] = (terms[0] + terms[1]) + terms[2]
    return total

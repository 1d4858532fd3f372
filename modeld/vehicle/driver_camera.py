"""The driver camera: which one it is, and the matrix that cuts the model's view out of its frames.

The view is that of a camera of the same focal length and place, so the matrix has no rotation and
changes only with the camera. Figures: openpilot's published device table, 2024-2026.
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.cameras import Camera
from modeld.vehicle.view_geometry import inverse_pinhole, matrix_product, pinhole_matrix

logger = logging.getLogger(__name__)

# By width of the frame, as nothing else is known of the camera when its first frame comes.
DRIVER_CAMERAS: Final[Mapping[int, Camera]] = MappingProxyType(
    {
        camera.width: camera
        for camera in (
            Camera(1928, 1208, 567.0),
            Camera(1344, 760, 567.0 * 3 / 4),
            Camera(2688, 1520, 567.0 * 3 / 2),
            Camera(816, 612, 650.0),
        )
    }
)
_REFERENCE: Final = DRIVER_CAMERAS[1928]
# The middle of the view is that of the reference camera's frame, cut to 960 rows around it.
VIEW_INTRINSICS: Final = pinhole_matrix(567.0, 1440 / 2, 960 / 2 - (1208 - 960) / 2)


def find_driver_camera(width: int, height: int) -> Camera:
    """Return the driver camera that has frames of this size.

    An unknown one is logged, and assumed to have the field of view of the reference camera.
    """
    camera = DRIVER_CAMERAS.get(width)
    if camera is not None and camera.height == height:
        return camera
    focal_px = _REFERENCE.focal_px * width / _REFERENCE.width
    logger.warning(
        "driver camera %dx%d is not known: a focal length of %.1f px is assumed",
        width,
        height,
        focal_px,
    )
    return Camera(width, height, focal_px)


def driver_transform(camera: Camera) -> NDArray[np.float32]:
    """Return the matrix from view pixels to camera pixels, (3, 3) float32.

    ``K_camera @ inv(K_view)``: the inverse map, which a warp evaluates for each pixel of the view.
    """
    return matrix_product(camera.intrinsics, inverse_pinhole(VIEW_INTRINSICS)).astype(np.float32)

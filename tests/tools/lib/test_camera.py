from __future__ import annotations

import numpy as np
import pytest

from modeld.calibration import Camera
from tools.errors import UsageError
from tools.lib.camera import project, stand_in_camera

CAMERA = Camera(1000, 600, 500.0)


def test_point_ahead_and_on_the_road_projects_by_similar_triangles() -> None:
    # 10 m ahead, 2 m right, 1 m down: 500 * 2 / 10 = 100 px right and 50 px down of the centre.
    pixels = project(np.array([[10.0, 2.0, 1.0]]), CAMERA, (0.0, 0.0, 0.0))
    np.testing.assert_allclose(pixels, [[600.0, 350.0]])


def test_point_behind_the_lens_is_not_drawn() -> None:
    pixels = project(np.array([[-10.0, 2.0, 1.0], [0.1, 0.0, 0.0]]), CAMERA, (0.0, 0.0, 0.0))
    assert np.isnan(pixels).all()


def test_yaw_moves_the_picture_sideways() -> None:
    # device_from_calib with yaw 0.1 takes straight ahead to cos, sin: to the right by tan(0.1).
    pixels = project(np.array([[10.0, 0.0, 0.0]]), CAMERA, (0.0, 0.0, 0.1))
    np.testing.assert_allclose(pixels, [[500.0 + 500.0 * np.tan(0.1), 300.0]])


def test_default_focal_length_is_nine_tenths_of_the_width() -> None:
    assert stand_in_camera(960, 540, None) == Camera(960, 540, 864.0)
    assert stand_in_camera(960, 540, 700.0).focal_px == 700.0


@pytest.mark.parametrize("focal_px", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_focal_length_is_refused(focal_px: float) -> None:
    with pytest.raises(UsageError, match="--focal-px: expected a positive number"):
        stand_in_camera(960, 540, focal_px)

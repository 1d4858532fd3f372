import logging

import numpy as np
import pytest

from modeld.driver_camera import driver_transform, find_driver_camera


def test_the_view_of_the_reference_camera_is_shifted() -> None:
    # Equal focal lengths: x + 964 - 720, y + 604 - 356.
    expected = [[1.0, 0.0, 244.0], [0.0, 1.0, 248.0], [0.0, 0.0, 1.0]]
    found = driver_transform(find_driver_camera(1928, 1208))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_view_of_the_binned_camera_is_three_quarters_as_large() -> None:
    # 0.75 x + 672 - 0.75 * 720, 0.75 y + 380 - 0.75 * 356.
    expected = [[0.75, 0.0, 132.0], [0.0, 0.75, 113.0], [0.0, 0.0, 1.0]]
    np.testing.assert_allclose(driver_transform(find_driver_camera(1344, 760)), expected, atol=1e-4)


def test_the_middle_of_the_view_sees_the_middle_of_any_camera() -> None:
    for width, height in ((1928, 1208), (1344, 760), (2688, 1520), (816, 612), (640, 480)):
        transform = driver_transform(find_driver_camera(width, height)).astype(np.float64)
        x, y, w = transform @ [720.0, 356.0, 1.0]
        assert (x / w, y / w) == pytest.approx((width / 2, height / 2), abs=1e-3)


def test_a_camera_that_is_not_known_has_the_usual_field_of_view(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert find_driver_camera(964, 604).focal_px == pytest.approx(283.5)
    assert "964x604 is not known" in caplog.text

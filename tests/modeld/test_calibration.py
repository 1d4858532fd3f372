import logging
import math

import numpy as np
import pytest

from modeld.calibration import (
    MED_MODEL_INTRINSICS,
    SBIG_MODEL_INTRINSICS,
    Calibration,
    Camera,
    CameraPlan,
    DeviceCameras,
    find_cameras,
    rot_from_euler,
    warp_matrix,
)
from modeld.errors import CameraConfigError

TICI_ROAD = Camera(1928, 1208, 2648.0)
TICI_WIDE = Camera(1928, 1208, 567.0)


def project(matrix: np.ndarray, x: float, y: float) -> tuple[float, float]:
    u, v, w = matrix.astype(np.float64) @ (x, y, 1.0)
    return u / w, v / w


def test_warp_matrix_identity_on_tici_road_camera() -> None:
    # K_cam @ inv(K_model): scale 2648/910, offsets 964 - s*256 and 604 - s*47.6.
    expected = [
        [2.909890109890110, 0.0, 219.0681318681319],
        [0.0, 2.909890109890110, 465.4892307692308],
        [0.0, 0.0, 1.0],
    ]
    matrix = warp_matrix((0.0, 0.0, 0.0), TICI_ROAD.intrinsics, MED_MODEL_INTRINSICS)
    assert matrix.dtype == np.float32
    np.testing.assert_allclose(matrix, expected, rtol=1e-6, atol=1e-6)


def test_warp_matrix_identity_on_tici_wide_camera() -> None:
    # Scale 567/455 = 1.2461538, offsets 964 - s*256 = 644.98462 and 604 - s*151.8 = 414.83385.
    expected = [[1.2461538, 0.0, 644.98462], [0.0, 1.2461538, 414.83385], [0.0, 0.0, 1.0]]
    matrix = warp_matrix((0.0, 0.0, 0.0), TICI_WIDE.intrinsics, SBIG_MODEL_INTRINSICS)
    np.testing.assert_allclose(matrix, expected, rtol=1e-6, atol=1e-6)


def test_warp_matrix_pitch_moves_the_vanishing_point_up() -> None:
    # The model's principal ray turned by Ry(0.01) points up: v = 604 - 2648 tan 0.01 = 577.5191.
    matrix = warp_matrix((0.0, 0.01, 0.0), TICI_ROAD.intrinsics, MED_MODEL_INTRINSICS)
    assert project(matrix, 256.0, 47.6) == pytest.approx((964.0, 577.5191), abs=1e-3)


def test_warp_matrix_yaw_moves_the_vanishing_point_right() -> None:
    # Rz(0.02) turns x towards y, to the right: u = 964 + 2648 tan 0.02 = 1016.9671.
    matrix = warp_matrix((0.0, 0.0, 0.02), TICI_ROAD.intrinsics, MED_MODEL_INTRINSICS)
    assert project(matrix, 256.0, 47.6) == pytest.approx((1016.9671, 604.0), abs=1e-3)


def test_warp_matrix_roll_turns_the_picture_about_the_vanishing_point() -> None:
    # Rx(r) takes y (right) to y cos r + z sin r: a point right of the centre moves down.
    matrix = warp_matrix((0.1, 0.0, 0.0), TICI_ROAD.intrinsics, MED_MODEL_INTRINSICS)
    assert project(matrix, 256.0, 47.6) == pytest.approx((964.0, 604.0), abs=1e-3)
    scale = 2648.0 / 910.0
    expected = (964.0 + 100 * scale * math.cos(0.1), 604.0 + 100 * scale * math.sin(0.1))
    assert project(matrix, 356.0, 47.6) == pytest.approx(expected, abs=1e-3)


def test_rot_from_euler_applies_roll_then_pitch_then_yaw() -> None:
    roll, pitch, yaw = 0.3, -0.2, 1.1
    about_x = [
        [1, 0, 0],
        [0, math.cos(roll), -math.sin(roll)],
        [0, math.sin(roll), math.cos(roll)],
    ]
    about_y = [
        [math.cos(pitch), 0, math.sin(pitch)],
        [0, 1, 0],
        [-math.sin(pitch), 0, math.cos(pitch)],
    ]
    about_z = [[math.cos(yaw), -math.sin(yaw), 0], [math.sin(yaw), math.cos(yaw), 0], [0, 0, 1]]
    expected = np.array(about_z) @ np.array(about_y) @ np.array(about_x)
    np.testing.assert_allclose(rot_from_euler((roll, pitch, yaw)), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("device", "sensor", "road", "wide"),
    [
        ("tici", "ar0231", (1928, 1208, 2648.0), (1928, 1208, 567.0)),
        ("mici", "ox03c10", (1928, 1208, 2648.0), (1928, 1208, 567.0)),
        ("tizi", "os04c10", (1344, 760, 1141.5), (1344, 760, 425.25)),
        ("pc", "unknown", (1928, 1208, 2648.0), (1928, 1208, 567.0)),
        ("neo", "unknown", (1164, 874, 910.0), None),
    ],
)
def test_find_cameras_table(
    device: str, sensor: str, road: tuple[int, int, float], wide: tuple[int, int, float] | None
) -> None:
    expected = DeviceCameras(Camera(*road), None if wide is None else Camera(*wide))
    assert find_cameras(device, sensor) == expected


def test_find_cameras_unknown_names_the_pair_and_the_way_out() -> None:
    with pytest.raises(CameraConfigError, match=r"'pc' with sensor 'os04c10'.*\[camera.road\]"):
        find_cameras("pc", "os04c10")


def plan(*, single: bool = False, main_is_wide: bool = False) -> CameraPlan:
    return CameraPlan(main_is_wide, single, frame_size=(1928, 1208))


def test_views_use_the_camera_that_took_the_picture() -> None:
    device = DeviceCameras(TICI_ROAD, TICI_WIDE)
    assert plan().views(device) == (TICI_ROAD, TICI_WIDE)
    assert plan(single=True).views(device) == (TICI_ROAD, TICI_ROAD)
    assert plan(single=True, main_is_wide=True).views(device) == (TICI_WIDE, TICI_WIDE)


def test_views_reject_a_wide_stream_without_a_wide_camera() -> None:
    device = DeviceCameras(TICI_ROAD, None)
    assert plan(single=True).views(device) == (TICI_ROAD, TICI_ROAD)
    for bad in (plan(), plan(single=True, main_is_wide=True)):
        with pytest.raises(CameraConfigError, match=r"only a road camera"):
            bad.views(device)


def test_calibration_is_zero_until_seen_then_written_in_place() -> None:
    calibration = Calibration(plan())
    main, extra = calibration.main_transform, calibration.extra_transform
    assert np.array_equal(main, np.zeros((3, 3)))
    assert np.array_equal(extra, np.zeros((3, 3)))
    assert Calibration(plan()).seen is False
    calibration.update([0.0, 0.0, 0.0], "tici", "ox03c10")
    assert calibration.seen
    assert main[0, 0] == pytest.approx(2648 / 910)
    assert extra[0, 0] == pytest.approx(567 / 455)


@pytest.mark.parametrize(
    ("rpy", "device", "sensor", "message"),
    [
        ([], "tici", "ox03c10", "expected 3 finite angles"),
        ([0.0, math.nan, 0.0], "tici", "ox03c10", "expected 3 finite angles"),
        ([0.0, 0.0, 0.0], "tici", "imx123", "no cameras for device"),
        ([0.0, 0.0, 0.0], "tici", "os04c10", "expected frames of 1344x760"),
    ],
)
def test_calibration_ignores_a_message_it_cannot_use(
    rpy: list[float], device: str, sensor: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    calibration = Calibration(plan())
    with caplog.at_level(logging.ERROR):
        calibration.update(rpy, device, sensor)
        calibration.update(rpy, device, sensor)
    assert not calibration.seen
    assert not calibration.main_transform.any()
    assert len(caplog.records) == 1
    assert message in caplog.text


def test_calibration_stays_seen_after_a_bad_message() -> None:
    calibration = Calibration(plan())
    calibration.update([0.0, 0.0, 0.0], "tici", "ox03c10")
    before = calibration.main_transform.copy()
    calibration.update([], "tici", "ox03c10")
    assert calibration.seen
    np.testing.assert_array_equal(calibration.main_transform, before)


def test_calibration_with_configured_cameras_needs_no_device() -> None:
    override = DeviceCameras(Camera(960, 540, 800.0), None)
    video = CameraPlan(False, True, (960, 540), override)
    calibration = Calibration(video)
    assert not calibration.needs_device
    calibration.update([0.0, 0.0, 0.0], "unknown", "unknown")
    # One camera feeds both views: 800/910 and 800/455.
    assert calibration.main_transform[0, 0] == pytest.approx(800 / 910)
    assert calibration.extra_transform[0, 0] == pytest.approx(800 / 455)

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cereal.errors import MessageError
from modeld import calibration as calibration_module
from modeld.calibration import (
    Calibration,
    Camera,
    CameraPlan,
    DeviceCameras,
    FrameSizes,
    find_cameras,
    find_readouts,
    read_angles,
)
from modeld.errors import CameraConfigError
from modeld.view_geometry import (
    MED_MODEL_INTRINSICS,
    SBIG_MODEL_INTRINSICS,
    inverse_pinhole,
    matrix_product,
    rot_from_euler,
    warp_matrix,
)

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


def test_warp_matrix_of_a_level_camera_has_the_same_bits_on_every_processor() -> None:
    """Numpy's products leave 1e-17 where 0 belongs, and another 1e-17 on another make."""
    for camera in (TICI_ROAD, TICI_WIDE, Camera(960, 540, 950.0)):
        for model in (MED_MODEL_INTRINSICS, SBIG_MODEL_INTRINSICS):
            matrix = warp_matrix((0.0, 0.0, 0.0), camera.intrinsics, model)
            assert [matrix[at] for at in ((0, 1), (1, 0), (2, 0), (2, 1))] == [0.0] * 4
            assert matrix[2, 2] == 1.0
            assert matrix[0, 0] == matrix[1, 1] == np.float32(camera.focal_px / model[0, 0])


def test_matrix_product_adds_rounded_terms_from_left_to_right() -> None:
    # 2**60 hides the 1 that comes before -2**60; with the 1 last it would be seen.
    a = np.array([[2.0**60, 1.0, -(2.0**60)], [0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    product = matrix_product(a, np.ones((3, 3)))
    np.testing.assert_array_equal(product, [[0.0] * 3, [2.0] * 3, [4.0] * 3])
    b = np.arange(9.0).reshape(3, 3)
    np.testing.assert_array_equal(matrix_product(a[1:2].repeat(3, 0), b), [[6.0, 8.0, 10.0]] * 3)


def test_inverse_pinhole_takes_pixels_to_the_view() -> None:
    for matrix in (MED_MODEL_INTRINSICS, TICI_ROAD.intrinsics):
        np.testing.assert_allclose(inverse_pinhole(matrix) @ matrix, np.eye(3), atol=1e-12)


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


TICI = FrameSizes((1928, 1208), (1928, 1208))
OS_BINNED = ((1344, 760), 1141.5, 425.25)
OS_FULL = ((2688, 1520), 2648 * 2 / 3, 850.5)


def plan(*, single: bool = False, main_is_wide: bool = False) -> CameraPlan:
    return CameraPlan(main_is_wide, single)


def test_views_use_the_camera_that_took_the_picture() -> None:
    device = [DeviceCameras(TICI_ROAD, TICI_WIDE)]
    assert plan().views(device, TICI) == (TICI_ROAD, TICI_WIDE)
    assert plan(single=True).views(device, TICI) == (TICI_ROAD, TICI_ROAD)
    assert plan(single=True, main_is_wide=True).views(device, TICI) == (TICI_WIDE, TICI_WIDE)


def test_view_of_a_lost_wide_camera_is_that_of_a_single_one() -> None:
    device = [DeviceCameras(TICI_ROAD, TICI_WIDE)]
    lost = replace(TICI, lacks_extra=True)
    assert plan().views(device, lost) == (TICI_ROAD, TICI_ROAD)


def test_a_wide_camera_is_known_by_configuration_or_once_the_device_is() -> None:
    for wide in (TICI_WIDE, None):
        configured = CameraPlan(False, True, DeviceCameras(TICI_ROAD, wide))
        assert Calibration(configured, TICI).has_wide is (wide is not None)
    for device, sensor, size, has in (
        ("tici", "ox03c10", (1928, 1208), True),
        ("mici", "os04c10", OS_BINNED[0], True),
        ("neo", "unknown", (1164, 874), False),
    ):
        calibration = Calibration(plan(single=True), FrameSizes(size, size))
        assert not calibration.has_wide
        calibration.update([0.0, 0.0, 0.0], device, sensor)
        assert calibration.has_wide is has


def test_a_single_camera_that_should_not_be_one_has_its_views_until_the_other_comes() -> None:
    binned = FrameSizes(OS_BINNED[0], OS_BINNED[0])
    calibration = Calibration(plan(single=True), binned)
    calibration.update([0.0, 0.0, 0.0], "tizi", "os04c10")
    alone = calibration.extra_transform.copy()
    calibration.expect_extra()
    calibration.fit(replace(binned, lacks_extra=True))
    np.testing.assert_array_equal(calibration.extra_transform, alone)
    # Of the same size: it is another camera all the same.
    calibration.fit(binned)
    assert calibration.extra_transform[0, 0] == pytest.approx(425.25 / 455)


def test_configured_sizes_of_a_late_wide_camera_are_checked() -> None:
    config = DeviceCameras(Camera(64, 32, 90.0), Camera(64, 64, 45.0))
    same = FrameSizes((64, 32), (64, 32))
    calibration = Calibration(CameraPlan(False, True, config), same)
    calibration.check(same)
    calibration.expect_extra()
    with pytest.raises(CameraConfigError, match=r"extra camera: expected frames of 64x64"):
        calibration.check(same)


def test_views_reject_a_wide_stream_without_a_wide_camera() -> None:
    device = [DeviceCameras(TICI_ROAD, None)]
    assert plan(single=True).views(device, TICI) == (TICI_ROAD, TICI_ROAD)
    lost = replace(TICI, lacks_extra=True)
    for bad, sizes in (
        (plan(), TICI),
        (plan(), lost),
        (plan(single=True, main_is_wide=True), TICI),
    ):
        with pytest.raises(CameraConfigError, match=r"only a road camera"):
            bad.views(device, sizes)


def test_road_and_wide_camera_are_chosen_by_the_size_of_their_own_frames() -> None:
    readouts = find_readouts("mici", "os04c10")
    for main, extra in itertools.product((OS_BINNED, OS_FULL), repeat=2):
        road, wide = plan().views(readouts, FrameSizes(main[0], extra[0]))
        assert (road.width, road.height) == main[0]
        assert road.focal_px == pytest.approx(main[1])
        assert (wide.width, wide.height) == extra[0]
        assert wide.focal_px == pytest.approx(extra[2])
    with pytest.raises(
        CameraConfigError, match=r"frames of 1344x760 or 2688x1520 .* got 1928x1208"
    ):
        plan().views(readouts, TICI)


@pytest.mark.parametrize("device", ["tici", "tizi", "mici"])
@pytest.mark.parametrize(
    ("sensor", "size", "road_px", "wide_px"),
    [
        ("ar0231", (1928, 1208), 2648.0, 567.0),
        ("ox03c10", (1928, 1208), 2648.0, 567.0),
        ("os04c10", *OS_BINNED),
        ("os04c10", *OS_FULL),
    ],
)
def test_every_camera_of_the_table_has_its_own_matrices(
    device: str, sensor: str, size: tuple[int, int], road_px: float, wide_px: float
) -> None:
    calibration = Calibration(plan(), FrameSizes(size, size))
    calibration.update([0.0, 0.0, 0.0], device, sensor)
    assert calibration.seen
    for matrix, focal_px, model_px, model_center in (
        (calibration.main_transform, road_px, 910, (256, 47.6)),
        (calibration.extra_transform, wide_px, 455, (256, 151.8)),
    ):
        assert matrix[0, 0] == pytest.approx(focal_px / model_px)
        center = (size[0] / 2, size[1] / 2)
        assert project(matrix, *model_center) == pytest.approx(center, abs=1e-2)


def test_matrices_follow_frames_of_another_size() -> None:
    calibration = Calibration(plan(), FrameSizes(OS_BINNED[0], OS_BINNED[0]))
    calibration.update([0.0, 0.0, 0.0], "tizi", "os04c10")
    before = calibration.main_transform.copy()
    calibration.fit(FrameSizes(OS_FULL[0], OS_FULL[0]))
    assert calibration.seen
    assert calibration.main_transform[0, 0] == pytest.approx(2648 * 2 / 3 / 910)
    assert calibration.extra_transform[0, 0] == pytest.approx(850.5 / 455)
    calibration.fit(FrameSizes(OS_BINNED[0], OS_BINNED[0]))
    np.testing.assert_array_equal(calibration.main_transform, before)


def is_seen(calibration: Calibration) -> bool:
    return calibration.seen


def test_frames_of_no_camera_of_the_device_are_invalid_until_a_calibration_fits() -> None:
    calibration = Calibration(plan(), TICI)
    calibration.update([0.0, 0.0, 0.0], "tizi", "ox03c10")
    binned = FrameSizes(OS_BINNED[0], OS_BINNED[0])
    calibration.fit(binned)
    assert not is_seen(calibration)
    assert not calibration.main_transform.any()
    assert not calibration.extra_transform.any()
    # The camera has told its sensor meanwhile.
    calibration.update([0.0, 0.0, 0.0], "tizi", "os04c10")
    assert is_seen(calibration)
    assert calibration.main_transform[0, 0] == pytest.approx(1141.5 / 910)
    # Back again: the last angles are of another sensor.
    calibration.fit(TICI)
    assert not is_seen(calibration)


def test_sizes_before_any_calibration_are_only_remembered() -> None:
    calibration = Calibration(plan(), TICI)
    calibration.fit(FrameSizes(OS_BINNED[0], OS_BINNED[0]))
    assert not calibration.seen
    calibration.update([0.0, 0.0, 0.0], "tizi", "os04c10")
    assert calibration.seen


def test_matrices_are_computed_only_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def count(*arguments: Any) -> Any:
        computed.append(arguments)
        return warp_matrix(*arguments)

    monkeypatch.setattr(calibration_module, "warp_matrix", count)
    calibration = Calibration(plan(), TICI)
    calibration.update([0.0, 0.0, 0.0], "tizi", "ox03c10")
    for _ in range(100):
        calibration.fit(TICI)
        calibration.update([0.0, 0.0, 0.0], "tizi", "ox03c10")
    assert len(computed) == 2
    calibration.fit(replace(TICI, lacks_extra=True))
    assert len(computed) == 4
    assert calibration.extra_transform[0, 0] == pytest.approx(2648 / 455)


def test_calibration_is_zero_until_seen_then_written_in_place() -> None:
    calibration = Calibration(plan(), TICI)
    main, extra = calibration.main_transform, calibration.extra_transform
    assert np.array_equal(main, np.zeros((3, 3)))
    assert np.array_equal(extra, np.zeros((3, 3)))
    assert Calibration(plan(), TICI).seen is False
    calibration.update([0.0, 0.0, 0.0], "tici", "ox03c10")
    assert calibration.seen
    assert main[0, 0] == pytest.approx(2648 / 910)
    assert extra[0, 0] == pytest.approx(567 / 455)


@pytest.mark.parametrize(
    ("rpy", "device", "sensor", "message"),
    [
        ([], "tici", "ox03c10", "expected 3 finite angles"),
        ([0.0, math.nan, 0.0], "tici", "ox03c10", "expected 3 finite angles"),
        ([0.0, 1.5, 0.0], "tici", "ox03c10", "rpyCalib[1]: expected -0.1931 to 0.27236 rad"),
        ([0.0, 0.0, -0.12], "tici", "ox03c10", "rpyCalib[2]: expected -0.11912 to 0.11912 rad"),
        ([0.11, 0.0, 0.0], "tici", "ox03c10", "rpyCalib[0]: expected -0.1 to 0.1 rad, found 0.11"),
        ([0.0, 0.0, 0.0], "tici", "imx123", "no cameras for device"),
        ([0.0, 0.0, 0.0], "tici", "os04c10", "expected frames of 1344x760 or 2688x1520"),
    ],
)
def test_calibration_ignores_a_message_it_cannot_use(
    rpy: list[float], device: str, sensor: str, message: str
) -> None:
    calibration = Calibration(plan(), TICI)
    calibration.update(rpy, device, sensor)
    assert not calibration.seen
    assert not calibration.main_transform.any()
    assert message in calibration.refused


def test_a_list_of_a_wrong_length_is_refused_without_reading_it() -> None:
    class Claims(list[float]):
        """Says that it is long, as a damaged message may."""

        def __len__(self) -> int:
            return 1 << 29

        def __iter__(self) -> Iterator[float]:
            raise AssertionError("was read")

    with pytest.raises(MessageError, match="expected 3 finite angles, got 536870912 values"):
        read_angles(Claims())
    # And with the loop's own way in: nothing is raised.
    calibration = Calibration(plan(), TICI)
    calibration.update(Claims(), "tici", "ox03c10")
    assert not calibration.seen


def test_calibration_stays_seen_after_a_bad_message() -> None:
    calibration = Calibration(plan(), TICI)
    calibration.update([0.0, 0.0, 0.0], "tici", "ox03c10")
    before = calibration.main_transform.copy()
    calibration.update([], "tici", "ox03c10")
    assert calibration.seen
    assert calibration.refused
    np.testing.assert_array_equal(calibration.main_transform, before)
    calibration.update([0.0, 0.0, 0.0], "tici", "ox03c10")
    assert calibration.refused == ""


def test_calibration_with_configured_cameras_needs_no_device() -> None:
    override = DeviceCameras(Camera(960, 540, 800.0), None)
    video = CameraPlan(False, True, override)
    calibration = Calibration(video, FrameSizes((960, 540), (960, 540)))
    assert not calibration.needs_device
    calibration.update([0.0, 0.0, 0.0], "unknown", "unknown")
    # One camera feeds both views: 800/910 and 800/455.
    assert calibration.main_transform[0, 0] == pytest.approx(800 / 910)
    assert calibration.extra_transform[0, 0] == pytest.approx(800 / 455)

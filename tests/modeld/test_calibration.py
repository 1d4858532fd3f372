"""Warp matrices of all cameras, from calibration messages, sizes of frames and configuration."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.errors import MessageError
from modeld.errors import CameraConfigError
from modeld.vehicle import calibration as calibration_module
from modeld.vehicle.calibration import Calibration, CameraPlan, FrameSizes, read_angles
from modeld.vehicle.cameras import (
    MED_MODEL_INTRINSICS,
    SBIG_MODEL_INTRINSICS,
    Camera,
    DeviceCameras,
    find_cameras,
    find_readouts,
    inverse_pinhole,
    matrix_product,
    rot_from_euler,
    warp_matrix,
)
from tests.modeld.bench import Patch

LEVEL = [0.0, 0.0, 0.0]
ROAD, WIDE = Camera(1928, 1208, 2648.0), Camera(1928, 1208, 567.0)
# Width, height, focal lengths of road and wide camera.
FIRST = ((1928, 1208), 2648.0, 567.0)
BINNED, FULL = ((1344, 760), 1141.5, 425.25), ((2688, 1520), 2648 * 2 / 3, 850.5)
SIZES, BINNED_SIZES, FULL_SIZES = (FrameSizes(m[0], m[0]) for m in (FIRST, BINNED, FULL))
BOTH, SINGLE, WIDE_ALONE = CameraPlan(False, False), CameraPlan(False, True), CameraPlan(True, True)


def project(matrix: NDArray[np.float32], x: float, y: float) -> tuple[float, float]:
    u, v, w = matrix.astype(np.float64) @ (x, y, 1.0)
    return u / w, v / w


def test_warp_matrix_of_a_level_camera_has_the_same_bits_on_every_processor() -> None:
    """Numpy's products leave 1e-17 where 0 belongs, and another 1e-17 on another make."""
    models = (MED_MODEL_INTRINSICS, SBIG_MODEL_INTRINSICS)
    for camera, model in itertools.product((ROAD, WIDE, Camera(960, 540, 950.0)), models):
        matrix = warp_matrix((0.0, 0.0, 0.0), camera.intrinsics, model)
        assert [matrix[at] for at in ((0, 1), (1, 0), (2, 0), (2, 1))] == [0.0] * 4
        assert matrix[2, 2] == 1.0
        assert matrix[0, 0] == matrix[1, 1] == np.float32(camera.focal_px / model[0, 0])


def test_pixels_that_are_not_square_have_the_matrix_of_square_ones_with_rows_scaled() -> None:
    angles = (0.01, -0.03, 0.02)
    square, wide = Camera(960, 540, 800.0), Camera(480, 540, 400.0, 800.0)
    assert (square.pixel_aspect, wide.pixel_aspect) == (1.0, 2.0)
    expected = warp_matrix(angles, square.intrinsics, MED_MODEL_INTRINSICS).astype(np.float64)
    found = warp_matrix(angles, wide.intrinsics, MED_MODEL_INTRINSICS)
    np.testing.assert_allclose(found, np.diag([0.5, 1.0, 1.0]) @ expected, rtol=1e-6)


@pytest.mark.parametrize("camera", [ROAD, WIDE, Camera(1344, 760, 1141.5, 1100.0)])
def test_scaled_pictures_show_each_point_where_the_full_ones_do(camera: Camera) -> None:
    """Each axis by itself: the small pictures of a device have another aspect."""
    seen = camera.scaled(526, 330)
    scaling = np.diag([526 / camera.width, 330 / camera.height, 1.0])
    np.testing.assert_allclose(seen.intrinsics, scaling @ camera.intrinsics, rtol=1e-12)


def test_matrix_product_adds_rounded_terms_from_left_to_right() -> None:
    # 2**60 hides the 1 that comes before -2**60; with the 1 last it would be seen.
    a = np.array([[2.0**60, 1.0, -(2.0**60)], [0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    product = matrix_product(a, np.ones((3, 3)))
    np.testing.assert_array_equal(product, [[0.0] * 3, [2.0] * 3, [4.0] * 3])
    b = np.arange(9.0).reshape(3, 3)
    np.testing.assert_array_equal(matrix_product(a[1:2].repeat(3, 0), b), [[6.0, 8.0, 10.0]] * 3)


def test_inverse_pinhole_takes_pixels_to_the_view() -> None:
    for matrix in (MED_MODEL_INTRINSICS, ROAD.intrinsics):
        np.testing.assert_allclose(inverse_pinhole(matrix) @ matrix, np.eye(3), atol=1e-12)


SCALE = 2648.0 / 910.0


@pytest.mark.parametrize(
    ("angles", "x", "expected"),
    [
        # The model's principal ray turned by Ry(0.01) points up: v = 604 - 2648 tan 0.01.
        ((0.0, 0.01, 0.0), 256.0, (964.0, 577.5191)),
        # Rz(0.02) turns x towards y, to the right: u = 964 + 2648 tan 0.02.
        ((0.0, 0.0, 0.02), 256.0, (1016.9671, 604.0)),
        # Roll turns about the vanishing point: Rx(r) takes y (right) to y cos r + z sin r, so that
        # a point right of the centre moves down.
        ((0.1, 0.0, 0.0), 256.0, (964.0, 604.0)),
        (
            (0.1, 0.0, 0.0),
            356.0,
            (964.0 + 100 * SCALE * math.cos(0.1), 604.0 + 100 * SCALE * math.sin(0.1)),
        ),
    ],
)
def test_angles_move_the_picture(
    angles: tuple[float, float, float], x: float, expected: tuple[float, float]
) -> None:
    matrix = warp_matrix(angles, ROAD.intrinsics, MED_MODEL_INTRINSICS)
    assert project(matrix, x, 47.6) == pytest.approx(expected, abs=1e-3)


def test_rot_from_euler_applies_roll_then_pitch_then_yaw() -> None:
    (cr, cp, cy), (sr, sp, sy) = np.cos([0.3, -0.2, 1.1]), np.sin([0.3, -0.2, 1.1])
    about_x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    about_y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    about_z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    expected = about_z @ about_y @ about_x
    np.testing.assert_allclose(rot_from_euler((0.3, -0.2, 1.1)), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("device", "sensor", "size", "road_px", "wide_px"),
    [
        ("tizi", "os04c10", *BINNED),
        ("pc", "unknown", *FIRST),
        ("neo", "unknown", (1164, 874), 910.0, None),
    ],
)
def test_find_cameras_table(
    device: str, sensor: str, size: tuple[int, int], road_px: float, wide_px: float | None
) -> None:
    wide = None if wide_px is None else Camera(*size, wide_px)
    assert find_cameras(device, sensor) == DeviceCameras(Camera(*size, road_px), wide)


def test_find_cameras_unknown_names_the_pair_and_the_way_out() -> None:
    with pytest.raises(CameraConfigError, match=r"'pc' with sensor 'os04c10'.*\[camera.road\]"):
        find_cameras("pc", "os04c10")


LOST = replace(SIZES, lacks_extra=True)


@pytest.mark.parametrize(
    ("plan", "sizes", "wide", "expected"),
    [
        # Views use the camera that took the picture.
        (BOTH, SIZES, WIDE, (ROAD, WIDE)),
        (SINGLE, SIZES, WIDE, (ROAD, ROAD)),
        (WIDE_ALONE, SIZES, WIDE, (WIDE, WIDE)),
        # The view of a lost wide camera is that of a single one.
        (BOTH, LOST, WIDE, (ROAD, ROAD)),
        (SINGLE, SIZES, None, (ROAD, ROAD)),
        # A wide stream without a wide camera.
        (BOTH, SIZES, None, None),
        (BOTH, LOST, None, None),
        (WIDE_ALONE, SIZES, None, None),
    ],
)
def test_views(
    plan: CameraPlan, sizes: FrameSizes, wide: Camera | None, expected: tuple[Camera, Camera] | None
) -> None:
    device = [DeviceCameras(ROAD, wide)]
    if expected is None:
        with pytest.raises(CameraConfigError, match=r"only a road camera"):
            plan.views(device, sizes)
    else:
        assert plan.views(device, sizes) == expected


def test_road_and_wide_camera_are_chosen_by_the_size_of_their_own_frames() -> None:
    readouts = find_readouts("mici", "os04c10")
    for main, extra in itertools.product((BINNED, FULL), repeat=2):
        views = BOTH.views(readouts, FrameSizes(main[0], extra[0]))
        for view, size, focal_px in zip(
            views, (main[0], extra[0]), (main[1], extra[2]), strict=True
        ):
            assert (view.width, view.height) == size
            assert view.focal_px == pytest.approx(focal_px)
    expected = r"frames of 1344x760 or 2688x1520 .* got 1928x1208"
    with pytest.raises(CameraConfigError, match=expected):
        BOTH.views(readouts, SIZES)


def calibrated(
    sizes: FrameSizes = SIZES,
    sensor: str = "ox03c10",
    plan: CameraPlan = BOTH,
    device: str = "tizi",
) -> Calibration:
    calibration = Calibration(plan, sizes)
    calibration.update(LEVEL, device, sensor)
    return calibration


def scales(calibration: Calibration) -> tuple[float, float]:
    """Focal lengths, px, of the cameras that both matrices are of."""
    main, extra = calibration.main_transform, calibration.extra_transform
    return float(main[0, 0]) * 910, float(extra[0, 0]) * 455


def is_seen(calibration: Calibration) -> bool:
    return calibration.seen


def test_a_wide_camera_is_known_by_configuration_or_once_the_device_is() -> None:
    for wide in (WIDE, None):
        configured = CameraPlan(False, True, DeviceCameras(ROAD, wide))
        assert Calibration(configured, SIZES).has_wide is (wide is not None)
    for device, sensor, size, has in (
        ("tici", "ox03c10", (1928, 1208), True),
        ("mici", "os04c10", (1344, 760), True),
        ("neo", "unknown", (1164, 874), False),
    ):
        sizes = FrameSizes(size, size)
        assert not Calibration(SINGLE, sizes).has_wide
        assert calibrated(sizes, sensor, SINGLE, device).has_wide is has


def test_a_single_camera_that_should_not_be_one_has_its_views_until_the_other_comes() -> None:
    calibration = calibrated(BINNED_SIZES, "os04c10", SINGLE)
    alone = calibration.extra_transform.copy()
    calibration.expect_extra()
    calibration.fit(replace(BINNED_SIZES, lacks_extra=True))
    np.testing.assert_array_equal(calibration.extra_transform, alone)
    # Of the same size: it is another camera all the same.
    calibration.fit(BINNED_SIZES)
    assert scales(calibration)[1] == pytest.approx(425.25)


def test_configured_sizes_of_a_late_wide_camera_are_checked() -> None:
    config = DeviceCameras(Camera(64, 32, 90.0), Camera(64, 64, 45.0))
    same = FrameSizes((64, 32), (64, 32))
    calibration = Calibration(CameraPlan(False, True, config), same)
    calibration.check(same)
    calibration.expect_extra()
    with pytest.raises(CameraConfigError, match=r"extra camera: expected frames of 64x64"):
        calibration.check(same)


@pytest.mark.parametrize("device", ["tici", "tizi", "mici"])
@pytest.mark.parametrize(
    ("sensor", "size", "road_px", "wide_px"),
    [("ar0231", *FIRST), ("ox03c10", *FIRST), ("os04c10", *BINNED), ("os04c10", *FULL)],
)
def test_every_camera_of_the_table_has_its_own_matrices(
    device: str, sensor: str, size: tuple[int, int], road_px: float, wide_px: float
) -> None:
    calibration = calibrated(FrameSizes(size, size), sensor, device=device)
    assert calibration.seen
    assert scales(calibration) == pytest.approx((road_px, wide_px))
    center = (size[0] / 2, size[1] / 2)
    assert project(calibration.main_transform, 256, 47.6) == pytest.approx(center, abs=1e-2)
    assert project(calibration.extra_transform, 256, 151.8) == pytest.approx(center, abs=1e-2)


def test_frames_of_no_camera_of_the_device_are_invalid_until_a_calibration_fits() -> None:
    calibration = calibrated()
    calibration.fit(BINNED_SIZES)
    assert not is_seen(calibration)
    assert not calibration.main_transform.any()
    assert not calibration.extra_transform.any()
    # The camera has told its sensor meanwhile.
    calibration.update(LEVEL, "tizi", "os04c10")
    assert is_seen(calibration)
    assert scales(calibration)[0] == pytest.approx(1141.5)
    # Back again: the last angles are of another sensor.
    calibration.fit(SIZES)
    assert not is_seen(calibration)


def test_matrices_are_computed_only_for_news(monkeypatch: Patch) -> None:
    computed = []

    def count(*arguments: Any) -> Any:
        computed.append(arguments)
        return warp_matrix(*arguments)

    monkeypatch.setattr(calibration_module, "warp_matrix", count)
    calibration = calibrated()
    for _ in range(100):
        calibration.fit(SIZES)
        calibration.update(LEVEL, "tizi", "ox03c10")
    assert len(computed) == 2
    calibration.fit(LOST)
    assert len(computed) == 4
    assert scales(calibration)[1] == pytest.approx(2648)


def test_calibration_is_zero_until_seen_then_written_in_place() -> None:
    calibration = Calibration(BOTH, SIZES)
    main, extra = calibration.main_transform, calibration.extra_transform
    # Sizes before any calibration are only remembered.
    calibration.fit(BINNED_SIZES)
    assert not is_seen(calibration)
    np.testing.assert_array_equal([main, extra], np.zeros((2, 3, 3)))
    calibration.update(LEVEL, "tici", "os04c10")
    assert is_seen(calibration)
    assert main[0, 0] == pytest.approx(1141.5 / 910)
    assert extra[0, 0] == pytest.approx(425.25 / 455)


@pytest.mark.parametrize(
    ("rpy", "sensor", "message"),
    [
        ([], "ox03c10", "expected 3 finite angles"),
        ([0.25] * 2, "ox03c10", "expected 3 finite angles, got 2 values"),
        ([0.25] * 4, "ox03c10", "expected 3 finite angles, got 4 values"),
        ([0.0, math.nan, 0.0], "ox03c10", "expected 3 finite angles"),
        ([0.0, 1.5, 0.0], "ox03c10", "rpyCalib[1]: expected -0.1931 to 0.27236 rad"),
        ([0.0, -0.1932, 0.0], "ox03c10", "rpyCalib[1]: expected -0.1931 to 0.27236 rad"),
        ([0.0, 0.0, -0.12], "ox03c10", "rpyCalib[2]: expected -0.11912 to 0.11912 rad"),
        ([0.11, 0.0, 0.0], "ox03c10", "rpyCalib[0]: expected -0.1 to 0.1 rad, found 0.11"),
        (LEVEL, "imx123", "no cameras for device"),
        (LEVEL, "os04c10", "expected frames of 1344x760 or 2688x1520"),
    ],
)
def test_calibration_ignores_a_message_it_cannot_use(
    rpy: list[float], sensor: str, message: str
) -> None:
    calibration = Calibration(BOTH, SIZES)
    calibration.update(rpy, "tici", sensor)
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
    calibration = Calibration(BOTH, SIZES)
    calibration.update(Claims(), "tici", "ox03c10")
    assert not calibration.seen

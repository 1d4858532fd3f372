"""The pinhole camera of pictures, and the camera of a video that is given in a file."""

import math
from pathlib import Path

import numpy as np
import pytest

from modeld.vehicle.cameras import Camera
from tests.tools.conftest import MakeVideo
from tools.drives.open_drive import DriveOptions, open_drive
from tools.errors import UsageError
from tools.messages.camera import VideoCamera, project, read_video_camera, stand_in_camera

CAMERA = Camera(1000, 600, 500.0)
TOML = "[camera]\nfocal_px = 900\npitch_deg = -2.5\nheight_m = 1.4\n"
JSON = '{"camera": {"focal_px": 900, "pitch_deg": -2.5, "height_m": 1.4}, "rows": []}'
GIVEN = VideoCamera(focal_px=900.0, pitch_deg=-2.5, height_m=1.4)


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


@pytest.mark.parametrize(("name", "text"), [("camera.toml", TOML), ("labels.json", JSON)])
def test_toml_and_json_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert read_video_camera(path) == GIVEN


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("focal_px = 1\n", "expected a table 'camera', found none"),
        ("camera = 1\n", "expected a table 'camera', found none"),
        ("[camera\n", "expected TOML, found"),
        ("[camera]\nzoom = 1\n", "camera.zoom: expected one of focal_px, roll_deg"),
        ("[camera]\nfocal_px = 0\n", "camera.focal_px: expected more than 0"),
        ("camera = " + "[" * 100_000, "expected TOML"),
        ("[camera]\nheight_m = inf\n", "camera.height_m: expected a finite number"),
        ("[camera]\nyaw_deg = true\n", "camera.yaw_deg: expected a finite number, found True"),
        ("[camera]\nyaw_deg = 30\n", "camera.yaw_deg: "),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "camera.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_video_camera(path)
    assert problem in str(refused.value)
    assert str(refused.value).startswith(f"--camera {path}")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_video_camera(tmp_path / "none.toml")


def test_signs_are_what_the_documents_say() -> None:
    ahead, right = np.array([[10.0, 0.0, 0.0]]), np.array([[10.0, 2.0, 0.0]])
    looks_down = VideoCamera(pitch_deg=5.0).rpy_rad
    assert project(ahead, CAMERA, looks_down)[0, 1] == pytest.approx(
        300.0 - 500.0 * math.tan(math.radians(5.0))
    )
    assert project(ahead, CAMERA, VideoCamera(yaw_deg=2.0).rpy_rad)[0, 0] > 500.0
    # What is right is lower in the picture.
    assert project(right, CAMERA, VideoCamera(roll_deg=2.0).rpy_rad)[0, 1] > 300.0


def test_a_video_has_the_camera_that_is_given(make_video: MakeVideo) -> None:
    path = str(make_video())
    info = open_drive(path, DriveOptions(camera=GIVEN)).info
    assert info.cameras is not None
    assert info.cameras.road.focal_px == 900.0
    assert info.mounting.rpy_rad == pytest.approx((0.0, math.radians(-2.5), 0.0))
    assert info.mounting.height_m == 1.4
    assert "pitch -2.5" in info.facts["camera"]
    assert info.identity != open_drive(path, DriveOptions()).info.identity
    # An option of the command line comes before the file.
    info = open_drive(path, DriveOptions(camera=GIVEN, focal_px=700.0)).info
    assert info.cameras is not None
    assert info.cameras.road.focal_px == 700.0

"""Segments of comma2k19: formulas against hand numbers, a generated segment, and a real one."""

import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.schema import read_event
from modeld.vehicle.calibration import DEVICE_CAMERAS
from modeld.vehicle.view_geometry import rot_from_euler
from tests.tools.conftest import MakeVideo
from tests.tools.drives.segments import encode, shown
from tools.drives import comma2k19, video_drive
from tools.drives.comma2k19 import (
    calibration_of,
    expand,
    open_drive,
    read_comma2k19,
    rotation_matrices,
    rotation_vectors,
)
from tools.drives.open_drive import DriveOptions, expand_drives
from tools.drives.open_drive import open_drive as open_any_drive
from tools.errors import DriveError, TelemetryError
from tools.messages.telemetry import MAX_GAP_S

SHARED = Path(__file__).parents[4] / "shared/data/comma2k19"
needs_data = [
    pytest.mark.footage,
    pytest.mark.skipif(not SHARED.exists(), reason="the shared footage is not checked out"),
]

# Raise it after changes of what reads the files.
MUTATIONS = 300
FRAMES = 6
START_S = 46_000.25
YAW_RATE = 0.2  # rad/s to the right (about z down)
SPEED = 10.0
PITCH, YAW = 0.05, -0.02
SPEED_FILES = "processed_log/CAN/speed"

Floats = NDArray[np.float64]


def _save(path: Path, array: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def _quaternion(rotation: Floats) -> list[float]:
    """Return (w, x, y, z) of a rotation of less than 180 degrees."""
    w = math.sqrt(max(0.0, 1.0 + float(np.trace(rotation)))) / 2
    skew = (rotation - rotation.T) / (4 * w)
    return [w, skew[2, 1], skew[0, 2], skew[1, 0]]


def _write_segment(path: Path, frames: int = FRAMES) -> Path:
    """Write a car that turns right at a constant rate, somewhere on the earth."""
    earth_from_first = rotation_matrices(np.array([[0.6, 0.0, 0.8, 0.0]]))[0]
    device_from_calib = rot_from_euler((0.0, PITCH, YAW))
    times_s = START_S + 0.05 * np.arange(frames)
    turns = [rot_from_euler((0.0, 0.0, YAW_RATE * 0.05 * i)) for i in range(frames)]
    local = [earth_from_first @ turn for turn in turns]
    velocities = [rotation @ device_from_calib @ [SPEED, 0.0, 0.0] for rotation in local]
    start = np.array([-2.7e6, -4.2e6, 3.9e6])
    steps = 0.05 * np.cumsum([np.zeros(3), *velocities[:-1]], axis=0)
    pose = path / "global_pose"
    _save(pose / "frame_times", times_s)
    _save(pose / "frame_positions", start + steps)
    _save(pose / "frame_velocities", velocities)
    _save(pose / "frame_orientations", [_quaternion(rotation) for rotation in local])
    log = path / "processed_log"
    can_s = START_S - 0.01 + 0.012 * np.arange(40)
    for name, values in (
        ("CAN/speed", 10.0 + 10.0 * (can_s - START_S)[:, None]),
        ("CAN/steering_angle", -5.0 + 0.0 * can_s),
        ("CAN/wheel_speed", np.full((40, 4), 10.0)),
        ("IMU/accelerometer", np.full((40, 3), [0.0, 0.0, -9.8])),
        ("IMU/gyro", np.full((40, 3), [0.0, 0.0, YAW_RATE])),
    ):
        _save(log / name / "t", can_s)
        _save(log / name / "value", values)
    return path


def _write_hevc(path: Path, frames: int = FRAMES, size: tuple[int, int] = (1164, 874)) -> None:
    path.write_bytes(encode("road", tuple(range(frames)), size, hashed=False).file())


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    return _write_segment(tmp_path / "b0c9d2329ad1606b|2018-08-02--08-34-47" / "3")


def test_rotation_of_hand_computed_quaternions() -> None:
    # 90 degrees about z take x to y; 60 degrees about x take y to (0, cos 60, sin 60).
    half = math.sqrt(0.5)
    about_z, about_x, unnormalized = rotation_matrices(
        np.array([[half, 0, 0, half], [math.cos(math.pi / 6), 0.5, 0, 0], [2.0, 0, 0, 2.0]])
    )
    assert about_z @ [1, 0, 0] == pytest.approx([0, 1, 0])
    assert about_x @ [0, 1, 0] == pytest.approx([0, 0.5, math.sqrt(0.75)])
    assert unnormalized == pytest.approx(about_z)


@pytest.mark.parametrize(
    "vector", [(0.0, 0.0, 0.0), (0.0, 0.0, 0.3), (0.1, -0.2, 0.05), (1e-9,) * 3]
)
def test_rotation_vectors_are_axis_times_angle(vector: tuple[float, float, float]) -> None:
    angle = math.sqrt(sum(part * part for part in vector))
    axis = np.array(vector) / (angle or 1.0)
    quaternion = np.concatenate([[math.cos(angle / 2)], math.sin(angle / 2) * axis])
    found = rotation_vectors(rotation_matrices(quaternion[None]))[0]
    assert found == pytest.approx(vector, abs=1e-14)


def test_calibration_is_where_the_car_drives_as_the_camera_sees_it() -> None:
    # A camera pitched down sees the car drive upwards (z negative): positive pitch.
    seen = np.array([[10.0, 1.0, -0.5]])
    roll, pitch, yaw = calibration_of(seen) or (9.0, 9.0, 9.0)
    assert roll == 0.0
    assert yaw == pytest.approx(math.atan(1.0 / 10.0))
    assert pitch == pytest.approx(math.atan(0.5 / 10.0 * math.cos(yaw)))
    forward = rot_from_euler((roll, pitch, yaw)) @ [np.linalg.norm(seen), 0.0, 0.0]
    assert forward == pytest.approx(seen[0])
    # Slow frames say nothing.
    slow = np.array([[0.1, 6.0, 3.0]])
    assert calibration_of(np.concatenate([seen, slow])) == pytest.approx((roll, pitch, yaw))
    assert calibration_of(slow) is None
    assert calibration_of(np.zeros((0, 3))) is None


def test_pose_is_in_local_frames(segment: Path) -> None:
    read = read_comma2k19(segment)
    assert read.times_s == pytest.approx(0.05 * np.arange(FRAMES))
    assert read.start_s == START_S
    assert read.rpy_calib_rad == pytest.approx((0.0, PITCH, YAW), abs=1e-9)
    expected = rot_from_euler((0.0, PITCH, YAW)) @ [SPEED, 0.0, 0.0]
    assert read.velocities_mps == pytest.approx(np.tile(expected, (FRAMES, 1)), abs=1e-9)
    # Positions are 1e6 m from the earth's middle: their last digit is a nanometre.
    assert read.positions_m[0].tolist() == [0.0, 0.0, 0.0]
    assert read.positions_m[1] == pytest.approx(0.05 * expected, abs=1e-8)
    assert read.orientations[0] == pytest.approx(np.eye(3), abs=1e-12)
    assert read.orientations[2] == pytest.approx(
        rot_from_euler((0.0, 0.0, 2 * 0.05 * YAW_RATE)), abs=1e-9
    )
    rates = read.rotation_rates_radps()
    assert rates == pytest.approx(np.tile([0.0, 0.0, YAW_RATE], (FRAMES - 1, 1)), abs=1e-6)
    ahead = read.path_m(2)
    assert ahead[2].tolist() == [0.0, 0.0, 0.0]
    assert ahead[3] == pytest.approx(0.05 * expected, abs=1e-8)


def test_time_zero_is_the_first_frame(segment: Path) -> None:
    read = read_comma2k19(segment)
    assert read.speed_mps.times_s[0] == pytest.approx(-0.01)
    telemetry = read.telemetry()
    # 10 m/s and 10 m/s^2 by construction; left is positive.
    assert telemetry.at(0.0).speed_mps == pytest.approx(10.0)
    assert telemetry.at(0.1).speed_mps == pytest.approx(11.0)
    assert telemetry.at(0.1).steering_angle_deg == pytest.approx(-5.0)
    assert read.gyro_radps is not None
    assert read.gyro_radps.times_s[0] == pytest.approx(-0.01)


def test_without_a_pose_time_zero_is_the_first_speed(segment: Path) -> None:
    shutil.rmtree(segment / "global_pose")
    read = read_comma2k19(segment)
    assert read.start_s == pytest.approx(START_S - 0.01)
    assert read.speed_mps.times_s[0] == 0.0
    assert read.positions_m.shape == (0, 3)
    assert read.rpy_calib_rad is None
    _write_hevc(segment / "video.hevc", size=(128, 96))
    with pytest.raises(DriveError, match="expected global_pose with a time for each frame"):
        open_drive(str(segment), DriveOptions())


def test_samples_of_the_data_sets_own_names_and_with_holes(segment: Path) -> None:
    can = segment / "processed_log/CAN"
    (can / "speed").rename(can / "car_speed")
    values = np.load(can / "car_speed/value")
    values[3:5] = np.nan
    _save(can / "car_speed/value", values)
    times_s = np.load(can / "car_speed/t")
    times_s[11] = times_s[10]  # of one packet
    _save(can / "car_speed/t", times_s)
    speed = read_comma2k19(segment).speed_mps
    assert speed.times_s.size == 40 - 2 - 1
    assert speed.interpolated(0.1) == pytest.approx(11.0)
    assert (np.diff(speed.times_s) > 0).all()


def test_a_segment_with_its_video_is_a_drive(segment: Path) -> None:
    _write_hevc(segment / "video.hevc")
    drive = open_drive(str(segment), DriveOptions())
    info = drive.info
    assert (info.kind, info.moments, info.rate_hz) == ("comma2k19", FRAMES, 20.0)
    assert info.name == "b0c9d2329ad1606b|2018-08-02--08-34-47/3"
    assert info.cameras is None  # the messages name the device
    moments = []
    for moment in drive.moments():
        frame = moment.frames["road"]
        sof_ns = round((START_S + 0.05 * moment.index) * 1e9)
        assert abs(frame.timestamp_sof_ns - sof_ns) < 100
        assert frame.timestamp_eof_ns == frame.timestamp_sof_ns + 18_000_000
        assert shown(frame) == ("road", moment.index)
        events = {m.service: read_event(m.data) for m in moment.messages}
        assert moment.messages[-1].service == "roadCameraState"
        assert events["roadCameraState"].roadCameraState.frameId == moment.index
        car = events["carState"].carState
        assert car.vEgo == pytest.approx(10.0 + 0.5 * moment.index, rel=1e-6)
        assert car.steeringAngleDeg == pytest.approx(-5.0)
        if moment.index == 0:
            assert str(events["deviceState"].deviceState.deviceType) == "neo"
            assert str(events["roadCameraState"].roadCameraState.sensor) == "unknown"
            rpy = list(events["liveCalibration"].liveCalibration.rpyCalib)
            assert rpy == pytest.approx([0.0, PITCH, YAW], abs=1e-6)
        moments.append((moment.index, moment.messages))
    assert len(moments) == FRAMES
    assert [(m.index, m.messages) for m in drive.moments(4)] == moments[4:]
    drive.close()


def test_a_video_of_another_length_is_said_after_its_frames(
    segment: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = DriveOptions(focal_px=100.0)
    # Longer: of another segment. Shorter: damaged, and what there is is kept.
    _write_hevc(segment / "video.hevc", FRAMES + 2, (128, 96))
    moments = open_drive(str(segment), options).moments()
    for index in range(FRAMES):
        assert next(moments).index == index
    with pytest.raises(DriveError, match=r"expected 6 frames, .* found 8"):
        next(moments)
    _write_hevc(segment / "video.hevc", FRAMES - 1, (128, 96))
    drive = open_drive(str(segment), options)
    assert [moment.index for moment in drive.moments()] == list(range(FRAMES - 1))
    assert "expected 6 frames, " in drive.damage
    assert caplog.messages == [drive.damage]


def test_videos_of_another_size_need_their_focal_length(segment: Path) -> None:
    _write_hevc(segment / "video.hevc", size=(128, 96))
    with pytest.raises(DriveError, match=r"expected 1164x874, found 128x96; .*--focal-px"):
        open_drive(str(segment), DriveOptions())
    cameras = open_drive(str(segment), DriveOptions(focal_px=100.0)).info.cameras
    assert cameras is not None
    assert cameras.road.focal_px == 100.0


def test_without_a_video_one_line_says_what_can_be_done(segment: Path) -> None:
    with pytest.raises(DriveError, match=r"video\.hevc") as caught:
        open_drive(str(segment), DriveOptions())
    text = str(caught.value)
    assert "\n" not in text
    assert "modeld make-drive --telemetry" in text
    assert "modeld replay VIDEO --telemetry" in text


def test_identity_follows_the_files(segment: Path) -> None:
    _write_hevc(segment / "video.hevc", size=(128, 96))

    def identity(focal_px: float = 100.0) -> str:
        return open_drive(str(segment), DriveOptions(focal_px=focal_px)).info.identity

    before = identity()
    assert identity() == before
    assert identity(101.0) != before
    _save(segment / SPEED_FILES / "value", np.full((40, 1), 3.0))
    assert identity() != before


def test_a_drive_stands_for_its_segments(tmp_path: Path) -> None:
    for number in (10, 2):
        _write_segment(tmp_path / "drive" / str(number), frames=2)
    expected = [str(tmp_path / "drive" / name) for name in ("2", "10")]
    assert expand(str(tmp_path / "drive"), DriveOptions()) == expected
    assert expand(expected[0], DriveOptions()) == [expected[0]]
    (tmp_path / "drive" / "2").rename(tmp_path / "drive" / "02")
    (tmp_path / "drive" / "\u0663" / "global_pose").mkdir(parents=True)
    kept = [str(tmp_path / "drive" / "02"), expected[1]]
    assert expand(str(tmp_path / "drive"), DriveOptions()) == kept
    assert expand(str(tmp_path), DriveOptions()) is None
    assert expand(str(tmp_path / "none"), DriveOptions()) is None


def test_a_segment_is_telemetry_of_a_video(segment: Path, make_video: MakeVideo) -> None:
    video = make_video(frames=4)
    drive = video_drive.open_drive(str(video), DriveOptions(telemetry=segment))
    speeds = [
        read_event(message.data).carState.vEgo
        for moment in drive.moments()
        for message in moment.messages
        if message.service == "carState"
    ]
    assert speeds == pytest.approx([10.0, 10.5, 11.0, 11.5])
    assert drive.info.facts["car state"] == "3"
    _save(segment / "global_pose/frame_times", 1000.0 + 0.05 * np.arange(FRAMES))
    with pytest.raises(TelemetryError, match=r"found 45000\.\d+ to 45000\.\d+ s"):
        video_drive.open_drive(
            str(make_video("d.mp4", codec="mpeg4")), DriveOptions(telemetry=segment)
        )


def test_arrays_of_other_types_and_orders(segment: Path) -> None:
    before = read_comma2k19(segment)
    pose = segment / "global_pose"
    for name, dtype in (("frame_velocities", ">f8"), ("frame_orientations", "<f8")):
        array = np.load(pose / name)
        _save(pose / name, np.asfortranarray(array.astype(dtype)))
    _save(segment / "processed_log/CAN/steering_angle/value", np.full(40, -5, np.int16))
    after = read_comma2k19(segment)
    assert np.array_equal(after.velocities_mps, before.velocities_mps)
    assert np.array_equal(after.orientations, before.orientations)
    assert after.steering_angle_deg.values.tolist() == before.steering_angle_deg.values.tolist()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _pickled(path: Path) -> None:
    np.save(path.with_suffix(".npy"), np.array([{}], dtype=object), allow_pickle=True)
    path.with_suffix(".npy").rename(path)


def _set(array: Any) -> Callable[[Path], None]:
    return lambda path: _save(path, array)


@pytest.mark.parametrize(
    ("name", "damage", "text"),
    [
        (f"{SPEED_FILES}/value", Path.unlink, "found no speed"),
        (f"{SPEED_FILES}/t", Path.unlink, "t: expected an npy array, found: No such"),
        ("processed_log/CAN/steering_angle/t", _cut, "t: expected an npy array of numbers"),
        (f"{SPEED_FILES}/t", _pickled, "t: expected an npy array of numbers"),
        (f"{SPEED_FILES}/t", _set(["a"] * 40), "t: expected an npy array of numbers"),
        (f"{SPEED_FILES}/t", lambda p: p.write_bytes(b""), "expected an npy array"),
        (f"{SPEED_FILES}/t", _set(np.zeros(3)), r"found \(3,\) and \(40, 1\)"),
        (f"{SPEED_FILES}/t", _set([math.nan] * 40), "times from 0 to 1e"),
        (f"{SPEED_FILES}/value", _set([[math.nan]] * 40), "speed: expected at least one number"),
        (f"{SPEED_FILES}/value", _set([[math.inf]] * 40), "speed: expected finite numbers"),
        ("processed_log/IMU/gyro/value", _set(np.zeros((40, 2))), r"values \(n, 3\)"),
        ("global_pose/frame_times", _set(np.zeros(FRAMES)), "expected increasing frame_times"),
        ("global_pose/frame_positions", _set(np.zeros((2, 3))), "expected increasing frame_times"),
        ("global_pose/frame_orientations", _set(np.zeros((FRAMES, 4))), "unit quaternions"),
        ("global_pose/frame_velocities", Path.unlink, "frame_velocities: expected an npy array"),
    ],
)
def test_damaged_files_are_named(
    segment: Path, name: str, damage: Callable[[Path], object], text: str
) -> None:
    damage(segment / name)
    with pytest.raises((DriveError, TelemetryError), match=text) as caught:
        read_comma2k19(segment)
    assert "\n" not in str(caught.value)


def test_mutated_files_are_read_or_refused(segment: Path) -> None:
    rng = random.Random(5)  # noqa: S311 - repeatable, not secret
    files = sorted(path for path in segment.rglob("*") if path.is_file())
    refused = 0
    for _ in range(MUTATIONS):
        path = rng.choice(files)
        whole = path.read_bytes()
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(rng.choice((96, len(data))))] = rng.randrange(256)
        path.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        try:
            read = read_comma2k19(segment)
            assert np.isfinite(read.speed_mps.values).all()
            assert np.isfinite(read.positions_m).all()
        except (DriveError, TelemetryError):
            refused += 1
        path.write_bytes(whole)
    assert refused > MUTATIONS // 5


class TestRealSegment:
    pytestmark = needs_data

    def test_signs_and_directions(self) -> None:
        read = read_comma2k19(SHARED)
        assert read.times_s.size == 1200
        assert read.rpy_calib_rad == pytest.approx((0.0, 0.067, 0.015), abs=0.002)
        # The quaternion's direction: the other one would not have the car drive forward.
        assert read.velocities_mps[0, 0] == pytest.approx(7.9, abs=0.05)
        assert read.telemetry().at(0.0).speed_mps == pytest.approx(7.97, abs=0.01)
        device_from_calib = rot_from_euler(read.rpy_calib_rad or (9.0, 9.0, 9.0))
        forward = np.asarray(read.velocities_mps).dot(device_from_calib[:, 0])
        speeds = [read.speed_mps.interpolated(t) for t in read.times_s]
        assert np.abs(forward - speeds).mean() < 0.3

    def test_steering_to_the_left_is_positive(self) -> None:
        read = read_comma2k19(SHARED)
        # Rotation about z, which points down, is to the right.
        right_radps = read.rotation_rates_radps()[:, 2]
        angles = [read.steering_angle_deg.interpolated(t) for t in read.times_s[:-1]]
        assert np.corrcoef(angles, right_radps)[0, 1] == pytest.approx(-0.75, abs=0.03)
        assert read.gyro_radps is not None
        gyro = np.interp(read.times_s[:-1], read.gyro_radps.times_s, read.gyro_radps.values[:, 2])
        assert np.corrcoef(gyro, right_radps)[0, 1] > 0.7

    def test_gravity_is_down(self) -> None:
        accelerometer = read_comma2k19(SHARED).accelerometer_mps2
        assert accelerometer is not None
        assert accelerometer.values.mean(axis=0)[2] == pytest.approx(-9.8, abs=0.3)

    def test_no_gap_is_long_and_the_video_is_missing(self) -> None:
        times_s = read_comma2k19(SHARED).speed_mps.times_s
        assert np.diff(times_s).max() < MAX_GAP_S
        assert expand(str(SHARED), DriveOptions()) == [str(SHARED)]
        with pytest.raises(DriveError, match=r"expected video\.hevc beside the telemetry"):
            open_drive(str(SHARED), DriveOptions())


def test_names_of_the_device_are_in_the_camera_table() -> None:
    assert (comma2k19.DEVICE, comma2k19.SENSOR) in DEVICE_CAMERAS


def test_every_kind_is_found_by_what_is_typed(segment: Path, make_video: MakeVideo) -> None:
    _write_hevc(segment / "video.hevc", size=(128, 96))
    options = DriveOptions(focal_px=100.0)
    assert open_any_drive(str(segment), options).info.kind == "comma2k19"
    assert expand_drives([str(segment.parent), str(segment)], options) == [str(segment)] * 2
    assert open_any_drive(str(make_video()), options).info.kind == "video"
    with pytest.raises(DriveError, match="found no such file; check the path"):
        open_any_drive(str(segment / "none.mp4"), options)

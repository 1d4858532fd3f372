"""Segments of comma2k19: formulas against hand numbers, a generated segment, and a real one."""

from __future__ import annotations

import io
import math
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import read_event
from modeld.vehicle.cameras import DEVICE_CAMERAS, rot_from_euler
from tests.tools.conftest import MakeVideo
from tests.tools.drives.segments import encode, shown
from tools.drives import comma2k19, video_drive
from tools.drives.comma2k19 import calibration_of, expand, open_drive, read_comma2k19
from tools.drives.open_drive import DriveOptions, expand_drives
from tools.drives.open_drive import open_drive as open_any_drive
from tools.errors import DriveError, TelemetryError
from tools.messages.telemetry import MAX_GAP_S

SHARED = Path(__file__).parents[4] / "shared/data/comma2k19"
# Raise it after changes of what reads the files.
MUTATIONS = 300
FRAMES = 6
START_S = 46_000.25
YAW_RATE = 0.2  # rad/s to the right (about z down)
SPEED = 10.0
PITCH, YAW = 0.05, -0.02
SPEEDS = "processed_log/CAN/speed/value"
TIMES = "processed_log/CAN/speed/t"
# For a video of another size than the device's.
OPTIONS = DriveOptions(focal_px=100.0)


def _npy(array: Any, *, pickled: bool = False) -> bytes:
    data = io.BytesIO()
    np.lib.format.write_array(data, np.asarray(array), allow_pickle=pickled)
    return data.getvalue()


def _save(path: Path, array: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_npy(array))


def _write_segment(path: Path, frames: int = FRAMES) -> Path:
    """Write a car that turns right at a constant rate, somewhere on the earth."""
    earth_from_first = comma2k19.rotation_matrices(np.array([[0.6, 0.0, 0.8, 0.0]]))[0]
    device_from_calib = rot_from_euler((0.0, PITCH, YAW))
    yaws = YAW_RATE * 0.05 * np.arange(frames)
    local = [earth_from_first @ rot_from_euler((0.0, 0.0, yaw)) for yaw in yaws]
    velocities = [rotation @ device_from_calib @ [SPEED, 0.0, 0.0] for rotation in local]
    steps = 0.05 * np.cumsum([np.zeros(3), *velocities[:-1]], axis=0)
    # The product of the quaternions (0.6, 0, 0.8, 0) and (cos, 0, 0, sin).
    cos, sin = np.cos(0.5 * yaws), np.sin(0.5 * yaws)
    pose = path / "global_pose"
    _save(pose / "frame_times", START_S + 0.05 * np.arange(frames))
    _save(pose / "frame_positions", np.array([-2.7e6, -4.2e6, 3.9e6]) + steps)
    _save(pose / "frame_velocities", velocities)
    _save(pose / "frame_orientations", np.stack([0.6 * cos, 0.8 * sin, 0.8 * cos, 0.6 * sin], 1))
    can_s = START_S - 0.01 + 0.012 * np.arange(40)
    for name, values in (
        ("CAN/speed", 10.0 + 10.0 * (can_s - START_S)[:, None]),
        ("CAN/steering_angle", -5.0 + 0.0 * can_s),
        ("CAN/wheel_speed", np.full((40, 4), 10.0)),
        ("IMU/accelerometer", np.full((40, 3), [0.0, 0.0, -9.8])),
        ("IMU/gyro", np.full((40, 3), [0.0, 0.0, YAW_RATE])),
    ):
        _save(path / "processed_log" / name / "t", can_s)
        _save(path / "processed_log" / name / "value", values)
    return path


def _film(segment: Path, frames: int = FRAMES, size: tuple[int, int] = (128, 96)) -> None:
    pictures = encode("road", tuple(range(frames)), size, hashed=False)
    (segment / "video.hevc").write_bytes(pictures.file())


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    return _write_segment(tmp_path / "b0c9d2329ad1606b|2018-08-02--08-34-47" / "3")


def test_rotation_of_hand_computed_quaternions() -> None:
    # 90 degrees about z take x to y; 60 degrees about x take y to (0, cos 60, sin 60).
    half = math.sqrt(0.5)
    about_z, about_x, unnormalized = comma2k19.rotation_matrices(
        np.array([[half, 0, 0, half], [math.cos(math.pi / 6), 0.5, 0, 0], [2.0, 0, 0, 2.0]])
    )
    assert about_z @ [1, 0, 0] == pytest.approx([0, 1, 0])
    assert about_x @ [0, 1, 0] == pytest.approx([0, 0.5, math.sqrt(0.75)])
    assert unnormalized == pytest.approx(about_z)


@pytest.mark.parametrize("vector", [(0.0,) * 3, (0.0, 0.0, 0.3), (0.1, -0.2, 0.05), (1e-9,) * 3])
def test_rotation_vectors_are_axis_times_angle(vector: tuple[float, float, float]) -> None:
    angle = math.sqrt(sum(part * part for part in vector))
    axis = np.array(vector) / (angle or 1.0)
    quaternion = np.concatenate([[math.cos(angle / 2)], math.sin(angle / 2) * axis])
    found = comma2k19.rotation_vectors(comma2k19.rotation_matrices(quaternion[None]))[0]
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


def test_pose_is_in_local_frames_and_time_zero_is_the_first_frame(segment: Path) -> None:
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
    _film(segment, size=(1164, 874))
    drive = open_drive(str(segment), DriveOptions())
    info = drive.info
    assert (info.kind, info.moments, info.rate_hz) == ("comma2k19", FRAMES, 20.0)
    assert info.name == "b0c9d2329ad1606b|2018-08-02--08-34-47/3"
    assert info.cameras is None  # the messages name the device, which is known
    assert (comma2k19.DEVICE, comma2k19.SENSOR) in DEVICE_CAMERAS
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
        said = (car.vEgo, car.steeringAngleDeg)
        assert said == pytest.approx((10.0 + 0.5 * moment.index, -5.0), rel=1e-6)
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
    # Longer: of another segment. Shorter: damaged, and what there is is kept.
    _film(segment, FRAMES + 2)
    moments = open_drive(str(segment), OPTIONS).moments()
    assert [next(moments).index for _ in range(FRAMES)] == list(range(FRAMES))
    with pytest.raises(DriveError, match=r"expected 6 frames, .* found 8"):
        next(moments)
    _film(segment, FRAMES - 1)
    drive = open_drive(str(segment), OPTIONS)
    assert [moment.index for moment in drive.moments()] == list(range(FRAMES - 1))
    assert "expected 6 frames, " in drive.damage
    assert caplog.messages == [drive.damage]


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("global_pose", "expected global_pose with a time for each frame"),
        ("focal length", r"expected 1164x874, found 128x96; .*--focal-px"),
        ("video.hevc", r"expected video\.hevc .*modeld make-drive .*modeld replay VIDEO --tele"),
    ],
)
def test_what_a_drive_lacks_is_said_in_one_line(segment: Path, missing: str, text: str) -> None:
    _film(segment)
    if missing == "global_pose":
        shutil.rmtree(segment / missing)
    elif missing == "video.hevc":
        (segment / missing).unlink()
    with pytest.raises(DriveError, match=text) as caught:
        open_drive(str(segment), DriveOptions())
    assert "\n" not in str(caught.value)


def test_identity_follows_the_files(segment: Path) -> None:
    _film(segment)

    def identity(focal_px: float = 100.0) -> str:
        info = open_drive(str(segment), DriveOptions(focal_px=focal_px)).info
        assert info.cameras is not None
        assert info.cameras.road.focal_px == focal_px
        return info.identity

    before = identity()
    assert identity() == before
    assert identity(101.0) != before
    _save(segment / SPEEDS, np.full((40, 1), 3.0))
    assert identity() != before


def test_a_drive_stands_for_its_segments(tmp_path: Path) -> None:
    for number in (10, 2):
        _write_segment(tmp_path / "drive" / str(number), frames=2)
    expected = [str(tmp_path / "drive" / name) for name in ("2", "10")]
    assert expand(str(tmp_path / "drive"), DriveOptions()) == expected
    assert expand(expected[0], DriveOptions()) == [expected[0]]
    (tmp_path / "drive" / "2").rename(tmp_path / "drive" / "02")
    (tmp_path / "drive" / "\u0663" / "global_pose").mkdir(parents=True)
    expected[0] = str(tmp_path / "drive" / "02")
    assert expand(str(tmp_path / "drive"), DriveOptions()) == expected
    assert expand(str(tmp_path), DriveOptions()) is None
    assert expand(str(tmp_path / "none"), DriveOptions()) is None


def test_a_segment_is_telemetry_of_a_video(segment: Path, make_video: MakeVideo) -> None:
    video, options = str(make_video(frames=4)), DriveOptions(telemetry=segment)
    drive = video_drive.open_drive(video, options)
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
        video_drive.open_drive(video, options)


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


@pytest.mark.parametrize(
    ("name", "damage", "text"),
    [
        (SPEEDS, None, "found no speed"),
        (TIMES, None, "t: expected an npy array, found: No such"),
        ("processed_log/CAN/steering_angle/t", _npy([0.0])[:-9], "t: expected an npy array of num"),
        (TIMES, _npy([{}], pickled=True), "t: expected an npy array of numbers"),
        (TIMES, _npy(["a"] * 40), "t: expected an npy array of numbers"),
        (TIMES, b"", "expected an npy array"),
        (TIMES, _npy(np.zeros(3)), r"found \(3,\) and \(40, 1\)"),
        (TIMES, _npy([math.nan] * 40), "times from 0 to 1e"),
        (SPEEDS, _npy([[math.nan]] * 40), "speed: expected at least one number"),
        (SPEEDS, _npy([[math.inf]] * 40), "speed: expected finite numbers"),
        ("processed_log/IMU/gyro/value", _npy(np.zeros((40, 2))), r"values \(n, 3\)"),
        ("global_pose/frame_times", _npy(np.zeros(FRAMES)), "expected increasing frame_times"),
        ("global_pose/frame_positions", _npy(np.zeros((2, 3))), "expected increasing frame_times"),
        ("global_pose/frame_orientations", _npy(np.zeros((FRAMES, 4))), "unit quaternions"),
        ("global_pose/frame_velocities", None, "frame_velocities: expected an npy array"),
    ],
)
def test_damaged_files_are_named(segment: Path, name: str, damage: bytes | None, text: str) -> None:
    (segment / name).unlink()
    if damage is not None:
        (segment / name).write_bytes(damage)
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


@pytest.fixture(scope="module")
def read() -> comma2k19.Comma2k19Telemetry:
    if not SHARED.exists():
        pytest.skip("the shared footage is not checked out")
    return read_comma2k19(SHARED)


@pytest.mark.footage
class TestRealSegment:
    def test_signs_and_directions(self, read: comma2k19.Comma2k19Telemetry) -> None:
        assert read.times_s.size == 1200
        assert read.rpy_calib_rad == pytest.approx((0.0, 0.067, 0.015), abs=0.002)
        # The quaternion's direction: the other one would not have the car drive forward.
        assert read.velocities_mps[0, 0] == pytest.approx(7.9, abs=0.05)
        assert read.telemetry().at(0.0).speed_mps == pytest.approx(7.97, abs=0.01)
        device_from_calib = rot_from_euler(read.rpy_calib_rad or (9.0, 9.0, 9.0))
        forward = np.asarray(read.velocities_mps).dot(device_from_calib[:, 0])
        speeds = [read.speed_mps.interpolated(t) for t in read.times_s]
        assert np.abs(forward - speeds).mean() < 0.3

    def test_steering_to_the_left_is_positive(self, read: comma2k19.Comma2k19Telemetry) -> None:
        # Rotation about z, which points down, is to the right.
        right_radps = read.rotation_rates_radps()[:, 2]
        angles = [read.steering_angle_deg.interpolated(t) for t in read.times_s[:-1]]
        assert np.corrcoef(angles, right_radps)[0, 1] == pytest.approx(-0.75, abs=0.03)
        assert read.gyro_radps is not None
        gyro = np.interp(read.times_s[:-1], read.gyro_radps.times_s, read.gyro_radps.values[:, 2])
        assert np.corrcoef(gyro, right_radps)[0, 1] > 0.7

    def test_gravity_is_down_and_no_gap_is_long(self, read: comma2k19.Comma2k19Telemetry) -> None:
        assert read.accelerometer_mps2 is not None
        assert read.accelerometer_mps2.values.mean(axis=0)[2] == pytest.approx(-9.8, abs=0.3)
        assert np.diff(read.speed_mps.times_s).max() < MAX_GAP_S
        assert expand(str(SHARED), DriveOptions()) == [str(SHARED)]


def test_every_kind_is_found_by_what_is_typed(segment: Path, make_video: MakeVideo) -> None:
    _film(segment)
    assert open_any_drive(str(segment), OPTIONS).info.kind == "comma2k19"
    assert expand_drives([str(segment.parent), str(segment)], OPTIONS) == [str(segment)] * 2
    assert open_any_drive(str(make_video()), OPTIONS).info.kind == "video"
    with pytest.raises(DriveError, match="found no such file; check the path"):
        open_any_drive(str(segment / "none.mp4"), OPTIONS)

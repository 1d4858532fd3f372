"""`modeld make-drive`: real segments, read back by the code that reads recorded ones."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from cereal.log_reader import read_log, read_log_bytes
from cereal.services import service
from tests.cereal.shared import largest_file
from tests.support.built import built
from tests.tools.conftest import Modeld
from tools.drives.comma2k19 import read_comma2k19
from tools.drives.open_drive import DriveOptions, open_drive
from tools.errors import UsageError
from tools.simulator.render.picture_files import open_workers
from tools.simulator.render.script import ScriptedDrive, recorded_script
from tools.simulator.render.spec import DriveSpec
from tools.simulator.render.write_drive import CameraFile, scripted_drive, write_drive

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared/data/comma2k19"
SPEC = DriveSpec(
    seed=3,
    frames=10,
    streams=("road", "wide", "driver"),
    dropped={"road": frozenset({2}), "wide": frozenset({2, 7}), "driver": frozenset({2})},
    segment_frames=6,
)
FILES = ("dcamera.hevc", "ecamera.hevc", "fcamera.hevc", "qlog.zst", "rlog.zst", "truth.npz")


def write(spec: DriveSpec, to: Path, workers: int) -> list[Path]:
    return write_drive(spec, to, workers, lambda _: None)


@pytest.fixture(scope="module")
def segments() -> list[Path]:
    """A drive of two segments, of 6 and 4 frames, three of which were lost."""
    place = built("drive-of-two-segments", lambda to: write(SPEC, to, 2))
    return sorted(place.iterdir())


def events(path: Path, *names: str) -> list[Any]:
    """Return the events of a log, of these services only where some are named."""
    return [e for e in read_log(path) if not names or str(e.which()) in names]


def said_by(path: Path, name: str) -> list[Any]:
    return [getattr(event, name) for event in events(path, name)]


def planes(path: Path) -> list[Any]:
    """Decode a file to (height * 3 / 2, width) pictures."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray() for frame in container.decode(video=0)]


def test_segments_are_named_and_filled_as_a_logger_does(segments: list[Path]) -> None:
    # Nothing else is left, hidden or not.
    assert [segment.name for segment in segments] == [f"{SPEC.route}--0", f"{SPEC.route}--1"]
    assert len(SPEC.route) == 20
    for segment in segments:
        assert sorted(path.name for path in segment.iterdir()) == sorted(FILES)


def test_logs_begin_and_end_with_sentinels_and_the_same_init_data(segments: list[Path]) -> None:
    first_bytes = set()
    for number, path in enumerate(segment / name for segment in segments for name in FILES[3:5]):
        first_bytes.add(next(iter(read_log_bytes(path))))
        log = events(path)
        assert log[0].which() == "initData"
        assert str(log[0].initData.deviceType) == "mici"
        assert str(log[1].sentinel.type) == ("startOfSegment" if number > 1 else "startOfRoute")
        assert str(log[-1].sentinel.type) == ("endOfRoute" if number > 1 else "endOfSegment")
        times = [event.logMonoTime for event in log]
        assert times == sorted(times)
    assert len(first_bytes) == 1


@pytest.mark.parametrize(
    ("prefix", "letter", "ids_of", "later_ns"),
    [
        ("road", "f", ([0, 1, 3, 4, 5], [6, 7, 8, 9]), 0),
        ("wideRoad", "e", ([0, 1, 3, 4, 5], [6, 8, 9]), 0),
        ("driver", "d", ([0, 1, 3, 4, 5], [6, 7, 8, 9]), 25_000_000),
    ],
)
def test_frame_ids_go_on_and_files_begin_anew(
    segments: list[Path], prefix: str, letter: str, ids_of: tuple[list[int], ...], later_ns: int
) -> None:
    encoded = 0
    for number, (segment, ids) in enumerate(zip(segments, ids_of, strict=True)):
        states = said_by(segment / "rlog.zst", f"{prefix}CameraState")
        assert [state.frameId for state in states] == ids
        for state in states:
            assert state.timestampSof == 60_000_000_000 + 50_000_000 * state.frameId + later_ns
            assert state.timestampEof - state.timestampSof == 11_000_000
            assert str(state.sensor) == "os04c10"
        indices = said_by(segment / "rlog.zst", f"{prefix}EncodeIdx")
        assert [index.frameId for index in indices] == ids
        assert [index.segmentId for index in indices] == list(range(len(ids)))
        assert [index.encodeId for index in indices] == [encoded + i for i in range(len(ids))]
        assert {(index.segmentNum, str(index.type)) for index in indices} == {(number, "fullHEVC")}
        assert [index.flags for index in indices] == [8] + [0] * (len(ids) - 1)
        encoded += len(ids)
        file = segment / f"{letter}camera.hevc"
        # Before the packets stand the parameter sets, once.
        assert 20 < file.stat().st_size - sum(index.len for index in indices) < 200
        pictures = planes(file)
        assert len(pictures) == len(ids)
        assert pictures[0].shape == (760 * 3 // 2, 1344)


def test_services_come_at_their_rates_and_the_small_log_takes_every_nth(
    segments: list[Path],
) -> None:
    whole, small = (
        Counter(str(event.which()) for segment in segments for event in events(segment / name))
        for name in ("rlog.zst", "qlog.zst")
    )
    # Half a second: 10 frames. Slow services begin anew with the second segment (0.3 s and 0.2 s).
    assert whole["carState"] == whole["carControl"] == 50
    assert whole["driverMonitoringState"] == whole["livePose"] == 10
    assert whole["liveCalibration"] == whole["liveDelay"] == 2 + 1
    assert whole["deviceState"] == whole["carParams"] == 2
    for name in set(whole) - {"initData", "sentinel"}:
        every = service(name).decimation
        assert every is not None
        assert small[name] == -(-whole[name] // every), name


def test_messages_say_what_the_truth_says(segments: list[Path]) -> None:
    truth = np.load(segments[1] / "truth.npz")
    log = events(segments[1] / "rlog.zst")
    assert truth["frame_id"].tolist() == [6, 7, 8, 9]
    assert truth["wide_delivered"].tolist() == [True, False, True, True]
    speeds = {e.logMonoTime: e.carState.vEgo for e in log if e.which() == "carState"}
    poses = {e.logMonoTime: e.livePose for e in log if e.which() == "livePose"}
    for row, sof_ns in enumerate(truth["sof_ns"].tolist()):
        assert speeds[sof_ns] == pytest.approx(truth["speed_mps"][row], abs=1e-4)
        velocity, turn = poses[sof_ns].velocityDevice, poses[sof_ns].angularVelocityDevice
        # Pitch 0.02, yaw -0.01: Rz(yaw) Ry(pitch) (v, 0, 0).
        assert velocity.y / velocity.x == pytest.approx(np.tan(-0.01), rel=1e-4)
        assert velocity.z / speeds[sof_ns] == pytest.approx(-np.sin(0.02), rel=1e-4)
        rate = truth["curvature_1pm"][row] * truth["speed_mps"][row]
        assert np.hypot(np.hypot(turn.x, turn.y), turn.z) == pytest.approx(abs(rate), abs=1e-6)
    calibration = next(e for e in log if e.which() == "liveCalibration").liveCalibration
    assert list(calibration.rpyCalib) == pytest.approx(list(SPEC.rpy_rad))
    assert str(calibration.calStatus) == "calibrated"
    np.testing.assert_array_equal(truth["rpy_rad"], SPEC.rpy_rad)


@pytest.mark.slow
def test_same_options_give_same_bytes_with_any_number_of_workers(
    segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tools.simulator.render.write_drive.choose_workers", lambda _jobs, most: most
    )
    for one, other in zip(segments, write(SPEC, tmp_path, 2), strict=True):
        for name in FILES:
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_picture_is_counted(tmp_path: Path, workers: int) -> None:
    drive = scripted_drive(SPEC)
    files = [CameraFile(tmp_path / one, SPEC, drive, one, 0) for one in SPEC.streams]
    counted: list[int] = []
    with open_workers(files, workers, counted.append, "gone") as pool:
        for file in files:
            pool.packets(file)
    assert counted == [*range(1, 16)]


def test_segments_open_as_recorded_ones(segments: list[Path]) -> None:
    drive = open_drive(str(segments[0]), DriveOptions())
    try:
        assert drive.info.kind == "openpilot"
        assert drive.info.cameras is None  # the device table knows them
        assert drive.info.car_params is not None
        seen: list[dict[str, int]] = []
        for moment in drive.moments():
            if moment.frames:
                pixels = np.asarray(moment.frames["road"].data)
                assert seen or np.ptp(pixels[: 1344 * 700]) > 100
                seen.append({name: frame.frame_id for name, frame in moment.frames.items()})
        for stream in ("road", "wideRoad"):
            assert [frames.get(stream) for frames in seen] == [0, 1, 3, 4, 5]
    finally:
        drive.close()


def test_command_prints_one_object(tmp_path: Path, modeld: Modeld) -> None:
    options = ["--seconds", "0.1", "--missing", "wide", "--device", "tici", "--rpy", "0,0.01,0.02"]
    command = ["make-drive", tmp_path / "new", *options]
    result = modeld(0, *command, "--json").json
    (segment,) = (Path(name) for name in result["segments"])
    assert result["frames"] == result["pictures"] == 2
    assert result["sensor"] == "ox03c10"
    assert not (segment / "ecamera.hevc").exists()
    assert planes(segment / "fcamera.hevc")[0].shape == (1208 * 3 // 2, 1928)
    assert not events(segment / "rlog.zst", "wideRoadCameraState", "wideRoadEncodeIdx")
    # A second time it would replace what is there.
    modeld.refused(2, "expected no such segment yet", *command)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(
        "tools.simulator.render.write_drive.choose_workers", lambda _jobs, most: most
    )
    target = tmp_path / "drives"
    # Three files of more than 8 KiB each; processes that are started have the same limit.
    with largest_file(8192), pytest.raises(UsageError) as caught:
        write(DriveSpec(seed=3, frames=10), target, workers)
    assert str(caught.value) == (
        f"{target}: expected to write a segment, found: File too large; free some disk "
        "space or name another directory"
    )
    assert list(target.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seconds 0", "--seconds: expected a number above 0 up to 36000, found 0"),
        ("--seconds 0.01", "--seconds: expected 0.05 to 36000 s"),
        ("--small --driver-camera", "--small: expected without --missing and --driver-camera"),
        ("--rpy 0,0", "--rpy: expected three angles"),
        ("--rpy 0,0.5,0", "--rpy: expected angles of at most 0.05, 0.15, 0.1 rad"),
        ("--rpy 0,nan,0", "--rpy: expected angles of at most"),
        ("--drop 7,x", "--drop: expected a frame number"),
        ("--drop driver:3", "--drop: expected a frame number, or road, wide and one"),
        ("--drop wide:3 --missing wide", "--drop: expected a frame number, or road"),
        ("--seconds 1 --drop 20", "--drop: expected frames below 20, found 20"),
        ("--workers 0", "--workers: expected a whole number from 1"),
        ("--telemetry nowhere", "nowhere: expected the directory of a comma2k19 segment"),
        ("--telemetry {}/poseless", "expected a segment with global_pose"),
    ],
)
def test_options_that_cannot_work_write_nothing(
    tmp_path: Path, modeld: Modeld, options: str, message: str
) -> None:
    for name in ("speed", "steering_angle"):
        folder = tmp_path / "poseless/processed_log/CAN" / name
        folder.mkdir(parents=True)
        for part in ("t", "value"):
            with (folder / part).open("wb") as file:
                np.lib.format.write_array(file, np.arange(50) / 10.0 + 1.0)
    target = tmp_path / "drives"
    words = ["make-drive", target, *options.format(tmp_path).split()]
    modeld.refused(4 if "--telemetry" in options else 2, message, *words)
    assert not target.exists()


def test_directory_that_cannot_be_made_is_named(tmp_path: Path, modeld: Modeld) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file/drives"
    modeld.refused(2, "found an empty file at", "make-drive", target, "--seconds", 0.1)


def children(process: subprocess.Popen[str]) -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(("ending", "code"), [("interrupt", 130), ("lost worker", 1)])
def test_what_ends_early_leaves_nothing(tmp_path: Path, ending: str, code: int) -> None:
    target = tmp_path / "drives"
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.cli", "make-drive", str(target), "--minutes", "5"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60.0
    try:
        # Until its worker processes have begun to write.
        while not list(target.glob(".*.part/*.hevc")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers = children(process)
        if ending == "interrupt":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of the group
        else:
            lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers}
            spawned = [pid for pid, line in lines.items() if b"spawn_main" in line]
            os.kill(spawned[0], signal.SIGKILL)
        _, error = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == code
    assert error.count("\n") == 1, error
    assert list(target.iterdir()) == []
    deadline = time.monotonic() + 10.0
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.footage
@pytest.mark.skipif(not SHARED.exists(), reason="the shared footage is not checked out")
def test_telemetry_drives_the_rendered_camera(tmp_path: Path) -> None:
    recording = read_comma2k19(SHARED)
    script, frames = recorded_script(SHARED, 0, None)
    assert frames == 1200
    drive = ScriptedDrive(script)
    states = [drive.state_at(5 * frame).body for frame in range(frames)]
    recorded = np.interp(np.arange(frames) / 20, recording.times_s, recording.velocities_mps[:, 0])
    np.testing.assert_allclose([state.speed_mps for state in states], recorded, atol=0.05)

    def ahead_and_aside(x: float, y: float, heading: float) -> tuple[float, float]:
        sine, cosine = np.sin(heading), np.cos(heading)
        return float(x * cosine + y * sine), float(y * cosine - x * sine)

    # Where the path leads after a minute, in the frame of the first motion: 1 km ahead within 1 %,
    # and to the side within what half a degree of heading makes of that.
    assert recording.rpy_calib_rad is not None
    end, first, last = recording.positions_m[-1], states[0], states[-1]
    ahead, aside = ahead_and_aside(end[0], end[1], recording.rpy_calib_rad[2])
    found = ahead_and_aside(last.x_m - first.x_m, last.y_m - first.y_m, first.heading_rad)
    assert found[0] == pytest.approx(ahead, rel=0.01)
    assert found[1] == pytest.approx(aside, abs=9.0)
    (segment,) = write(DriveSpec(frames=2, telemetry=SHARED, streams=("road",)), tmp_path, 1)
    speed = said_by(segment / "rlog.zst", "carState")[0].vEgo
    assert speed == pytest.approx(recorded[0], abs=0.05)

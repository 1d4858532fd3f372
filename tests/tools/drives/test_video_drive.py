"""A video file as a drive: what replay does with it, behind the interface of drives."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import read_event
from tests.tools.conftest import FRAMES, SIZE, MakeVideo
from tools.drives.drive import KEPT_MOMENTS, Moment
from tools.drives.open_drive import DriveOptions, add_drive_arguments, drive_options
from tools.drives.video_drive import expand, open_drive, resample
from tools.errors import TelemetryError, UsageError
from tools.messages.drive_messages import DRIVE_SERVICES, MIN_INTERVAL_NS, READOUT_NS, START_NS
from tools.video.video import Video


def _moments(path: Path, first: int = 0, **options: Any) -> list[Moment]:
    return list(open_drive(str(path), DriveOptions(**options)).moments(first))


def _stamps_ms(moments: list[Moment]) -> list[float]:
    return [(m.frames["road"].timestamp_sof_ns - START_NS) / 1e6 for m in moments]


def test_each_frame_is_a_moment_with_its_messages(make_video: MakeVideo) -> None:
    path = make_video()
    drive = open_drive(str(path), DriveOptions())
    assert drive.info.kind == "video"
    assert drive.info.rate_hz == 20.0
    assert drive.info.cameras is not None
    assert drive.info.cameras.road.focal_px == pytest.approx(0.9 * SIZE[0])
    for index, moment in enumerate(drive.moments()):
        assert moment.index == index
        frame = moment.frames["road"]
        assert (frame.frame_id, frame.timestamp_eof_ns) == (
            index,
            frame.timestamp_sof_ns + READOUT_NS,
        )
        assert frame.timestamp_sof_ns == START_NS + 50_000_000 * index
        services = [message.service for message in moment.messages]
        assert services[-1] == "roadCameraState"
        assert services == [name for name in DRIVE_SERVICES if name in services]
        events = [read_event(message.data) for message in moment.messages]
        assert [str(event.which()) for event in events] == services
        assert [e.logMonoTime for e in events] == [m.mono_time_ns for m in moment.messages]
        assert events[-1].roadCameraState.frameId == index
    assert index == FRAMES - 1


def test_pictures_are_those_of_the_video(make_video: MakeVideo) -> None:
    path = make_video()
    with Video(path) as video:
        pictures = list(video.frames())
    width, height = SIZE
    for moment in open_drive(str(path), DriveOptions()).moments():
        frame = moment.frames["road"]
        stride, uv_offset = frame.format.stride, frame.format.uv_offset
        luma = frame.data[: stride * height].reshape(height, stride)
        chroma = frame.data[uv_offset:][: stride * height // 2].reshape(height // 2, stride)
        assert np.array_equal(luma[:, :width], pictures[moment.index].luma)
        assert np.array_equal(chroma[:, :width], pictures[moment.index].chroma)
        assert not luma[:, width:].any()


def test_frames_stay_for_as_many_moments_as_promised(make_video: MakeVideo) -> None:
    moments = open_drive(str(make_video()), DriveOptions()).moments()
    kept: list[tuple[Any, Any]] = []
    for moment in moments:
        data = moment.frames["road"].data
        kept = [*kept, (data, data.copy())][-KEPT_MOMENTS:]
        assert all(np.array_equal(now, before) for now, before in kept)


def test_later_moments_are_the_same_when_started_there(make_video: MakeVideo) -> None:
    path = make_video()
    drive = open_drive(str(path), DriveOptions())
    every = [(m.index, m.messages, m.frames["road"].data.copy()) for m in drive.moments()]
    again = [(m.index, m.messages, m.frames["road"].data.copy()) for m in drive.moments(5)]
    assert [row[:2] for row in again] == [row[:2] for row in every[5:]]
    assert all(np.array_equal(a[2], b[2]) for a, b in zip(again, every[5:], strict=True))


@dataclass
class _At:
    """A frame of which only its time matters."""

    time_s: float


def _nearest_ms(fps: float, count: int, rate_hz: float = 20.0) -> list[tuple[int, int]]:
    frames: Any = iter([_At(index / fps) for index in range(count)])
    return [(round(1e3 * t), round(1e3 * f.time_s)) for t, f in resample(frames, rate_hz)]


def test_resampling_takes_the_nearest_frame() -> None:
    # By hand: 25 frames/s are at 0, 40, 80, 120, 160, 200 ms; 100 is as far from 80 as from 120.
    expected = [(0, 0), (50, 40), (100, 80), (150, 160), (200, 200)]
    assert _nearest_ms(25, 6) == expected
    assert _nearest_ms(20, 5) == [(t, t) for t in range(0, 201, 50)]
    assert _nearest_ms(40, 5) == [(0, 0), (50, 50), (100, 100)]
    # At 30 frames/s 50 ms lie between 33 and 67, and no frame is nearer to 150 than 133 or 167.
    assert _nearest_ms(30, 4) == [(0, 0), (50, 33), (100, 100)]
    # A slower video's frames come again; 50 is as far from 0 as from 100.
    assert _nearest_ms(10, 3) == [(0, 0), (50, 0), (100, 100), (150, 100), (200, 200)]


@pytest.mark.parametrize(("fps", "count"), [(25, 26), (30, 31), (24, 40), (20, 9), (60, 70)])
def test_a_rate_gives_exact_stamps(make_video: MakeVideo, fps: int, count: int) -> None:
    path = make_video(name="drive.mp4", frames=count, fps=fps, codec="mpeg4")
    drive = open_drive(str(path), DriveOptions(rate_hz=20.0))
    moments = list(drive.moments())
    assert _stamps_ms(moments) == [50.0 * index for index in range(len(moments))]
    assert drive.info.moments == len(moments)
    assert len(moments) == (count - 1) * 20 // fps + 1
    assert drive.info.rate_hz == 20.0


def test_frames_too_close_for_the_daemon_are_moved(make_video: MakeVideo) -> None:
    # 50 frames/s are thinned to 25; 39 are not, and 25.6 ms apart.
    assert _stamps_ms(_moments(make_video(fps=50))) == [0, 40, 80, 120, 160]
    stamps = np.array(_stamps_ms(_moments(make_video("b.mkv", fps=39))))
    assert (np.diff(stamps) >= MIN_INTERVAL_NS / 1e6).all()


@pytest.mark.parametrize("rate_hz", [0.0, -20.0, 41.0, float("nan"), float("inf")])
def test_rates_that_cannot_be_are_refused(make_video: MakeVideo, rate_hz: float) -> None:
    with pytest.raises(UsageError, match="--rate: expected frames/s above 0 and at most 40"):
        open_drive(str(make_video()), DriveOptions(rate_hz=rate_hz))


def test_identity_is_of_contents_and_options(make_video: MakeVideo, tmp_path: Path) -> None:
    table = tmp_path / "car.csv"
    table.write_text("t_s,speed_mps\n0,1\n")
    path = make_video()
    copy = tmp_path / "copy.mkv"
    copy.write_bytes(path.read_bytes())

    def identity(video: Path, **options: Any) -> str:
        return open_drive(str(video), DriveOptions(**options)).info.identity

    assert identity(path) == identity(copy)
    with_table = identity(path, telemetry=table)
    table.write_text("t_s,speed_mps\n0,2\n")
    others = [
        identity(make_video("other.mkv", frames=FRAMES + 1)),
        identity(path, focal_px=100.0),
        identity(path, rate_hz=20.0),
        with_table,
        identity(path, telemetry=table),
    ]
    assert len({identity(path), *others}) == 1 + len(others)


def test_telemetry_of_another_time_is_refused(make_video: MakeVideo, tmp_path: Path) -> None:
    table = tmp_path / "car.csv"
    table.write_text("t_s,speed_mps\n100,1\n160,2\n")
    timed = make_video("drive.mp4", codec="mpeg4")
    with pytest.raises(TelemetryError, match=r"0 to 0.40 s .* found 100.00 to 160.00 s"):
        open_drive(str(timed), DriveOptions(telemetry=table))
    # A stream that does not say how long it is: known at its end only.
    untimed = make_video("drive.h264", codec="libx264")
    with pytest.raises(TelemetryError, match=r"0 to 0.40 s .* found 100.00 to 160.00 s"):
        _moments(untimed, telemetry=table)


def test_streams_without_times_come_at_20_hz(make_video: MakeVideo) -> None:
    path = make_video("drive.h264", codec="libx264", fps=25)
    assert open_drive(str(path), DriveOptions()).info.rate_hz == 20.0
    assert _stamps_ms(_moments(path)) == [50.0 * index for index in range(FRAMES)]


def test_damage_ends_the_drive_after_what_precedes_it(
    make_video: MakeVideo, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_video(name="cut.avi", frames=60, codec="mpeg4")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    drive = open_drive(str(path), DriveOptions())
    assert (drive.damage, caplog.text) == ("", "")
    seen = [moment.index for moment in drive.moments()]
    assert seen == list(range(len(seen)))
    assert 1 <= len(seen) < 60
    assert f"after {len(seen)} decoded frames" in drive.damage
    assert caplog.messages == [drive.damage]
    assert drive.info.facts["damage"].startswith("the file cut off at byte ")
    next(drive.moments())
    assert drive.damage == ""
    drive.close()


def test_only_files_are_videos(make_video: MakeVideo, tmp_path: Path) -> None:
    path = str(make_video())
    assert expand(path, DriveOptions()) == [path]
    assert expand(str(tmp_path), DriveOptions()) is None
    assert expand(str(tmp_path / "none.mp4"), DriveOptions()) is None


def test_options_of_the_command_line_reach_the_drive() -> None:
    parser = argparse.ArgumentParser()
    add_drive_arguments(parser)
    given = ["--data-dir", "d", "--telemetry", "car.csv", "--focal-px", "900", "--rate", "20"]
    assert drive_options(parser.parse_args([])) == DriveOptions()
    assert drive_options(parser.parse_args(given)) == DriveOptions(
        data_dir=Path("d"), telemetry=Path("car.csv"), focal_px=900.0, rate_hz=20.0
    )
    help_text = " ".join(parser.format_help().split())
    meaning = ["first video frame", "m/s", "degrees, positive to the left", "interpolated", "hold"]
    assert all(words in help_text for words in meaning)

"""Videos as a player shows them: orientation, aspect, streams, edit lists, times, gray planes."""

import logging
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.tools.films import (
    COUNT,
    SIZE,
    cover_first,
    cut,
    joined,
    patch,
    turn,
    write_film,
)
from tools.drives.open_drive import DriveOptions
from tools.drives.video_drive import open_drive
from tools.errors import PictureSizeError, VideoError
from tools.messages.camera import project
from tools.video.video import Video, VideoFrame

Bytes = NDArray[np.uint8]
Turn = Callable[[Bytes], Bytes]


def frames_of(path: Path) -> list[VideoFrame]:
    with Video(path) as video:
        return list(video.frames())


def times_of(path: Path) -> list[int]:
    """Return the times of the frames in twentieths of a second."""
    return [round(20 * frame.time_s, 2) for frame in frames_of(path)]  # type: ignore[misc]


def pairs(frame: VideoFrame) -> Bytes:
    return frame.chroma.reshape(frame.chroma.shape[0], -1, 2)


TURNS: list[tuple[tuple[float, ...], str, Turn]] = [
    ((-1, 0, 0, -1), "rotated by 180 degrees", lambda rows: rows[::-1, ::-1]),
    ((0, 1, -1, 0), "90 degrees clockwise", lambda rows: np.rot90(rows, -1)),
    ((0, -1, 1, 0), "90 degrees counterclockwise", np.rot90),
    ((-1, 0, 0, 1), "mirrored left to right", lambda rows: rows[:, ::-1]),
    ((1, 0, 0, -1), "mirrored top to bottom", lambda rows: rows[::-1]),
    ((0, 1, 1, 0), "clockwise and mirrored left", lambda rows: rows.swapaxes(0, 1)),
    ((0, -1, -1, 0), "clockwise and mirrored top", lambda r: r[::-1, ::-1].swapaxes(0, 1)),
]


@pytest.mark.parametrize(("matrix", "said", "turned"), TURNS, ids=[one[1] for one in TURNS])
def test_pictures_are_upright(
    tmp_path: Path, matrix: tuple[float, ...], said: str, turned: Turn
) -> None:
    """In ISO 14496-12 a point (x, y) is shown at (a x + c y, b x + d y)."""
    plain = frames_of(write_film(tmp_path / "a.mp4", 3))
    path = turn(tmp_path / "a.mp4", *matrix)
    info = open_drive(str(path), DriveOptions()).info
    assert said in info.facts["shown as"]
    for frame, before in zip(frames_of(path), plain, strict=True):
        assert (info.formats["road"].height, info.formats["road"].width) == frame.luma.shape
        assert np.array_equal(frame.luma, turned(before.luma))
        assert np.array_equal(pairs(frame), turned(pairs(before)))


def test_a_turn_that_is_no_quarter_turn_is_refused(tmp_path: Path) -> None:
    path = turn(write_film(tmp_path / "a.mp4", 3), 0.6, 0.8, -0.8, 0.6)
    with pytest.raises(VideoError, match=r"a\.mp4: expected pictures of 96x64 .* found by -53"):
        Video(path)


def squeeze(stream: Any) -> None:
    stream.codec_context.sample_aspect_ratio = Fraction(2, 1)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.h264", "a.avi"])
def test_pixels_that_are_not_square_have_two_focal_lengths(tmp_path: Path, name: str) -> None:
    """A pixel twice as wide as high takes half as many columns for the same angle."""
    path = write_film(tmp_path / name, 3, size=(240, 272), set_up=squeeze)
    info = open_drive(str(path), DriveOptions(focal_px=200.0)).info
    assert info.cameras is not None
    camera = info.cameras.road
    assert (camera.width, camera.height) == (240, 272)
    np.testing.assert_array_equal(
        camera.intrinsics, [[200.0, 0.0, 120.0], [0.0, 400.0, 136.0], [0.0, 0.0, 1.0]]
    )
    # 10 m ahead, 1 m right of the axis and 1 m below.
    (found,) = project(np.array([[10.0, 1.0, 1.0]]), camera, (0.0, 0.0, 0.0))
    assert found.tolist() == [120.0 + 20.0, 136.0 + 40.0]
    assert "2 times as wide as high" in info.facts["shown as"]
    assert "focal length 200 x 400 px" in info.facts["camera"]


def test_turned_pixels_are_as_high_as_they_were_wide(tmp_path: Path) -> None:
    path = turn(write_film(tmp_path / "a.mp4", 3, set_up=squeeze), 0, 1, -1, 0)
    cameras = open_drive(str(path), DriveOptions(focal_px=200.0)).info.cameras
    assert cameras is not None
    assert (cameras.road.width, cameras.road.focal_y_px) == (64, 100.0)


@pytest.mark.parametrize("move", [Path, cover_first])
def test_a_cover_is_no_film(tmp_path: Path, move: Callable[[Path], Path]) -> None:
    path = move(write_film(tmp_path / "a.mp4", cover=True))
    frames = frames_of(path)
    assert (len(frames), frames[0].luma.shape) == (COUNT, SIZE[::-1])
    facts = open_drive(str(path), DriveOptions()).info.facts
    assert ("shown as" in facts) == (move is cover_first)


def test_a_file_of_covers_has_no_film(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        cover: Any = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 32, 32, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        sound: Any = container.add_stream("aac", rate=8000)
        samples = av.AudioFrame.from_ndarray(
            np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
        )
        samples.sample_rate = 8000
        container.mux([*cover.encode(av.VideoFrame(32, 32, "yuvj420p")), *cover.encode(None)])
        container.mux([*sound.encode(samples), *sound.encode(None)])
    with pytest.raises(VideoError, match="expected a video stream, found none"):
        Video(path)


def test_edit_lists_are_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Half a second from frame 5 on: media times have 10240 a second, and begin at 1024."""
    path = write_film(tmp_path / "a.mp4", flags={"movflags": "faststart"})
    upright = [frame.luma for frame in frames_of(path)]
    patch(path, b"elst", 8, ">2I", 500, 1024 + 5 * 512)
    drive = open_drive(str(path), DriveOptions())
    assert (drive.info.moments, drive.info.facts["shown as"]) == (
        10,
        "10 of 24 frames shown, by the container's index",
    )
    shown = frames_of(path)
    assert [round(20 * frame.time_s) for frame in shown] == list(range(10))
    assert all(np.array_equal(a.luma, b) for a, b in zip(shown, upright[5:15], strict=True))
    assert len(list(drive.moments())) == 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # of the drive, once


VARYING = [*range(15), 17, 20, 24, 29, 35]


@pytest.mark.parametrize(
    ("name", "codec"), [("a.avi", "mpeg4"), ("a.mp4", "mpeg4"), ("a.mkv", "libx264")]
)
def test_varying_rates_have_their_true_times_and_counts(
    tmp_path: Path, name: str, codec: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_film(tmp_path / name, len(VARYING), codec=(codec, "yuv420p"), times=VARYING)
    drive = open_drive(str(path), DriveOptions())
    stamps = [moment.frames["road"].timestamp_sof_ns for moment in drive.moments()]
    assert [round((one - stamps[0]) / 50e6) for one in stamps] == VARYING
    if name != "a.mkv":  # whose index lists key frames only
        assert drive.info.moments == len(VARYING)
        # What MP4 says of the last frame's length is its own.
        assert drive.info.rate_hz == pytest.approx(20 * 19 / 35, rel=0.06)
        assert "varying intervals" in drive.info.facts["shown as"]
    assert "damaged" not in caplog.text
    assert open_drive(str(path), DriveOptions(rate_hz=20.0)).numbers() == [
        min(range(len(VARYING)), key=lambda i: abs(VARYING[i] - k)) for k in range(36)
    ]


PARTS = [(18, 22), (18, 22, 7)]


@pytest.mark.parametrize("name", ["a.ts", "a.mpg"])
@pytest.mark.parametrize("counts", PARTS)
def test_streams_joined_end_to_end_go_on(
    tmp_path: Path, name: str, counts: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    codec = ("libx264" if name == "a.ts" else "mpeg2video", "yuv420p")
    parts = [
        write_film(tmp_path / f"{i}{name[1:]}", n, codec=codec, fps=25)
        for i, n in enumerate(counts)
    ]
    alone: list[VideoFrame] = []
    times_s: list[float] = []
    for part in parts:
        start_s = times_s[-1] + 1 / 25 if times_s else 0.0
        alone += frames_of(part)
        times_s += [start_s + frame.time_s for frame in frames_of(part)]
    found = frames_of(joined(tmp_path / name, *parts))
    assert all(np.array_equal(a.luma, b.luma) for a, b in zip(found, alone, strict=True))
    np.testing.assert_allclose([frame.time_s for frame in found], times_s, atol=1e-6)
    assert caplog.text.count("times restart") == len(counts) - 1


def test_streams_joined_at_later_times_keep_them(tmp_path: Path) -> None:
    times = [*range(18), *range(30, 52)]
    parts = [
        write_film(tmp_path / f"{i}.ts", len(one), times=np.add(one, 9).tolist())
        for i, one in enumerate([times[:18], times[18:]])
    ]
    assert times_of(joined(tmp_path / "a.ts", *parts)) == times


@pytest.mark.parametrize("name", ["a.ts", "a.h264"])
def test_pictures_that_change_their_size_end_what_can_be_followed(
    tmp_path: Path, name: str
) -> None:
    parts = [
        write_film(tmp_path / f"{i}{name[1:]}", 12, size=size)
        for i, size in enumerate([SIZE, (64, 48)])
    ]
    path = joined(tmp_path / name, *parts)
    seen: list[int] = []
    text = r"frame 12: expected a picture of 96x64 like those before it, found 64x48"
    with pytest.raises(PictureSizeError, match=text):
        seen.extend(one.index for one in open_drive(str(path), DriveOptions()).moments())
    assert PictureSizeError.exit_code == 4
    assert seen == list(range(12))


@pytest.mark.parametrize("name", ["2023-05-01T12:30:05.mp4", "http:a b?c#d%03d.mkv"])
def test_names_with_a_colon_are_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(frames_of(write_film(Path(name), 3))) == 3


def ranged(value: int) -> Callable[[Any], None]:
    def set_up(stream: Any) -> None:
        stream.codec_context.color_range = value
        if stream.codec_context.name == "libx265":
            stream.codec_context.options = {"x265-params": "log-level=none:lossless=1"}

    return set_up


@pytest.mark.parametrize("color_range", [0, 1, 2], ids=["none", "limited", "full"])
@pytest.mark.parametrize(
    ("codec", "bits"), [*product(["ffv1", "libx265"], [8, 10, 12]), ("ffv1", 16)]
)
def test_gray_pictures_keep_their_contrast(
    tmp_path: Path, codec: str, bits: int, color_range: int
) -> None:
    form = "gray" if bits == 8 else f"gray{bits}le"
    path = write_film(tmp_path / "a.mkv", 4, codec=(codec, form), set_up=ranged(color_range))
    with av.open(str(path)) as container:
        coded = [frame.to_ndarray() for frame in container.decode(video=0)]
    for frame, plane in zip(frames_of(path), coded, strict=True):
        rounded = np.floor(plane / 2.0 ** (bits - 8) + 0.5).clip(0, 255)
        assert np.array_equal(frame.luma, rounded)
        assert (frame.chroma.shape, set(frame.chroma.ravel().tolist())) == ((32, 96), {128})
    assert (
        open_drive(str(path), DriveOptions()).info.facts["shown as"] == f"without colour ({form})"
    )


SOUND = [
    ("later.mkv", {"times": range(20, 20 + COUNT)}, ("libx264", "yuv420p")),
    ("long.mkv", {"sound_s": 9.0}, ("libx264", "yuv420p")),
    (
        "later.mp4",
        {"times": range(20, 20 + COUNT), "flags": {"movflags": "faststart"}},
        ("libx264", "yuv420p"),
    ),
    ("long.mov", {"sound_s": 9.0, "flags": {"movflags": "faststart"}}, ("libx264", "yuv420p")),
    ("long.avi", {"sound_s": 9.0}, ("mpeg4", "yuv420p")),
    ("live.mkv", {"flags": {"live": "1"}}, ("libx264", "yuv420p")),
    ("fragments.mp4", {"flags": {"movflags": "frag_keyframe"}}, ("libx264", "yuv420p")),
]


@pytest.mark.parametrize(("name", "how", "codec"), SOUND, ids=[one[0] for one in SOUND])
def test_sound_files_say_nothing_and_cut_ones_do(
    tmp_path: Path, name: str, how: Any, codec: tuple[str, str], caplog: Any
) -> None:
    path = write_film(tmp_path / name, codec=codec, **how)
    with Video(path) as video:
        frames = list(video.frames())
    assert (len(frames), caplog.text, video.damage, video.info.cut) == (COUNT, "", "", "")
    assert [round(20 * frame.time_s) for frame in frames] == list(range(COUNT))
    with Video(cut(path, 0.95)) as video:
        kept = list(video.frames())
    assert caplog.text.count("\n") == 1
    if name == "long.mov":  # its sound is cut, behind its pictures
        assert len(kept) == COUNT
        assert "the file cut off at byte" in caplog.text
        assert "no picture is missing" in caplog.text
        return
    assert all(np.array_equal(a.luma, b.luma) for a, b in zip(kept, frames, strict=False))
    assert f"after {len(kept)} decoded frames" in video.damage
    assert logging.getLevelName(caplog.records[0].levelno) == "WARNING"

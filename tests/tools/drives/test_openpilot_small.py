"""Segments that hold what devices upload: a qlog and the small pictures of the road camera."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from modeld.vehicle.cameras import Camera, DeviceCameras, find_cameras
from tests.tools.drives.segments import (
    READOUT_NS,
    SIZE,
    SMALL,
    Segment,
    Track,
    plain,
    shown,
    sof_ns,
    write_segment,
)
from tests.tools.films import write_film
from tools.drives.drive import Drive
from tools.drives.open_drive import DriveOptions, open_drive
from tools.drives.qcamera import scan_qcamera
from tools.errors import DriveError

ROUTE = "000001d4--2648a9a404"
IDS = range(12)
THINNED = range(0, 24, 5)


def small(
    number: int = 0, states: Sequence[int] = THINNED, track: Track | None = None, **more: object
) -> Segment:
    """A segment of 12 frames, whose log has every fifth camera state."""
    ids = range(12 * number, 12 * number + 12)
    track = track or Track(ids)
    kept = [one for one in states if one in ids]
    return replace(Segment(number, {SMALL: replace(track, states=kept)}, log="qlog.zst"), **more)  # type: ignore[arg-type]  # of a test


def opened(root: Path, *segments: Segment, **options: object) -> Drive:
    for one in segments:
        write_segment(root / f"{ROUTE}--{one.number}", one)
    return open_drive(ROUTE, DriveOptions(data_dir=root, **options))  # type: ignore[arg-type]  # of a test


def seen(drive: Drive, first: int = 0) -> list[int | None]:
    """Return the frame of each moment, or None, after a look at its pixels and stamps."""
    found: list[int | None] = []
    for moment in drive.moments(first):
        frame = moment.frames.get("road")
        if frame is not None:
            assert shown(frame) == ("road", frame.frame_id)
            assert abs(frame.timestamp_sof_ns - sof_ns("road", frame.frame_id)) < 1_000
            assert frame.timestamp_eof_ns - frame.timestamp_sof_ns == READOUT_NS
        found.append(None if frame is None else frame.frame_id)
    drive.close()
    return found


def by_full_events(segment: Segment) -> Segment:
    """The log of a device that announces its full pictures only."""
    track = segment.tracks[SMALL]
    full = replace(track, has_file=False, states=())
    return replace(segment, tracks={SMALL: replace(track, indexed=()), "road": full})


def by_states(segment: Segment) -> Segment:
    """A log without any event of an encoder."""
    return replace(segment, tracks={SMALL: replace(segment.tracks[SMALL], indexed=())})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one, None),
        (by_full_events, None),
        (by_states, "segment 1 without EncodeIdx: frames interpolated between 2 camera states"),
    ],
    ids=["small events", "full events", "states"],
)
def test_each_picture_is_the_frame_that_it_shows(
    tmp_path: Path, change: Callable[[Segment], Segment], said: str | None
) -> None:
    drive = opened(tmp_path, *(change(small(number)) for number in range(2)))
    assert seen(drive) == [*range(24), None]
    assert seen(drive, 15) == [*range(15, 24), None]
    assert seen(drive, 3)[0] == 3
    assert said is None or said in drive.info.facts["placement"]
    assert ("placement" in drive.info.facts) == (said is not None)
    # A segment by itself, too.
    alone = open_drive(f"{tmp_path}/{ROUTE}--1", DriveOptions())
    assert seen(alone) == [*range(12, 24), None]


def test_a_log_that_says_nothing_of_frames_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DriveError, match=r"expected camera states or EncodeIdx events .* found no"):
        opened(tmp_path, by_states(small(states=())))


@pytest.mark.parametrize(("device", "sensor"), [("tizi", "ox03c10"), ("mici", "os04c10")])
@pytest.mark.parametrize("size", [(526, 330), (64, 48)])
def test_the_camera_is_that_of_the_device_scaled_by_axis(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    device: str,
    sensor: str,
    size: tuple[int, int],
) -> None:
    track = Track(range(3), size=size)
    with caplog.at_level(logging.WARNING):
        info = opened(
            tmp_path, small(states=(0, 1, 2), track=track, device=device, sensor=sensor)
        ).info
    full = find_cameras(device, sensor).road
    assert info.cameras is not None
    camera = info.cameras.road
    assert (camera.width, camera.height) == size
    # The same field of view each way.
    seen_px = camera.focal_px / camera.width, (camera.focal_y_px or math.nan) / camera.height
    assert seen_px == pytest.approx((full.focal_px / full.width, full.focal_px / full.height))
    assert info.cameras.wide is None
    reduced = info.facts["reduced"]
    assert reduced.startswith(f"qlog, qcamera {size[0]}x{size[1]}, road camera only; focal lengths")
    assert ("expected small pictures of 526x330, as devices write them" in caplog.text) == (
        size == SIZE
    )


def test_of_an_unknown_device_the_focal_length_is_asked_for(tmp_path: Path) -> None:
    # Even where the log has no camera state, and so no sensor.
    unknown = small(states=(), device="mici")
    with pytest.raises(DriveError, match=r"found mici with sensor unknown; set .* --focal-px"):
        opened(tmp_path, unknown)
    info = opened(tmp_path, unknown, focal_px=55.0).info
    assert info.cameras == DeviceCameras(Camera(*SIZE, 55.0), None)


def test_small_pictures_are_taken_where_there_are_no_others_or_they_are_named(
    tmp_path: Path,
) -> None:
    segment = plain(0)
    tracks = {**segment.tracks, SMALL: Track(IDS, states=())}
    place = write_segment(tmp_path / f"{ROUTE}--0", replace(segment, tracks=tracks))
    (place / "qlog.zst").write_bytes((place / "rlog.zst").read_bytes())

    def facts(text: str) -> tuple[list[str], str, str]:
        info = open_drive(text, DriveOptions()).info
        return list(info.formats), info.facts.get("logs", ""), info.facts.get("reduced", "")[:12]

    path = str(place)
    both = ["wideRoad", "road"]
    assert facts(path) == (both[::-1], "rlog.zst", "")
    assert facts(f"{path}/q") == (both[::-1], "qlog.zst", "")
    assert facts(f"{path}/qcamera.ts") == (["road"], "rlog.zst", "rlog, qcamer")
    assert facts(f"{path}/qcamera.ts/q") == (["road"], "qlog.zst", "qlog, qcamer")
    for name in ("fcamera.hevc", "ecamera.hevc"):
        (place / name).unlink()
    assert facts(f"{path}/r") == (["road"], "rlog.zst", "rlog, qcamer")
    (place / "rlog.zst").unlink()
    assert facts(path) == (["road"], "qlog.zst", "qlog, qcamer")
    # Without a log they are a video; the directory says so.
    (place / "qlog.zst").unlink()
    drive = open_drive(f"{path}/qcamera.ts", DriveOptions())
    assert (drive.info.kind, sum(1 for _ in drive.moments())) == ("video", 12)
    with pytest.raises(DriveError, match=r"without a log its pictures are a video: .*/qcamera.ts$"):
        open_drive(path, DriveOptions())


@pytest.mark.parametrize("has_events", [True, False], ids=["announced", "not announced"])
def test_pictures_of_half_a_segment_and_sound_that_is_cut_off(
    tmp_path: Path, has_events: bool
) -> None:
    """All pictures that are there are played, and all that was recorded after them."""
    whole = small()
    half = Track(IDS[:6], has_sound=True)
    place = write_segment(tmp_path / f"{ROUTE}--0", small(track=half))
    video = (place / "qcamera.ts").read_bytes()
    if has_events:
        write_segment(place, whole)
    # Into the sound, which goes on for half a second after the last picture.
    (place / "qcamera.ts").write_bytes(video[: len(video) - 300])
    drive = open_drive(str(place), DriveOptions())
    assert seen(drive)[:6] == [*range(6)]
    assert set(seen(drive)[6:]) == {None}
    said = [message.service for moment in drive.moments() for message in moment.messages]
    assert said.count("qRoadEncodeIdx") == (12 if has_events else 6)
    assert said.count("sentinel") == 2


@pytest.mark.parametrize("lost", [10_000, 188, 300], ids=["the rest", "a packet", "some bytes"])
def test_damaged_pictures_end_with_a_warning_and_the_next_segment_plays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    place = write_segment(tmp_path / f"{ROUTE}--0", small())
    video = place / "qcamera.ts"
    data = video.read_bytes()
    begin = len(data) // 188 * 6 // 10 * 188
    video.write_bytes(data[:begin] + data[begin + lost :])
    write_segment(tmp_path / f"{ROUTE}--1", small(1))
    found = seen(open_drive(ROUTE, DriveOptions(data_dir=tmp_path)))
    good = found.index(None)
    assert 4 <= good <= 8
    assert found == [*range(good), *[None] * (12 - good), *range(12, 24), None]
    assert f"qcamera.ts: picture {good} of" in caplog.text
    assert f"frame {good} and those after it in this file are left out" in caplog.text


def test_a_colon_in_a_relative_name_is_no_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(scan_qcamera(write_film(Path("drive-12:30.ts"), count=3))) == 3

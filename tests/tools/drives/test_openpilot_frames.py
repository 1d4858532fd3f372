"""Which picture is which frame: the pixels say it, whatever frame ids and files do."""

from __future__ import annotations

from pathlib import Path

import pytest

from cereal.log_reader import read_log
from cereal.log_writer import LogWriter
from tests.tools.drives.segments import (
    GOP,
    READOUT_NS,
    START_NS,
    Segment,
    Track,
    plain,
    shown,
    sof_ns,
    write_segment,
)
from tools.drives.drive import Moment
from tools.drives.hevc_frames import scan_hevc
from tools.drives.open_drive import DriveOptions
from tools.drives.openpilot import open_drive
from tools.drives.segment_drive import SegmentDrive
from tools.errors import DriveError

ROUTE = "a2a0ccea32023010|000001d4--2648a9a404"


def _open(root: Path, *segments: Segment, driver: bool = False) -> SegmentDrive:
    for segment in segments:
        write_segment(root / f"{ROUTE}--{segment.number}", segment)
    numbers = [segment.number for segment in segments]
    drive = open_drive(
        f"{ROUTE}/{numbers[0]}:{numbers[-1] + 1}",
        DriveOptions(data_dir=root, driver_camera=driver),
    )
    assert isinstance(drive, SegmentDrive)
    return drive


def _play(drive: SegmentDrive, first: int = 0) -> list[dict[str, int]]:
    """Return the frame ids of each moment by stream, after a look at the pixels of each picture."""
    try:
        return [_ids(moment) for moment in drive.moments(first)]
    finally:
        drive.close()


def _ids(moment: Moment) -> dict[str, int]:
    for stream, frame in moment.frames.items():
        assert shown(frame) == (stream, frame.frame_id), moment.index
        assert frame.timestamp_sof_ns == sof_ns(stream, frame.frame_id)
        assert frame.timestamp_eof_ns == frame.timestamp_sof_ns + READOUT_NS
    return {stream: frame.frame_id for stream, frame in moment.frames.items()}


def _both(ids: range) -> list[dict[str, int]]:
    return [{"wideRoad": one, "road": one} for one in ids]


def test_whole_segment(tmp_path: Path) -> None:
    drive = _open(tmp_path, plain(5, first=6000))
    moments = _play(drive)
    assert moments == _both(range(6000, 6012))
    assert list(moments[0]) == ["wideRoad", "road"]
    assert drive.info.moments == 12


def test_segments_are_one_drive(tmp_path: Path) -> None:
    drive = _open(tmp_path, plain(0), plain(1), plain(2))
    assert _play(drive) == _both(range(36))
    assert drive.info.name == f"{ROUTE}/0:3"


@pytest.mark.parametrize("first", [0, 1, 4, 11, 12, 13, 23, 30, 35, 36, 99])
def test_any_moment_can_be_the_first(tmp_path: Path, first: int) -> None:
    assert _play(_open(tmp_path, plain(0), plain(1), plain(2)), first) == _both(range(first, 36))


def test_events_that_begin_late_do_not_shift_the_pictures(tmp_path: Path) -> None:
    """EncodeIdx starts at 3: pictures 0 to 2 are in the file, no event says of what."""
    ids = range(12)
    track = Track(ids, indexed=range(3, 12))
    drive = _open(tmp_path, Segment(0, {"road": track, "wideRoad": Track(ids)}))
    expected = _both(ids)
    for moment in expected[:3]:
        del moment["road"]
    assert _play(drive) == expected
    assert drive.info.facts["moments without a picture"] == "3 of road"


@pytest.mark.parametrize("has_flags", [True, False])
@pytest.mark.parametrize("has_sizes", [True, False])
def test_encoder_that_ran_before_the_logger(
    tmp_path: Path, has_flags: bool, has_sizes: bool
) -> None:
    """File and events begin with the same key frame, which is picture 10 to the encoder."""
    ids = range(10, 22)
    track = Track(ids, states=range(8, 22), first_id=10, has_flags=has_flags, has_sizes=has_sizes)
    drive = _open(tmp_path, Segment(0, {"road": track, "wideRoad": track}))
    assert _play(drive) == _both(ids)
    assert "fcamera.hevc of segment 0 begins at 10" in drive.info.facts["placement"]


def test_frame_dropped_by_the_encoder_does_not_shift_those_after_it(tmp_path: Path) -> None:
    """Frame 4 has a state and no picture; picture 4 is frame 5."""
    pictures = [one for one in range(12) if one != 4]
    track = Track(pictures, states=range(12))
    drive = _open(tmp_path, Segment(0, {"road": track, "wideRoad": Track(range(12))}))
    expected = _both(range(12))
    del expected[4]["road"]
    assert _play(drive) == expected


def test_frame_dropped_by_the_camera_is_no_moment(tmp_path: Path) -> None:
    ids = [one for one in range(12) if one != 4]
    drive = _open(tmp_path, Segment(0, {"road": Track(ids), "wideRoad": Track(ids)}))
    assert _play(drive) == [{"wideRoad": one, "road": one} for one in ids]


def test_cameras_that_drop_different_frames_stay_paired_by_time(tmp_path: Path) -> None:
    road = [one for one in range(12) if one not in (3, 7)]
    wide = [one for one in range(12) if one not in (0, 7, 8, 11)]
    drive = _open(tmp_path, Segment(0, {"road": Track(road), "wideRoad": Track(wide)}))
    assert _play(drive) == [
        {"wideRoad": one, "road": one} if one in wide else {"road": one} for one in road
    ]


def test_event_lost_from_the_log_leaves_one_moment_without_a_picture(tmp_path: Path) -> None:
    ids = range(12)
    track = Track(ids, indexed=[one for one in ids if one != 6])
    drive = _open(tmp_path, Segment(0, {"road": track, "wideRoad": Track(ids)}))
    expected = _both(ids)
    del expected[6]["road"]
    assert _play(drive) == expected


def test_picture_without_a_state_is_a_moment_by_its_event(tmp_path: Path) -> None:
    ids = range(12)
    track = Track(ids, states=[one for one in ids if one not in (0, 5)])
    drive = _open(tmp_path, Segment(0, {"road": track, "wideRoad": track}))
    assert _play(drive) == _both(ids)
    assert drive.info.moments == 12


def test_wide_camera_missing(tmp_path: Path) -> None:
    drive = _open(tmp_path, Segment(0, {"road": Track(range(12))}))
    assert list(drive.info.formats) == ["road"]
    assert _play(drive) == [{"road": one} for one in range(12)]


def test_wide_video_missing_while_its_states_are_there(tmp_path: Path) -> None:
    tracks = {"road": Track(range(12)), "wideRoad": Track(range(12), has_file=False)}
    drive = _open(tmp_path, Segment(0, tracks))
    assert list(drive.info.formats) == ["road"]
    assert _play(drive) == [{"road": one} for one in range(12)]


def test_road_video_missing_leaves_the_wide_camera_as_the_main_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracks = {"road": Track(range(12), has_file=False), "wideRoad": Track(range(12))}
    drive = _open(tmp_path, Segment(0, tracks))
    assert list(drive.info.formats) == ["wideRoad"]
    assert _play(drive) == [{"wideRoad": one} for one in range(12)]
    assert "no fcamera.hevc; the wide camera alone leads" in caplog.text


def test_video_missing_in_the_middle_segment(tmp_path: Path) -> None:
    ids = range(12, 24)
    middle = Segment(1, {"road": Track(ids, has_file=False), "wideRoad": Track(ids)})
    expected = _both(range(36))
    for moment in expected[12:24]:
        del moment["road"]
    assert _play(_open(tmp_path, plain(0), middle, plain(2))) == expected


def test_no_video_is_an_error(tmp_path: Path) -> None:
    segment = Segment(0, {"road": Track(range(12), has_file=False)})
    with pytest.raises(DriveError, match=r"expected fcamera.hevc or ecamera.hevc, found rlog.zst"):
        _open(tmp_path, segment)


def test_driver_camera_comes_with_the_moment_in_which_it_was_announced(tmp_path: Path) -> None:
    tracks = {stream: Track(range(12)) for stream in ("road", "wideRoad", "driver")}
    moments = _play(_open(tmp_path, Segment(0, tracks), driver=True))
    # It runs half a period later: its frame n is announced before road frame n + 1.
    assert moments == [
        {**({"driver": one - 1} if one else {}), "wideRoad": one, "road": one} for one in range(12)
    ]
    assert list(moments[5]) == ["driver", "wideRoad", "road"]


def test_driver_camera_is_left_out_unless_asked_for(tmp_path: Path) -> None:
    tracks = {stream: Track(range(12)) for stream in ("road", "driver")}
    drive = _open(tmp_path, Segment(0, tracks))
    assert list(drive.info.formats) == ["road"]
    with_driver = _open(tmp_path, Segment(0, tracks), driver=True)
    assert with_driver.info.identity != drive.info.identity


def test_logs_without_events_are_placed_by_frame_ids(tmp_path: Path) -> None:
    segments = []
    for number in range(2):
        ids = range(100 + 12 * number, 112 + 12 * number)
        track = Track(ids, indexed=())
        segments.append(Segment(number, {"road": track, "wideRoad": track}))
    drive = _open(tmp_path, *segments)
    assert _play(drive) == _both(range(100, 124))
    assert "without EncodeIdx: placed by frame ids" in drive.info.facts["placement"]


def test_states_of_frames_in_flight_when_the_file_ended(tmp_path: Path) -> None:
    """Camera states run ahead of the encoder: the last ones belong to the next file."""
    segments = [
        Segment(0, {"road": Track(range(12), states=range(14))}),
        Segment(1, {"road": Track(range(12, 24), states=range(14, 26))}),
    ]
    assert _play(_open(tmp_path, *segments)) == [{"road": one} for one in range(24)]
    assert _play(_open(tmp_path, segments[1])) == [{"road": one} for one in range(12, 24)]


def test_camera_that_starts_again_counts_from_zero(tmp_path: Path) -> None:
    """The same frame ids twice in one drive, 20 s apart."""
    write_segment(tmp_path / f"{ROUTE}--0", Segment(0, {"road": Track(range(12))}))
    later = tmp_path / f"{ROUTE}--1"
    write_segment(later, Segment(1, {"road": Track(range(12))}))
    _shift_log(later / "rlog.zst", 20_000_000_000)
    drive = open_drive(f"{ROUTE}", DriveOptions(data_dir=tmp_path))
    seen = [
        (frame.frame_id, shown(frame)[1], (frame.timestamp_sof_ns - START_NS) // 10**9)
        for moment in drive.moments()
        for frame in moment.frames.values()
    ]
    drive.close()
    assert seen == [(n % 12, n % 12, 20 if n >= 12 else 0) for n in range(24)]


def _shift_log(path: Path, by_ns: int) -> None:
    events = [event.as_builder() for event in read_log(path)]
    with LogWriter(path) as log:
        for event in events:
            event.logMonoTime += by_ns
            inner = getattr(event, str(event.which()))
            for name in ("timestampSof", "timestampEof"):
                if hasattr(inner, name):
                    setattr(inner, name, getattr(inner, name) + by_ns)
            log.write(event.to_bytes())


def test_video_of_another_segment_is_refused(tmp_path: Path) -> None:
    """Its key frames are elsewhere than the log says."""
    here = write_segment(tmp_path / f"{ROUTE}--0", plain(0))
    # Begins three pictures after a key frame, as no file of a logger does.
    there = write_segment(tmp_path / "other", plain(0))
    index = scan_hevc(there / "fcamera.hevc")
    data = (there / "fcamera.hevc").read_bytes()
    start, end, _ = index.parameters[0]
    cut = data[start:end] + data[int(index.starts[GOP - 2]) :]
    (here / "fcamera.hevc").write_bytes(cut)
    with pytest.raises(DriveError, match=r"fcamera.hevc: expected key frames where the log's"):
        open_drive(str(here), DriveOptions())


def test_directory_with_another_segments_number_is_refused(tmp_path: Path) -> None:
    here = write_segment(tmp_path / f"{ROUTE}--0", plain(0))
    here.rename(tmp_path / f"{ROUTE}--7")
    with pytest.raises(
        DriveError, match=r"expected the video of segment 7, .* found EncodeIdx events of segment 0"
    ):
        open_drive(f"{ROUTE}--7", DriveOptions(data_dir=tmp_path))


def test_directory_without_a_number_takes_that_of_its_log(tmp_path: Path) -> None:
    here = write_segment(tmp_path / "my drive", plain(31, first=40))
    drive = open_drive(str(here), DriveOptions())
    assert drive.info.name == "my drive"
    assert isinstance(drive, SegmentDrive)
    assert _play(drive) == _both(range(40, 52))


def test_segments_of_different_size_are_refused(tmp_path: Path) -> None:
    other = Segment(1, {"road": Track(range(12, 24), size=(128, 96))})
    with pytest.raises(
        DriveError, match=r"expected pictures of 64x48 as in .*, found 128x96; play"
    ):
        _open(tmp_path, Segment(0, {"road": Track(range(12))}), other)


def test_ambiguous_start_is_refused(tmp_path: Path) -> None:
    """Neither count nor sizes nor key frames say whether the file begins at 0 or at 10."""
    track = Track(range(10, 30), first_id=10, has_sizes=False, indexed=range(10, 25))
    with pytest.raises(DriveError, match=r"which picture is which frame cannot be told"):
        _open(tmp_path, Segment(0, {"road": track}))


@pytest.mark.parametrize("has_sizes", [True, False])
def test_cut_video_gives_the_good_frames_and_then_an_error(tmp_path: Path, has_sizes: bool) -> None:
    ids = range(12)
    tracks = {"road": Track(ids, has_sizes=has_sizes), "wideRoad": Track(ids)}
    path = write_segment(tmp_path / f"{ROUTE}--0", Segment(0, tracks)) / "fcamera.hevc"
    starts = scan_hevc(path).starts
    data = path.read_bytes()
    # Within picture 7; a decoder would show that one, filled up.
    path.write_bytes(data[: int(starts[7]) + 25])
    drive = open_drive(f"{ROUTE}--0", DriveOptions(data_dir=tmp_path))
    assert drive.info.moments == 12
    seen: list[dict[str, int]] = []
    with pytest.raises(DriveError, match=r"fcamera.hevc: picture 7 of 8: expected it whole"):
        seen.extend(_ids(moment) for moment in drive.moments())
    drive.close()
    assert seen == _both(range(7))
    # Between two pictures.
    path.write_bytes(data[: int(starts[7])])
    drive = open_drive(f"{ROUTE}--0", DriveOptions(data_dir=tmp_path))
    seen = []
    with pytest.raises(DriveError, match=r"fcamera.hevc: picture [67] of 7: expected it"):
        seen.extend(_ids(moment) for moment in drive.moments())
    drive.close()
    # Without sizes nobody knows that picture 6 is whole.
    assert seen == _both(range(7 if has_sizes else 6))


def test_last_picture_that_is_cut_is_found_by_its_size(tmp_path: Path) -> None:
    path = write_segment(tmp_path / f"{ROUTE}--0", plain(0)) / "fcamera.hevc"
    path.write_bytes(path.read_bytes()[:-9])
    drive = open_drive(f"{ROUTE}--0", DriveOptions(data_dir=tmp_path))
    seen: list[dict[str, int]] = []
    with pytest.raises(DriveError, match=r"picture 11 of 12: expected it whole, found the end"):
        seen.extend(_ids(moment) for moment in drive.moments())
    drive.close()
    assert seen == _both(range(11))


def test_bytes_lost_within_the_video_are_found_by_the_sizes(tmp_path: Path) -> None:
    """No checksums, and all start codes are there: the picture would be shown, filled up."""
    path = write_segment(tmp_path / f"{ROUTE}--0", plain(0)) / "fcamera.hevc"
    starts = scan_hevc(path).starts
    data = path.read_bytes()
    path.write_bytes(data[: int(starts[8]) - 4] + data[int(starts[8]) :])
    drive = open_drive(f"{ROUTE}--0", DriveOptions(data_dir=tmp_path))
    seen: list[dict[str, int]] = []
    with pytest.raises(DriveError, match=r"picture 7 of 12: expected it whole, found other bytes"):
        seen.extend(_ids(moment) for moment in drive.moments())
    with pytest.raises(DriveError, match=r"picture 9 of 12: .* found damage at picture 7"):
        next(iter(drive.moments(9)))
    drive.close()
    assert seen == _both(range(7))


@pytest.mark.parametrize("same_keys", [True, False])
def test_video_that_was_encoded_again(tmp_path: Path, same_keys: bool) -> None:
    """Its sizes say nothing; its key frames have to be where the log has them."""
    path = write_segment(tmp_path / f"{ROUTE}--0", plain(0))
    other = write_segment(tmp_path / "other", Segment(0, {"road": Track(range(12), hashed=True)}))
    data = (other / "fcamera.hevc").read_bytes()
    if not same_keys:
        index = scan_hevc(other / "fcamera.hevc")
        data = data[: int(index.starts[GOP])] + data[int(index.starts[GOP + 1]) :]
    (path / "fcamera.hevc").write_bytes(data)
    if same_keys:
        drive = open_drive(str(path), DriveOptions())
        assert isinstance(drive, SegmentDrive)
        assert _play(drive) == _both(range(12))
    else:
        with pytest.raises(DriveError, match="expected key frames where the log's"):
            open_drive(str(path), DriveOptions())


def test_picture_lost_from_the_video_does_not_shift_those_after_it(tmp_path: Path) -> None:
    """Key frames after it are elsewhere than the log says; what precedes is good."""
    path = write_segment(tmp_path / f"{ROUTE}--0", plain(0)) / "fcamera.hevc"
    starts = scan_hevc(path).starts
    data = path.read_bytes()
    path.write_bytes(data[: int(starts[7])] + data[int(starts[8]) :])
    drive = open_drive(f"{ROUTE}--0", DriveOptions(data_dir=tmp_path))
    seen: list[dict[str, int]] = []
    with pytest.raises(DriveError, match=r"picture 7 of 11: expected it whole, found other bytes"):
        seen.extend(_ids(moment) for moment in drive.moments())
    drive.close()
    assert seen == _both(range(7))

"""Which picture is which frame: the pixels say it, whatever frame ids and files do."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cereal.log_reader import read_log
from cereal.log_writer import LogWriter
from tests.tools.drives.segments import (
    GOP,
    READOUT_NS,
    SIZE,
    START_NS,
    Segment,
    Track,
    encode,
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
IDS = range(12)


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
        moments = [_ids(moment) for moment in drive.moments(first)]
    finally:
        drive.close()
    # What follows the last frame is a moment without any.
    assert not moments or moments.pop() == {}
    return moments


def _ids(moment: Moment) -> dict[str, int]:
    for stream, frame in moment.frames.items():
        assert shown(frame) == (stream, frame.frame_id), moment.index
        assert frame.timestamp_sof_ns == sof_ns(stream, frame.frame_id)
        assert frame.timestamp_eof_ns == frame.timestamp_sof_ns + READOUT_NS
    return {stream: frame.frame_id for stream, frame in moment.frames.items()}


def _both(ids: Iterable[int]) -> list[dict[str, int]]:
    return [{"wideRoad": one, "road": one} for one in ids]


def test_whole_segment(tmp_path: Path) -> None:
    drive = _open(tmp_path, plain(5, first=6000))
    moments = _play(drive)
    assert moments == _both(range(6000, 6012))
    assert list(moments[0]) == ["wideRoad", "road"]
    assert drive.info.moments == 13


@pytest.mark.parametrize("first", [0, 1, 4, 11, 12, 13, 23, 30, 35, 36, 99])
def test_any_moment_of_several_segments_can_be_the_first(tmp_path: Path, first: int) -> None:
    drive = _open(tmp_path, plain(0), plain(1), plain(2))
    assert drive.info.name == f"{ROUTE}/0:3"
    assert _play(drive, first) == _both(range(first, 36))


def _without(*lost: int) -> list[int]:
    return [one for one in IDS if one not in lost]


# What differs from a whole track of the road camera and of the wide one (None: there is none), and
# which frames have no picture of either.
LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, Sequence[int], Sequence[int]]] = {
    "events that begin late": ({"indexed": IDS[3:]}, {}, [0, 1, 2], []),
    # It has a state and no picture, so that picture 4 is frame 5.
    "frame lost by the encoder": ({"pictures": _without(4), "states": IDS}, {}, [4], []),
    "frame lost by both": ({"pictures": _without(4)}, {"pictures": _without(4)}, [4], [4]),
    "other frames lost by each, which are paired by time": (
        *({"pictures": _without(3, 7)}, {"pictures": _without(0, 7, 8, 11)}),
        *([3, 7], [0, 3, 7, 8, 11]),
    ),
    "event lost from the log": ({"indexed": _without(6)}, {}, [6], []),
    "picture without a state": ({"states": _without(0, 5)}, {"states": _without(0, 5)}, [], []),
    "no wide camera": ({}, None, [], IDS),
    "no wide video": ({}, {"has_file": False}, [], IDS),
    "no road video": ({"has_file": False}, {}, IDS, []),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_lost_does_not_shift_the_pictures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    road, wide, no_road, no_wide = LOSSES[name]
    tracks = {"road": Track(**{"pictures": IDS} | road)}
    if wide is not None:
        tracks["wideRoad"] = Track(**{"pictures": IDS} | wide)
    lost = {"wideRoad": no_wide, "road": no_road}
    moments = [{stream: n for stream in lost if n not in lost[stream]} for n in IDS]
    drive = _open(tmp_path, Segment(0, tracks))
    assert _play(drive) == [moment for moment in moments if moment]
    assert drive.info.moments == sum(map(bool, moments)) + 1
    assert set(drive.info.formats) == {stream for stream in lost if lost[stream] != IDS}
    without = drive.info.facts.get("moments without a picture")
    assert without == "3 of road" or name != "events that begin late"
    leads = "no fcamera.hevc; only the wide camera is used" in caplog.text
    assert leads is (name == "no road video")


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


def test_video_missing_in_the_middle_segment(tmp_path: Path) -> None:
    ids = range(12, 24)
    middle = Segment(1, {"road": Track(ids, has_file=False), "wideRoad": Track(ids)})
    assert _play(_open(tmp_path, plain(0), middle, plain(2))) == [
        *_both(IDS),
        *({"wideRoad": one} for one in ids),
        *_both(range(24, 36)),
    ]


def test_driver_camera_comes_with_the_moment_in_which_it_was_announced(tmp_path: Path) -> None:
    tracks = dict.fromkeys(("road", "wideRoad", "driver"), Track(IDS))
    drive = _open(tmp_path, Segment(0, tracks), driver=True)
    moments = _play(drive)
    # It runs half a period later: its frame n is announced before road frame n + 1.
    # After the last of those it has a moment of its own.
    assert moments == [
        *({**({"driver": one - 1} if one else {}), "wideRoad": one, "road": one} for one in IDS),
        {"driver": IDS[-1]},
    ]
    assert list(moments[5]) == ["driver", "wideRoad", "road"]
    # It is left out unless it is asked for.
    without = _open(tmp_path, Segment(0, tracks))
    assert set(without.info.formats) == {"wideRoad", "road"}
    assert without.info.identity != drive.info.identity


def test_each_frame_of_the_driver_camera_comes_whatever_the_road_camera_lost(
    tmp_path: Path,
) -> None:
    kept = [one for one in IDS if one not in (4, 5)]
    tracks = dict.fromkeys(("road", "wideRoad"), Track(kept)) | {"driver": Track(IDS)}
    drive = _open(tmp_path, Segment(0, tracks), driver=True)
    moments = _play(drive)
    assert [one["driver"] for one in moments if "driver" in one] == list(IDS)
    assert [one["road"] for one in moments if "road" in one] == kept
    assert [one for one in moments if "road" not in one] == [{"driver": one} for one in (3, 4, 11)]
    assert _play(drive, 5) == moments[5:]
    alone = open_drive(f"{ROUTE}/0", DriveOptions(tmp_path, driver_camera=True, road_cameras=False))
    assert isinstance(alone, SegmentDrive)
    assert _play(alone) == [{"driver": one} for one in IDS]


def test_logs_without_events_are_placed_by_frame_ids(tmp_path: Path) -> None:
    segments = []
    for number in range(2):
        track = Track(range(100 + 12 * number, 112 + 12 * number), indexed=())
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


def test_directory_without_a_number_takes_that_of_its_log(tmp_path: Path) -> None:
    here = write_segment(tmp_path / "my drive", plain(31, first=40))
    drive = open_drive(str(here), DriveOptions())
    assert drive.info.name == "my drive"
    assert isinstance(drive, SegmentDrive)
    assert _play(drive) == _both(range(40, 52))


@pytest.mark.parametrize(
    ("tracks", "message"),
    [
        ([Track(IDS, has_file=False)], r"fcamera.hevc, ecamera.hevc or qcamera.ts, found rlog.zst"),
        (
            [Track(IDS), Track(range(12, 24), size=(128, 96))],
            r"expected pictures of 64x48 as in .*, found 128x96; play",
        ),
        # Neither count nor sizes nor key frames say whether the file begins at 0 or at 10.
        (
            [Track(range(10, 30), first_id=10, has_sizes=False, indexed=range(10, 25))],
            r"pictures cannot be matched to frames",
        ),
    ],
    ids=["no video", "another size", "ambiguous start"],
)
def test_segments_that_cannot_be_played_are_refused(
    tmp_path: Path, tracks: list[Track], message: str
) -> None:
    with pytest.raises(DriveError, match=message):
        _open(tmp_path, *(Segment(number, {"road": one}) for number, one in enumerate(tracks)))


def test_directory_with_another_segments_number_is_refused(tmp_path: Path) -> None:
    here = write_segment(tmp_path / f"{ROUTE}--0", plain(0))
    here.rename(tmp_path / f"{ROUTE}--7")
    with pytest.raises(
        DriveError, match=r"expected the video of segment 7, .* found EncodeIdx events of segment 0"
    ):
        open_drive(f"{ROUTE}--7", DriveOptions(data_dir=tmp_path))


# --- videos that are not those of their log ---------------------------------------------------


def _written(root: Path, *, has_sizes: bool = True) -> tuple[Path, bytes, list[int]]:
    """Write a segment; return its road video, the content, and where its pictures start and end."""
    tracks = {"road": Track(IDS, has_sizes=has_sizes), "wideRoad": Track(IDS)}
    path = write_segment(root / f"{ROUTE}--0", Segment(0, tracks)) / "fcamera.hevc"
    data = path.read_bytes()
    return path, data, [*scan_hevc(path).starts.tolist(), len(data)]


# Up to so many bytes behind the start of one picture, then from the start of another one on.
@pytest.mark.parametrize(
    ("where", "has_sizes", "good", "message"),
    [
        # A decoder would show picture 7, filled up.
        ((7, 25, 12), True, 7, "7 of 8: expected a complete picture"),
        ((7, 25, 12), False, 7, "7 of 8: expected a complete picture"),
        ((7, 0, 12), True, 7, "[67] of 7: expected a"),
        # Without sizes nobody knows that picture 6 is whole.
        ((7, 0, 12), False, 6, "[67] of 7: expected a"),
        ((12, -9, 12), True, 11, "11 of 12: expected a complete picture, found the end"),
        # No checksums, and all start codes are there: the picture would be shown, filled up.
        ((8, -4, 8), True, 7, "7 of 12: expected a complete picture, found damaged bytes"),
        # Key frames after it are elsewhere than the log says; what precedes is good.
        ((7, 0, 8), True, 7, "7 of 11: expected a complete picture, found damaged bytes"),
    ],
)
def test_damaged_video_gives_the_good_frames_and_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    where: tuple[int, int, int],
    has_sizes: bool,
    good: int,
    message: str,
) -> None:
    cut, more, onward = where
    path, data, at = _written(tmp_path, has_sizes=has_sizes)
    path.write_bytes(data[: at[cut] + more] + data[at[onward] :])
    write_segment(tmp_path / f"{ROUTE}--1", plain(1))
    drive = open_drive(ROUTE, DriveOptions(data_dir=tmp_path))
    assert isinstance(drive, SegmentDrive)
    assert drive.info.moments == 25
    rest = [{"wideRoad": one} for one in range(good, 12)]
    # The other camera and the next segment are whole.
    assert _play(drive) == [*_both(range(good)), *rest, *_both(range(12, 24))]
    (said,) = (text for text in caplog.messages if "fcamera.hevc: picture" in text)
    assert re.search(rf"picture {message}.*; frame {good} and those after it .* left out$", said)
    if good == 7 and onward == 8:
        assert _play(drive, 9)[0] == {"wideRoad": 9}
        with pytest.raises(DriveError, match=r"picture 9 of 1[12]: .* found damage at picture 7"):
            drive.frame("road", 9)
    drive.close()


def _again(lost: int | None = None) -> bytes:
    packets = encode("road", tuple(IDS), SIZE, hashed=True)
    bodies = [body for number, (body, _) in enumerate(packets.bodies) if number != lost]
    return packets.header + b"".join(bodies)


def test_video_that_was_encoded_again(tmp_path: Path) -> None:
    """Its sizes say nothing; its key frames have to be where the log has them."""
    path, data, at = _written(tmp_path)
    path.write_bytes(_again())
    drive = open_drive(str(path.parent), DriveOptions())
    assert isinstance(drive, SegmentDrive)
    assert _play(drive) == _both(IDS)
    header = encode("road", tuple(IDS), SIZE, hashed=False).header
    # One begins three pictures after a key frame, as no file of a logger does.
    for content in (_again(lost=GOP), header + data[at[GOP - 2] :]):
        path.write_bytes(content)
        with pytest.raises(DriveError, match=r"fcamera.hevc: expected key frames where the log's"):
            open_drive(str(path.parent), DriveOptions())

"""Pictures of drives as the live view shows them: videos, segments, routes, in any order."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from cereal.frames import Frame
from tests.tools.conftest import MakeVideo, write_video
from tests.tools.drives.segments import GOP, plain, shown, write_route, write_segment
from tools.drives.drive import Drive
from tools.drives.open_drive import DriveOptions, open_drive
from tools.drives.segment_drive import SegmentDrive
from tools.drives.video_drive import VideoDrive
from tools.live import drive_pictures
from tools.live.drive_pictures import (
    SegmentPictures,
    SequentialPictures,
    picture_maker,
)
from tools.live.messages import Shown

JPEG = b"\xff\xd8"


def test_pictures_of_a_video_are_found_forth_back_and_not_at_all(make_video: MakeVideo) -> None:
    path = make_video(frames=40)
    pictures = SequentialPictures(open_drive(str(path), DriveOptions()), 96)
    shown = [pictures.show("road", at) for at in (3, 30, 12, 2)]
    assert [one.frame_id for one in shown] == [3, 30, 12, 2]
    assert all(one.jpeg[:2] == JPEG for one in shown)
    # Twelve is within what was kept while thirty was decoded: nothing was decoded again for it.
    assert pictures.show("road", 3000).why_not == "the drive has no picture of frame 3000"
    assert "no video of this camera" in pictures.show("wideRoad", 3).why_not
    pictures.close()


def test_pictures_of_a_segment_are_found_in_any_order(tmp_path: Path) -> None:
    write_segment(tmp_path / "seg", plain(count=2 * GOP))
    drive = open_drive(str(tmp_path / "seg"), DriveOptions())
    assert isinstance(drive, SegmentDrive)
    ids = drive.frame_ids("road").tolist()
    order = [ids[at] for at in (-1, 0, GOP, 3, 2)]
    for stream in ("road", "wideRoad"):
        for frame_id in order:
            frame = drive.frame(stream, ids.index(frame_id))
            assert frame is not None
            assert shown(frame) == (stream, frame.frame_id)
    pictures = SegmentPictures(drive, 64)
    found = [pictures.show("road", frame_id) for frame_id in order]
    assert [one.frame_id for one in found] == order
    assert all(one.jpeg[:2] == JPEG for one in found)
    assert pictures.show("road", 999_999).why_not == "the drive has no picture of frame 999999"
    drive.close()


@pytest.mark.parametrize(
    ("name", "codec", "is_entered"),
    [("drive.mp4", "mpeg4", True), ("drive.mp4", "libx264", True), ("drive.mkv", "mpeg4", False)],
)
def test_a_far_picture_of_a_video_is_the_one_that_counting_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, codec: str, is_entered: bool
) -> None:
    monkeypatch.setattr(drive_pictures, "FAR", 20)
    monkeypatch.setattr(drive_pictures, "KEPT", 4)
    path = write_video(tmp_path / name, 75, codec=codec)
    counted = {
        moment.index: bytes(moment.frames["road"].data)
        for moment in open_drive(str(path), DriveOptions()).moments(0)
        if moment.index in (30, 55, 74)
    }
    drive = open_drive(str(path), DriveOptions())
    pictures = SequentialPictures(drive, 96)
    found: dict[int, bytes] = {}

    def keep(stream: str, frame: Frame, _width: int) -> Shown:
        found[frame.frame_id] = bytes(frame.data)
        return Shown(stream, frame.frame_id)

    monkeypatch.setattr("tools.live.drive_pictures._shown", keep)
    if is_entered:
        monkeypatch.setattr(VideoDrive, "moments", lambda *_: pytest.fail("counted from the start"))
    for at in (55, 30, 74):
        found.clear()
        assert pictures.show("road", at).frame_id == at
        assert found[at] == counted[at]
    assert pictures._can_seek == is_entered
    pictures.close()


class Opener:
    """Opens segments, and notes the numbers of those that were opened and closed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.opened, self.closed = patch, list[str](), set[str]()

    def __call__(self, text: str) -> Drive:
        self.opened.append(text[-1])
        drive = open_drive(text, DriveOptions())
        close = drive.close

        def close_too() -> None:
            self.closed.add(text[-1])
            close()

        self.patch.setattr(drive, "close", close_too)
        return drive


def test_segments_of_a_route_are_opened_as_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_route(tmp_path, GOP, GOP, GOP - 2, GOP)
    end = 4 * GOP - 2
    opener = Opener(monkeypatch)
    with ExitStack() as stack:
        make, info = picture_maker(texts, opener, 64, stack)
        assert (opener.opened, set(info.formats)) == (["0"], {"road", "wideRoad"})
        pictures = make()
        assert make() is pictures
        for frame_id in (0, end - 1, GOP, 2 * GOP - 1, 2 * GOP, 3 * GOP - 3, 3 * GOP - 2, 1):
            found = pictures.show("road", frame_id)
            assert (found.frame_id, found.why_not, found.jpeg[:2]) == (frame_id, "", JPEG)
        # Each once, and the first one always.
        assert sorted(opener.opened) == ["0", "1", "2", "3"]
        for frame_id in (-1, end, 10**9):
            said = f"the drive has no picture of frame {frame_id}"
            assert pictures.show("road", frame_id).why_not == said
    assert opener.closed == {"0", "1", "2", "3"}


def test_no_more_segments_stay_open_than_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_route(tmp_path, 4, 4, 4)
    (Path(texts[2]) / "fcamera.hevc").write_bytes(b"no video")
    monkeypatch.setattr(drive_pictures, "OPEN_SEGMENTS", 2)
    opener = Opener(monkeypatch)
    with ExitStack() as stack:
        pictures = picture_maker([*texts, texts[1]], opener, 64, stack)[0]()
        assert pictures.show("road", 5).frame_id == 5
        assert "fcamera.hevc" in pictures.show("road", 9).why_not
        assert opener.opened == ["0", "1", "2"]

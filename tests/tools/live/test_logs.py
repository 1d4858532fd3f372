"""Logs and drives as the live view reads them: entered anywhere, damaged, without answers."""

import asyncio
import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cereal.clock import ManualClock
from cereal.errors import LogError
from cereal.frames import Frame
from cereal.log_writer import LogWriter
from cereal.schema import new_event, read_event
from cereal.transport.memory import MemoryTransport
from modeld.constants import X_IDXS
from modeld.health.reporter import HealthReporter
from modeld.health.snapshot import ServiceFacts
from modeld.state.loop_state import LoopState, Phase
from tests.tools.conftest import MakeVideo, write_video
from tests.tools.drives.segments import GOP, plain, shown, write_segment
from tests.tools.live.speaker import MS, drive_log, unpacked, write_log
from tests.tools.messages import damaged
from tools.drives.drive import Drive
from tools.drives.open_drive import DriveOptions, expand_drives, open_drive
from tools.drives.segment_drive import SegmentDrive
from tools.drives.video_drive import VideoDrive
from tools.errors import DriveError
from tools.live import drive_pictures, log_content, log_index
from tools.live.drive_pictures import (
    NoPictures,
    SegmentPictures,
    SequentialPictures,
    picture_maker,
)
from tools.live.fields import parse_field
from tools.live.log_index import IndexThread, LogIndex
from tools.live.log_source import LogSource
from tools.live.messages import Shown
from tools.live.newest import COLUMNS, HEALTH, describe_health
from tools.live.scene import CameraTable
from tools.live.serve import ServeOptions, log_session
from tools.live.viewers import Source, Viewer

TABLE = CameraTable()


OPTIONS = ServeOptions(10.0, 960, DriveOptions(), None)
EVENTS = drive_log(range(100, 160))

Index = Callable[[list[bytes]], LogIndex]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Index a log of some events."""
    with ExitStack() as stack:

        def make(events: list[bytes]) -> LogIndex:
            found = LogIndex([write_log(tmp_path / "drive.rlog", events)])
            stack.callback(found.close)
            found.fill(threading.Event())
            return found

        yield make


def test_a_log_is_entered_anywhere(index: Index) -> None:
    found = index(EVENTS)
    assert len(found) == 60
    assert found.has_answers
    assert found.row(20)[:3] == (1.0, 120.0, 1.0)
    answer = found.answer(20)
    assert answer is not None
    assert answer.frame_id == 120
    assert answer.rpy_rad == pytest.approx((0.0, 0.02, 0.01))
    assert found.around(20).sensor == "os04c10"
    assert [len(column) for column in found.columns(0, 99)] == [60] * len(COLUMNS)
    assert found.health(20) is None
    answers = [found.answer(at) for at in (59, 0, 30)]
    assert [one.frame_id for one in answers if one is not None] == [159, 100, 130]


def test_a_log_that_is_damaged_is_shown_without_what_is(index: Index) -> None:
    whole = b"".join(EVENTS)
    found = index([whole[: len(whole) // 2 + 20]])
    assert 25 < len(found) < 35
    assert "ends inside a message" in found.notes[0]
    events = drive_log(range(10))
    at = [i for i, _ in enumerate(events) if i % 7 == 6][4]
    events[at] = damaged(events[at], len(X_IDXS))
    found = index(events)
    assert (len(found), len(found.notes)) == (9, 1)
    # A log without answers goes by its camera.
    found = index(drive_log(range(40), answers=False))
    assert (len(found), found.has_answers) == (40, False)
    assert found.answer(3) is None
    assert found.row(3)[1] == 3


def test_a_log_with_nothing_to_show_is_refused(tmp_path: Path) -> None:
    event = bytes(new_event("liveDelay", mono_time_ns=1).to_bytes())
    path = write_log(tmp_path / "a.rlog", [event])
    with ExitStack() as stack, pytest.raises(DriveError, match="found liveDelay; name the log of"):
        log_session(str(path), OPTIONS, stack)
    # A segment brings its own log and frames.
    path = write_log(tmp_path / "rlog", drive_log(range(5)))
    (tmp_path / "fcamera.hevc").write_bytes(b"no video")
    with ExitStack() as stack:
        session = log_session(str(path), OPTIONS, stack)
        hello, _ = unpacked(session.source.hello())
    assert "frames cannot be shown" in hello["whyNoFrames"]
    assert "fcamera.hevc" in hello["whyNoFrames"]


def test_pictures_of_a_video_are_found_forth_back_and_not_at_all(make_video: MakeVideo) -> None:
    path = make_video(frames=40)
    pictures = SequentialPictures(open_drive(str(path), DriveOptions()), 96)
    shown = [pictures.show("road", at) for at in (3, 30, 12, 2)]
    assert [one.frame_id for one in shown] == [3, 30, 12, 2]
    assert all(one.jpeg[:2] == b"\xff\xd8" for one in shown)
    # Twelve is within what was kept while thirty was decoded: nothing was decoded again for it.
    assert pictures.show("road", 3000).why_not == "the drive has no picture of frame 3000"
    assert "no video of this camera" in pictures.show("wideRoad", 3).why_not
    pictures.close()


def test_a_log_answers_what_was_asked_for_last(index: Index) -> None:
    async def watch() -> None:
        found = index(EVENTS)
        source = LogSource("a log", [found], TABLE, lambda: NoPictures("none"), {"cameras": []})
        hello, _ = unpacked(source.hello())
        assert (hello["logs"], hello["warmUp"]) == (1, 100)
        viewer = Viewer()
        own = source.open(viewer)
        rows, _ = unpacked(await source.next(viewer, own))
        assert [len(column) for column in rows["columns"]] == [60] * len(COLUMNS)
        assert (rows["first"], rows["whole"], rows["share"]) == (0, True, 1.0)
        for row, frame_id in ((0, 100), (25, 125), (999, 159), (-4, 100)):
            viewer.order(json.dumps({"row": row}))
            message, _ = unpacked(await source.next(viewer, own))
            assert message["model"]["frameId"] == frame_id
            assert message["picture"]["whyNot"] == "none"
        source.close(viewer, own)

    asyncio.run(watch())


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
    assert all(one.jpeg[:2] == b"\xff\xd8" for one in found)
    assert pictures.show("road", 999_999).why_not == "the drive has no picture of frame 999999"
    drive.close()


def two_logs() -> tuple[list[bytes], list[bytes]]:
    """Return a log of frames 100 to 159, and one of 105 to 169 that brakes, made 7 s later."""
    others = []
    for data in drive_log(range(105, 170)):
        event = read_event(data).as_builder()
        event.logMonoTime += 7_000 * MS
        if event.which() == "modelV2":
            event.modelV2.action.desiredAcceleration -= 2.0
        others.append(bytes(event.to_bytes()))
    return EVENTS, others


def test_a_second_log_answers_for_the_same_frame_whenever_it_was_made(tmp_path: Path) -> None:
    indexes = []
    for name, events in zip("ab", two_logs(), strict=True):
        indexes.append(LogIndex([write_log(tmp_path / name, events)]))
        indexes[-1].fill(threading.Event())
    source = LogSource("a log", indexes, TABLE, lambda: NoPictures("none"), {"cameras": []})

    async def watch() -> None:
        viewer = Viewer()
        own = source.open(viewer)
        logs = [unpacked(await source.next(viewer, own))[0]["log"] for _ in range(2)]
        assert logs == [0, 1]
        viewer.order('{"row": 20}')
        message, _ = unpacked(await source.next(viewer, own))
        assert message["model"]["frameId"] == message["other"]["model"]["frameId"] == 120
        # Of frame 102 the second log says nothing.
        viewer.order('{"row": 2}')
        message, _ = unpacked(await source.next(viewer, own))
        assert (message["model"]["frameId"], message["other"]) == (102, None)
        # Each log has the times of its own.
        for log, expected in ((0, 0.05), (1, 0.05)):
            path = "modelV2.action.desiredAcceleration"
            order = {"series": {"log": log, "chunk": 0, "fields": [path, "no.such"]}}
            viewer.order(json.dumps(order))
            message, _ = unpacked(await source.next(viewer, own))
            assert (message["log"], message["whole"]) == (log, True)
            times, values = message["fields"][path]
            assert list(message["fields"]) == [path]
            assert times[1] == pytest.approx(expected)
            frame_id = 100 + 5 * log + 1
            assert values[1] == pytest.approx(math.cos(frame_id / 12) - 2.0 * log, abs=1e-6)
        source.close(viewer, own)

    asyncio.run(watch())
    for one in indexes:
        one.close()


@pytest.mark.parametrize("ending", ["", ".bz2"])
def test_any_field_is_read_at_any_time_also_of_a_compressed_log(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"drive.rlog{ending}"
    with LogWriter(path) as log:
        for data in EVENTS:
            log.write(data)
    found = LogIndex([path])
    found.fill(threading.Event())
    fields = [parse_field(text) for text in ("carState.vEgo", "roadCameraState.sensor")]
    assert None not in fields
    chosen = [one for one in fields if one is not None]
    samples = found.samples(chosen, 1.02, 1.12)
    # The last one before holds until the next one comes.
    assert [time for time, _ in samples["carState.vEgo"]] == [1.0, 1.05, 1.1]
    assert samples["carState.vEgo"][1][1] == pytest.approx(20.0 + math.sin(121 / 12), abs=1e-5)
    assert samples["roadCameraState.sensor"][0] == (1.0, "os04c10")
    assert found.samples(chosen, 99.0, 100.0)["carState.vEgo"][0][0] == pytest.approx(2.95)
    found.close()
    assert found.samples(chosen, 0.0, 1.0)["carState.vEgo"] == []


def test_a_log_is_shown_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slowly(path: Path, on_defect: Any, on_read: Callable[[int], None]) -> Iterator[bytes]:
        del on_defect
        for at, data in enumerate(EVENTS):
            on_read(at * path.stat().st_size // len(EVENTS))
            if at == len(EVENTS) // 2:
                go_on.wait(20)
            yield data

    monkeypatch.setattr(log_content, "read_log_bytes", slowly)
    monkeypatch.setattr(log_index, "PUBLISH_S", 0.0)
    found = LogIndex([write_log(tmp_path / "drive.rlog", EVENTS)])
    reading = IndexThread(found)
    reading.wait(lambda: len(found) == 30, 20)
    assert (len(found), found.is_whole) == (30, False)
    assert found.share == pytest.approx(0.5, abs=0.02)
    source = LogSource("a log", [found], TABLE, lambda: NoPictures("none"), {"cameras": []})

    async def watch() -> None:
        viewer = Viewer()
        own = source.open(viewer)
        first, _ = unpacked(await source.next(viewer, own))
        assert (len(first["columns"][0]), first["whole"]) == (30, False)
        viewer.order('{"row": 29}')
        message, _ = unpacked(await source.next(viewer, own))
        assert message["model"]["frameId"] == 129
        go_on.set()
        count, message = 30, first
        while not message["whole"]:
            message, _ = unpacked(await source.next(viewer, own))
            assert message["first"] == count
            count += len(message["columns"][0])
        assert (count, message["share"]) == (60, pytest.approx(1.0, abs=0.01))

    asyncio.run(watch())
    reading.close()


def test_a_log_that_cannot_be_read_on_is_shown_up_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Iterator[bytes]:
        yield from EVENTS[: len(EVENTS) // 2]
        raise LogError("expected room in /tmp, got No space left on device")

    monkeypatch.setattr(log_content, "read_log_bytes", full)
    found = LogIndex([write_log(tmp_path / "drive.rlog", EVENTS)])
    reading = IndexThread(found)
    reading.wait(lambda: found.is_whole, 20)
    assert (len(found), found.is_whole) == (30, True)
    assert "the log ends early here: expected room in /tmp" in found.notes[0]
    reading.close()
    # A file that is none is an error from the first.
    nothing = IndexThread(LogIndex([tmp_path / "none.rlog"]))
    with pytest.raises(LogError, match=r"none\.rlog: expected a readable log"):
        nothing.wait(lambda: False, 20)
    nothing.close()


def test_answers_that_begin_late_set_the_pace_from_there_on(index: Index) -> None:
    # A camera alone for 12 s, then a daemon.
    found = index(drive_log(range(240), answers=False) + drive_log(range(240, 250)))
    # The camera's frame 240 was a row before its answer came, which is another one.
    assert (len(found), found.has_answers) == (251, True)
    assert found.answer(239) is None
    at = found.row_of(240)
    assert at == 241
    answer = found.answer(at)
    assert answer is not None
    assert answer.frame_id == 240


def test_segments_of_a_route_are_opened_as_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = (GOP, GOP, GOP - 2, GOP)
    begin = 0
    for number, count in enumerate(counts):
        segment = plain(number, count=count, first=begin)
        write_segment(tmp_path / f"00000001--0123456789--{number}", segment)
        begin += count
    opened, closed = [], []

    def open_one(text: str) -> Drive:
        opened.append(text[-1])
        drive = open_drive(text, DriveOptions())
        close = drive.close

        def close_too() -> None:
            closed.append(text[-1])
            close()

        monkeypatch.setattr(drive, "close", close_too)
        return drive

    texts = expand_drives([str(tmp_path)], DriveOptions(split=True))
    with ExitStack() as stack:
        make, info = picture_maker(texts, open_one, 64, stack)
        assert (opened, set(info.formats)) == (["0"], {"road", "wideRoad"})
        pictures = make()
        assert make() is pictures
        for frame_id in (0, begin - 1, GOP, 2 * GOP - 1, 2 * GOP, 3 * GOP - 3, 3 * GOP - 2, 1):
            found = pictures.show("road", frame_id)
            assert (found.frame_id, found.why_not) == (frame_id, "")
            assert found.jpeg[:2] == b"\xff\xd8"
        # Each once, and the first one always.
        assert sorted(opened) == ["0", "1", "2", "3"]
        for frame_id in (-1, begin, 10**9):
            said = f"the drive has no picture of frame {frame_id}"
            assert pictures.show("road", frame_id).why_not == said
    assert sorted(set(closed)) == ["0", "1", "2", "3"]


def test_a_route_is_one_log_with_the_pictures_of_all_its_segments(tmp_path: Path) -> None:
    for number in range(2):
        write_segment(tmp_path / f"00000001--0123456789--{number}", plain(number, count=6))

    async def watch(source: Source) -> None:
        hello, _ = unpacked(source.hello())
        assert (hello["cameras"], hello["whyNoFrames"]) == (["road", "wideRoad"], "")
        viewer = Viewer()
        own = source.open(viewer)
        rows, _ = unpacked(await source.next(viewer, own))
        ids = rows["columns"][1]
        assert (ids[0], ids[-1]) == (0, 11)
        viewer.order(json.dumps({"row": len(ids) - 1}))
        message, jpeg = unpacked(await source.next(viewer, own))
        while message["decoding"]:
            message, jpeg = unpacked(await source.next(viewer, own))
        assert (message["picture"]["frameId"], jpeg[:2]) == (11, b"\xff\xd8")
        source.close(viewer, own)

    with ExitStack() as stack:
        session = log_session(str(tmp_path), OPTIONS, stack)
        asyncio.run(watch(session.source))


def test_no_more_segments_stay_open_than_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write_segment(tmp_path / f"00000001--0123456789--{number}", plain(number, count=4))
    (tmp_path / "00000001--0123456789--2" / "fcamera.hevc").write_bytes(b"no video")
    monkeypatch.setattr(drive_pictures, "OPEN_SEGMENTS", 2)
    opened: list[str] = []

    def open_one(text: str) -> Drive:
        opened.append(text[-1])
        return open_drive(text, DriveOptions())

    texts = expand_drives([str(tmp_path)], DriveOptions(split=True))
    with ExitStack() as stack:
        pictures = picture_maker([*texts, texts[1]], open_one, 64, stack)[0]()
        assert pictures.show("road", 5).frame_id == 5
        assert "fcamera.hevc" in pictures.show("road", 9).why_not
        assert opened == ["0", "1", "2"]


def test_health_in_a_log_is_that_of_before_with_times_since_some_seconds(index: Index) -> None:
    events = drive_log(range(20))
    facts = ServiceFacts("driving", device="a device", driver="a driver 1.0")
    state = LoopState(phase=Phase.RUNNING, model="spoken.pkl")
    transport = MemoryTransport()
    said = transport.subscriber(HEALTH)
    reporter = HealthReporter(facts, state, transport, ManualClock(2000 * MS), HEALTH)
    for at in (7, 14):
        state.stages.begin(0)
        state.stages.mark("model", at * MS)
        reporter.report(2000 * MS)
        data = said.receive()
        assert data is not None
        # Behind that answer.
        events.insert(7 * (at + 1) + (at > 7), data)
    reporter.close()
    found = index(events)
    assert found.health(6) is None
    first = found.health(10)
    assert first is not None
    assert (first[0]["model"], first[1]) == ("spoken.pkl", None)
    second = found.health(19)
    assert second is not None
    assert second[1] is not None
    # One run between the two messages, of 14 ms.
    stages = {one["name"]: one for one in describe_health(*second)["stages"]}
    assert sum(stages["model"]["counts"]) == 1
    assert 10.0 <= stages["model"]["median"] <= 15.0


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


def test_logs_of_a_route_share_one_file_for_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    make = tempfile.TemporaryFile

    def counted(**options: Any) -> Any:
        made.append(make(**options))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", counted)
    content = log_content.LogContent()
    expected: list[Any] = []
    # One in the middle that is not compressed is read where it lies.
    for name, events in (("a.zst", EVENTS[:20]), ("b", EVENTS[20:30]), ("c.zst", EVENTS[30:60])):
        with LogWriter(tmp_path / name) as writer:
            for data in events:
                writer.write(data)
        expected += content.messages(tmp_path / name, lambda _: None, lambda _: None)
    assert len(made) == 1
    assert [content.read(place) for place, _ in expected] == [data for _, data in expected]
    content.close()
    assert made[0].closed

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
from cereal.schema import new_event, read_event
from cereal.transport.base import MemoryTransport
from modeld.constants import X_IDXS
from modeld.health.reporter import HealthReporter
from modeld.health.snapshot import ServiceFacts
from modeld.state.loop_state import LoopState, Phase
from tests.cereal.shared import write_log
from tests.tools.drives.segments import write_route
from tests.tools.live.speaker import MS, drive_log, unpacked
from tests.tools.messages import damaged
from tools.drives.open_drive import DriveOptions
from tools.errors import DriveError
from tools.live import log_content, log_index
from tools.live.drive_pictures import (
    NoPictures,
)
from tools.live.fields import parse_fields
from tools.live.log_index import IndexThread, LogIndex
from tools.live.log_source import LogSource
from tools.live.messages import CameraTable, Json
from tools.live.newest import COLUMNS, HEALTH, describe_health
from tools.live.serve import ServeOptions, log_session
from tools.live.viewers import Source, Viewer

OPTIONS = ServeOptions(10.0, 960, DriveOptions(), None)
EVENTS = drive_log(range(100, 160))
JPEG = b"\xff\xd8"

Index = Callable[..., LogIndex]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Index a log of some events, which need not be whole."""
    with ExitStack() as stack:

        def make(events: list[bytes], name: str = "drive.rlog") -> LogIndex:
            (tmp_path / name).write_bytes(b"".join(events))
            found = LogIndex([tmp_path / name])
            stack.callback(found.close)
            found.fill(threading.Event())
            return found

        yield make


def frame_at(found: LogIndex, row: int) -> int | None:
    """Return the frame of the answer of a row."""
    answer = found.answer(row)
    return None if answer is None else answer.frame_id


def source_of(*indexes: LogIndex) -> LogSource:
    return LogSource("a log", indexes, CameraTable(), lambda: NoPictures("none"), {"cameras": []})


async def ask(source: Source, viewer: Viewer, own: Any, order: Json | None = None) -> Json:
    """Return the next message that waits for no picture, with its JPEG."""
    if order is not None:
        viewer.order(json.dumps(order))
    message, jpeg = unpacked(await source.next(viewer, own))
    while message.get("decoding"):
        message, jpeg = unpacked(await source.next(viewer, own))
    return {**message, "jpeg": jpeg}


def asked(source: Source, *orders: Json | None) -> list[Json]:
    """Return the first message to a viewer, and the one after each of its orders."""

    async def watch() -> list[Json]:
        viewer = Viewer()
        own = source.open(viewer)
        found = [await ask(source, viewer, own, order) for order in (None, *orders)]
        source.close(viewer, own)
        return found

    return asyncio.run(watch())


def test_a_log_is_entered_anywhere(index: Index) -> None:
    found = index(EVENTS)
    assert len(found) == 60
    assert found.has_answers
    assert found.row(20)[:3] == (1.0, 120.0, 1.0)
    answer = found.answer(20)
    assert answer is not None
    assert answer.rpy_rad == pytest.approx((0.0, 0.02, 0.01))
    assert found.around(20).sensor == "os04c10"
    assert [len(column) for column in found.columns(0, 99)] == [60] * len(COLUMNS)
    assert found.health(20) is None
    assert [frame_at(found, row) for row in (20, 59, 0, 30)] == [120, 159, 100, 130]


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
    assert (frame_at(found, 3), found.row(3)[1]) == (None, 3)


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


def test_a_log_answers_what_was_asked_for_last(index: Index) -> None:
    source = source_of(index(EVENTS))
    hello, _ = unpacked(source.hello())
    assert (hello["logs"], hello["warmUp"]) == (1, 100)
    rows, *messages = asked(source, *({"row": row} for row in (0, 25, 999, -4)))
    assert [len(column) for column in rows["columns"]] == [60] * len(COLUMNS)
    assert (rows["first"], rows["whole"], rows["share"]) == (0, True, 1.0)
    assert [one["model"]["frameId"] for one in messages] == [100, 125, 159, 100]
    assert {one["picture"]["whyNot"] for one in messages} == {"none"}


def test_a_second_log_answers_for_the_same_frame_whenever_it_was_made(index: Index) -> None:
    # Of frames 105 to 169, made 7 s later; it brakes.
    later = []
    for data in drive_log(range(105, 170)):
        event = read_event(data).as_builder()
        event.logMonoTime += 7_000 * MS
        if event.which() == "modelV2":
            event.modelV2.action.desiredAcceleration -= 2.0
        later.append(bytes(event.to_bytes()))
    path = "modelV2.action.desiredAcceleration"
    series = [{"log": log, "chunk": 0, "fields": [path, "no.such"]} for log in (0, 1)]
    source = source_of(index(EVENTS, "a"), index(later, "b"))
    orders = [None, {"row": 20}, {"row": 2}, *({"series": one} for one in series)]
    first, second, both, alone, *answers = asked(source, *orders)
    assert (first["log"], second["log"]) == (0, 1)
    assert both["model"]["frameId"] == both["other"]["model"]["frameId"] == 120
    # Of frame 102 the second log says nothing.
    assert (alone["model"]["frameId"], alone["other"]) == (102, None)
    for log, answer in enumerate(answers):
        assert (answer["log"], answer["whole"], list(answer["fields"])) == (log, True, [path])
        times, values = answer["fields"][path]
        # Each log has the times of its own.
        assert times[1] == pytest.approx(0.05)
        frame_id = 100 + 5 * log + 1
        assert values[1] == pytest.approx(math.cos(frame_id / 12) - 2.0 * log, abs=1e-6)


@pytest.mark.parametrize("ending", ["", ".bz2"])
def test_any_field_is_read_at_any_time_also_of_a_compressed_log(
    tmp_path: Path, ending: str
) -> None:
    found = LogIndex([write_log(tmp_path / f"drive.rlog{ending}", EVENTS)])
    found.fill(threading.Event())
    chosen = parse_fields(["carState.vEgo", "roadCameraState.sensor"])
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
    source = source_of(found)

    async def watch() -> None:
        viewer = Viewer()
        own = source.open(viewer)
        first = await ask(source, viewer, own)
        assert (len(first["columns"][0]), first["whole"]) == (30, False)
        assert (await ask(source, viewer, own, {"row": 29}))["model"]["frameId"] == 129
        go_on.set()
        count, message = 30, first
        while not message["whole"]:
            message = await ask(source, viewer, own)
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
    assert found.row_of(240) == 241
    assert (frame_at(found, 239), frame_at(found, 241)) == (None, 240)


def test_a_route_is_one_log_with_the_pictures_of_all_its_segments(tmp_path: Path) -> None:
    write_route(tmp_path, 6, 6)
    with ExitStack() as stack:
        source = log_session(str(tmp_path), OPTIONS, stack).source
        hello, _ = unpacked(source.hello())
        assert (hello["cameras"], hello["whyNoFrames"]) == (["road", "wideRoad"], "")
        rows, last = asked(source, {"row": 999})
    ids = rows["columns"][1]
    assert (ids[0], ids[-1]) == (0, 11)
    assert (last["picture"]["frameId"], last["jpeg"][:2]) == (11, JPEG)


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
        path = write_log(tmp_path / name, events)
        expected += content.messages(path, lambda _: None, lambda _: None)
    assert len(made) == 1
    assert [content.read(place) for place, _ in expected] == [data for _, data in expected]
    content.close()
    assert made[0].closed

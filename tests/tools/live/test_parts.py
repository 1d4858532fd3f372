"""Parts of the live view: rows, cameras, what is projected, logs, the decisions of the server."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import new_event, read_event
from modeld.calibration import VIEW_FROM_DEVICE, Camera, rot_from_euler
from tests.tools.conftest import MakeVideo
from tests.tools.live.speaker import ANSWERS, CAMERA, DEVICE, MS, drive_log, message, write_log
from tools.drives.open_drive import DriveOptions, open_drive
from tools.errors import DriveError, UsageError
from tools.live.bus_feed import LiveOptions, Seen
from tools.live.cameras import CameraTable
from tools.live.drive_pictures import NoPictures, SequentialPictures
from tools.live.health import describe_health
from tools.live.log_index import LogIndex
from tools.live.messages import Moment, Shown, pack
from tools.live.newest import COLUMNS, Newest, Surroundings
from tools.live.scene import describe_answer, project_answer
from tools.live.serve import ServeOptions, log_session
from tools.live.server import Address, _may_ask, _name_of, open_socket, url_of
from tools.live.viewers import LiveSource, LogSource, Viewer

TABLE = CameraTable()
AROUND = Surroundings((0.0, 0.02, 0.01), 1.2, "calibrated", device_type="mici", sensor="os04c10")


def heard(*frames: int, services: tuple[str, ...] = (*DEVICE, *ANSWERS)) -> Newest:
    """Return what is known after some frames."""
    newest = Newest()
    for frame_id in frames:
        for name in services:
            newest.take(read_event(message(name, frame_id, frame_id * 50 * MS)))
    return newest


def unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<I", data)
    return json.loads(data[4 : 4 + length]), data[4 + length :]


def damaged(data: bytes) -> bytes:
    """Return a message whose root is whole and whose content is not: a pointer leads nowhere."""
    for at in range(40, len(data), 8):
        found = data[:at] + b"\x01" + b"\xff" * 7 + data[at + 8 :]
        if Newest().take(read_event(found)) is None:
            return found
    raise AssertionError


# --- rows -------------------------------------------------------------------------------------


def test_a_row_has_what_was_said_last() -> None:
    newest = heard(7)
    row = dict(zip(COLUMNS, newest.row(1.25), strict=True))
    assert row["time"] == 1.25
    assert row["frameId"] == 7
    assert row["valid"] == 1
    assert row["missing"] == 0
    assert row["carSpeed"] == round(20.0 + math.sin(7 / 12), 2)
    assert row["seenSpeed"] == 20.0
    assert row["seenCurvature"] == round(0.02 * math.sin(7 / 12) / 20.0, 6)
    assert row["execution"] == round(20.0 + 5.0 * math.sin(7 / 12), 2)
    assert (row["laneLeft"], row["laneRight"]) == (-1.8, 1.7)
    assert row["blinkers"] == 1
    assert newest.surroundings.calibration == "calibrated"
    assert newest.surroundings.device_type == "mici"


def test_missing_frames_are_counted_and_a_new_count_is_none() -> None:
    newest, missing = Newest(), []
    for frame_id in (5, 6, 9, 8, 400_000):
        newest.take(read_event(message("modelV2", frame_id, 0)))
        missing.append(newest.row(0.0)[3])
    assert missing == [0, 0, 2, 0, 0]


def test_without_answers_a_row_has_the_car_and_the_camera() -> None:
    row = dict(zip(COLUMNS, heard(3, services=DEVICE).row(0.5), strict=True))
    assert row["frameId"] == 3
    assert row["carSpeed"] is not None
    assert row["valid"] is row["planSpeed"] is row["curvature"] is None


def test_damaged_messages_are_counted_and_left_out() -> None:
    newest = Newest()
    assert newest.take(read_event(damaged(message("modelV2", 1, 0)))) is None
    assert newest.damaged == 1
    assert newest.answer is None


# --- cameras and what is projected ------------------------------------------------------------


def test_a_camera_is_found_by_device_sensor_and_size() -> None:
    view, note = TABLE.view("road", (CAMERA.width, CAMERA.height), AROUND)
    assert view is not None
    assert (view.camera, view.rpy_rad, note) == (CAMERA, AROUND.rpy_rad, "")
    view, note = TABLE.view("road", (640, 480), AROUND)
    assert view is None
    assert "(--focal-px) for device mici with sensor os04c10 and frames of 640x480" in note
    given, _ = CameraTable(focal_px=700.0).view("road", (640, 480), AROUND)
    assert given is not None
    assert given.camera == Camera(640, 480, 700.0)
    unknown, note = TABLE.view("road", (640, 480), Surroundings((0.0, 0.0, 0.0), 1.2))
    assert unknown is None
    assert "deviceState" in note


def test_the_wide_camera_is_turned_by_what_calibration_says() -> None:
    wide = (0.01, -0.02, 0.03)
    around = Surroundings(AROUND.rpy_rad, 1.2, "", wide, "mici", "os04c10")
    view, _ = TABLE.view("wideRoad", (1344, 760), around)
    assert view is not None
    expected = rot_from_euler(wide) @ rot_from_euler(AROUND.rpy_rad)
    assert np.allclose(rot_from_euler(view.rpy_rad), expected, atol=1e-12)


def test_a_lane_line_lies_where_the_pinhole_puts_it() -> None:
    answer = heard(0).answer
    view, _ = TABLE.view("road", (CAMERA.width, CAMERA.height), AROUND)
    assert answer is not None
    assert view is not None
    found = project_answer(answer, view)
    # Frame 0 is straight: the line to the right is 1.8 m aside and 1.2 m below the camera.
    point = VIEW_FROM_DEVICE @ rot_from_euler(AROUND.rpy_rad) @ np.array([20.0, 1.8, 1.2])
    u, v, w = CAMERA.intrinsics @ point
    outline = np.array(found["lanes"][2]["points"]).reshape(-1, 2)
    row = int(np.abs(outline[:, 1] - v / w).argmin())
    # The strip is 0.16 m wide: 4.6 px at 20 m to either side, and 0.1 px are rounded.
    assert abs(outline[row, 0] - u / w) < 8.0
    assert found["lanes"][2]["probability"] == 0.9
    (lead,) = found["leads"]
    assert lead["x"] == 35.0
    left, top, right, bottom = lead["box"]
    assert 0 < right - left < 100
    assert 0 < bottom - top < 100


def test_what_is_not_finite_or_endless_is_not_drawn() -> None:
    event = new_event("modelV2", mono_time_ns=1, valid=True)
    model = event.modelV2
    model.position.x, model.position.y = [0.0, math.nan, 50.0], [0.0, 1.0, math.inf]
    model.init("laneLines", 20)
    model.leadsV3 = []
    newest = Newest()
    newest.take(read_event(bytes(event.to_bytes())))
    assert newest.answer is not None
    found = describe_answer(newest.answer)
    assert found["path"] == [0.0, 0.0]
    assert len(found["lanes"]) == 8
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_message_is_its_length_its_text_and_a_picture() -> None:
    moment = Moment(heard(4).answer, AROUND, Shown("road", 4, (1344, 760), b"jpeg"), None)
    found, jpeg = unpacked(pack(moment.message(TABLE), b"jpeg"))
    assert jpeg == b"jpeg"
    assert found["model"]["frameId"] == 4
    assert found["picture"]["width"] == 1344
    assert len(found["overlay"]["path"]) > 40
    assert found["hardware"] == "device mici, sensor os04c10"


# --- logs -------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "drive.rlog", drive_log(range(100, 160)))


def test_a_log_is_entered_anywhere(log: Path) -> None:
    index = LogIndex([log])
    assert len(index) == 60
    assert index.has_answers
    assert index.rows[20][:3] == (1.0, 120.0, 1.0)
    answer = index.answer(20)
    assert answer is not None
    assert answer.frame_id == 120
    assert answer.rpy_rad == pytest.approx((0.0, 0.02, 0.01))
    assert index.around(20).sensor == "os04c10"
    assert [len(column) for column in index.columns()] == [60] * len(COLUMNS)
    assert index.health(20) is None
    index.close()


def test_a_log_without_answers_goes_by_its_camera(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.rlog", drive_log(range(40), answers=False))
    index = LogIndex([path])
    assert (len(index), index.has_answers) == (40, False)
    assert index.answer(3) is None
    assert index.rows[3][1] == 3
    index.close()


def test_a_log_that_is_cut_off_is_shown_up_to_there(log: Path) -> None:
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2 + 20])
    index = LogIndex([log])
    assert 25 < len(index) < 35
    assert "ends inside a message" in index.notes[0]
    index.close()


def test_damage_inside_a_message_leaves_that_one_out(log: Path) -> None:
    events = drive_log(range(10))
    at = [i for i, _ in enumerate(events) if i % 7 == 6][4]
    events[at] = damaged(events[at])
    index = LogIndex([write_log(log, events)])
    assert len(index) == 9
    assert len(index.notes) == 1
    index.close()


def test_a_log_with_nothing_to_show_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.rlog"
    options = ServeOptions(10.0, 960, DriveOptions(), None)
    from contextlib import ExitStack

    write_log(path, [bytes(new_event("liveDelay", mono_time_ns=1).to_bytes())])
    with ExitStack() as stack, pytest.raises(DriveError, match="found liveDelay; name the log of"):
        log_session(str(path), options, stack)


def test_a_segment_brings_its_own_log_and_frames(tmp_path: Path) -> None:
    from contextlib import ExitStack

    path = write_log(tmp_path / "rlog", drive_log(range(5)))
    (tmp_path / "fcamera.hevc").write_bytes(b"no video")
    with ExitStack() as stack:
        session = log_session(str(path), ServeOptions(10.0, 960, DriveOptions(), None), stack)
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


# --- who watches ------------------------------------------------------------------------------


def live_source() -> LiveSource:
    return LiveSource(LiveOptions("ipc:///bus", TABLE, 10.0, 960))


def seen(number: int) -> Seen:
    rows = [(float(number),) * len(COLUMNS)]
    return Seen(number, rows, {"road": ({"kind": "moment", "number": number}, b"")})


def test_each_viewer_gets_the_newest_and_all_rows() -> None:
    async def watch() -> None:
        source, fast, slow = live_source(), Viewer(), Viewer()
        source.open(fast)
        source.open(slow)
        for number in range(1, 6):
            source.deliver(seen(number))
            message, _ = unpacked(await source.next(fast, None))
            assert message["number"] == number
            fast.order(json.dumps({"got": number}))
            assert [row[0] for row in message["rows"]] == [number]
            if number == 1:
                await source.next(slow, None)
        message, _ = unpacked(await source.next(slow, None))
        assert (message["number"], message["skipped"]) == (5, 3)
        assert [row[0] for row in message["rows"]] == [2, 3, 4, 5]

    asyncio.run(watch())


def test_rows_are_bounded_and_those_who_pause_are_not_served() -> None:
    async def watch() -> None:
        source, viewer = live_source(), Viewer()
        source.open(viewer)
        viewer.order('{"paused": true}')
        assert source.wanted() == set()
        for number in range(1, 3000):
            source.deliver(seen(number))
        waiting = asyncio.ensure_future(source.next(viewer, None))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        viewer.order('{"paused": false, "camera": "road"}')
        message, _ = unpacked(await waiting)
        assert len(message["rows"]) == 1200

    asyncio.run(watch())


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", '{"camera": "../driver"}', '{"rate": -1}', '{"row": "x"}', "1e9"]
)
def test_orders_that_mean_nothing_are_passed_over(text: str) -> None:
    viewer = Viewer()
    viewer.order(text)
    assert (viewer.camera, viewer.rate_hz, viewer.wanted) == ("road", 60.0, 0)


def test_a_log_answers_what_was_asked_for_last(log: Path) -> None:
    async def watch() -> None:
        index = LogIndex([log])
        source = LogSource("a log", index, TABLE, lambda: NoPictures("none"), {"cameras": []})
        hello, _ = unpacked(source.hello())
        assert [len(column) for column in hello["log"]] == [60] * len(COLUMNS)
        viewer = Viewer()
        own = source.open(viewer)
        for row, frame_id in ((0, 100), (25, 125), (999, 159), (-4, 100)):
            viewer.order(json.dumps({"row": row}))
            message, _ = unpacked(await source.next(viewer, own))
            assert message["model"]["frameId"] == frame_id
            assert message["picture"]["whyNot"] == "none"
        source.close(viewer, own)
        index.close()

    asyncio.run(watch())


def test_health_is_what_the_page_shows() -> None:
    stage = {"name": "model", "counts": [0, 4, 0], "sum": 6.0}
    health = {
        "kind": "driving", "phase": "running", "uptime": 9.0, "processId": 7, "model": "/a/b.pkl",
        "modelSha256": "0123456789abcdef", "checkpoints": [{"role": "vision", "name": "x/1"}],
        "isFallback": False, "fallbackReason": "", "device": "cpu", "driver": "pocl",
        "selfTest": {"result": "passed", "duration": 1.0, "detail": ""}, "frames": 40,
        "published": 40, "publishedValid": 39, "dropped": 1, "recentPublished": 200,
        "recentTime": 10.0, "publicationAge": 0.04, "frameWait": 0.0, "invalidReasons": ["why"],
        "faults": [{"name": "noFrame", "count": 0, "recent": 0},
                   {"name": "framesDropped", "count": 2, "recent": 1}],
        "memory": 1 << 20, "stageBounds": [1.0, 2.0], "stages": [stage], "startProblems": [],
    }  # fmt: skip
    found = describe_health(health, None)
    assert found["problems"] == [
        "not valid: why",
        "faults in the last 10 s: framesDropped 1",
    ]
    assert found["model"] == "b.pkl"
    assert found["rate"] == 20.0
    assert found["faults"] == [{"name": "framesDropped", "count": 2, "recent": 1}]
    assert found["stages"][0]["median"] == 1.5


# --- who may ask ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "local", "exposed"),
    [
        ("127.0.0.1:8417", True, True),
        ("localhost:9000", True, True),
        ("[::1]:8417", True, True),
        ("192.168.1.5:8417", False, True),
        ("rebound.example:8417", False, False),
        ("localhost.example", False, False),
        ("", False, False),
        ("[::1", False, False),
    ],
)
def test_only_names_of_this_machine_are_answered(host: str, local: bool, exposed: bool) -> None:
    assert _may_ask(_name_of(host), Address("127.0.0.1", 0)) is local
    assert _may_ask(_name_of(host), Address("0.0.0.0", 0, is_exposed=True)) is exposed  # noqa: S104 - compared with


def test_other_addresses_are_refused_unless_they_are_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(UsageError, match="add --expose if all of them may watch"):
        open_socket(Address("0.0.0.0", 0))  # noqa: S104 - refused
    with pytest.raises(UsageError, match="expected an address of this machine"):
        open_socket(Address("no host has this name", 0))
    with open_socket(Address("0.0.0.0", 0, is_exposed=True)):  # noqa: S104 - what is tested
        pass
    assert "no password" in caplog.text
    assert url_of("::1", 80) == "http://[::1]:80/"


def test_a_taken_port_is_said_with_what_to_do() -> None:
    with open_socket(Address("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(UsageError, match=f"look at http://127.0.0.1:{port}/, or choose"):
            open_socket(Address("127.0.0.1", port))

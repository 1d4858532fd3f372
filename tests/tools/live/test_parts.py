"""Parts of the live view: rows, cameras, what is projected, who watches at whose pace."""

import asyncio
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from cereal.schema import new_event, read_event
from modeld.constants import X_IDXS
from modeld.vehicle.cameras import VIEW_FROM_DEVICE, Camera, DeviceCameras, rot_from_euler
from tests.tools.live.speaker import ANSWERS, CAMERA, DEVICE, MS, message, unpacked
from tests.tools.messages import damaged
from tools.errors import UsageError
from tools.live.bus_feed import Delivery, LiveOptions
from tools.live.messages import CameraTable, Moment, Shown, describe_answer, pack, project_answer
from tools.live.newest import COLUMNS, Newest, Row, Surroundings, describe_health
from tools.live.server import Address, _is_allowed, _name_of, _page_files, open_socket, url_of
from tools.live.viewers import LiveSource, Viewer

TABLE = CameraTable()
SIZE = (CAMERA.width, CAMERA.height)
AROUND = Surroundings((0.0, 0.02, 0.01), 1.2, "calibrated", device_type="mici", sensor="os04c10")


def heard(frame_id: int, services: tuple[str, ...] = (*DEVICE, *ANSWERS)) -> Newest:
    """Return what is known after a frame."""
    newest = Newest()
    for name in services:
        newest.take(read_event(message(name, frame_id, frame_id * 50 * MS)))
    return newest


def test_a_row_has_what_was_said_last() -> None:
    newest = heard(7)
    row = dict(zip(COLUMNS, newest.row(1.25), strict=True))
    swing = math.sin(7 / 12)
    expected = {
        "time": 1.25, "frameId": 7, "valid": 1, "missing": 0, "carSpeed": round(20.0 + swing, 2),
        "seenSpeed": 20.0, "seenCurvature": round(0.02 * swing / 20.0, 6), "blinkers": 1,
        "execution": round(20.0 + 5.0 * swing, 2), "laneLeft": -1.8, "laneRight": 1.7,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert newest.surroundings.calibration == "calibrated"
    assert newest.surroundings.device_type == "mici"
    # Without answers it has the car and the camera.
    row = dict(zip(COLUMNS, heard(3, DEVICE).row(0.5), strict=True))
    assert row["frameId"] == 3
    assert row["carSpeed"] is not None
    assert row["valid"] is row["planSpeed"] is row["curvature"] is None


def test_missing_frames_and_damaged_messages_are_counted() -> None:
    newest, missing = Newest(), []
    assert newest.take(read_event(damaged(message("modelV2", 1, 0), len(X_IDXS)))) is None
    assert (newest.damaged, newest.answer) == (1, None)
    for frame_id in (5, 6, 9, 8, 400_000):  # a new count is no gap
        newest.take(read_event(message("modelV2", frame_id, 0)))
        missing.append(newest.row(0.0)[3])
    assert missing == [0, 0, 2, 0, 0]


def test_a_camera_is_found_by_device_sensor_and_size() -> None:
    view, note = TABLE.view("road", SIZE, AROUND)
    assert view is not None
    assert (view.camera, view.rpy_rad, note) == (CAMERA, AROUND.rpy_rad, "")
    view, note = TABLE.view("road", (640, 480), AROUND)
    assert view is None
    assert "(--focal-px) for device mici with sensor os04c10 and frames of 640x480" in note
    given, _ = CameraTable(focal_px=700.0).view("road", (640, 480), AROUND)
    assert given is not None
    assert given.camera == Camera(640, 480, 700.0)
    # A focal length in another camera's place leaves its pixels as wide as they are.
    wide_pixels = DeviceCameras(Camera(640, 480, 500.0, 1000.0), None)
    given, _ = CameraTable(wide_pixels, focal_px=700.0).view("road", (640, 480), AROUND)
    assert given is not None
    assert given.camera == Camera(640, 480, 700.0, 1400.0)
    unknown, note = TABLE.view("road", (640, 480), Surroundings((0.0, 0.0, 0.0), 1.2))
    assert unknown is None
    assert "deviceState" in note
    # The wide camera is turned by what calibration says.
    wide = (0.01, -0.02, 0.03)
    around = Surroundings(AROUND.rpy_rad, 1.2, "", wide, "mici", "os04c10")
    view, _ = TABLE.view("wideRoad", (1344, 760), around)
    assert view is not None
    expected = rot_from_euler(wide) @ rot_from_euler(AROUND.rpy_rad)
    assert np.allclose(rot_from_euler(view.rpy_rad), expected, atol=1e-12)


def test_a_lane_line_lies_where_the_pinhole_puts_it() -> None:
    answer = heard(0).answer
    view, _ = TABLE.view("road", SIZE, AROUND)
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
    assert (found["path"], len(found["lanes"])) == ([0.0, 0.0], 8)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_message_is_text_with_health_and_a_picture() -> None:
    moment = Moment(heard(4).answer, AROUND, Shown("road", 4, (1344, 760), b"jpeg"), None)
    found, jpeg = unpacked(pack(moment.message(TABLE), b"jpeg"))
    assert (jpeg, found["model"]["frameId"], found["picture"]["width"]) == (b"jpeg", 4, 1344)
    assert len(found["overlay"]["path"]) > 40
    assert found["hardware"] == "device mici, sensor os04c10"
    stage = {"name": "model", "counts": [0, 4, 0], "sum": 6.0}
    fault = {"name": "framesDropped", "count": 2, "recent": 1}
    health = {
        "kind": "driving", "phase": "running", "uptime": 9.0, "processId": 7, "model": "/a/b.pkl",
        "modelSha256": "0123456789abcdef", "checkpoints": [{"role": "vision", "name": "x/1"}],
        "isFallback": False, "fallbackReason": "", "device": "cpu", "driver": "pocl",
        "selfTest": {"result": "passed", "duration": 1.0, "detail": ""}, "frames": 40,
        "published": 40, "publishedValid": 39, "dropped": 1, "recentPublished": 200,
        "recentTime": 10.0, "publicationAge": 0.04, "frameWait": 0.0, "invalidReasons": ["why"],
        "faults": [{"name": "noFrame", "count": 0, "recent": 0}, fault],
        "memory": 1 << 20, "stageBounds": [1.0, 2.0], "stages": [stage], "startProblems": [],
    }  # fmt: skip
    found = describe_health(health, None)
    problems = ["not valid: why", "faults in the last 10 s: framesDropped 1"]
    assert (found["problems"], found["faults"]) == (problems, [fault])
    assert (found["model"], found["rate"]) == ("b.pkl", 20.0)
    assert found["stages"][0]["median"] == 1.5


def live_source(*viewers: Viewer) -> LiveSource:
    source = LiveSource(LiveOptions("ipc:///bus", TABLE, 10.0, 960))
    for viewer in viewers:
        source.open(viewer)
    return source


def seen(number: int) -> Delivery:
    rows: list[Row] = [(float(number),) * len(COLUMNS)]
    return Delivery(number, rows, {"road": ({"kind": "moment", "number": number}, b"")})


def test_each_viewer_gets_the_newest_and_all_rows() -> None:
    async def watch() -> None:
        fast, slow = Viewer(), Viewer()
        source = live_source(fast, slow)
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
        viewer = Viewer()
        source = live_source(viewer)
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
    assert _is_allowed(_name_of(host), Address("127.0.0.1", 0)) is local
    assert _is_allowed(_name_of(host), Address("0.0.0.0", 0, is_exposed=True)) is exposed  # noqa: S104 - compared with


def test_addresses_of_other_machines_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match="expected an address of this machine"):
        open_socket(Address("no host has this name", 0))
    with open_socket(Address("0.0.0.0", 0, is_exposed=True)):  # noqa: S104 - what is tested
        pass
    assert "no password" in caplog.text
    assert url_of("::1", 80) == "http://[::1]:80/"


# A key of the page: its name, and what it does.
KEY = re.compile(r"^    '?(?:Shift\+)?([^'\s:]+|\s)'?: (?:inLog|\(\))", re.MULTILINE)
DESCRIBED = re.compile(r"^\| (Space|Left, Right|Shift|Home, End|\+ and -|[gco?]) ", re.MULTILINE)


def test_the_page_is_whole_small_and_described_and_names_nothing_from_elsewhere() -> None:
    files = {name: body.decode() for name, (_, body) in _page_files().items()}
    named = re.findall(r'(?:href|src)="([^"]+)"', files["index.html"])
    named += re.findall(r"from '([^']+)'", "".join(files.values()))
    assert len(named) > 10
    assert [name for name in named if name.rpartition("/")[2] not in files] == []
    assert all(text.count("\n") < 400 for text in files.values())
    # A namespace is a name, not an address that is fetched.
    text = "".join(files.values()).replace("http://www.w3.org/2000/svg", "").replace("'https:'", "")
    assert "http:" not in text
    assert "https:" not in text
    # Every key that it knows is described, by itself and in the documents.
    described = set(re.findall(r"<kbd>([^<]+)</kbd>", files["index.html"]))
    spoken = {"&larr;": "ArrowLeft", "&rarr;": "ArrowRight", "&minus;": "-", "Space": " "}
    known = set(KEY.findall(files["keys.js"]))
    assert known == {spoken.get(one, one) for one in described - {"Shift"}}
    page = (Path(__file__).parents[3] / "docs/view.md").read_text(encoding="utf-8")
    assert len(DESCRIBED.findall(page)) == 9

"""Parts of the live view: rows, cameras, what is projected, logs, the decisions of the server."""

from __future__ import annotations

import json
import math

import numpy as np

from cereal.schema import new_event, read_event
from modeld.calibration import Camera
from modeld.view_geometry import VIEW_FROM_DEVICE, rot_from_euler
from tests.tools.live.speaker import (
    ANSWERS,
    CAMERA,
    DEVICE,
    MS,
    damaged,
    message,
    unpacked,
)
from tools.live.cameras import CameraTable
from tools.live.health import describe_health
from tools.live.messages import Moment, Shown, pack
from tools.live.newest import COLUMNS, Newest, Surroundings
from tools.live.scene import describe_answer, project_answer

TABLE = CameraTable()
AROUND = Surroundings((0.0, 0.02, 0.01), 1.2, "calibrated", device_type="mici", sensor="os04c10")


def heard(*frames: int, services: tuple[str, ...] = (*DEVICE, *ANSWERS)) -> Newest:
    """Return what is known after some frames."""
    newest = Newest()
    for frame_id in frames:
        for name in services:
            newest.take(read_event(message(name, frame_id, frame_id * 50 * MS)))
    return newest


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

"""`modeld export --mcap`: read back by the format's own reader, checked against its schemas."""

import base64
import errno
import io
import json
import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import jsonschema
import numpy as np
import pytest
from mcap.reader import make_reader

from cereal.log_reader import read_log
from cereal.schema import log as log_schema
from cereal.schema import new_event
from modeld.vehicle.cameras import Camera
from tests.cereal.shared import write_log
from tests.tools.compare.made_logs import drive as made_drive
from tests.tools.conftest import Modeld
from tests.tools.lib.filled import MEMBERS, filled
from tests.tools.lib.test_dump import _model, _newer_than_the_schema
from tests.tools.messages import damaged, event_of
from tests.tools.playback.synthetic_drive import SyntheticDrive
from tools.lib.json_output import json_text
from tools.messages.camera import project
from tools.messages.message_values import message_to_plain
from tools.views import foxglove
from tools.views.answer import Answer, AnswerReader
from tools.views.export_mcap import (
    VIEW_SCHEMAS,
    McapOptions,
    export_mcap,
    mcap_file,
    message_schema,
)

START_NS = 7_000_000_000
SCALARS: dict[str, Any] = {"boolean": bool, "string": str, "integer": int, "number": (int, float)}


def events() -> list[bytes]:
    """One message of each kind of content, structures in between."""
    found = [*map(_model, range(3)), event_of("carState", START_NS, vEgo=12.5)]
    can = new_event("can", mono_time_ns=START_NS + 1, valid=True, size=2)
    for index, frame in enumerate(can.can):
        frame.address, frame.dat, frame.src = 0x100 + index, bytes([index, 255]), index
    found.append(can.to_bytes())
    text = new_event("logMessage", mono_time_ns=START_NS + 2, valid=True)
    text.logMessage = '{"msg": "ä"}'
    found.append(text.to_bytes())
    raw = new_event("ubloxRaw", mono_time_ns=START_NS + 3, valid=False, size=3)
    raw.ubloxRaw = b"\x00\x01\xff"
    found.append(raw.to_bytes())
    return found


Exported = list[tuple[str, str, Any, int, dict[str, Any]]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.mcap"


def read_back(path: Path) -> Exported:
    """Return topic, name of the schema, schema, time and content of each message, as written."""
    with path.open("rb") as file:
        return [
            (channel.topic, schema.name, json.loads(schema.data), message.log_time, content)
            for schema, channel, message in make_reader(file).iter_messages(log_time_order=False)
            for content in [json.loads(message.data)]
            if schema is not None
        ]


def check(schema: dict[str, Any], value: Any) -> None:
    """Check a value as readers of JSON Schema would, by an old draft and the newest."""
    for draft in (jsonschema.Draft7Validator, jsonschema.Draft202012Validator):
        draft(schema).validate(value)


def whole(value: Any) -> Any:
    """Return a message with null in its place for what JSON has no number for."""
    if isinstance(value, list):
        return [whole(one) for one in value]
    if not isinstance(value, dict):
        return None if value in ("nan", "inf", "-inf") else value
    return {
        name: whole(one)
        for name, one in {**value, **value.get("__notFinite", {})}.items()
        if name != "__notFinite"
    }


def refusals(schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """Yield what a viewer would refuse all of a channel for: see ADR 0062."""
    kind = schema.get("type")
    if kind == "object":
        if "properties" not in schema:
            yield f"{where}: no properties"
        for name, inner in schema.get("properties", {}).items():
            yield from refusals(inner, f"{where}.{name}")
    elif kind == "array":
        if schema["items"].get("type") == "array":
            yield f"{where}: a list of lists"
        if "contentEncoding" in schema["items"]:
            yield f"{where}: base64 in a list"
        yield from refusals(schema["items"], f"{where}[]")
    elif kind not in SCALARS:
        yield f"{where}: {kind}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "drive.rlog", events())


def test_every_message_says_what_the_log_says(log: Path, out: Path) -> None:
    found = export_mcap(log, out, McapOptions(with_views=False))
    messages = read_back(out)
    wanted = list(read_log(log))
    assert len(messages) == len(wanted) == sum(found.topics.values()) == 7
    for (topic, name, schema, time_ns, content), event in zip(messages, wanted, strict=True):
        member = str(event.which())
        assert (topic, name, time_ns) == (f"/{member}", f"cereal.{member}", event.logMonoTime)
        check(schema, content)
        assert content.pop("__valid") == event.valid
        plain = json.loads(json_text(message_to_plain(event, "base64")))
        assert whole(content) == (plain if isinstance(plain, dict) else {"value": plain})
    by_topic = {topic: content for topic, _, _, _, content in messages}
    assert by_topic["/can"]["value"][1]["dat"] == base64.b64encode(b"\x01\xff").decode()
    assert by_topic["/logMessage"]["value"] == '{"msg": "ä"}'
    # NaN: JSON has none, and the schema says that numbers are numbers.
    assert by_topic["/modelV2"]["position"]["__notFinite"] == {"x": [2.0, 0.5, "nan"]}
    assert "x" not in by_topic["/modelV2"]["position"]
    assert by_topic["/modelV2"]["confidence"] == "green"
    assert by_topic["/carState"]["vEgo"] == 12.5


def test_the_file_has_an_index_compressed_chunks_and_facts(log: Path, out: Path) -> None:
    export_mcap(log, out, McapOptions())
    with out.open("rb") as file:
        reader = make_reader(file)
        summary = reader.get_summary()
        facts = [record.metadata for record in reader.iter_metadata()]
    assert summary is not None
    assert summary.statistics is not None
    assert {chunk.compression for chunk in summary.chunk_indexes} == {"zstd"}
    assert facts[0]["damaged messages left out"] == "0"
    channels = {channel.topic: channel for channel in summary.channels.values()}
    assert channels["/carState"].metadata["nominal rate"] == "100 Hz"
    assert channels["/logMessage"].metadata["nominal rate"] == "on demand"
    # A viewer without this fails on all of the file: every channel has a schema.
    assert all(channel.schema_id in summary.schemas for channel in channels.values())
    assert {channel.message_encoding for channel in channels.values()} == {"json"}
    assert {schema.encoding for schema in summary.schemas.values()} == {"jsonschema"}


def test_schemas_are_of_the_kind_that_viewers_read() -> None:
    for member in sorted(set(log_schema.Event.schema.union_fields)):
        schema = message_schema(member)
        assert (schema["type"], list(refusals(schema, member))) == ("object", [])
        jsonschema.Draft7Validator.check_schema(schema)
    assert not {f"/{member}" for member in MEMBERS} & set(VIEW_SCHEMAS)
    for name, schema in foxglove.SCHEMAS.items():
        assert list(refusals(schema, name)) == []


def test_every_message_of_every_service_is_valid_by_its_schema(tmp_path: Path, out: Path) -> None:
    """With numbers that are none, empty lists, each member of each union, 64 bits, bytes."""
    numbers = (math.nan, 0.5, math.inf, -math.inf)
    messages = [
        data
        for member in MEMBERS
        for is_short in (False, True)
        for data, _ in filled(member, numbers, is_short=is_short)
    ]
    log = write_log(tmp_path / "log", messages)
    found = export_mcap(log, out, McapOptions(with_views=False))
    assert (sum(found.topics.values()), len(found.topics)) == (len(messages), len(MEMBERS))
    for (_, _, schema, _, content), event in zip(read_back(out), read_log(log), strict=True):
        check(schema, content)
        plain = json.loads(json_text(message_to_plain(event, "base64")))
        expected = plain if isinstance(plain, dict) else {"value": plain}
        assert whole(content) == {"__valid": True, **expected}


def test_chosen_services_only(log: Path, out: Path, modeld: Modeld) -> None:
    words = ["export", log, "--mcap", out, "--no-views", "--json"]
    said = modeld(0, *words, "--service", "carState", "--service", "can").json["mcap"]
    channels = {"/can": 1, "/carState": 1}
    counts = {"channels": channels, "messages": 2, "damaged": 0, "newer": 0}
    assert said == {"file": str(out), **counts}


def test_enumerants_newer_than_the_schema_are_numbers(tmp_path: Path, out: Path) -> None:
    log = write_log(tmp_path / "log", [event_of("modelV2", 1, confidence=77)])
    export_mcap(log, out, McapOptions())
    ((_, _, schema, _, content),) = (one for one in read_back(out) if one[0] == "/modelV2")
    check(schema, content)
    assert content["confidence"] == "#77"


def test_newer_and_damaged_messages_are_left_out_and_counted(
    log: Path, out: Path, modeld: Modeld
) -> None:
    content = [_model(0), damaged(_model(1), 3), _newer_than_the_schema(_model(2)), _model(3)]
    log.write_bytes(b"".join(content))
    said = modeld(0, "export", log, "--mcap", out, "--json")
    figures = said.json["mcap"]
    assert (figures["damaged"], figures["newer"], figures["channels"]["/modelV2"]) == (1, 1, 2)
    assert "left out 1 message whose content is damaged" in said.err
    assert "left out 1 message newer than this schema" in said.err
    # A log that is cut off is exported up to there.
    log.write_bytes(b"".join(events())[:-9])
    assert "ends inside a message" in modeld(0, "export", log, "--mcap", out, "--no-views").err
    assert len(read_back(out)) == 6


def test_nothing_is_left_of_an_export_that_fails(out: Path) -> None:
    with pytest.raises(OSError, match="No space"), mcap_file(out):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(out.parent.iterdir()) == []


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path: Path, out: Path) -> None:
    def peak_bytes(frames: int) -> int:
        log = write_log(tmp_path / f"{frames}.rlog", made_drive(range(frames)))
        tracemalloc.start()
        export_mcap(log, out, McapOptions())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(10)  # what is made once
    # 1 MB of JSON and 5 MB; a chunk is 1 MiB.
    assert peak_bytes(300) < peak_bytes(60) + (3 << 20)


def answer_that_bends() -> Answer:
    """Return an answer whose curves are easy to follow: the plan bends to the right."""
    event = new_event("modelV2", mono_time_ns=START_NS + 5, valid=True)
    model = event.modelV2
    model.frameId = 41
    model.position.x, model.position.y, model.position.z = [0.0, 10.0], [0.0, 2.0], [0.0, 0.5]
    (line,) = model.init("laneLines", 1)
    line.x, line.y, line.z = [5.0, 50.0], [-1.75, -1.5], [1.0, 1.25]
    model.laneLineProbs = [0.75]
    (lead,) = model.init("leadsV3", 1)
    lead.x, lead.y, lead.v, lead.prob = [30.0], [1.5], [20.0], 0.9
    answer = AnswerReader(height_m=1.25).take("modelV2", event)
    assert answer is not None
    return answer


def test_a_scene_has_y_to_the_left_and_z_up() -> None:
    message = foxglove.scene(answer_that_bends())
    check(foxglove.SCHEMAS["foxglove.SceneUpdate"], message)
    (entity,) = message["entities"]
    assert (entity["frame_id"], entity["timestamp"]) == ("calib", {"sec": 7, "nsec": 5})
    plan, line = entity["lines"]
    # The plan lies on the road, 1.25 m below the camera where it starts.
    assert plan["points"] == [{"x": 0.0, "y": 0.0, "z": -1.25}, {"x": 10.0, "y": -2.0, "z": -1.75}]
    assert line["points"] == [{"x": 5.0, "y": 1.75, "z": -1.0}, {"x": 50.0, "y": 1.5, "z": -1.25}]
    assert line["color"]["a"] == 0.75
    (cube,) = entity["cubes"]
    # Its back is 30 m ahead, its wheels on the road.
    assert cube["pose"]["position"] == {"x": 32.25, "y": -1.5, "z": -0.5}
    # Scaled pictures have scaled intrinsics.
    message = foxglove.camera_calibration(Camera(1928, 1208, 2648.0), (960, 602), START_NS)
    assert message["K"][0] == pytest.approx(2648.0 * 960 / 1928)
    assert (message["K"][2], message["K"][5]) == (pytest.approx(480.0), pytest.approx(301.0))
    assert message["P"][:3] == message["K"][:3]


@pytest.mark.parametrize("rpy", [(0.0, 0.0, 0.0), (0.02, -0.1, 0.05), (-0.5, 0.3, 2.5)])
def test_transforms_put_points_where_the_overlay_draws_them(rpy: tuple[float, ...]) -> None:
    reader = AnswerReader(rpy_rad=rpy, height_m=1.25)  # type: ignore[arg-type]
    event = new_event("modelV2", mono_time_ns=START_NS, valid=True)
    answer = reader.take("modelV2", event)
    assert answer is not None
    road, camera_at = foxglove.transforms(answer)
    for message in (road, camera_at):
        check(foxglove.SCHEMAS["foxglove.FrameTransform"], message)
    assert road["translation"] == {"x": 0.0, "y": 0.0, "z": 1.25}
    x, y, z, w = (camera_at["rotation"][name] for name in "xyzw")
    assert math.isclose(x * x + y * y + z * z + w * w, 1.0)
    # Rodrigues: I + 2 w [v] + 2 [v] [v], of the matrix of the cross product with v.
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    rotation = np.eye(3) + 2 * w * cross + 2 * cross @ cross
    camera = Camera(960, 540, 800.0)
    message = foxglove.camera_calibration(camera, (960, 540), START_NS)
    check(foxglove.SCHEMAS["foxglove.CameraCalibration"], message)
    intrinsics = np.array(message["K"]).reshape(3, 3)
    points = np.random.default_rng(1).uniform(-30, 30, (50, 3))
    # From y left and z up in the calibrated frame to the camera, and into the picture.
    seen = (points * [1, -1, -1]) @ rotation @ intrinsics.T
    expected = project(points, camera, rpy)  # type: ignore[arg-type]
    before = np.isfinite(expected).all(axis=1)
    assert before.any()
    np.testing.assert_allclose(seen[before, :2] / seen[before, 2:], expected[before], rtol=1e-9)


def test_calibration_is_the_newest_one_before_the_message(tmp_path: Path, out: Path) -> None:
    messages = []
    for at in range(3):
        calibrated = {"rpyCalib": [0.0, 0.125 * at, 0.0], "height": [1.0 + at]}
        messages.append(event_of("liveCalibration", START_NS + 2 * at, **calibrated))
        messages.append(event_of("modelV2", START_NS + 2 * at + 1))
    found = export_mcap(write_log(tmp_path / "drive.rlog", messages), out, McapOptions())
    assert found.topics == {"/liveCalibration": 3, "/modelV2": 3, "/tf": 6, "/view/model": 3}
    transforms = [row[4] for row in read_back(out) if row[0] == "/tf"]
    heights = [one["translation"]["z"] for one in transforms if one["parent_frame_id"] == "road"]
    assert heights == [1.0, 2.0, 3.0]
    turned = [one["rotation"] for one in transforms if one["parent_frame_id"] == "calib"]
    assert len({json.dumps(one) for one in turned}) == 3


def test_pictures_come_with_their_frames(tmp_path: Path, out: Path) -> None:
    drive = SyntheticDrive(count=12)
    log = write_log(tmp_path / "drive.rlog", made_drive(range(2, 12)))
    options = McapOptions(drive=drive, picture_rate_hz=10.0, members=("modelV2",))
    found = export_mcap(log, out, options)
    # 20 frames a second, every other one.
    assert found.topics["/view/camera"] == found.topics["/view/camera_calibration"] == 5
    pictures = [row for row in read_back(out) if row[0] == "/view/camera"]
    for (_, _, schema, _, content), frame_id in zip(pictures, range(2, 12, 2), strict=True):
        check(schema, content)
        assert content["format"] == "jpeg"
        jpeg = base64.b64decode(content["data"])
        with av.open(io.BytesIO(jpeg), "r") as container:
            picture = next(container.decode(video=0)).to_ndarray(format="gray")
        assert picture.shape == (128, 192)
        # Limited to full range: (Y - 16) 255 / 219.
        expected = (40 + 3 * frame_id - 16) * 255 / 219
        assert abs(picture.mean() - expected) < 4
    assert drive.opened == [1, 1]

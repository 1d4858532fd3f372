"""``modeld inspect`` on logs: the table, and messages as JSON lines, CSV and npz."""

import csv
import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from cereal.log_writer import LogWriter
from cereal.schema import log as log_schema
from cereal.schema import new_event
from tests.cereal.shared import write_log
from tests.support.selection import quick_cases
from tests.tools.conftest import Modeld
from tests.tools.messages import damaged, event_of
from tools.describe.log import Request, dump

FRAMES = 5
START_NS = 2_000_000_000


def _model(index: int) -> bytes:
    event = new_event("modelV2", mono_time_ns=START_NS + 50_000_000 * index, valid=index > 0)
    message = event.modelV2
    message.frameId = 100 + index
    message.position.x = [float(index), 0.5, math.nan if index == 2 else 1.0]
    message.laneLineProbs = [0.25] * index
    message.confidence = ("red", "yellow", "green")[index % 3]
    message.rawPredictions = bytes(index)
    for line in message.init("laneLines", 2):
        line.y = [2.0, 3.0 + index]
    return bytes(event.to_bytes())


def _car(index: int) -> bytes:
    return event_of("carState", START_NS + 50_000_000 * index + 1, vEgo=10.0 + index)


def _newer_than_the_schema(data: bytes) -> bytes:
    """Return the Event with the number of a member that no schema has yet."""
    changed = bytearray(data)
    number = log_schema.Event.schema.fields["modelV2"].proto.discriminantValue
    # 16 bits behind the frame, the root pointer and logMonoTime.
    position = changed.index(number.to_bytes(2, "little"), 24)
    changed[position : position + 2] = (60_000).to_bytes(2, "little")
    return bytes(changed)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "drive.rlog"
    with LogWriter(path) as writer:
        for index in range(FRAMES):
            writer.write(_model(index))
            writer.write(_car(index))
    return path


def test_every_message_is_a_line(log: Path, modeld: Modeld) -> None:
    lines = modeld(0, "inspect", log, "--dump").objects
    assert [line["service"] for line in lines] == ["modelV2", "carState"] * FRAMES
    assert [line["logMonoTime"] for line in lines[::2]] == [
        START_NS + 50_000_000 * index for index in range(FRAMES)
    ]
    assert [line["valid"] for line in lines[:3]] == [False, True, True]
    message = lines[4]["message"]
    assert message["frameId"] == 102
    assert message["position"]["x"] == [2.0, 0.5, None]  # JSON has no NaN
    assert message["laneLines"][1]["y"] == [2.0, 5.0]
    assert message["confidence"] == "green"
    assert message["rawPredictions"] == {"bytes": 2}
    assert lines[3]["message"]["vEgo"] == 11.0


def test_enumerants_newer_than_the_schema_are_numbers(tmp_path: Path, modeld: Modeld) -> None:
    event = event_of("modelV2", START_NS, confidence=77)
    status = event_of("liveCalibration", START_NS + 1, calStatus=65_535)
    log = write_log(tmp_path / "log.zst", [event, status])
    model, calibration = modeld(0, "inspect", log, "--dump").objects
    assert model["message"]["confidence"] == "#77"
    assert calibration["message"]["calStatus"] == "#65535"
    output = tmp_path / "out.csv"
    modeld(0, "inspect", log, "--dump", "--service", "modelV2", "--output", output)
    assert "#77" in output.read_text(encoding="utf-8")


def test_chosen_services_fields_and_times(log: Path, modeld: Modeld) -> None:
    model = ("inspect", log, "--dump", "--service", "modelV2")
    lines = modeld(0, *model, "--field", "position.x", "--field", "laneLines[1].y").objects
    assert len(lines) == FRAMES
    assert lines[1] == {
        "service": "modelV2",
        "logMonoTime": START_NS + 50_000_000,
        "valid": True,
        "fields": {"frameId": 101, "position.x": [1.0, 0.5, 1.0], "laneLines[1].y": [2.0, 4.0]},
    }
    raw = modeld(0, *model, "--field", "rawPredictions", "--data", "base64").objects
    assert raw[3]["fields"]["rawPredictions"] == "AAAA"
    # Times count from the first message.
    lines = modeld(0, *model, "--from", "0.05", "--to", "0.15").objects
    assert [line["message"]["frameId"] for line in lines] == [101, 102]
    said = modeld.refused(2, "messages from 99 s on", "inspect", log, "--dump", "--from", "99")
    assert said.out == ""


def test_with_json_the_last_line_sums_up(log: Path, modeld: Modeld) -> None:
    lines = modeld(0, "inspect", log, "--dump", "--json", "--service", "carState").objects
    assert len(lines) == FRAMES + 1
    assert lines[-1] == {"messages": FRAMES, "damaged": 0, "output": None}


def test_csv_has_a_column_for_each_element(log: Path, tmp_path: Path, modeld: Modeld) -> None:
    output = tmp_path / "out.csv"
    options = ["--service", "modelV2", "--service", "carState", "--output", output]
    for field in ("position.x", "laneLineProbs", "confidence", "rawPredictions", "vEgo"):
        options += ["--field", field]
    modeld(0, "inspect", log, "--dump", *options)
    with output.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("service", "logMonoTime", "valid", "modelV2.frameId"),
        *(f"modelV2.position.x[{index}]" for index in range(3)),
        *(f"modelV2.laneLineProbs[{index}]" for index in range(FRAMES - 1)),
        *("modelV2.rawPredictions", "modelV2.confidence", "carState.vEgo"),
    ]
    assert len(rows) == 2 * FRAMES
    model, car = rows[4], rows[5]
    assert (model["logMonoTime"], model["valid"]) == (str(START_NS + 100_000_000), "1")
    assert [model[f"modelV2.position.x[{i}]"] for i in range(3)] == ["2.0", "0.5", "nan"]
    assert [model[f"modelV2.laneLineProbs[{i}]"] for i in range(4)] == ["0.25", "0.25", "", ""]
    assert (model["modelV2.confidence"], model["modelV2.rawPredictions"]) == ("green", "2")
    assert model["carState.vEgo"] == ""
    assert (car["carState.vEgo"], car["modelV2.frameId"]) == ("12.0", "")


def test_npz_has_an_array_for_each_field(log: Path, tmp_path: Path, modeld: Modeld) -> None:
    output = tmp_path / "out.npz"
    command = ("inspect", log, "--dump", "--service", "modelV2", "--output", output)
    modeld(0, *command)
    with np.load(output) as arrays:
        stamps = arrays["modelV2.__logMonoTime"]
        assert stamps.tolist() == [START_NS + 50_000_000 * index for index in range(FRAMES)]
        assert arrays["modelV2.__valid"].tolist() == [False, True, True, True, True]
        assert arrays["modelV2.frameId"].tolist() == [100, 101, 102, 103, 104]
        x = arrays["modelV2.position.x"]
        assert (x.shape, x.dtype) == ((FRAMES, 3), np.float32)
        assert x[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert np.isnan(x[2, 2])
        assert arrays["modelV2.laneLines[1].y"][:, 1].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]
        # Lists that grow: NaN behind their ends, and their lengths beside them.
        assert arrays["modelV2.laneLineProbs.length"].tolist() == [0, 1, 2, 3, 4]
        assert np.isnan(arrays["modelV2.laneLineProbs"][1, 1:]).all()
        assert arrays["modelV2.laneLineProbs"][3, :3].tolist() == [0.25] * 3
        assert arrays["modelV2.confidence"].tolist() == ["red", "yellow", "green", "red", "yellow"]
        assert "modelV2.position.x.length" not in arrays
    before = output.read_bytes()
    modeld(0, *command)
    assert output.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drive.rlog", "out.npz"]


def test_format_may_be_said(log: Path, tmp_path: Path, modeld: Modeld) -> None:
    output = tmp_path / "out.txt"
    command = ("inspect", log, "--dump", "--service", "carState", "--field", "vEgo")
    modeld(0, *command, "--output", output)
    assert json.loads(output.read_text().splitlines()[0])["fields"] == {"vEgo": 10.0}
    said = modeld(0, *command, "--format", "csv").out
    assert "service,logMonoTime,valid,carState.vEgo\n" in said


def test_messages_newer_than_the_schema_are_counted(tmp_path: Path, modeld: Modeld) -> None:
    path = tmp_path / "new.rlog"
    path.write_bytes(_car(0) + _newer_than_the_schema(_model(1)) + _car(2))
    facts = modeld(0, "inspect", path, "--json").json
    assert (facts["messages"], facts["unknown"]) == (2, 1)
    said = modeld(0, "inspect", path).out
    assert "2 messages over 0.100 s, and 1 message newer than the schema" in said
    lines = modeld(0, "inspect", path, "--dump").objects
    assert [line["service"] for line in lines] == ["carState", "carState"]


@pytest.mark.parametrize(
    ("options", "lines", "notes"),
    [
        ([], None, 1),
        (["--dump"], 2 * FRAMES - 1, 1),
        (["--dump", "--format", "csv"], 2 * FRAMES, 2),
    ],
    ids=["table", "lines", "csv"],
)
def test_truncated_logs_are_one_line_and_what_precedes(
    log: Path, modeld: Modeld, options: list[str], lines: int | None, notes: int
) -> None:
    log.write_bytes(log.read_bytes()[:-20])
    said = modeld(0, "inspect", log, *options)
    if lines is None:
        assert f"{2 * FRAMES - 1} messages over" in said.out
    else:
        assert said.out.count("\n") == lines
    found = said.err.splitlines()
    assert all("drive.rlog: the log ends inside a message at byte" in line for line in found)
    assert len(found) == notes


def test_damaged_messages_are_left_out_and_counted(tmp_path: Path, modeld: Modeld) -> None:
    path = tmp_path / "bad.rlog"
    path.write_bytes(_model(0) + damaged(_model(1), 3) + _model(3))
    said = modeld(0, "inspect", path, "--dump", "--json")
    lines = said.objects
    assert [line["message"]["frameId"] for line in lines[:-1]] == [100, 103]
    assert lines[-1]["damaged"] == 1
    assert "left out 1 message whose content is damaged" in said.err
    assert said.err.count("\n") == 1
    # A field that is sound is still read.
    chosen = modeld(0, "inspect", path, "--dump", "--service", "modelV2", "--field", "frameId")
    assert [line["fields"]["frameId"] for line in chosen.objects] == [100, 101, 103]


@pytest.mark.parametrize("kind", quick_cases(["jsonl", "csv", "npz"], "jsonl"))
def test_memory_does_not_grow_with_the_log(tmp_path: Path, kind: str) -> None:
    event = new_event("modelV2", mono_time_ns=START_NS)
    event.modelV2.rawPredictions = bytes(30_000)
    event.modelV2.position.x = [1.0] * 33
    message = event.to_bytes()

    def peak_bytes(count: int) -> int:
        path = tmp_path / f"{count}.rlog"
        with path.open("wb") as file:
            for _ in range(count):
                file.write(message)
        tracemalloc.start()
        request = Request(path, ("modelV2",), ("position.x", "rawPredictions"), data_as="base64")
        assert dump(request, tmp_path / f"out.{kind}", kind).rows == count
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    # 3 MB of content and 15: the texts of an npz take four bytes a character.
    assert peak_bytes(500) < peak_bytes(100) + (4 << 20)

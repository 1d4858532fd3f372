"""`modeld compare`: what it prints, writes and exits with; the table of tolerances."""

from __future__ import annotations

import json
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from cereal.schema import log
from tests.tools.compare.made_logs import Change, drive, write_log
from tools.cli import main
from tools.compare.compare import OUTPUT_SERVICES
from tools.compare.fields import layout_of
from tools.compare.page import render
from tools.compare.tolerances import TABLE_PATH, Tolerances, read_tolerances
from tools.errors import UsageError

FRAMES = range(100, 150)


@pytest.fixture
def logs(tmp_path: Path) -> Any:
    """Write a log and one that was changed."""

    def make(change: Change | None = None) -> tuple[str, str]:
        left = write_log(tmp_path / "left.rlog", drive(FRAMES))
        right = drive(FRAMES, change) if change else drive(FRAMES)
        return str(left), str(write_log(tmp_path / "right.rlog", right))

    return make


def move_lines(service: str, frame_id: int, event: Any) -> None:
    if service == "modelV2" and frame_id >= 120:
        event.modelV2.laneLines[2].y[5] += 0.25


def test_equal_logs_exit_with_0(logs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *logs()]) == 0
    text = "AGREE: equal to the last bit; 150 messages of 50 frames compared\n"
    assert capsys.readouterr().out == text


def test_a_log_agrees_with_itself(logs: Any) -> None:
    left, _ = logs()
    assert main(["compare", left, left, "--bit-exact", "--all"]) == 0


def test_different_logs_exit_with_1_and_say_where(
    logs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *logs(move_lines)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "DIFFER: 1 finding; 150 messages of 50 frames compared"
    assert lines[1] == "first: frame 120, modelV2.laneLines[].y (value)"
    assert "laneLines[2].y[5]" in lines[4]
    assert lines[-1].startswith("hint: ")


def test_limit_says_how_many_are_left_out(logs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def shift_all(service: str, frame_id: int, event: Any) -> None:
        move_lines(service, frame_id, event)
        if service == "modelV2":
            event.modelV2.laneLineProbs = [0.0] * 4
            event.modelV2.confidence = "red"

    assert main(["compare", *logs(shift_all), "--limit", "1"]) == 1
    assert "... and 2 more" in capsys.readouterr().out


def test_json_has_everything(logs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *logs(move_lines), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["passed"] is False
    assert result["findings"][0]["field"] == "laneLines[].y"
    assert result["findings"][0]["first_frame"] == 120
    assert {"modelV2", "drivingModelData", "cameraOdometry"} == {
        field["service"] for field in result["statistics"]
    }


def test_the_page_is_self_contained(logs: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["compare", *logs(move_lines), "--html", str(page), "--ignore", "frameId"]) == 1
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 2
    assert "DIFFER: 1 finding" in text
    assert "modelV2.laneLines[].y" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    body = text[text.index("<body>") : text.index("</html>")]
    ET.fromstring(body)  # noqa: S314 - our own page; every tag is closed


def test_names_in_the_page_are_escaped() -> None:
    from tools.compare.findings import Comparison

    text = render(Comparison("<b>.rlog", "&.rlog", 1, 0, 3, [], [], ["<script>"]))
    assert "<b>" not in text
    assert "<script" not in text


def test_unreadable_logs_exit_with_4(
    logs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = logs()
    assert main(["compare", left, str(tmp_path / "none.rlog")]) == 4
    (tmp_path / "text").write_text("this is no log at all, whatever it says\n" * 9)
    assert main(["compare", left, str(tmp_path / "text")]) == 4
    assert main(["compare", left, right, "--service", "carState"]) == 4
    assert capsys.readouterr().err.count("modeld: error: ") == 3


@pytest.mark.parametrize(
    "more",
    [
        ["--service", "noSuch"],
        ["--limit", "0"],
        ["--tolerances", "/does/not/exist"],
        ["--html", "/does/not/exist/page.html"],
        ["--all", "--service", "modelV2"],
    ],
)
def test_arguments_that_cannot_work_exit_with_2(logs: Any, more: list[str]) -> None:
    assert main(["compare", *logs(), *more]) == 2


def test_the_page_may_not_replace_a_log(logs: Any) -> None:
    left, right = logs()
    assert main(["compare", left, right, "--html", right]) == 2
    assert Path(right).stat().st_size > 1000


def test_a_table_of_ones_own_comes_first(logs: Any, tmp_path: Path) -> None:
    table = tmp_path / "mine.toml"
    table.write_text(
        '[[row]]\nfields = ["*.laneLines[].y"]\nabsolute = 0.3\nreason = "another camera"\n'
    )
    assert main(["compare", *logs(move_lines), "--tolerances", str(table)]) == 0


# --- the table -------------------------------------------------------------------------------


def test_the_table_names_fields_that_exist() -> None:
    """A pattern that names nothing is a slip of the pen, or a field that is gone."""
    names = {f"{service}.{field}" for service in OUTPUT_SERVICES for field in _fields(service)}
    names |= {f"{service}..logMonoTime" for service in OUTPUT_SERVICES}
    for row in tomllib.loads(TABLE_PATH.read_text())["row"]:
        for pattern in row["fields"]:
            table = Tolerances([([pattern], read_tolerances().of("*", ""))])
            matched = [n for n in names if table._rows[0].patterns[0].fullmatch(n)]
            assert matched, pattern


def test_every_number_of_the_outputs_has_a_reviewed_row() -> None:
    table = read_tolerances()
    rest = {
        f"{service}.{field}"
        for service in OUTPUT_SERVICES
        for field, is_float in _fields(service).items()
        if is_float and table.of(service, field).reason.startswith("ids, times")
    }
    retired = ("temporalPose", "lateralPlannerSolution", "leads[]")
    assert not {name for name in rest if not any(part in name for part in retired)}


def _fields(service: str) -> dict[str, bool]:
    """Return the fields of a message with one of everything, and whether they are numbers."""
    event = log.Event.new_message()
    _fill(event.init(service))
    layout = layout_of(event.as_reader())
    numbers = {place.pattern: True for place in layout.numbers}
    return {place.pattern: False for place in layout.discrete} | numbers


def _fill(builder: Any) -> None:
    for name, field in builder.schema.fields.items():
        kind = field.proto.slot.type.which()
        if kind == "struct":
            _fill(builder.init(name))
        elif kind == "list":
            items = builder.init(name, 1)
            if field.proto.slot.type.list.elementType.which() == "struct":
                _fill(items[0])
        elif kind == "data":
            setattr(builder, name, bytes(4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row = 3", "expected rows"),
        ("[[row]]\nfields = ['a']", "expected a reason"),
        ("[[row]]\nfields = []\nreason = 'x'", "expected fields"),
        ("[[row]]\nfields = ['a']\nreason = 'x'\nabsolute = -1", "expected absolute"),
        ("[[row]]\nfields = ['a']\nreason = 'x'\nrelative = nan", "expected relative"),
        ("[[row]]\nfields = ['a']\nreason = 'x'\nignore = 1", "expected ignore"),
        ("[[row]]\nfields = ['a']\nreason = 'x'\ntol = 1", "found tol"),
        ("not toml at all", "expected TOML"),
    ],
)
def test_tables_with_mistakes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_tolerances(path)


def test_patterns() -> None:
    table = read_tolerances(ignore=["cameraOdometry.trans", "frameAge"])
    assert table.of("cameraOdometry", "trans").ignore
    assert not table.of("cameraOdometry", "transStd").ignore
    assert table.of("modelV2", "frameAge").ignore
    assert table.of("modelV2", "position.t").text == "exact"
    assert table.of("modelV2", "laneLines[].y").absolute > 0
    assert table.of("modelV2", ".logMonoTime").ignore
    assert not table.of("modelV2", ".valid").ignore
    assert table.of("carState", "vEgo").text == "exact"

"""`modeld compare`: what it prints, writes and exits with; the table of tolerances."""

from __future__ import annotations

import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cereal.schema import log
from tests.tools.compare.conftest import Pair
from tests.tools.compare.made_logs import Change, drive, move_lines, unchanged
from tests.tools.conftest import Modeld, Said
from tools.compare.compare import OUTPUT_SERVICES
from tools.compare.fields import layout_of
from tools.compare.findings import Comparison
from tools.compare.page import render
from tools.compare.tolerances import TABLE_PATH, Tolerances, read_tolerances
from tools.errors import UsageError

FRAMES = range(100, 150)

Compare = Callable[..., Said]


@pytest.fixture
def compare(modeld: Modeld, pair: Pair) -> Compare:
    """Compare a log and one that was changed."""

    def run(code: int, change: Change, *more: object) -> Said:
        return modeld(code, "compare", *pair(drive(FRAMES), drive(FRAMES, change)), *more)

    return run


def test_equal_logs_exit_with_0(compare: Compare, pair: Pair, modeld: Modeld) -> None:
    text = "AGREE: equal to the last bit; 150 messages of 50 frames compared\n"
    assert compare(0, unchanged).out == text
    left, _ = pair(drive(FRAMES), [])
    modeld(0, "compare", left, left, "--bit-exact", "--all")
    modeld(2, "compare", left, left, "--all", "--service", "modelV2")


def test_different_logs_exit_with_1_and_say_where(compare: Compare, tmp_path: Path) -> None:
    lines = compare(1, move_lines).out.splitlines()
    assert lines[0] == "DIFFER: 1 finding; 150 messages of 50 frames compared"
    assert lines[1] == "first: frame 120, modelV2.laneLines[].y (value)"
    assert "laneLines[2].y[5]" in lines[4]
    assert lines[-1].startswith("hint: ")
    result = compare(1, move_lines, "--json").json
    assert result["passed"] is False
    assert result["findings"][0]["field"] == "laneLines[].y"
    assert result["findings"][0]["first_frame"] == 120
    assert {field["service"] for field in result["statistics"]} == set(OUTPUT_SERVICES[:3])

    # A limit says how many are left out.
    def shift_all(service: str, frame_id: int, event: Any) -> None:
        move_lines(service, frame_id, event)
        if service == "modelV2":
            event.modelV2.laneLineProbs = [0.0] * 4
            event.modelV2.confidence = "red"

    assert "... and 2 more" in compare(1, shift_all, "--limit", "1").out
    # A table of one's own comes first.
    table = tmp_path / "mine.toml"
    table.write_text(
        '[[row]]\nfields = ["*.laneLines[].y"]\nabsolute = 0.3\nreason = "another camera"\n'
    )
    compare(0, move_lines, "--tolerances", table)


def test_the_page_is_self_contained(compare: Compare, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    compare(1, move_lines, "--html", page, "--ignore", "frameId")
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 2
    assert "DIFFER: 1 finding" in text
    assert "modelV2.laneLines[].y" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    body = text[text.index("<body>") : text.index("</html>")]
    ET.fromstring(body)  # noqa: S314 - our own page; every tag is closed
    text = render(Comparison("<b>.rlog", "&.rlog", 1, 0, 3, [], [], ["<script>"]))
    assert "<b>" not in text
    assert "<script" not in text


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


def test_the_table_names_fields_that_exist() -> None:
    """A pattern that names nothing is a slip of the pen, or a field that is gone."""
    names = {f"{service}.{field}" for service in OUTPUT_SERVICES for field in _fields(service)}
    names |= {f"{service}..logMonoTime" for service in OUTPUT_SERVICES}
    for row in tomllib.loads(TABLE_PATH.read_text())["row"]:
        for pattern in row["fields"]:
            table = Tolerances([([pattern], read_tolerances().of("*", ""))])
            assert any(table._rows[0].patterns[0].fullmatch(name) for name in names), pattern
    # Every number of the outputs has a row.
    table = read_tolerances()
    rest = {
        f"{service}.{field}"
        for service in OUTPUT_SERVICES
        for field, is_float in _fields(service).items()
        if is_float and table.of(service, field).reason.startswith("ids, times")
    }
    retired = ("temporalPose", "lateralPlannerSolution", "leads[]")
    assert not {name for name in rest if not any(part in name for part in retired)}


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

"""`modeld compare`: what it prints, writes and exits with; tolerances, and gates in metres."""

import math
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import log, read_event
from tests.tools.behaviour.made_models import Made, car_state, made_truth, message
from tests.tools.compare.made_logs import Change, drive, move_lines, unchanged, write_pair
from tests.tools.conftest import Modeld, Said
from tools.behaviour.difference import FRAME_FIELDS
from tools.compare.compare import OUTPUT_SERVICES
from tools.compare.fields import layout_of
from tools.compare.findings import Comparison
from tools.compare.page import render
from tools.compare.tolerances import TABLE_PATH, Tolerances, read_tolerances
from tools.errors import UsageError

FRAMES = range(100, 150)

Compare = Callable[..., Said]


@pytest.fixture
def compare(modeld: Modeld, tmp_path: Path) -> Compare:
    def run(code: int, change: Change, *more: object) -> Said:
        logs = write_pair(tmp_path, drive(FRAMES), drive(FRAMES, change))
        return modeld(code, "compare", *logs, *more)

    return run


def test_equal_logs_exit_with_0(compare: Compare, tmp_path: Path, modeld: Modeld) -> None:
    text = "AGREE: equal to the last bit; 150 messages of 50 frames compared\n"
    assert compare(0, unchanged).out == text
    left = tmp_path / "left.rlog"
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


# --- in metres: the table, gates beside tolerances and in their place, the truth ------------------

MADE = 20
SAME = [message(i) for i in range(MADE)]
# Two centimetres further to the right after 2 s.
MOVED = [message(i, Made(aside_mps=0.31) if i >= 10 else None) for i in range(MADE)]


@pytest.fixture
def in_metres(modeld: Modeld, tmp_path: Path) -> Compare:
    """Compare a log, and another whose messages are given."""

    def run(code: int, messages: list[bytes], *more: object) -> Said:
        start = car_state(0, 20.0)
        logs = write_pair(tmp_path, [start, *SAME], [start, *messages])
        return modeld(code, "compare", *logs, *more)

    return run


def test_the_table_says_how_far_and_in_which_frame(in_metres: Compare) -> None:
    lines = in_metres(1, MOVED).out.splitlines()
    start = lines.index("effect on the drive:")
    columns = "quantity unit mean p99 max bias frame left right lost new"
    assert lines[start + 1].split() == columns.split()
    found = {line.split()[0]: line.split()[1:] for line in lines[start + 2 : start + 5]}
    assert list(found) == ["lateral_1s", "lateral_2s", "lateral_4s"]
    assert found["lateral_2s"][:5] == ["m", "0.01", "0.02", "0.02", "0.01"]
    assert found["lateral_2s"][6:8] == ["0.6", "0.62"]
    assert lines[start + 5] == "... and 25 more that do not differ"
    assert lines[-1].startswith("hint: ")
    # Other services have no table.
    said = in_metres(1, [*MOVED, car_state(30, 1.0)], "--service", "carState").out
    assert "effect on the drive" not in said


def test_gates_beside_tolerances_and_in_their_place(in_metres: Compare, tmp_path: Path) -> None:
    held = "lateral_2s_max_m < 0.05"
    in_metres(1, MOVED, "--gate", held)
    text = in_metres(0, MOVED, "--gate", held, "--gates-only").out
    assert text.startswith("AGREE: all gates hold, overriding 1 finding; ")
    assert "holds  lateral_2s_max_m < 0.05: 0.02\n" in text
    file = tmp_path / "gates"
    file.write_text("lateral_2s_max_m < 0.01\n", encoding="utf-8")
    text = in_metres(1, MOVED, "--gates", file, "--gates-only").out
    assert text.startswith("DIFFER: 1 gate not held; ")
    assert "FAILS  lateral_2s_max_m < 0.01: 0.02" in text
    # Equal logs, with a gate that asks for more than equality.
    in_metres(1, SAME, "--gate", "lateral_2s_max_m > 1")
    in_metres(0, SAME, "--gate", "lead_distance_max_m < 1")
    said = in_metres(1, SAME, "--gate", "error.lateral_2s_max_m < 9").out
    assert "figures of errors need the truth of a rendered drive" in said


FAULTS: dict[str, Callable[[Any], None]] = {
    "invalid": lambda event: setattr(event, "valid", False),
    "not a number": lambda event: event.modelV2.laneLines[3].y.__setitem__(7, math.nan),
    "extra frame id": lambda event: setattr(event.modelV2, "frameIdExtra", 9),
    "frames dropped": lambda event: setattr(event.modelV2, "frameDropPerc", 9),
    "shorter": lambda event: setattr(event.modelV2, "laneLineProbs", [0.1, 0.9, 0.8]),
}


@pytest.mark.parametrize("fault", ["missing", *FAULTS])
def test_gates_never_stand_in_for_what_no_precision_changes(in_metres: Compare, fault: str) -> None:
    messages = SAME[:]
    event = read_event(messages.pop(12)).as_builder()
    if fault != "missing":
        FAULTS[fault](event)
        messages.insert(12, bytes(event.to_bytes()))
    in_metres(1, messages, "--gates-only", "--gate", "lateral_2s_max_m < 100")


def test_errors_against_the_truth(in_metres: Compare, tmp_path: Path) -> None:
    truth = tmp_path / "truth.npz"
    np.savez(truth, **asdict(made_truth(MADE)))
    gate = ["--gate", "error.lateral_2s_max_m < 0.03", "--gates-only"]
    lines = in_metres(0, MOVED, "--truth", truth, *gate).out.splitlines()
    found = {line.split()[0]: line.split() for line in lines if line}
    # The truth goes where the left log says: 0 there, a centimetre on average in the right one.
    assert found["quantity"][-4:] == ["error", "left", "error", "right"]
    assert found["lateral_2s"][-2:] == ["0.01,", "0.02"]
    assert found["left_line_10m"][-4:] == ["0.1,", "0.1", "0.1,", "0.1"]


def test_json_and_page(in_metres: Compare, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    gate = ["--gate", "lateral_2s_max_m < 0.05", "--json", "--html", page]
    behaviour = in_metres(1, MOVED, *gate).json["behaviour"]
    (row,) = [row for row in behaviour["quantities"] if row["quantity"] == "lateral_2s"]
    assert row["spread"]["max"] == pytest.approx(0.02, rel=1e-5)
    assert row["spread"]["frames"] == MADE
    assert row["meaning"] == "planned position to the right after 2 s"
    assert behaviour["gates"][0]["holds"] is True
    text = page.read_text(encoding="utf-8")
    assert "<h2>Effect on the drive</h2>" in text
    assert "<td>lateral_2s</td><td>m</td>" in text
    # A sentence and metres; fields are behind a line that opens them.
    lead = "The path moves by at most 2.0 cm after 2 s (frame"
    order = (lead, "The gate holds.", "path, sideways, after 2 s", "<details>", "1 finding</sum")
    places = [text.find(one) for one in order]
    assert places == sorted(places)
    assert places[0] > 0
    assert '<td class="number">2.0 cm</td>' in text
    assert "lateral_2s_max_m &lt; 0.05" in text
    # Fields of frames that gates leave alone exist.
    known = set(log.ModelDataV2.schema.fieldnames)
    assert {field for field in FRAME_FIELDS if not field.startswith(".")} <= known

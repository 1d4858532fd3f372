"""`modeld compare` in metres: the table, gates beside tolerances and in their place, the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import log, read_event
from modeld.constants import T_IDXS, X_IDXS
from tests.tools.behaviour.made_models import Made, car_state, made_truth, message
from tests.tools.compare.conftest import Pair
from tests.tools.conftest import Modeld, Said
from tools.behaviour.verdict import FRAME_FIELDS

FRAMES = 20
SAME = [message(i) for i in range(FRAMES)]
# Two centimetres further to the right after 2 s.
MOVED = [message(i, Made(aside_mps=0.31) if i >= 10 else None) for i in range(FRAMES)]

Compare = Callable[..., Said]


@pytest.fixture
def compare(modeld: Modeld, pair: Pair) -> Compare:
    """Compare a log, and another whose messages are given."""

    def run(code: int, messages: list[bytes], *more: object) -> Said:
        start = car_state(0, 20.0)
        return modeld(code, "compare", *pair([start, *SAME], [start, *messages]), *more)

    return run


def test_the_table_says_how_far_and_in_which_frame(compare: Compare) -> None:
    lines = compare(1, MOVED).out.splitlines()
    start = lines.index("what it does to the drive:")
    columns = "quantity unit mean p99 max bias frame left right lost new"
    assert lines[start + 1].split() == columns.split()
    found = {line.split()[0]: line.split()[1:] for line in lines[start + 2 : start + 5]}
    assert list(found) == ["lateral_1s", "lateral_2s", "lateral_4s"]
    assert found["lateral_2s"][:5] == ["m", "0.01", "0.02", "0.02", "0.01"]
    assert found["lateral_2s"][6:8] == ["0.6", "0.62"]
    assert lines[start + 5] == "... and 25 more that do not differ"
    assert lines[-1].startswith("hint: ")
    # Other services have no table.
    said = compare(1, [*MOVED, car_state(30, 1.0)], "--service", "carState").out
    assert "what it does to the drive" not in said


def test_gates_beside_tolerances_and_in_their_place(compare: Compare, tmp_path: Path) -> None:
    held = "lateral_2s_max_m < 0.05"
    compare(1, MOVED, "--gate", held)
    text = compare(0, MOVED, "--gate", held, "--gates-only").out
    assert text.startswith("AGREE: all gates hold, which stand in for 1 finding; ")
    assert "holds  lateral_2s_max_m < 0.05: 0.02\n" in text
    file = tmp_path / "gates"
    file.write_text("lateral_2s_max_m < 0.01\n", encoding="utf-8")
    text = compare(1, MOVED, "--gates", file, "--gates-only").out
    assert text.startswith("DIFFER: 1 gate not held; ")
    assert "FAILS  lateral_2s_max_m < 0.01: 0.02, does not hold" in text
    # Equal logs, with a gate that asks for more than equality.
    compare(1, SAME, "--gate", "lateral_2s_max_m > 1")
    compare(0, SAME, "--gate", "lead_distance_max_m < 1")
    said = compare(1, SAME, "--gate", "error.lateral_2s_max_m < 9").out
    assert "those of errors take the truth of a rendered drive" in said


FAULTS: dict[str, Callable[[Any], None]] = {
    "invalid": lambda event: setattr(event, "valid", False),
    "not a number": lambda event: event.modelV2.laneLines[3].y.__setitem__(7, math.nan),
    "extra frame id": lambda event: setattr(event.modelV2, "frameIdExtra", 9),
    "frames dropped": lambda event: setattr(event.modelV2, "frameDropPerc", 9),
    "shorter": lambda event: setattr(event.modelV2, "laneLineProbs", [0.1, 0.9, 0.8]),
}


@pytest.mark.parametrize("fault", ["missing", *FAULTS])
def test_gates_never_stand_in_for_what_no_precision_changes(compare: Compare, fault: str) -> None:
    messages = SAME[:]
    event = read_event(messages.pop(12)).as_builder()
    if fault != "missing":
        FAULTS[fault](event)
        messages.insert(12, bytes(event.to_bytes()))
    compare(1, messages, "--gates-only", "--gate", "lateral_2s_max_m < 100")


def test_errors_against_the_truth(compare: Compare, tmp_path: Path) -> None:
    truth = tmp_path / "truth.npz"
    np.savez(truth, **asdict(made_truth(FRAMES)), t_s=T_IDXS, x_m=X_IDXS)
    gate = ["--gate", "error.lateral_2s_max_m < 0.03", "--gates-only"]
    lines = compare(0, MOVED, "--truth", truth, *gate).out.splitlines()
    found = {line.split()[0]: line.split() for line in lines if line}
    # The truth goes where the left log says: 0 there, a centimetre on average in the right one.
    assert found["quantity"][-4:] == ["error", "left", "error", "right"]
    assert found["lateral_2s"][-2:] == ["0.01,", "0.02"]
    assert found["left_line_10m"][-4:] == ["0.1,", "0.1", "0.1,", "0.1"]


def test_json_and_page(compare: Compare, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    gate = ["--gate", "lateral_2s_max_m < 0.05", "--json", "--html", page]
    behaviour = compare(1, MOVED, *gate).json["behaviour"]
    (row,) = [row for row in behaviour["quantities"] if row["quantity"] == "lateral_2s"]
    assert row["spread"]["max"] == pytest.approx(0.02, rel=1e-5)
    assert row["spread"]["frames"] == FRAMES
    assert row["meaning"] == "planned position to the right after 2 s"
    assert behaviour["gates"][0]["holds"] is True
    text = page.read_text(encoding="utf-8")
    assert "<h2>What it does to the drive</h2>" in text
    assert "<td>lateral_2s</td><td>m</td>" in text
    assert "lateral_2s_max_m &lt; 0.05" in text
    # Fields of frames that gates leave alone exist.
    known = set(log.ModelDataV2.schema.fieldnames)
    assert {field for field in FRAME_FIELDS if not field.startswith(".")} <= known

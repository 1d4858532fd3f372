"""`modeld compare` in metres: the table, gates beside tolerances and in their place, the truth."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import log, read_event
from modeld.constants import T_IDXS, X_IDXS
from tests.tools.behaviour.made_models import Made, car_state, made_truth, message
from tests.tools.compare.made_logs import write_log
from tools.cli import main

FRAMES = 20
SPEED = 20.0
# Two centimetres further to the right after 2 s.
MOVED = Made(aside_mps=0.31)


@pytest.fixture
def logs(tmp_path: Path) -> Any:
    """Write a log, and another whose messages are given."""

    def make(messages: Sequence[bytes]) -> tuple[str, str]:
        start = car_state(0, SPEED)
        left = [start, *(message(i) for i in range(FRAMES))]
        return (
            str(write_log(tmp_path / "left.rlog", left)),
            str(write_log(tmp_path / "right.rlog", [start, *messages])),
        )

    return make


def moved() -> list[bytes]:
    return [message(i, MOVED if i >= 10 else None) for i in range(FRAMES)]


def changed(data: bytes, **fields: Any) -> bytes:
    """Return an Event with other fields of modelV2."""
    event = read_event(data).as_builder()
    for name, value in fields.items():
        setattr(event.modelV2, name, value)
    return bytes(event.to_bytes())


def test_the_table_says_how_far_and_in_which_frame(
    logs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *logs(moved())]) == 1
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("what it does to the drive:")
    assert lines[start + 1].split() == [
        *("quantity", "unit", "mean", "p99", "max", "bias", "frame", "left", "right", "lost"),
        "new",
    ]
    found = {line.split()[0]: line.split()[1:] for line in lines[start + 2 : start + 5]}
    assert list(found) == ["lateral_1s", "lateral_2s", "lateral_4s"]
    assert found["lateral_2s"][:5] == ["m", "0.01", "0.02", "0.02", "0.01"]
    assert found["lateral_2s"][6:8] == ["0.6", "0.62"]
    assert lines[start + 5] == "... and 25 more that do not differ"
    assert lines[-1].startswith("hint: ")


def test_gates_beside_tolerances_and_in_their_place(
    logs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = logs(moved())
    held, missed = "lateral_2s_max_m < 0.05", "lateral_2s_max_m < 0.01"
    assert main(["compare", *pair, "--gate", held]) == 1
    capsys.readouterr()
    assert main(["compare", *pair, "--gate", held, "--gates-only"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("AGREE: all gates hold, which stand in for 1 finding; ")
    assert "holds  lateral_2s_max_m < 0.05: 0.02\n" in text
    file = tmp_path / "gates"
    file.write_text(f"{missed}\n", encoding="utf-8")
    assert main(["compare", *pair, "--gates", str(file), "--gates-only"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("DIFFER: 1 gate not held; ")
    assert "FAILS  lateral_2s_max_m < 0.01: 0.02, does not hold" in text
    # Equal logs, with a gate that asks for more than equality.
    same = logs([message(i) for i in range(FRAMES)])
    assert main(["compare", *same, "--gate", "lateral_2s_max_m > 1"]) == 1
    assert main(["compare", *same, "--gate", "lead_distance_max_m < 1"]) == 0


@pytest.mark.parametrize(
    "fault",
    ["missing", "invalid", "not a number", "extra frame id", "frames dropped", "shorter"],
)
def test_gates_never_stand_in_for_what_no_precision_changes(logs: Any, fault: str) -> None:
    messages = [message(i) for i in range(FRAMES)]
    last = messages[12]
    event = read_event(last).as_builder()
    if fault == "missing":
        del messages[12]
    elif fault == "invalid":
        messages[12] = message(12, valid=False)
    elif fault == "not a number":
        event.modelV2.laneLines[3].y[7] = math.nan
        messages[12] = bytes(event.to_bytes())
    elif fault == "shorter":
        messages[12] = changed(last, laneLineProbs=[0.1, 0.9, 0.8])
    else:
        field = {"extra frame id": "frameIdExtra", "frames dropped": "frameDropPerc"}[fault]
        messages[12] = changed(last, **{field: 9})
    gates = ["--gates-only", "--gate", "lateral_2s_max_m < 100"]
    assert main(["compare", *logs(messages), *gates]) == 1


def test_errors_against_the_truth(
    logs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = tmp_path / "truth.npz"
    np.savez(truth, **asdict(made_truth(FRAMES)), t_s=T_IDXS, x_m=X_IDXS)
    arguments = ["--truth", str(truth), "--gate", "error.lateral_2s_max_m < 0.03", "--gates-only"]
    assert main(["compare", *logs(moved()), *arguments]) == 0
    found = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    # The truth goes where the left log says: 0 there, a centimetre on average in the right one.
    assert found["quantity"][-4:] == ["error", "left", "error", "right"]
    assert found["lateral_2s"][-2:] == ["0.01,", "0.02"]
    assert found["left_line_10m"][-4:] == ["0.1,", "0.1", "0.1,", "0.1"]
    assert main(["compare", *logs(moved()), "--truth", str(tmp_path / "none")]) == 4
    assert "expected truth.npz of a rendered drive" in capsys.readouterr().err


def test_a_gate_on_errors_without_a_truth_does_not_hold(
    logs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = logs([message(i) for i in range(FRAMES)])
    assert main(["compare", *pair, "--gate", "error.lateral_2s_max_m < 9"]) == 1
    assert "those of errors take the truth of a rendered drive" in capsys.readouterr().out


def test_json_and_page(logs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    gate = ["--gate", "lateral_2s_max_m < 0.05", "--json", "--html", str(page)]
    assert main(["compare", *logs(moved()), *gate]) == 1
    behaviour = json.loads(capsys.readouterr().out)["behaviour"]
    (row,) = [row for row in behaviour["quantities"] if row["quantity"] == "lateral_2s"]
    assert row["spread"]["max"] == pytest.approx(0.02, rel=1e-5)
    assert row["spread"]["frames"] == FRAMES
    assert row["meaning"] == "planned position to the right after 2 s"
    assert behaviour["gates"][0]["holds"] is True
    text = page.read_text(encoding="utf-8")
    assert "<h2>What it does to the drive</h2>" in text
    assert "<td>lateral_2s</td><td>m</td>" in text
    assert "lateral_2s_max_m &lt; 0.05" in text


def test_other_services_have_no_table(logs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [*moved(), car_state(30, 1.0)]
    assert main(["compare", *logs(messages), "--service", "carState"]) == 1
    assert "what it does to the drive" not in capsys.readouterr().out


def test_options_that_contradict_each_other(logs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pair = logs(moved())
    for more, found in (
        (["--gates-only"], "expected gates that decide, found none"),
        (["--gates-only", "--gate", "lead_seen_max < 1", "--bit-exact"], "choose one"),
        (["--gate", "lateral_3s_max_m < 1"], "expected the name of a figure"),
    ):
        assert main(["compare", *pair, *more]) == 2
        assert found in capsys.readouterr().err


def test_frame_fields_that_gates_leave_alone_exist() -> None:
    from tools.behaviour.verdict import FRAME_FIELDS

    known = set(log.ModelDataV2.schema.fieldnames)
    assert {field for field in FRAME_FIELDS if not field.startswith(".")} <= known

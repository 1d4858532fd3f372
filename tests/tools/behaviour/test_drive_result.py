"""Closed-loop results compared, as `modeld compare A.json B.json` does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tools.behaviour.drive_result import read_result
from tools.cli import main
from tools.errors import CompareError

RESULT: dict[str, Any] = {
    "driver": "driving.pkl",
    "km": 2.0,
    "departures": 0,
    "offset_mean_m": 0.1,
    "offset_p99_m": 0.4,
    "collisions": 0,
    "time_gap_min_s": None,
    "wall_s": 12.5,
    "frames_per_s": 80.0,
    "offsets_m": [0.1, 0.2],
    "scenarios": [
        {"scenario": "curve", "offset_p99_m": 0.4, "clean": True},
        {"scenario": "lead", "offset_p99_m": 0.2, "clean": True},
    ],
    "per_drive": [
        {"scenario": "curve", "seed": 3, "offset_p99_m": 0.4},
        {"scenario": "curve", "seed": 4, "offset_p99_m": 0.3},
        {"scenario": "curve", "seed": 4, "offset_p99_m": 0.1},
    ],
}


@pytest.fixture
def results(tmp_path: Path) -> Any:
    """Write a result and one that was changed."""

    def make(**changes: Any) -> tuple[str, str]:
        left, right = tmp_path / "a.json", tmp_path / "b.json"
        left.write_text(json.dumps(RESULT), encoding="utf-8")
        right.write_text(json.dumps({**RESULT, **changes}), encoding="utf-8")
        return str(left), str(right)

    return make


def test_numbers_are_named_by_their_way(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(RESULT), encoding="utf-8")
    found = read_result(path)
    assert found["offset_p99_m"] == 0.4
    assert found["scenarios.lead.offset_p99_m"] == 0.2
    assert found["scenarios.curve.clean"] == 1.0
    assert math.isnan(found["time_gap_min_s"])
    # Each drive by itself, two of the same seed too.
    assert found["per_drive.curve-3.offset_p99_m"] == 0.4
    assert found["per_drive.curve-4#2.offset_p99_m"] == 0.1
    assert "driver" not in found
    assert "offsets_m" not in found


def test_equal_results_agree_and_wall_times_do_not_count(
    results: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *results(wall_s=99.0, frames_per_s=None)]) == 0
    assert capsys.readouterr().out == "AGREE: 0 of 16 figures differ\n"


def test_a_difference_is_shown_and_gates_may_decide(
    results: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = results(offset_p99_m=0.5, departures=1)
    assert main(["compare", *worse]) == 1
    text = capsys.readouterr().out
    assert text.startswith("DIFFER: 2 of 16 figures differ\n")
    assert "offset_p99_m  0.4   0.5    +0.1" in text
    assert main(["compare", *worse, "--ignore", "departures", "--ignore", "offset_p99_m"]) == 0
    gates = ["--gates-only", "--gate", "offset_p99_m < 0.7", "--gate", "departures_change <= 1"]
    capsys.readouterr()
    assert main(["compare", *worse, *gates]) == 0
    assert "holds  offset_p99_m < 0.7: 0.5" in capsys.readouterr().out
    assert main(["compare", *worse, *gates, "--gate", "scenarios.*.offset_p99_m < 0.3"]) == 1
    found = "FAILS  scenarios.*.offset_p99_m < 0.3: 0.4 (scenarios.curve.offset_p99_m), does not"
    assert found in capsys.readouterr().out


def test_a_figure_that_is_gone_differs_and_fails_its_gate(
    results: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = results(scenarios=[])
    assert main(["compare", *pair, "--gates-only", "--gate", "scenarios.*.clean >= 1"]) == 1
    assert "FAILS  scenarios.*.clean >= 1: not on both sides" in capsys.readouterr().out
    assert main(["compare", *pair, "--ignore", "scenarios.*"]) == 0


def test_what_neither_measured_is_nothing_to_judge(
    results: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = ["--gate", "time_gap_min_s > 1"]
    assert main(["compare", *results(), *gate]) == 0
    assert "holds  time_gap_min_s > 1: nothing to judge" in capsys.readouterr().out
    assert main(["compare", *results(time_gap_min_s=0.5), *gate]) == 1
    assert "time_gap_min_s  -     0.5    -" in capsys.readouterr().out


def test_json_and_page(results: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    arguments = ["--json", "--html", str(page), "--gate", "departures <= 0"]
    assert main(["compare", *results(departures=1), *arguments]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["passed"] is False
    (row,) = [row for row in result["figures"] if row["name"] == "departures"]
    assert (row["left"], row["right"], row["change"]) == (0.0, 1.0, 1.0)
    assert result["gates"][0]["holds"] is False
    text = page.read_text(encoding="utf-8")
    assert "departures &lt;= 0: 1, does not hold" in text
    assert "<script" not in text


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"{", "no JSON"),
        (b"[1]", "a JSON list"),
        (b'{"name": "x"}', "no number in it"),
        (b"[" * 100_000, "no JSON"),
        (b"\xff", "no JSON"),
    ],
)
def test_what_is_no_result_is_one_line(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(CompareError, match=found):
        read_result(path)


def test_arguments_that_cannot_work(
    results: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = results()
    for words, found in (
        ((left, str(tmp_path / "b.rlog")), "found one of each"),
        ((left, right, "--bit-exact"), "--bit-exact: expected two logs"),
        ((left, right, "--gate", "ofset_p99_m < 1"), "did you mean offset_p99_m"),
        ((left, right, "--gates-only"), "expected gates that decide"),
        ((left, str(tmp_path / "none.json")), "No such file"),
    ):
        assert main(["compare", *words]) in (2, 4)
        error = capsys.readouterr().err
        assert found in error
        assert error.count("\n") == 1


def driven(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Write what `modeld drive` prints."""
    assert main(["drive", "--expert", "--json", "-q", *options]) in (0, 1)
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return str(path)


def test_results_of_real_drives_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command prints is what is read: the same drives agree, others differ by name."""
    roads = ["--scenario", "lane-keeping", "recovery", "--km", "0.06", "--drives", "2"]
    first = driven(tmp_path / "a.json", capsys, *roads)
    same = driven(tmp_path / "b.json", capsys, *roads, "--gate", "departures <= 0")
    other = driven(tmp_path / "c.json", capsys, *roads, "--seed", "1")
    assert main(["compare", first, same]) == 0
    assert "AGREE: 0 of " in capsys.readouterr().out
    gates = ["--gates-only", "--gate", "offset_mean_m_change <= 0.5"]
    gates += ["--gate", "scenarios.*.departures <= 0", "--gate", "recovered_share_change >= 0"]
    assert main(["compare", first, other, *gates]) == 0
    assert "holds  recovered_share_change >= 0: 0" in capsys.readouterr().out
    assert main(["compare", first, other]) == 1
    said = capsys.readouterr().out
    # A drive that only one has, one that both have and that went differently, and not how long.
    assert "per_drive.lane-keeping-0.km" in said
    assert "per_drive.recovery-2.offset_p99_m" in said
    assert "wall_s" not in said


def test_rows_of_faults_are_called_by_their_fault(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    rows = [{"fault": "none", "km": 1.0}, {"fault": "yaw-off", "km": 0.5}]
    path.write_text(json.dumps({"faults": rows}), encoding="utf-8")
    assert read_result(path) == {"faults.none.km": 1.0, "faults.yaw-off.km": 0.5}


def test_the_gates_of_drives_hold_where_nothing_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ["lane-keeping", "recovery", "stopping-lead", "curves"]
    result = driven(tmp_path / "a.json", capsys, "--scenario", *kinds, "--km", "0.06")
    gates = Path(__file__).parents[2] / "regression/driving.gates"
    assert main(["compare", result, result, "--gates-only", "--gates", str(gates)]) == 0

"""Closed-loop results compared, as `modeld compare A.json B.json` does."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.conftest import Modeld, Said
from tools.behaviour.drive_result import read_result
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


Compare = Callable[..., Said]


@pytest.fixture
def compare(tmp_path: Path, modeld: Modeld) -> Compare:
    def run(code: int, *more: object, **changes: Any) -> Said:
        left, right = tmp_path / "a.json", tmp_path / "b.json"
        left.write_text(json.dumps(RESULT), encoding="utf-8")
        right.write_text(json.dumps({**RESULT, **changes}), encoding="utf-8")
        return modeld(code, "compare", left, right, *more)

    return run


def test_numbers_are_named_by_their_way(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    rows = [{"fault": "none", "km": 1.0}, {"fault": "yaw-off", "km": 0.5}]
    path.write_text(json.dumps({**RESULT, "faults": rows}), encoding="utf-8")
    found = read_result(path)
    assert (found["offset_p99_m"], found["scenarios.lead.offset_p99_m"]) == (0.4, 0.2)
    assert found["scenarios.curve.clean"] == 1.0
    assert math.isnan(found["time_gap_min_s"])
    # Each drive by itself, two of the same seed too; rows of faults are called by their fault.
    assert found["per_drive.curve-3.offset_p99_m"] == 0.4
    assert found["per_drive.curve-4#2.offset_p99_m"] == 0.1
    assert (found["faults.none.km"], found["faults.yaw-off.km"]) == (1.0, 0.5)
    assert not {"driver", "offsets_m"} & set(found)


def test_equal_results_agree_and_wall_times_do_not_count(compare: Compare) -> None:
    said = compare(0, wall_s=99.0, frames_per_s=None).out
    assert said == "AGREE: 0 of 16 figures differ\n"


def test_a_difference_is_shown_and_gates_may_decide(compare: Compare) -> None:
    worse = {"offset_p99_m": 0.5, "departures": 1}
    text = compare(1, **worse).out
    assert text.startswith("DIFFER: 2 of 16 figures differ\n")
    assert "offset_p99_m  0.4   0.5    +0.1" in text
    compare(0, "--ignore", "departures", "--ignore", "offset_p99_m", **worse)
    gates = ["--gates-only", "--gate", "offset_p99_m < 0.7", "--gate", "departures_change <= 1"]
    assert "holds  offset_p99_m < 0.7: 0.5" in compare(0, *gates, **worse).out
    found = "FAILS  scenarios.*.offset_p99_m < 0.3: 0.4 (scenarios.curve.offset_p99_m)"
    assert found in compare(1, *gates, "--gate", "scenarios.*.offset_p99_m < 0.3", **worse).out


def test_what_one_side_or_neither_has(compare: Compare) -> None:
    gone = compare(1, "--gates-only", "--gate", "scenarios.*.clean >= 1", scenarios=[]).out
    assert "FAILS  scenarios.*.clean >= 1: not on both sides" in gone
    compare(0, "--ignore", "scenarios.*", scenarios=[])
    gate = ["--gate", "time_gap_min_s > 1"]
    assert "holds  time_gap_min_s > 1: nothing to judge" in compare(0, *gate).out
    assert "time_gap_min_s  -     0.5    -" in compare(1, *gate, time_gap_min_s=0.5).out


def test_json_and_page(compare: Compare, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    more = ["--json", "--html", page, "--gate", "departures <= 0"]
    result = compare(1, *more, departures=1).json
    assert result["passed"] is False
    (row,) = [row for row in result["figures"] if row["name"] == "departures"]
    assert (row["left"], row["right"], row["change"]) == (0.0, 1.0, 1.0)
    assert result["gates"][0]["holds"] is False
    text = page.read_text(encoding="utf-8")
    assert "<td>departures &lt;= 0</td>" in text
    assert '<td class="bad">fails</td>' in text
    # What matters most leads; figures that are the same are folded.
    assert '<p class="lead">Lane departures: 0 before, 1 now.</p>' in text
    shown = text.partition("<details>")[0]
    assert "<td>departures</td>" in shown
    assert "<td>offset_p99_m</td>" not in shown
    assert "<script" not in text


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"{", "expected JSON"),
        (b"[1]", "a JSON list"),
        (b'{"name": "x"}', "no number in it"),
        (b"[" * 100_000, "expected JSON"),
        (b"\xff", "expected UTF-8 text"),
    ],
)
def test_what_is_no_result_is_one_line(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(CompareError, match=found):
        read_result(path)


@pytest.fixture
def driven(modeld: Modeld, tmp_path: Path) -> Callable[..., Path]:
    def run(name: str, *options: str) -> Path:
        path = tmp_path / name
        said = modeld(0, "drive", "--expert", "--json", "-q", "--km", "0.06", *options)
        path.write_text(said.out, encoding="utf-8")
        return path

    return run


@pytest.mark.slow
def test_results_of_real_drives_are_compared(driven: Any, modeld: Modeld) -> None:
    """What the command prints is what is read: the same drives agree, others differ by name."""
    roads = ["--scenario", "lane-keeping", "recovery", "--drives", "2"]
    first = driven("a.json", *roads)
    same = driven("b.json", *roads, "--gate", "departures <= 0")
    other = driven("c.json", *roads, "--seed", "1")
    assert "AGREE: 0 of " in modeld(0, "compare", first, same).out
    kept = Path(__file__).parents[2] / "regression/driving.gates"
    modeld(0, "compare", first, same, "--gates-only", "--gates", kept)
    gates = ["--gates-only", "--gate", "offset_mean_m_change <= 0.5"]
    gates += ["--gate", "scenarios.*.departures <= 0", "--gate", "recovered_share_change >= 0"]
    said = modeld(0, "compare", first, other, *gates).out
    assert "holds  recovered_share_change >= 0: 0" in said
    said = modeld(1, "compare", first, other).out
    # A drive that only one has, one that both have and that went differently, and not how long.
    assert "per_drive.lane-keeping-0.km" in said
    assert "per_drive.recovery-2.offset_p99_m" in said
    assert "wall_s" not in said

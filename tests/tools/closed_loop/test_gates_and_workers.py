"""Gates on closed loops, drives in several processes, and what is told of each drive."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.behaviour.gates import parse_gates
from tools.cli import main
from tools.closed_loop.apart import drive_apart
from tools.closed_loop.judged import gate_names, judge_outcome
from tools.closed_loop.progress import line_of
from tools.closed_loop.result import Drive, Outcome
from tools.closed_loop.run import Errand, Selection, expert_drives, scenarios_named
from tools.closed_loop.scenario import SCENARIOS
from tools.errors import ToolError

ROOT = Path(__file__).parents[3]
EXPERT = ["drive", "--expert", "--km", "0.1"]


def recovery(drives: int = 2) -> Selection:
    """Return a few short drives."""
    return Selection(scenarios_named(["recovery"]), seed=0, drives=drives)


def without_times(result: Any) -> Any:
    """Return a result without what is measured anew in each run."""
    if isinstance(result, dict):
        measured = ("wall_s", "frames_per_s", "lines", "model")
        return {k: without_times(v) for k, v in result.items() if k not in measured}
    return [without_times(one) for one in result] if isinstance(result, list) else result


def test_gates_decide_in_the_place_of_clean_drives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "drive.html"
    options = ["--gate", "offset_p99_m < 0.3", "--gate", "recovered_share >= 0.95"]
    assert main([*EXPERT, *options, "-q", "--report", str(page)]) == 0
    said = capsys.readouterr().out
    assert "holds  offset_p99_m < 0.3: 0.0" in said
    # A drive that does not begin off its lane has nothing to recover from.
    assert "holds  recovered_share >= 0.95: nothing to judge" in said
    assert "offset_p99_m &lt; 0.3" in page.read_text("utf-8")
    assert main([*EXPERT, "-q", "--json", "--gate", "per_drive.*.speed_mean_mps < 1"]) == 1
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert gate["holds"] is False
    assert gate["name"] == "per_drive.lane-keeping-0.speed_mean_mps"


def test_a_gate_on_no_figure_is_refused_before_anything_is_driven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*EXPERT, "--gate", "ofset_p99_m < 1"]) == 2
    assert "did you mean offset_p99_m" in capsys.readouterr().err
    assert main([*EXPERT, "--gates", str(tmp_path / "none.gates")]) == 2
    assert "expected a file of gates" in capsys.readouterr().err


def test_every_number_of_a_result_but_times_can_be_gated() -> None:
    selection = recovery(1)
    outcome = Outcome("the expert", tuple(expert_drives(selection)))
    names = gate_names(selection)
    content = without_times(outcome.as_json())
    for name in content:
        if name not in ("driver", "scenarios", "per_drive", "seed"):
            assert name in names
    for row, place in ((content["scenarios"][0], "recovery"), (content["per_drive"][0], None)):
        kind = "scenarios.recovery" if place else "per_drive.recovery-0"
        for name in row:
            if name not in ("scenario", "seed", "end"):
                assert f"{kind}.{name}" in names
    # What is not measured, and what is.
    gates = parse_gates(["time_gap_min_s > 9", "km > 9"], None, names)
    assert [one.holds for one in judge_outcome(outcome, gates)] == [True, False]


@pytest.mark.parametrize("name", ["lane-keeping", "recovery", "stopping-lead"])
def test_the_gates_of_the_project_can_be_read(name: str) -> None:
    selection = Selection(scenarios_named([name]))
    assert parse_gates([], ROOT / f"tests/regression/{name}.gates", gate_names(selection))


def test_each_drive_is_told_of_as_soon_as_it_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "drives.jsonl"
    assert main([*EXPERT, "--drives", "2", "--lines", str(lines)]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in told] == ["1 of 2", "2 of 2"]
    rows = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    assert [(row["scenario"], row["seed"]) for row in rows] == [
        ("lane-keeping", 0),
        ("lane-keeping", 1),
    ]
    assert all(row["end"] == "done" and row["wall_s"] > 0.0 for row in rows)
    (drive,) = expert_drives(recovery(1))
    assert "recovery 0 with yaw-off: 0.1" in line_of(replace(drive, fault="yaw-off"))
    assert "done, recovered, departures 0, offset 0.0" in line_of(drive)


@pytest.mark.opencl
def test_figures_do_not_depend_on_how_many_processes_drive(
    blind_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", str(blind_model), "--scenario", "recovery", "--drives", "2"]
    options += ["--km", "0.01"]
    results = []
    for workers in ("1", "2"):
        assert main(["drive", *options, "--workers", workers, "--json", "-q"]) == 1
        results.append(json.loads(capsys.readouterr().out))
    assert without_times(results[0]) == without_times(results[1])
    assert results[0]["frames"] > 2 * 100


@pytest.mark.opencl
def test_faults_are_planted_by_processes_too(
    random_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "drives.jsonl"
    options = ["--model", str(random_model), "--km", "0.03", "--fault", "speed-in-miles"]
    assert main(["drive", *options, "--workers", "2", "--json", "-q", "--lines", str(lines)]) == 0
    without, planted = json.loads(capsys.readouterr().out)["faults"]
    assert (without["fault"], planted["fault"]) == ("none", "speed-in-miles")
    assert without["offset_mean_m"] != planted["offset_mean_m"]
    rows = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    assert sorted(row.get("fault", "") for row in rows) == ["", "speed-in-miles"]


@pytest.mark.opencl
def test_a_process_that_cannot_drive_ends_the_run_with_its_line(tmp_path: Path) -> None:
    errands = [Errand("recovery", 0)]
    with pytest.raises(ToolError, match=r"missing\.pkl"):
        drive_apart(errands, tmp_path / "missing.pkl", None, 2)


@pytest.mark.opencl
def test_a_process_that_is_gone_ends_the_run_with_a_line(blind_model: Path) -> None:
    errands = [Errand("recovery", seed) for seed in range(4)]

    def kill(_: Drive) -> None:
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(ToolError, match="found one that is gone; is there enough memory"):
        drive_apart(errands, blind_model, None, 2, kill)


@pytest.mark.parametrize("other", ["--live", "--log"])
def test_what_processes_cannot_do_is_told(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = [other, "x.rlog"] if other == "--log" else [other]
    assert main(["drive", "--expert", "--workers", "0"]) == 2
    assert "--workers: expected at least 1, found 0" in capsys.readouterr().err
    assert main(["drive", "--model", "x.pkl", "--workers", "2", *more]) == 2
    assert f"--workers: expected no {other}, found both" in capsys.readouterr().err


def test_the_way_back_never_needs_all_that_the_tyres_give() -> None:
    for seed in range(60):
        trial = Errand("recovery", seed).trial()
        road = trial.world.road
        until_m = trial.hand_over_m + SCENARIOS["recovery"].counts_from_m
        bends = abs(road.curvature_1pm[(road.s_m >= 0.0) & (road.s_m <= until_m)]).max()
        assert bends * trial.speed_mps**2 < 1.2 + 1e-9

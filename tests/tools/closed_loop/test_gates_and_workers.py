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

from tests.tools.closed_loop.conftest import DriveCommand
from tools.behaviour.gates import parse_gates
from tools.closed_loop.apart import drive_apart
from tools.closed_loop.judged import gate_names, judge_outcome
from tools.closed_loop.progress import line_of
from tools.closed_loop.result import Drive, Outcome
from tools.closed_loop.run import Errand, Selection, expert_drives, scenarios_named
from tools.closed_loop.scenario import SCENARIOS
from tools.errors import ToolError

ROOT = Path(__file__).parents[3]
EXPERT = ["--expert", "--km", "0.1"]


def without_times(result: Any) -> Any:
    """Return a result without what is measured anew in each run."""
    if isinstance(result, dict):
        measured = ("wall_s", "frames_per_s", "lines", "model")
        return {k: without_times(v) for k, v in result.items() if k not in measured}
    return [without_times(one) for one in result] if isinstance(result, list) else result


def test_gates_decide_in_the_place_of_clean_drives(tmp_path: Path, command: DriveCommand) -> None:
    page = tmp_path / "drive.html"
    options = ["--gate", "offset_p99_m < 0.3", "--gate", "recovered_share >= 0.95"]
    said, _ = command.told(*EXPERT, *options, "-q", "--report", page)
    assert "holds  offset_p99_m < 0.3: 0.0" in said
    # A drive that does not begin off its lane has nothing to recover from.
    assert "holds  recovered_share >= 0.95: nothing to judge" in said
    assert "offset_p99_m &lt; 0.3" in page.read_text("utf-8")
    result = command.result(*EXPERT, "--gate", "per_drive.*.speed_mean_mps < 1", code=1)
    (gate,) = result["gates"]
    assert gate["holds"] is False
    assert gate["name"] == "per_drive.lane-keeping-0.speed_mean_mps"


def test_every_number_of_a_result_but_times_can_be_gated() -> None:
    selection = Selection(scenarios_named(["recovery"]), seed=0, drives=1)
    drives = expert_drives(selection)
    outcome, names = Outcome("the expert", tuple(drives)), gate_names(selection)
    content = without_times(outcome.as_json())
    for kind, row, others in (
        ("", content, {"driver", "scenarios", "per_drive", "seed"}),
        ("scenarios.recovery.", content["scenarios"][0], {"scenario", "seed", "end"}),
        ("per_drive.recovery-0.", content["per_drive"][0], {"scenario", "seed", "end"}),
    ):
        assert {f"{kind}{name}" for name in set(row) - others} <= set(names)
    # What is not measured, and what is.
    gates = parse_gates(["time_gap_min_s > 9", "km > 9"], None, names)
    assert [one.holds for one in judge_outcome(outcome, gates)] == [True, False]
    # What is told of it.
    assert "recovery 0 with yaw-off: 0.1" in line_of(replace(drives[0], fault="yaw-off"))
    assert "done, recovered, departures 0, offset 0.0" in line_of(drives[0])


@pytest.mark.parametrize("name", ["lane-keeping", "recovery", "stopping-lead"])
def test_the_gates_of_the_project_can_be_read(name: str) -> None:
    selection = Selection(scenarios_named([name]))
    assert parse_gates([], ROOT / f"tests/regression/{name}.gates", gate_names(selection))


def rows_of(lines: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.read_text("utf-8").splitlines()]


def test_each_drive_is_told_of_as_soon_as_it_is_over(tmp_path: Path, command: DriveCommand) -> None:
    lines = tmp_path / "drives.jsonl"
    _, told = command.told(*EXPERT, "--drives", "2", "--lines", lines)
    assert [line.split(":")[0] for line in told.splitlines()] == ["1 of 2", "2 of 2"]
    rows = rows_of(lines)
    assert [(r["scenario"], r["seed"]) for r in rows] == [("lane-keeping", 0), ("lane-keeping", 1)]
    assert all(row["end"] == "done" and row["wall_s"] > 0.0 for row in rows)


@pytest.mark.opencl
@pytest.mark.slow
def test_figures_do_not_depend_on_how_many_processes_drive(
    blind_model: Path, command: DriveCommand
) -> None:
    options = ["--model", blind_model, "--scenario", "recovery", "--drives", "2", "--km", "0.01"]
    one, two = (command.result(*options, "--workers", workers, code=1) for workers in (1, 2))
    assert without_times(one) == without_times(two)
    assert one["frames"] > 2 * 100


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_planted_fault_changes_the_figures(
    random_model: Path, tmp_path: Path, command: DriveCommand, workers: int
) -> None:
    lines = tmp_path / "drives.jsonl"
    options = ["--model", random_model, "--km", "0.03", "--fault", "speed-in-miles"]
    result = command.result(*options, "--workers", workers, "--lines", lines)
    without, planted = result["faults"]
    assert (without["fault"], planted["fault"]) == ("none", "speed-in-miles")
    # What a plan turns is steered by the speed.
    assert without["offset_mean_m"] != planted["offset_mean_m"]
    assert sorted(row.get("fault", "") for row in rows_of(lines)) == ["", "speed-in-miles"]


@pytest.mark.opencl
def test_a_process_that_cannot_drive_ends_the_run_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"missing\.pkl"):
        drive_apart([Errand("recovery", 0)], tmp_path / "missing.pkl", None, 2)


@pytest.mark.opencl
@pytest.mark.slow
def test_a_process_that_is_gone_ends_the_run_with_a_line(blind_model: Path) -> None:
    errands = [Errand("recovery", seed) for seed in range(4)]

    def kill(_: Drive) -> None:
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(ToolError, match="found one that is gone; is there enough memory"):
        drive_apart(errands, blind_model, None, 2, kill)


def test_the_way_back_never_needs_all_that_the_tyres_give() -> None:
    for seed in range(60):
        trial = Errand("recovery", seed).trial()
        road = trial.world.road
        until_m = trial.hand_over_m + SCENARIOS["recovery"].counts_from_m
        bends = abs(road.curvature_1pm[(road.s_m >= 0.0) & (road.s_m <= until_m)]).max()
        assert bends * trial.speed_mps**2 < 1.2 + 1e-9

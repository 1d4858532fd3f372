"""The acceptance: what it drives, and how it tells what came of that."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import __main__ as acceptance
from tests.acceptance.page import Done, rows_of
from tests.acceptance.plan import Run, Sizes, chosen, runs_of
from tools.cli import main

SMALL = Sizes(roads=2, km=0.1, recoveries=2, leads=1, fault_roads=1, fault_km=0.03, workers=1)


@pytest.fixture
def expert(capsys: pytest.CaptureFixture[str]) -> Done:
    """The run that needs no model, as its command prints it."""
    (run,) = chosen(runs_of(SMALL), ["expert"])
    assert main(["drive", *run.options, "--gates", str(run.gates), "--json", "-q"]) == 0
    result = {"command": "modeld drive some roads", **json.loads(capsys.readouterr().out)}
    return Done(run, result, passed=True)


def test_every_promise_is_driven_and_random_weights_are_to_fail_each() -> None:
    runs = runs_of(Sizes())
    gated = {run.gates: run for run in runs if run.model == "trained" and run.gates}
    assert {run.name for run in gated.values()} == {"roads", "recovery", "stopping-lead"}
    assert {run.gates for run in runs if run.fails} == set(gated)
    (roads,) = chosen(runs, ["roads"])
    assert roads.options == ("--seed", "0", "--drives", "20", "--km", "2", "--live")
    with pytest.raises(ValueError, match="snow: expected one of recovery, "):
        chosen(runs, ["roads", "snow"])


@pytest.mark.parametrize("run", runs_of(SMALL), ids=lambda run: run.name)
def test_every_run_is_a_command_that_can_be_read(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options are checked before the artifact is looked for."""
    gates = [] if run.gates is None else ["--gates", str(run.gates)]
    missing = tmp_path / "missing.pkl"
    model = ["--model", str(missing)] if run.model else []
    code = main(["drive", *run.options, *gates, *model, "-q"])
    assert (code, "missing.pkl" in capsys.readouterr().err) == ((4, True) if model else (0, False))


def test_random_weights_that_drive_well_are_a_failure(expert: Done, tmp_path: Path) -> None:
    (random,) = chosen(runs_of(SMALL), ["random-roads"])
    result: dict[str, Any] = dict(expert.result)
    (tmp_path / "random-roads.json").write_text(json.dumps(result), encoding="utf-8")
    found = acceptance.result_of(random, tmp_path, "12")
    assert found is not None
    assert not found.passed
    result["gates"] = [{**gate, "holds": False} for gate in result["gates"]]
    (tmp_path / "random-roads.json").write_text(json.dumps(result), encoding="utf-8")
    found = acceptance.result_of(random, tmp_path, "12")
    assert found is not None
    assert found.passed
    assert rows_of([found])[0][-1] == "not kept"


def test_results_of_another_trained_model_are_nobodys(tmp_path: Path) -> None:
    (roads,) = chosen(runs_of(SMALL), ["roads"])
    assert acceptance.result_of(roads, tmp_path, "12") is None
    for sha256 in ("12", "13"):
        result = {"sha256": sha256, "gates": [{"holds": True}]}
        (tmp_path / "roads.json").write_text(json.dumps(result), encoding="utf-8")
        found = acceptance.result_of(roads, tmp_path, "12")
        assert (found is not None) == (sha256 == "12")

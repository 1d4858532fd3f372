"""The gates that compare two trainings: both ways, on figures that the commands print."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.selection import quick_cases
from tests.tools.conftest import Modeld
from tools.behaviour.drive_result import CHANGE, numbers_of
from tools.behaviour.gates import Gate, parse_gates
from tools.simulator.closed_loop.result import figures_of
from tools.simulator.training.figures import Figures

ROOT = Path(__file__).parents[3]
FILES = {
    name: ROOT / f"tests/regression/{name}.gates" for name in ("trainings", "trainings-drives")
}


def result_of(name: str) -> dict[str, Any]:
    """Return what a command prints, every figure 10."""
    if name == "trainings":
        figures = Figures(10, (10.0, 10.0), (10.0, 10.0, 10.0), *[10.0] * 7)
        return {"minutes": 10, "held_out": {"all": figures.as_json(), "day": figures.as_json()}}
    return dict.fromkeys(figures_of([]).as_json(), 10.0)


def gates_of(name: str) -> list[Gate]:
    known = [f"{figure}{CHANGE}" for figure, _ in numbers_of(result_of(name))]
    return list(parse_gates([], FILES[name], known))


def changed(result: Mapping[str, Any], figure: str, by: float) -> dict[str, Any]:
    """Return a result with one figure changed, named by its way."""
    first, _, rest = figure.partition(".")
    old = result[first]
    return {**result, first: changed(old, rest, by) if rest else old + by}


def test_names_of_gates_are_those_of_the_table_in_order() -> None:
    figures = Figures(9, (1.0, 2.0), (3.0, 4.0, 5.0), 6.0, 7.0, 8.0, 9.0, 10.0, 0.8, 0.9)
    named = figures.as_json()
    assert list(named.values()) == [9, *figures.rows().values()]
    assert list(named)[1:6] == ["line_10m_m", "line_30m_m", "path_1s_m", "path_2s_m", "path_4s_m"]


@pytest.mark.parametrize("name", FILES)
def test_each_figure_is_bounded_both_ways(name: str) -> None:
    bounds: dict[str, dict[str, float]] = {}
    for gate in gates_of(name):
        bounds.setdefault(gate.name, {})[gate.order] = gate.limit
    assert bounds
    for both in bounds.values():
        assert set(both) == {"<=", ">="}
        assert both["<="] == -both[">="] >= 0.0


@pytest.mark.parametrize("name", quick_cases(FILES, "trainings-drives"))
def test_trainings_agree_within_the_spread_and_not_beyond(
    name: str, tmp_path: Path, modeld: Modeld
) -> None:
    left, right = tmp_path / "a.json", tmp_path / "b.json"
    left.write_text(json.dumps(result_of(name)), encoding="utf-8")

    def compare(code: int, figure: str, by: float) -> None:
        right.write_text(json.dumps(changed(result_of(name), figure, by)), encoding="utf-8")
        modeld(code, "compare", left, right, "--gates-only", "--gates", FILES[name])

    for gate in gates_of(name):
        figure = gate.name.removesuffix(CHANGE)
        compare(0, figure, 0.9 * gate.limit)
        compare(1, figure, 1.1 * gate.limit or (1.0 if gate.order == "<=" else -1.0))
    # A figure that only one has.
    compare(1, gates_of(name)[0].name.removesuffix(CHANGE), float("nan"))


def test_both_trainings_have_to_be_named() -> None:
    """The target is refused before it does anything."""
    make = shutil.which("make")
    assert make is not None
    command = [make, "-o", ".venv/.installed", "compare-trainings", "A=tools/models", "B="]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected two trained models, found A='tools/models' B=''" in done.stderr

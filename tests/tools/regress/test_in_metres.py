"""`modeld regress` in metres: fp16 and faults of code generation judged by what they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tools import tiny_driving
from tests.tools.conftest import SIZE, Modeld
from tests.tools.regress.conftest import Regress, edited_tiny
from tests.tools.regress.fault import plant
from tests.tools.regress.planted import Planted
from tests.tools.tiny_driving import write_tiny_driving
from tools.behaviour.difference import figure_names
from tools.behaviour.gates import parse_gates

pytestmark = pytest.mark.opencl

ROOT = Path(__file__).parents[3]


def test_an_unchanged_program_holds_its_gates(regress: Regress) -> None:
    said = regress(0, "--gate", "lateral_2s_max_m < 1e-6", "--gate", "lead_seen_mean <= 0").out
    assert "identical, 2 gates held" in said
    assert "holds  lateral_2s_max_m < 1e-06: 0\n" in said


def test_a_fault_of_a_kernel_is_judged_by_its_gates(regress: Regress, tmp_path: Path) -> None:
    report = tmp_path / "out.html"
    # Plans bend by a tenth more.
    source = tiny_driving.SOURCE.replace("0.01f * counter[0]", "0.011f * counter[0]")
    assert source != tiny_driving.SOURCE
    faulty = edited_tiny(tmp_path / "faulty.pkl", SOURCE=source)
    # After 2 s at 15 m/s the mode bends by 0.02 * 30^2 / 100 m; it is the ninth frame, so that
    # 0.001 * 9 more of it are 1.62 mm.
    regress(1, model=faulty)
    within = ("--gates-only", "--gate", "lateral_2s_max_m < 0.01", "--report", report)
    said = regress(0, *within, model=faulty).out
    assert "1 gate held, which stand in for" in said
    assert "what it does to the drive:" in said
    text = report.read_text(encoding="utf-8")
    assert "meant: outputs" in text
    assert "<h3>What it does to the drive</h3>" in text
    beyond = ("--gates-only", "--gate", "lateral_2s_max_m < 0.001")
    (drive,) = regress(1, *beyond, "--json", model=faulty).json["drives"]
    ((kind, change),) = [(change["kind"], change["text"]) for change in drive["changes"]]
    assert kind == "gate"
    assert change.startswith("gate lateral_2s_max_m < 0.001: 0.0016")
    assert "does not hold (largest difference in frame 8)" in change
    assert {change["kind"] for change in drive["meant"]} == {"outputs"}
    rows = drive["comparison"]["behaviour"]["quantities"]
    (row,) = [row for row in rows if row["quantity"] == "lateral_2s"]
    assert row["spread"]["max"] == pytest.approx(0.00162, rel=0.02)


def test_gates_do_not_stand_in_for_numbers_that_are_gone(regress: Regress, tmp_path: Path) -> None:
    bad = write_tiny_driving(tmp_path / "bad.pkl", SIZE, bad_frame=5)
    gates = ("--gates-only", "--gate", "lateral_2s_max_m < 10")
    (drive,) = regress(1, *gates, "--json", model=bad).json["drives"]
    texts = " ".join(change["text"] for change in drive["changes"])
    assert "whether it was valid: yes before, no now" in texts


@pytest.mark.slow
def test_fp16_of_a_compiled_model_on_a_rendered_drive(planted: Planted, modeld: Modeld) -> None:
    """Halves move every output beyond its tolerance, and the car by millimetres."""
    half = planted.artifact("half.pkl", precision="fp16")
    gates = planted.place / "half.gates"
    gates.write_text("lateral_*_max_m < 0.05  # metres\n*_edge_*_max_m < 0.1\n", encoding="utf-8")
    modeld(1, *planted.words(model=half))
    said = modeld(0, *planted.words("--gates-only", "--gates", gates, "--json", model=half))
    (drive,) = said.json["drives"]
    assert {change["kind"] for change in drive["meant"]} >= {"outputs"}
    rows = {row["quantity"]: row for row in drive["comparison"]["behaviour"]["quantities"]}
    assert rows["lateral_2s"]["spread"]["max"] > 0.0
    # The drive was rendered: both sides are compared with its truth, too.
    assert rows["lateral_2s"]["right_error"]["expected"] > 0
    assert rows["left_edge_10m"]["left_error"]["missed"] == 0
    assert rows["lateral_acceleration"]["spread"]["frames"] > 0


@pytest.mark.slow
def test_a_constant_of_one_kernel(planted: Planted, modeld: Modeld) -> None:
    """A mean over 512 values that is divided by 256: outputs stay plausible."""
    wrong = planted.place / "wrong.pkl"
    constants = ("0x1.0000000000000p-9f", "0x1.0000000000000p-8f")
    plant(planted.model, wrong, "/norm/LayerNormalization", constants)
    gates = ("--gates-only", "--gate", "lateral_*_max_m < 0.005")
    said = modeld(1, *planted.words(*gates, model=wrong)).out
    found = r"FAILS  lateral_\*_max_m < 0.005: \S+ \(lateral_4s_max_m\), does not"
    assert re.search(found, said)


def test_the_gates_of_the_example_models_can_be_read() -> None:
    gates = parse_gates([], ROOT / "tests/regression/fp16.gates", figure_names())
    assert len(gates) > 10

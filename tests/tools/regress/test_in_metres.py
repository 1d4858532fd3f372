"""`modeld regress` in metres: fp16 and faults of code generation judged by what they do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tools.regress_drives
from scheduler.compile import compile_driving
from scheduler.device.targets import target_for
from scheduler.flags import Flags
from scheduler.onnx_import import load_model
from tests.tools import tiny_driving
from tests.tools.conftest import SIZE, MakeVideo
from tests.tools.regress.fault import plant
from tests.tools.regress.here import run_here
from tests.tools.regress.planted import Planted
from tests.tools.tiny_driving import write_tiny_driving
from tools.behaviour.difference import figure_names
from tools.behaviour.gates import parse_gates
from tools.cli import main

pytestmark = pytest.mark.opencl

ROOT = Path(__file__).parents[3]
Regress = Callable[..., int]


@pytest.fixture
def regress(
    tmp_path: Path, tiny_model: Path, make_video: MakeVideo, monkeypatch: pytest.MonkeyPatch
) -> Regress:
    """Regress one video whose reference has been written."""
    monkeypatch.setattr(tools.regress_drives, "_run_jobs", run_here)
    video = make_video()

    def call(*more: str, model: Path = tiny_model) -> int:
        place = ["--reference", str(tmp_path / "references"), "--drives", str(video)]
        return main(["regress", "--model", str(model), "--no-timing", *place, *more])

    assert call("--update", "--reason", "the first one") == 0
    return call


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same model with another constant in one kernel: plans bend by a tenth more."""
    source = tiny_driving.SOURCE.replace("0.01f * counter[0]", "0.011f * counter[0]")
    assert source != tiny_driving.SOURCE
    with monkeypatch.context() as patch:
        patch.setattr(tiny_driving, "SOURCE", source)
        return write_tiny_driving(tmp_path / "faulty.pkl", SIZE)


def test_an_unchanged_program_holds_its_gates(
    regress: Regress, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert regress("--gate", "lateral_2s_max_m < 1e-6", "--gate", "lead_seen_mean <= 0") == 0
    said = capsys.readouterr().out
    assert "identical, 2 gates held" in said
    assert "holds  lateral_2s_max_m < 1e-06: 0\n" in said


def test_a_fault_of_a_kernel_is_judged_by_its_gates(
    regress: Regress, faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "out.html"
    capsys.readouterr()
    # After 2 s at 15 m/s the mode bends by 0.02 * 30^2 / 100 m; it is the ninth frame, so that
    # 0.001 * 9 more of it are 1.62 mm.
    within = ("--gates-only", "--gate", "lateral_2s_max_m < 0.01")
    assert regress(model=faulty) == 1
    assert regress(*within, "--report", str(report), model=faulty) == 0
    said = capsys.readouterr().out
    assert "1 gate held, which stand in for" in said
    assert "what it does to the drive:" in said
    text = report.read_text(encoding="utf-8")
    assert "meant: outputs" in text
    assert "<h3>What it does to the drive</h3>" in text
    beyond = ("--gates-only", "--gate", "lateral_2s_max_m < 0.001")
    assert regress(*beyond, "--json", model=faulty) == 1
    (drive,) = json.loads(capsys.readouterr().out)["drives"]
    ((kind, change),) = [(change["kind"], change["text"]) for change in drive["changes"]]
    assert kind == "gate"
    assert change.startswith("gate lateral_2s_max_m < 0.001: 0.0016")
    assert "does not hold (largest difference in frame 8)" in change
    assert {change["kind"] for change in drive["meant"]} == {"outputs"}
    rows = drive["comparison"]["behaviour"]["quantities"]
    (row,) = [row for row in rows if row["quantity"] == "lateral_2s"]
    assert row["spread"]["max"] == pytest.approx(0.00162, rel=0.02)


def test_gates_do_not_stand_in_for_numbers_that_are_gone(
    regress: Regress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = write_tiny_driving(tmp_path / "bad.pkl", SIZE, bad_frame=5)
    capsys.readouterr()
    gates = ("--gates-only", "--gate", "lateral_2s_max_m < 10")
    assert regress(*gates, "--json", model=bad) == 1
    (drive,) = json.loads(capsys.readouterr().out)["drives"]
    texts = " ".join(change["text"] for change in drive["changes"])
    assert "whether it was valid: yes before, no now" in texts


def test_gates_do_not_go_with_a_bisection(
    regress: Regress, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del regress
    words = ["--bisect", str(tiny_model), str(tiny_model), "--drives", "x"]
    assert main(["regress", *words, "--gate", "lead_seen_max < 1"]) == 2
    assert "nor gates with it" in capsys.readouterr().err


def test_fp16_of_a_compiled_model_on_a_rendered_drive(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    """Halves move every output beyond its tolerance, and the car by millimetres."""
    models = [load_model(path) for path in planted.onnx]
    flags = replace(Flags.from_environment(), tuned=False)
    half = planted.directory / "half.pkl"
    compile_driving(models, target=target_for("cpu"), flags=flags, precision="fp16").write(half)
    gates = planted.directory / "half.gates"
    gates.write_text("lateral_*_max_m < 0.05  # metres\n*_edge_*_max_m < 0.1\n", encoding="utf-8")
    capsys.readouterr()
    assert planted.regress(model=half) == 1
    assert planted.regress("--gates-only", "--gates", str(gates), "--json", model=half) == 0
    output = capsys.readouterr().out
    (drive,) = json.loads(output[output.index("\n{") + 1 :])["drives"]
    assert {change["kind"] for change in drive["meant"]} >= {"outputs"}
    rows = {row["quantity"]: row for row in drive["comparison"]["behaviour"]["quantities"]}
    assert rows["lateral_2s"]["spread"]["max"] > 0.0
    # The drive was rendered: both sides are compared with its truth, too.
    assert rows["lateral_2s"]["right_error"]["expected"] > 0
    assert rows["left_edge_10m"]["left_error"]["missed"] == 0
    assert rows["lateral_acceleration"]["spread"]["frames"] > 0


def test_a_constant_of_one_kernel(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    """A mean over 512 values that is divided by 256: outputs stay plausible."""
    wrong = planted.directory / "wrong.pkl"
    constants = ("0x1.0000000000000p-9f", "0x1.0000000000000p-8f")
    plant(planted.model, wrong, "/norm/LayerNormalization", constants)
    capsys.readouterr()
    gates = ("--gates-only", "--gate", "lateral_*_max_m < 0.005")
    assert planted.regress(*gates, model=wrong) == 1
    assert re.search(
        r"FAILS  lateral_\*_max_m < 0.005: \S+ \(lateral_4s_max_m\), does not",
        capsys.readouterr().out,
    )


def test_the_gates_of_the_example_models_can_be_read() -> None:
    gates = parse_gates([], ROOT / "tests/regression/fp16.gates", figure_names())
    assert len(gates) > 10

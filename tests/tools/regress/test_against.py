"""``modeld regress --against``: another training is judged by the old one, in metres."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.format.artifact import read_artifact
from tests.tools import tiny_driving
from tests.tools.conftest import FRAMES, SIZE, MakeVideo, Modeld
from tests.tools.regress.conftest import Regress, moved_lines
from tests.tools.regress.fault import plant_delay
from tests.tools.regress.planted import Planted
from tests.tools.tiny_driving import write_tiny_driving
from tools.errors import RegressionReferenceError
from tools.regress.job import JobResult
from tools.regress.judge.reference import ReferenceStore
from tools.regress.judge.references import PlayedReference
from tools.regress.run import TimingOutcome
from tools.regress.time.timing import TimingVerdict

pytestmark = pytest.mark.opencl


class _Trained(tiny_driving._Builder):
    """The hand-written artifact, of another training."""

    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest()
        for source in manifest["models"]:
            source["sha256"] = "1" * 64
        return manifest


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Another training: it sees lane lines 5 cm further to the right."""
    return moved_lines(tmp_path / "trained.pkl", 0.05, _Builder=_Trained)


def against(regress: Regress, other: Path, *more: object) -> list[object]:
    """Return the command that judges the drive's model against another one."""
    return ["regress", "--against", other, "--drives", regress.video, "--no-timing", *more]


def test_another_training_is_judged_by_gates_in_metres_without_references(
    regress: Regress, modeld: Modeld, trained: Path, tmp_path: Path
) -> None:
    line = against(regress, regress.model, "--model", trained)
    said = modeld(0, *line).out
    assert f"passed  drive.mkv  {FRAMES} frames, another model\n" in said
    assert "1 drive passed; no gate was given, so that its behaviour was not judged" in said
    within = ("--gate", "left_line_10m_max_m < 0.06", "--gate", "all.artifact_ratio < 1.01")
    said = modeld(0, *line, *within).out
    assert "another model, 1 gate held" in said
    assert "over all drives:" in said
    assert "artifact, bytes" in said
    assert "execution, median ms" not in said
    assert "holds  all.artifact_ratio < 1.01: 1" in said
    assert said.endswith("\n1 drive passed\n")
    beyond = ("--gate", "left_line_10m_max_m < 0.04", "--gate", "all.left_line_30m_bias_m < 0.01")
    report = tmp_path / "out.html"
    said = modeld(1, *line, *beyond, "--report", report).out
    assert "FAILS  left_line_10m_max_m < 0.04: 0.05" in said
    assert "FAILS  all.left_line_30m_bias_m < 0.01: 0.05" in said
    assert "1 of 1 drive not as allowed against tiny.pkl" in said
    assert "--reference DIR --update --reason" in said
    assert "<h2>Over all drives</h2>" in report.read_text(encoding="utf-8")
    # Weights and outputs are others by right: only the gate is a failure.
    found = modeld(1, *line, *beyond, "--json").json
    (drive,) = found["drives"]
    assert [change["kind"] for change in drive["changes"]] == ["gate"]
    assert {change["kind"] for change in drive["meant"]} == {"outputs"}
    assert found["against"] == "tiny.pkl"
    (row,) = [one for one in found["whole"]["quantities"] if one["quantity"] == "left_line_10m"]
    assert row["bias"] == pytest.approx(0.05, rel=1e-3)
    assert row["worst_drive"] == "drive.mkv"
    old, new = found["whole"]["costs"]
    assert old["artifact_bytes"] == regress.model.stat().st_size
    assert new["artifact_bytes"] == trained.stat().st_size
    # They have played the drives one after the other: such times are not compared.
    assert old["execution_ms"] is None


def test_times_of_both_models_are_those_of_the_timing_gate(
    regress: Regress, modeld: Modeld, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = TimingVerdict(True, 0.5, "timing: +50.0%")
    monkeypatch.setattr(
        "tools.regress.run._judge_timings", lambda *_: [TimingOutcome("run", verdict)]
    )
    line = ["regress", "--against", regress.model, "--model", trained, "--drives", regress.video]
    said = modeld(1, *line, "--gate", "all.execution_ratio < 1.2").out
    assert "FAILS  all.execution_ratio < 1.2: 1.5" in said
    assert "execution, median ms" not in said


@pytest.mark.slow
def test_numbers_that_are_gone_fail_also_against_another_model(
    regress: Regress, modeld: Modeld, tmp_path: Path
) -> None:
    bad = write_tiny_driving(tmp_path / "bad.pkl", SIZE, bad_frame=5)
    said = modeld(1, *against(regress, regress.model, "--model", bad)).out
    assert "whether it was valid: yes before, no now" in said


@pytest.mark.slow
def test_another_training_is_judged_by_references_of_the_old_one(
    regress: Regress, modeld: Modeld, trained: Path, make_video: MakeVideo
) -> None:
    line = against(regress, regress.references, "--model", trained)
    said = modeld(1, *line, "--gate", "left_line_10m_max_m < 0.04").out
    assert "FAILS  left_line_10m_max_m < 0.04" in said
    # What references do not keep is not judged, which is not passed.
    gates = ("--gate", "all.execution_ratio < 100", "--gate", "all.artifact_ratio < 1.01")
    said = modeld(0, *line, *gates).out
    assert "not judged  all.execution_ratio < 100: nothing to judge" in said
    assert "holds  all.artifact_ratio < 1.01: 1" in said
    assert said.endswith("1 drive passed; 1 gate over all drives not judged\n")
    # Its own references are none of another model, and a drive without any is an error.
    line = against(regress, regress.references, "--model", regress.model)
    said = modeld(4, *line).out
    assert "expected one reference of another model" in said
    assert "--update" not in said
    line = ["regress", "--against", regress.references, "--model", trained, "--no-timing"]
    assert "found none" in modeld(4, *line, "--drives", make_video("other.mkv", frames=4)).out


def test_a_failure_of_the_other_model_is_its_own(regress: Regress) -> None:
    (reference,) = ReferenceStore(regress.references).all()
    failed = PlayedReference(JobResult("key", error="drive: no such camera"), "old.pkl", {})
    with pytest.raises(RegressionReferenceError, match=r"^by old\.pkl: drive: no such camera$"):
        failed.find(reference.key, "drive.mkv")
    name = replace(reference.drive, identity="another")
    other = PlayedReference(JobResult("key", drive=name), "old.pkl", {})
    with pytest.raises(RegressionReferenceError, match="changed while they played it"):
        other.find(reference.key, "drive.mkv")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--reference", "references"], "--reference: expected no --against"),
        (["--update", "--reason", "x"], "--update: expected no --against with it; it accepts"),
        (["--bit-exact"], "--bit-exact: expected no --against"),
        (["--explain"], "--explain: expected no --against"),
        (["--prune", "list"], "--prune: expected no --against"),
        (["--shard", "3/2"], "--shard: expected I/N"),
        (["--picture-url", "x"], "--picture-url: expected --pictures"),
        (["--gate", "all.nothing < 1"], "expected the name of a figure, found 'all.nothing'"),
    ],
)
def test_options_that_do_not_fit(
    regress: Regress, modeld: Modeld, words: list[str], text: str
) -> None:
    modeld.refused(2, text, *against(regress, regress.model, "--model", regress.model, *words))


@pytest.mark.slow
def test_the_old_model_is_named_where_another_one_has_no_references(
    regress: Regress, trained: Path
) -> None:
    said = regress(4, model=trained).out
    assert "found one with another model," in said
    assert "judge one model against the other with: --against OLD.pkl" in said
    assert "--update" not in said


@pytest.mark.slow
def test_references_that_nothing_uses_are_listed_and_removed(
    regress: Regress, modeld: Modeld, trained: Path, make_video: MakeVideo
) -> None:
    other = make_video("other.mkv", frames=4)
    (kept,) = regress.files()
    regress.update("another drive", drives=[regress.video, other])
    regress.update("another training", model=trained)
    (regress.references / "damaged.reference").write_bytes(b"no reference")
    before = regress.files()
    words = ["regress", "--model", regress.model, "--reference", regress.references]
    words += ["--drives", regress.video]
    said = modeld(0, *words, "--prune", "list").out
    assert "2 files that these drives and models do not use" in said
    assert regress.files() == before
    # A drive that is renamed keeps its file.
    (regress.references / kept).rename(regress.references / f"renamed{kept[9:]}")
    modeld(4, *words, "gone.mkv", "--prune", "remove")
    assert len(regress.files()) == len(before)
    found = modeld(0, *words, "--prune", "remove", "--json").json
    assert found["removed"] is True
    left = ReferenceStore(regress.references).all()
    assert [one.drive.name for one in left] == ["drive.mkv"]
    assert set(regress.files()) == {f"renamed{kept[9:]}", "damaged.reference"}
    regress(0)


@pytest.mark.alone
@pytest.mark.slow
def test_the_speed_is_judged_by_the_old_artifact(
    planted: Planted, modeld: Modeld, tmp_path: Path
) -> None:
    kernels = read_artifact(planted.model).manifest.kernels
    node = next(kernel.origin[0] for kernel in kernels if "MatMul" in str(kernel.origin))
    plant_delay(planted.model, tmp_path / "slow.pkl", node, 1_000_000)
    words = ["regress", "--against", planted.model, "--drives", planted.drive]
    junit = tmp_path / "junit.xml"
    said = modeld(1, *words, "--model", tmp_path / "slow.pkl", "--junit", junit).out
    assert " frames, another model\n" in said
    assert "changed  run  timing: +" in said
    # Which kernel is named is tested where the gate is: `test_timing_gate`.
    assert "slower kernel: " in said or "kernels one by one: " in said
    assert 'failures="1" errors="0"' in junit.read_text(encoding="utf-8")
    # Compiled again it is the same program, whose digest is another one.
    said = modeld(0, *words, "--model", planted.artifact("again.pkl")).out
    assert "run  timing: " in said

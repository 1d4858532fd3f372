"""The command on the dashcam clip: the kept model sees its lines, random weights do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.built import built, interface_models
from tests.tools.footage.clip import CLIP, LABELS, TELEMETRY
from tools.cli import main

COMMAND = ["footage", str(CLIP), "--labels", str(LABELS)]
KEPT = [Path(__file__).parents[3] / f"tools/models/{role}.onnx" for role in ("vision", "policy")]

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.footage,
    pytest.mark.skipif(not CLIP.exists(), reason="the shared footage is not checked out"),
]


def judged(name: str, files: list[Path], *options: str, capsys: Any) -> list[dict[str, Any]]:
    """Return what is said of a model, of the best fit and of what sees nothing."""

    def compile_to(to: Path) -> None:
        command = ["compile", *map(str, files), "-o", str(to / "driving.pkl")]
        assert main([*command, "--no-binary", "--no-selftest"]) == 0

    artifact = built(f"footage-{name}", compile_to) / "driving.pkl"
    capsys.readouterr()
    options = ("--model", str(artifact), "--telemetry", str(TELEMETRY), *options)
    assert main([*COMMAND, *options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    subjects: list[dict[str, Any]] = said["subjects"]
    assert said["frames"] == subjects[0]["answered"] == 20
    for subject in subjects:
        figures = {(one["what"], one["at"]): one["mean_m"] for one in subject["figures"]}
        subject["mean_m"] = figures["both lines", "all"]
    return subjects


@pytest.mark.slow
def test_random_weights_are_no_better_than_what_sees_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    files = interface_models("split-2025")
    model, best, blind = judged("random", files, "--report", str(page), capsys=capsys)
    # The example's lines are a straight road and noise: a guess, which follows nothing.
    assert model["mean_m"] > 0.7 * blind["mean_m"] > 10 * best["mean_m"]
    assert best["following"] == pytest.approx(1.0, abs=0.05)
    assert model["following"] < 0.2
    text = page.read_text()
    assert text.count("<image ") == 20
    assert text.count('class="paint"') + text.count('class="drawn"') == 20 * 2 * 12
    assert "nan" not in text


@pytest.mark.slow
def test_the_kept_model_sees_the_lines_of_a_real_road(capsys: pytest.CaptureFixture[str]) -> None:
    """It has never seen a real picture; it follows the lane better than what sees nothing."""
    model, _, blind = judged("kept", KEPT, capsys=capsys)
    assert model["following"] > 0.5
    assert model["mean_m"] < blind["mean_m"]


def test_without_a_model_the_references_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND) == 0
    out = capsys.readouterr().out
    assert "20 labelled frames of 12 rows" in out
    assert out.count("20 of 20 frames answered") == 2


def test_a_rate_that_leaves_frames_out_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--rate", "5"]) == 2
    assert "frame 21 is not; choose the rate of the clip" in capsys.readouterr().err

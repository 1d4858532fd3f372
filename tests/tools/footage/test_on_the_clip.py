"""The command on the dashcam clip: the kept model sees its lines, random weights do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.footage.clip import CLIP, LABELS, TELEMETRY
from tools.cli import main

MODELS = Path(__file__).parents[3] / "tools/models"

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.footage,
    pytest.mark.skipif(not CLIP.exists(), reason="the shared footage is not checked out"),
]


@pytest.fixture(scope="module")
def random_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driving model that has learnt nothing."""
    directory = tmp_path_factory.mktemp("random")
    models = directory / "models"
    assert main(["make-model", str(models), "--interface", "split-2025"]) == 0
    return compiled(models, directory)


def compiled(models: Path, directory: Path) -> Path:
    """Return the artifact of a folder's models."""
    files, path = [str(model) for model in models.glob("*.onnx")], directory / "driving.pkl"
    assert main(["compile", *files, "-o", str(path), "--no-binary", "--no-selftest"]) == 0
    return path


def test_random_weights_are_no_better_than_what_sees_nothing(
    random_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    command = ["footage", str(CLIP), "--labels", str(LABELS), "--model", str(random_weights)]
    options = ["--telemetry", str(TELEMETRY), "--report", str(page), "--json"]
    assert main([*command, *options]) == 0
    said = json.loads(capsys.readouterr().out)
    model, best, blind = said["subjects"]
    assert said["frames"] == model["answered"] == 20
    # The example's lines are a straight road and noise: a guess, which follows nothing.
    assert _mean_m(model) > 0.7 * _mean_m(blind) > 10 * _mean_m(best)
    assert best["following"] == pytest.approx(1.0, abs=0.05)
    assert model["following"] < 0.2
    text = page.read_text()
    assert text.count("<image ") == 20
    assert text.count('class="paint"') + text.count('class="drawn"') == 20 * 2 * 12
    assert "nan" not in text


def test_the_kept_model_sees_the_lines_of_a_real_road(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has never seen a real picture; it follows the lane better than what sees nothing."""
    artifact = compiled(MODELS, tmp_path)
    capsys.readouterr()
    command = ["footage", str(CLIP), "--labels", str(LABELS), "--model", str(artifact)]
    assert main([*command, "--telemetry", str(TELEMETRY), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    model, _, blind = said["subjects"]
    assert said["frames"] == model["answered"] == 20
    assert model["following"] > 0.5
    assert _mean_m(model) < _mean_m(blind)


def test_without_a_model_the_references_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["footage", str(CLIP), "--labels", str(LABELS)]) == 0
    out = capsys.readouterr().out
    assert "20 labelled frames of 12 rows" in out
    assert out.count("20 of 20 frames answered") == 2


def test_a_rate_that_leaves_labelled_frames_out_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["footage", str(CLIP), "--labels", str(LABELS), "--rate", "5"]) == 2
    assert "frame 21 is not; choose the rate of the clip" in capsys.readouterr().err


def _mean_m(subject: dict[str, Any]) -> float:
    (found,) = (
        one for one in subject["figures"] if (one["what"], one["at"]) == ("both lines", "all")
    )
    return float(found["mean_m"])

"""The command on the dashcam clip: the kept model sees its lines, random weights do not."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.built import built, interface_models
from tests.tools.conftest import Modeld
from tests.tools.footage.clip import CLIP, LABELS, TELEMETRY

COMMAND = ["footage", CLIP, "--labels", LABELS]
KEPT = [Path(__file__).parents[3] / f"tools/models/{role}.onnx" for role in ("vision", "policy")]

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.footage,
    pytest.mark.skipif(not CLIP.exists(), reason="the shared footage is not checked out"),
]


def judged(name: str, files: list[Path], *options: object, modeld: Modeld) -> list[dict[str, Any]]:
    """Return what is said of a model, of the best fit and of what sees nothing."""

    def compile_to(to: Path) -> None:
        out = to / "driving.pkl"
        modeld(0, "compile", *files, "-o", out, "--no-binary", "--no-selftest")

    artifact = built(f"footage-{name}", compile_to) / "driving.pkl"
    options = ("--model", artifact, "--telemetry", TELEMETRY, *options)
    said = modeld(0, *COMMAND, *options, "--json").json
    subjects: list[dict[str, Any]] = said["subjects"]
    assert said["frames"] == subjects[0]["answered"] == 20
    for subject in subjects:
        figures = {(one["what"], one["at"]): one["mean_m"] for one in subject["figures"]}
        subject["mean_m"] = figures["both lines", "all"]
    return subjects


@pytest.mark.slow
def test_random_weights_are_no_better_than_what_sees_nothing(
    tmp_path: Path, modeld: Modeld
) -> None:
    page = tmp_path / "page.html"
    files = interface_models("split-2025")
    model, best, blind = judged("random", files, "--report", page, modeld=modeld)
    # The example's lines are a straight road and noise: a guess, which follows nothing.
    assert model["mean_m"] > 0.7 * blind["mean_m"] > 10 * best["mean_m"]
    assert best["following"] == pytest.approx(1.0, abs=0.05)
    assert model["following"] < 0.2
    text = page.read_text()
    assert text.count("<image ") == 20
    assert text.count('class="paint"') + text.count('class="drawn"') == 20 * 2 * 12
    assert "nan" not in text


@pytest.mark.slow
def test_the_kept_model_sees_the_lines_of_a_real_road(modeld: Modeld) -> None:
    """It has never seen a real picture; it follows the lane better than what sees nothing."""
    model, _, blind = judged("kept", KEPT, modeld=modeld)
    assert model["following"] > 0.5
    assert model["mean_m"] < blind["mean_m"]


def test_without_a_model_the_references_are_shown(modeld: Modeld) -> None:
    out = modeld(0, *COMMAND).out
    assert "20 labelled frames of 12 rows" in out
    assert out.count("20 of 20 frames answered") == 2


def test_a_rate_that_leaves_frames_out_is_refused(modeld: Modeld) -> None:
    modeld.refused(2, "frame 21 is not; choose the rate of the clip", *COMMAND, "--rate", 5)

"""Artifacts of each kind of model, made by the commands, replay videos of any size and the clip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cereal.log_reader import read_log
from tests.tools.conftest import MakeVideo
from tools.cli import main

pytestmark = pytest.mark.opencl
FRAMES = 6
FOOTAGE = Path(__file__).parents[4] / "shared/data/dashcam/solidWhiteRight.mp4"
FOOTAGE_FRAMES = 221
MESSAGES = ("modelV2", "drivingModelData", "cameraOdometry")


@pytest.fixture(
    scope="module",
    params=[
        "supercombo-0.9.7",
        "split-2025",
        "on-off-2026",
        "history-2026",
        "supercombo-2026-action",
    ],
)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example of an interface, compiled once for all tests of it."""
    directory = tmp_path_factory.mktemp("interface")
    models, path = directory / "models", directory / "driving.pkl"
    assert main(["make-model", str(models), "--interface", request.param]) == 0
    files = [str(model) for model in models.iterdir()]
    assert main(["compile", *files, "-o", str(path), "--no-binary"]) == 0
    return path


def test_a_model_of_each_kind_replays_videos_of_two_sizes(
    artifact: Path, tmp_path: Path, make_video: MakeVideo
) -> None:
    for size in ((192, 128), (322, 180)):
        video, log = make_video(f"{size[0]}.mkv", size=size, frames=FRAMES), tmp_path / "out.rlog"
        command = ["replay", str(video), "--model", str(artifact), "-o", str(log), "--json"]
        assert main(command) == 0
        said = [event.modelV2 for event in read_log(log) if event.which() == "modelV2"]
        assert [message.frameId for message in said] == list(range(FRAMES))
        for message in said:
            near = [line.y[0] for line in message.laneLines]
            assert near == pytest.approx([-5.4, -1.8, 1.8, 5.4], abs=0.8)
            assert message.position.x[-1] == pytest.approx(150.0, abs=40.0)


@pytest.mark.footage
@pytest.mark.skipif(not FOOTAGE.exists(), reason="the shared footage is not checked out")
def test_a_model_of_each_kind_replays_the_dashcam_clip(artifact: Path, tmp_path: Path) -> None:
    log = tmp_path / "out.rlog"
    command = ["replay", str(FOOTAGE), "--model", str(artifact), "-o", str(log), "--json"]
    assert main(command) == 0
    events = list(read_log(log))
    for name in MESSAGES:
        said = [event for event in events if event.which() == name]
        assert [getattr(event, name).frameId for event in said] == list(range(FOOTAGE_FRAMES))
        assert all(event.valid for event in said)
    for event in (event for event in events if event.which() == "modelV2"):
        assert np.isfinite(list(event.modelV2.position.x)).all()
        assert np.isfinite([list(line.y) for line in event.modelV2.laneLines]).all()

"""Artifacts of other generations, made by the commands, replay videos of any size."""

from __future__ import annotations

from pathlib import Path

import pytest

from cereal.log_reader import read_log
from tests.tools.conftest import MakeVideo
from tests.tools.small_monitoring import write_small_monitoring
from tools.cli import main

FRAMES = 6


@pytest.mark.opencl
@pytest.mark.parametrize("interface", ["supercombo-0.9.7", "on-off-2026", "history-2026"])
def test_a_model_of_each_kind_replays_videos_of_two_sizes(
    interface: str, tmp_path: Path, make_video: MakeVideo
) -> None:
    models, artifact = tmp_path / "models", tmp_path / "driving.pkl"
    assert main(["make-model", str(models), "--interface", interface]) == 0
    files = [str(path) for path in models.iterdir()]
    assert main(["compile", *files, "-o", str(artifact), "--no-binary"]) == 0
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


@pytest.mark.opencl
def test_driver_monitoring_is_not_replayed(
    tmp_path: Path, make_video: MakeVideo, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_small_monitoring(tmp_path / "dmonitoring.pkl")
    video, log = make_video("a.mkv"), tmp_path / "out.rlog"
    assert main(["replay", str(video), "--model", str(model), "-o", str(log)]) == 4
    assert capsys.readouterr().err == (
        f"modeld: error: {model}: expected a driving artifact, found a monitoring one; driver "
        f"monitoring is not replayed, run it with: modeld run --model {model}\n"
    )

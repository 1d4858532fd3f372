"""Artifacts of each kind of model replay videos of any size and the clip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cereal.log_reader import read_log
from tests.support.built import built, example_artifact
from tests.support.selection import quick_cases
from tests.tools.conftest import MakeVideo, Modeld
from tests.tools.small_monitoring import write_small_monitoring
from tools.lib.drive_log import OUTPUT_SERVICES

pytestmark = pytest.mark.opencl

FRAMES = 6
FOOTAGE = Path(__file__).parents[4] / "shared/data/dashcam/solidWhiteRight.mp4"
FOOTAGE_FRAMES = 221
INTERFACES = [
    *("supercombo-0.9.7", "split-2025", "on-off-2026", "history-2026", "supercombo-2026-action")
]


@pytest.mark.parametrize("interface", quick_cases(INTERFACES, "split-2025"))
def test_a_model_of_each_kind_replays_videos_of_two_sizes(
    interface: str, tmp_path: Path, make_video: MakeVideo, modeld: Modeld
) -> None:
    artifact, log = example_artifact(interface), tmp_path / "out.rlog"
    for size in ((192, 128), (322, 180)):
        video = make_video(f"{size[0]}.mkv", size=size, frames=FRAMES)
        modeld(0, "replay", video, "--model", artifact, "-o", log, "--json")
        said = [event.modelV2 for event in read_log(log) if event.which() == "modelV2"]
        assert [message.frameId for message in said] == list(range(FRAMES))
        for message in said:
            near = [line.y[0] for line in message.laneLines]
            assert near == pytest.approx([-5.4, -1.8, 1.8, 5.4], abs=0.8)
            assert message.position.x[-1] == pytest.approx(150.0, abs=40.0)


@pytest.mark.slow
@pytest.mark.footage
@pytest.mark.skipif(not FOOTAGE.exists(), reason="the shared footage is not checked out")
@pytest.mark.parametrize("interface", INTERFACES)
def test_a_model_of_each_kind_replays_the_dashcam_clip(
    interface: str, tmp_path: Path, modeld: Modeld
) -> None:
    log = tmp_path / "out.rlog"
    modeld(0, "replay", FOOTAGE, "--model", example_artifact(interface), "-o", log, "--json")
    events = list(read_log(log))
    for name in OUTPUT_SERVICES:
        said = [event for event in events if event.which() == name]
        assert [getattr(event, name).frameId for event in said] == list(range(FOOTAGE_FRAMES))
        assert all(event.valid for event in said)
    for event in (event for event in events if event.which() == "modelV2"):
        assert np.isfinite(list(event.modelV2.position.x)).all()
        assert np.isfinite([list(line.y) for line in event.modelV2.laneLines]).all()


def test_driver_monitoring_is_not_replayed(tmp_path: Path, video: Path, modeld: Modeld) -> None:
    name = "dmonitoring.pkl"
    model = built("small-monitoring", lambda to: write_small_monitoring(to / name)) / name
    said = modeld(4, "replay", video, "--model", model, "-o", tmp_path / "out.rlog").err
    assert said == (
        f"modeld: error: {model}: expected a driving artifact, found a monitoring one; driver "
        f"monitoring is not replayed, run it with: modeld run --model {model}\n"
    )

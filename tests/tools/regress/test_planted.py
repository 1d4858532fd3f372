"""Faults as they happen, planted one at a time: each is caught, and named where it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import modeld.model_session
import tools.regress_drives
from cereal.schema import read_event
from modeld.bus_reader import BusReader
from modeld.confidence import ConfidenceFilter
from modeld.inputs import BusInputs, DesirePulse, action_times
from modeld.model_message import ModelMessage
from tests.tools import tiny_driving
from tests.tools.conftest import FRAMES, SIZE, MakeVideo
from tests.tools.regress.here import run_here
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main
from tools.drives.drive import Moment
from tools.drives.video_drive import VideoDrive
from tools.lib.video import VideoFrame
from tools.playback.digests import DigestingProgram

pytestmark = pytest.mark.opencl

# Frames at which the driver sets the blinker, and turns the wheel.
BLINKER_FRAME, NUDGE_FRAME = 2, 4
# Place of the yaw among the 15 values of a point of the plan.
YAW = 11

# Runs the drive once more and returns what changed: (kind, text) of each change.
Regress = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def regress(
    tmp_path: Path,
    make_video: MakeVideo,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Regress:
    """Give a drive with a bend and a lane change, whose reference has been written."""
    drive = make_video()
    weights = tiny_driving._policy_weights

    def with_a_bend(speed_mps: float) -> Any:
        bias, mode = weights(speed_mps)
        time_s = 10.0 * (np.arange(33) / 32) ** 2
        bias[YAW:495:15] = 0.02 * time_s**2
        return bias, mode

    monkeypatch.setattr(tiny_driving, "_policy_weights", with_a_bend)
    bending = write_tiny_driving(tmp_path / "bending.pkl", SIZE)
    read = BusReader.read

    def with_lane_change(self: BusReader, now_ns: int) -> BusInputs:
        found = read(self, now_ns)
        at = found.road_frame_id
        vehicle = replace(
            found.vehicle,
            left_blinker=at >= BLINKER_FRAME,
            steering_pressed=at >= NUDGE_FRAME,
            steering_torque=1.0 if at >= NUDGE_FRAME else 0.0,
            lateral_active=True,
        )
        return replace(found, vehicle=vehicle)

    monkeypatch.setattr(BusReader, "read", with_lane_change)
    monkeypatch.setattr(tools.regress_drives, "_run_jobs", run_here)

    def call(*more: str, model: Path = bending) -> list[tuple[str, str]]:
        place = ["--reference", str(tmp_path / "references"), "--drives", str(drive)]
        code = main(["regress", "--model", str(model), "--no-timing", "--json", *more, *place])
        result = json.loads(capsys.readouterr().out)
        found = [(change["kind"], change["text"]) for change in result["drives"][0]["changes"]]
        assert code == (1 if found and not more else 0)
        assert result["drives"][0]["status"] != "failed"
        return found

    assert call("--update", "--reason", "base") == []
    assert call() == []
    return call


def _inputs(changes: Sequence[tuple[str, str]]) -> list[str]:
    return [text.split()[1] for kind, text in changes if kind == "input"]


def test_wide_and_road_transforms_swapped(
    regress: Regress, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = DigestingProgram.run

    def swapped(self: DigestingProgram, inputs: Any, entry: str | None = None) -> Any:
        pair = {"road_transform": "wide_transform", "wide_transform": "road_transform"}
        return run(self, {name: inputs[pair.get(name, name)] for name in inputs}, entry)

    monkeypatch.setattr(DigestingProgram, "run", swapped)
    changes = regress()
    assert sorted(_inputs(changes)) == ["road_transform", "wide_transform"]
    assert f"differs from frame 0 on ({FRAMES} of {FRAMES} frames)" in changes[0][1]


@pytest.mark.parametrize("fault", ["swapped", "half a pixel off"])
def test_chroma_planes(regress: Regress, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    write = VideoFrame.write_nv12

    def spoilt(self: VideoFrame, *target: Any) -> None:
        u, v = self.chroma[:, 0::2], self.chroma[:, 1::2]
        if fault == "swapped":
            u, v = v, u
        else:
            # Between two samples, as when the siting of the samples is taken for another one.
            u, v = ((plane.astype(np.uint16) + np.roll(plane, 1, 1) + 1) // 2 for plane in (u, v))
        chroma = np.stack([u, v], axis=2).reshape(self.chroma.shape).astype(np.uint8)
        write(replace(self, chroma=chroma), *target)

    monkeypatch.setattr(VideoFrame, "write_nv12", spoilt)
    assert set(_inputs(regress())) == {"road_frame", "wide_frame"}


def test_a_dropped_frame(regress: Regress, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = VideoDrive.moments

    def without_one(self: VideoDrive, first: int = 0) -> Iterator[Moment]:
        return (moment for moment in moments(self, first) if moment.index != 5)

    monkeypatch.setattr(VideoDrive, "moments", without_one)
    texts = [text for kind, text in regress() if kind == "frames"]
    assert "frame 5 was taken, and is not" in texts
    assert "frame 6: frames counted as missing before it: 0 before, 1 now" in texts
    assert "frame 6: whether it was published: yes before, no now" in texts


def test_a_desire_that_is_lost(regress: Regress, monkeypatch: pytest.MonkeyPatch) -> None:
    update = DesirePulse.update

    def lost(self: DesirePulse, desire: Any) -> Any:
        return np.zeros_like(update(self, desire))

    monkeypatch.setattr(DesirePulse, "update", lost)
    changes = regress()
    assert _inputs(changes) == ["desire"]
    assert f"(1 of {FRAMES} frames)" in changes[0][1]


def test_a_message_field_that_is_zeroed(regress: Regress, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = ModelMessage.fill

    def zeroed(self: ModelMessage, *rest: Any) -> bytes:
        event = read_event(fill(self, *rest)).as_builder()
        event.modelV2.laneLineProbs = [0.0] * 4
        return bytes(event.to_bytes())

    monkeypatch.setattr(ModelMessage, "fill", zeroed)
    ((kind, text),) = regress()
    assert kind == "outputs"
    assert text.startswith(f"modelV2.laneLineProbs: value in {FRAMES} frames from 0 on")


def test_confidence_computed_on_the_wrong_frame(
    regress: Regress, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = ConfidenceFilter.update
    monkeypatch.setattr(
        ConfidenceFilter, "update", lambda self, meta, at: update(self, meta, at + 1)
    )
    ((_, text),) = regress()
    assert text.startswith("modelV2.confidence")


def test_a_lateral_delay_of_zero(regress: Regress, monkeypatch: pytest.MonkeyPatch) -> None:
    times = action_times

    def without_delay(_delay: float, *rest: Any, **more: Any) -> Any:
        return times(0.0, *rest, **more)

    monkeypatch.setattr(modeld.model_session, "action_times", without_delay)
    changes = regress()
    assert changes
    assert all("action.desiredCurvature" in text for _, text in changes)


def test_features_that_are_one_frame_late(
    regress: Regress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tiny_driving._Builder.manifest

    def late(self: Any) -> Any:
        manifest = make(self)
        run = manifest["entries"]["run"]
        advance, *rest = run["launches"]
        run["launches"] = [*rest, advance]
        return manifest

    monkeypatch.setattr(tiny_driving._Builder, "manifest", late)
    changes = regress(model=write_tiny_driving(tmp_path / "late.pkl", SIZE))
    assert _inputs(changes) == []
    assert any(text.startswith("modelV2.laneLines[].y: value") for _, text in changes)


def test_another_launch(regress: Regress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = tiny_driving._Builder.manifest

    def twice(self: Any) -> Any:
        manifest = make(self)
        run = manifest["entries"]["run"]
        run["launches"] = [*run["launches"], run["launches"][-1]]
        return manifest

    monkeypatch.setattr(tiny_driving._Builder, "manifest", twice)
    ((kind, text),) = regress(model=write_tiny_driving(tmp_path / "twice.pkl", SIZE))
    assert kind == "launches"
    assert "3 launches of 3 kernels before, 4 launches of 3 kernels now" in text

"""Faults of the daemon and its inputs, planted one at a time: each is caught, and named.

In a hand-written program on a drive of nine frames, and in a compiled one on a rendered drive.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modeld.model.driving_model import DrivingModel, ModelInputs
from modeld.model.model_session import ModelSession
from modeld.outputs.fill_message import fill_outputs
from modeld.outputs.verdict import ConfidenceFilter
from modeld.vehicle.inputs import BusInputs, BusReader, DesirePulse
from tests.support.selection import quick_cases
from tests.tools import tiny_driving
from tests.tools.conftest import FRAMES, Modeld
from tests.tools.regress.conftest import Regress, changes, edited_manifest, edited_tiny
from tests.tools.regress.planted import EDGE_FRAME, Planted
from tests.tools.regress.planted import FRAMES as PLANTED_FRAMES
from tools.drives.drive import Moment
from tools.drives.video_drive import VideoDrive
from tools.video.video import VideoFrame

pytestmark = pytest.mark.opencl

# Frames at which the driver sets the blinker, and turns the wheel.
BLINKER_FRAME, NUDGE_FRAME = 2, 4
# Place of the yaw among the 15 values of a point of the plan.
YAW = 11
# How often an unchanged build has to pass; 20 times in a row were seen to, with the timing gate.
REPEATS = 2
Patch = pytest.MonkeyPatch


def wrap(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[Patch], None]:
    """Return what puts `change(original, *arguments)` in the place of a function."""

    def plant(patch: Patch) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *given, **more: change(original, *given, **more))

    return plant


def swap_transforms(make: Callable[..., ModelInputs], *given: Any) -> ModelInputs:
    made = make(*given)
    return replace(made, main_transform=made.extra_transform, extra_transform=made.main_transform)


def swap_chroma(write: Any, frame: VideoFrame, *target: Any) -> None:
    chroma = frame.chroma.reshape(*frame.chroma.shape[:1], -1, 2)[:, :, ::-1]
    write(replace(frame, chroma=chroma.reshape(frame.chroma.shape)), *target)


def shift_chroma(write: Any, frame: VideoFrame, *target: Any) -> None:
    """Between two samples, as when the siting of the samples is taken for another one."""
    planes = frame.chroma.reshape(*frame.chroma.shape[:1], -1, 2).astype(np.uint16)
    chroma = ((planes + np.roll(planes, 1, 1) + 1) // 2).astype(np.uint8)
    write(replace(frame, chroma=chroma.reshape(frame.chroma.shape)), *target)


def leave_out_a_moment(moments: Any, drive: VideoDrive, first: int = 0) -> Iterator[Moment]:
    return (moment for moment in moments(drive, first) if moment.index != 5)


def prepare_without_desire(prepare: Any, model: DrivingModel, inputs: ModelInputs) -> None:
    prepare(model, replace(inputs, desire_pulse=np.zeros_like(inputs.desire_pulse)))


def hold_desire(update: Any, pulse: DesirePulse, desire: int) -> Any:
    pulse.reset()
    return update(pulse, desire)


def zero_a_field(event: Any, *rest: Any) -> None:
    fill_outputs(event, *rest)
    event.modelV2.laneLineProbs = [0.0] * 4


@dataclass(frozen=True)
class Row:
    """A fault, and expressions: what finds one of the changes each, and what finds every one."""

    plant: Callable[[Patch], None]
    found: tuple[str, ...] = ()
    only: str = ""

    def check(self, said: list[str]) -> None:
        assert said
        for pattern in self.found:
            assert any(re.search(pattern, text) for text in said), (pattern, said)
        assert all(re.search(self.only, text) for text in said), said


OF_ALL = rf"differs from frame 0 on \({FRAMES} of {FRAMES} frames\)"
TINY = {
    "transforms swapped": Row(
        wrap(ModelSession, "inputs", swap_transforms),
        (rf"^input: input road_transform {OF_ALL}", rf"^input: input wide_transform {OF_ALL}"),
        r"^(?!input: input (?!road_transform|wide_transform))",
    ),
    **{
        f"chroma {name}": Row(
            wrap(VideoFrame, "write_nv12", change),
            ("^input: input road_frame", "^input: input wide_frame"),
            r"^(?!input: input (?!road_frame|wide_frame))",
        )
        for name, change in (("swapped", swap_chroma), ("half a pixel off", shift_chroma))
    },
    "a frame dropped": Row(
        wrap(VideoDrive, "moments", leave_out_a_moment),
        (
            "frame 5 was processed, and is not now",
            "frame 6: frames counted as missing before it: 0 before, 1 now",
            "^frames: frame 6: whether it was published: yes before, no now",
            r"modelV2: missing in 2 frames, first at 5\b",
        ),
    ),
    "a desire lost": Row(
        wrap(DesirePulse, "update", lambda update, *given: np.zeros_like(update(*given))),
        (rf"^input: input desire differs first at frame \d \(1 of {FRAMES} frames\)",),
        r"^(?!input: input (?!desire))",
    ),
    "a field zeroed": Row(
        lambda patch: patch.setattr("modeld.outputs.fill_message.fill_outputs", zero_a_field),
        only=rf"^outputs: modelV2\.laneLineProbs: value in {FRAMES} frames from 0 on",
    ),
    "confidence of another frame": Row(
        wrap(ConfidenceFilter, "update", lambda update, one, meta, at: update(one, meta, at + 1)),
        only=r": modelV2\.confidence",
    ),
    "no lateral delay": Row(
        wrap(BusReader, "read", lambda read, *given: replace(read(*given), lateral_delay_s=0.0)),
        only=r"action\.desiredCurvature",
    ),
}
LINEAR_S = np.linspace(0.0, 10.0, 33)


def linear_times(patch: Patch) -> None:
    """Plans are said to be of other times, which are those of the truth no more."""
    patch.setattr("modeld.outputs.fill_message._T_LIST", LINEAR_S.tolist())
    patch.setattr("tools.behaviour.truth.T_IDXS", LINEAR_S)


COMPILED = {
    "times of another kind": Row(linear_times, (r"^outputs: modelV2\.position\.t: value",)),
    "a desire edge lost on a drop": Row(
        wrap(DrivingModel, "prepare", prepare_without_desire),
        (
            rf"input desire differs first at frame {EDGE_FRAME} \(1 of {PLANTED_FRAMES - 1} fr",
            r"modelV2\.",
        ),
    ),
    "a desire that is not a pulse": Row(
        wrap(DesirePulse, "update", hold_desire),
        (f"input desire differs from frame {EDGE_FRAME + 1} on",),
    ),
    "confidence of another frame": Row(
        wrap(ConfidenceFilter, "update", lambda update, one, meta, at: update(one, meta, at - 1)),
        (r"modelV2\.confidence: value in 1 frame from 40 on",),
        "^(?!input)",
    ),
}


@pytest.fixture
def bending(tmp_path: Path, regress: Regress, monkeypatch: Patch) -> Regress:
    """Regress a drive with a bend and a lane change."""
    weights = tiny_driving._policy_weights

    def with_a_bend(speed_mps: float) -> Any:
        bias, mode = weights(speed_mps)
        bias[YAW:495:15] = 0.02 * (10.0 * (np.arange(33) / 32) ** 2) ** 2
        return bias, mode

    def with_lane_change(read: Callable[..., BusInputs], *given: Any) -> BusInputs:
        found = read(*given)
        nudged = found.road_frame_id >= NUDGE_FRAME
        vehicle = replace(
            found.vehicle,
            left_blinker=found.road_frame_id >= BLINKER_FRAME,
            steering_pressed=nudged,
            steering_torque=float(nudged),
            lateral_active=True,
        )
        return replace(found, vehicle=vehicle)

    monkeypatch.setattr(tiny_driving, "_policy_weights", with_a_bend)
    wrap(BusReader, "read", with_lane_change)(monkeypatch)
    found = replace(regress, model=edited_tiny(tmp_path / "bending.pkl"))
    found.update("base")
    assert changes(found(0, "--json")) == []
    return found


@pytest.mark.parametrize("fault", quick_cases(TINY, "transforms swapped"))
def test_a_fault_of_the_daemon(bending: Regress, monkeypatch: Patch, fault: str) -> None:
    TINY[fault].plant(monkeypatch)
    said = changes(bending(1, "--json"))
    TINY[fault].check(said)
    assert len(said) == 1 or fault not in ("a field zeroed", "confidence of another frame")


@pytest.mark.parametrize(
    ("order", "found"),
    [
        # The features are one frame late.
        ((1, 2, 0), r"^(?!input).*: modelV2\.laneLines\[\]\.y: value"),
        (
            (0, 1, 2, 2),
            "^launches: entry run: 3 launches of 3 kernels before, 4 launches of 3 kernels now$",
        ),
    ],
)
def test_launches_in_another_order_or_number(
    bending: Regress, tmp_path: Path, order: tuple[int, ...], found: str
) -> None:
    def reordered(manifest: Any) -> None:
        run = manifest["entries"]["run"]
        run["launches"] = [run["launches"][place] for place in order]

    said = changes(bending(1, "--json", model=edited_manifest(tmp_path / "other.pkl", reordered)))
    assert any(re.search(found, text) for text in said), said
    assert not any(text.startswith("input") for text in said)
    assert len(said) == 1 or len(order) == 3


@pytest.mark.slow
def test_the_clean_build_passes_while_another_process_loads_a_core(
    planted: Planted, modeld: Modeld
) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            for _ in range(REPEATS):
                said = modeld(0, *planted.words()).out
                assert f"{PLANTED_FRAMES - 1} frames, identical" in said
        finally:
            busy.kill()


@pytest.mark.slow
@pytest.mark.parametrize("fault", COMPILED)
def test_a_fault_of_the_daemon_with_a_compiled_program(
    planted: Planted, modeld: Modeld, monkeypatch: Patch, fault: str
) -> None:
    COMPILED[fault].plant(monkeypatch)
    COMPILED[fault].check(changes(modeld(1, *planted.words("--json"))))

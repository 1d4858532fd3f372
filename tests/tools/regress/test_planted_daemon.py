"""Faults in the daemon and its inputs: each is caught, and what is said names it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modeld.bus_reader import BusReader
from modeld.confidence import ConfidenceFilter
from modeld.driving_model import DrivingModel, ModelInputs
from modeld.fill_message import fill_outputs
from modeld.inputs import DesirePulse
from modeld.model_session import ModelSession
from tests.tools.regress.planted import EDGE_FRAME, FRAMES, Planted
from tools.drives.drive import Moment
from tools.playback.prefetch import prefetch

pytestmark = pytest.mark.opencl

# How often an unchanged build has to pass; 20 times in a row were seen to, with the timing gate.
REPEATS = 2


def said(planted: Planted, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a regression says that finds a fault."""
    capsys.readouterr()
    assert planted.regress() == 1
    return capsys.readouterr().out


def test_the_clean_build_passes_while_another_process_loads_a_core(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            for _ in range(REPEATS):
                capsys.readouterr()
                assert planted.regress() == 0
                assert f"{FRAMES - 1} frames, identical" in capsys.readouterr().out
        finally:
            busy.kill()


def test_swapped_transforms(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make = ModelSession.inputs

    def swapped(self: ModelSession, *given: Any) -> ModelInputs:
        made = make(self, *given)
        return replace(
            made, main_transform=made.extra_transform, extra_transform=made.main_transform
        )

    monkeypatch.setattr(ModelSession, "inputs", swapped)
    text = said(planted, capsys)
    for name in ("road_transform", "wide_transform"):
        assert f"input {name} differs from frame 0 on" in text
    assert "input road_frame" not in text
    assert "input wide_frame" not in text


def test_a_desire_edge_lost_on_a_drop(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = DrivingModel.prepare

    def without_desire(self: DrivingModel, inputs: ModelInputs) -> None:
        prepare(self, replace(inputs, desire_pulse=np.zeros_like(inputs.desire_pulse)))

    monkeypatch.setattr(DrivingModel, "prepare", without_desire)
    text = said(planted, capsys)
    assert f"input desire differs first at frame {EDGE_FRAME} (1 of {FRAMES - 1} frames)" in text
    assert "modelV2." in text


def test_a_desire_that_is_not_a_pulse(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update = DesirePulse.update

    def level(self: DesirePulse, desire: int) -> Any:
        self.reset()
        return update(self, desire)

    monkeypatch.setattr(DesirePulse, "update", level)
    assert f"input desire differs from frame {EDGE_FRAME + 1} on" in said(planted, capsys)


def test_a_dropped_frame(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = 15

    class Losing:
        def __init__(self, drive: Any) -> None:
            self._prefetched = prefetch(drive)

        def __enter__(self) -> Iterator[Moment]:
            moments = self._prefetched.__enter__()
            return (
                replace(moment, frames={}) if moment.index == lost else moment for moment in moments
            )

        def __exit__(self, *error: Any) -> Any:
            return self._prefetched.__exit__(*error)

    monkeypatch.setattr("tools.playback.run_drive.prefetch", Losing)
    text = said(planted, capsys)
    assert f"frame {lost} was taken, and is not" in text
    assert f"frame {lost + 1}: frames counted as missing before it: 0 before, 1 now" in text
    assert re.search(rf"modelV2: missing in 2 frames, first at {lost}\b", text)


def test_a_zeroed_field(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def zeroing(event: Any, *rest: Any) -> None:
        fill_outputs(event, *rest)
        event.modelV2.meta.engagedProb = 0.0

    monkeypatch.setattr("modeld.model_message.fill_outputs", zeroing)
    text = said(planted, capsys)
    assert re.search(
        rf"modelV2\.meta\.engagedProb: value in {FRAMES - 2} frames from 0 on.* 0\.0 now", text
    )
    assert "1 change" in text
    assert "input" not in text


def test_confidence_of_the_wrong_frame(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update = ConfidenceFilter.update

    def late(self: ConfidenceFilter, meta: Any, frame_id: int) -> Any:
        return update(self, meta, frame_id - 1)

    monkeypatch.setattr(ConfidenceFilter, "update", late)
    text = said(planted, capsys)
    assert re.search(r"modelV2\.confidence: value in 1 frame from 40 on", text)
    assert "input" not in text


def test_no_lateral_delay(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = BusReader.read
    monkeypatch.setattr(
        BusReader, "read", lambda self, now_ns: replace(read(self, now_ns), lateral_delay_s=0.0)
    )
    text = said(planted, capsys)
    assert re.search(r"modelV2\.action\.desiredCurvature: value in \d+ frames from 0 on", text)
    assert "desiredAcceleration" not in text
    assert "input" not in text

"""A driving artifact's program is given its inputs by name, and its outputs are checked."""

from typing import Any

import numpy as np
import pytest

from cereal.frames import Frame, FrameFormat
from modeld.errors import CameraSizeError, ModelInterfaceError
from modeld.frames.frame_sync import FramePair
from modeld.model.driving_model import DrivingModel, ModelInputs
from runtime.format.interfaces import HistoryRule, ImageRule, ModelPart
from tests.modeld.bench import Patch, frame_of
from tests.modeld.fake_program import TICI, FakeProgram, make_interface

# Unpadded: 16 rows of 40 bytes, then 8 rows of chroma.
BARE = FrameFormat(40, 16, 40, 640, 960)
HOST = {"traffic_convention": 4.0, "lateral_control_params": 5.0, "action_t": 6.0}


def make_inputs(main: Frame | None = None, extra: Frame | None = None) -> ModelInputs:
    """Inputs of which each holds a number of its own."""
    return ModelInputs(
        FramePair(main or frame_of(8), extra or frame_of(9)),
        np.full((3, 3), 1, np.float32),
        np.full((3, 3), 2, np.float32),
        np.full(8, 3, np.float32),
        *(np.full((1, 2), value, np.float32) for value in HOST.values()),
    )


@pytest.fixture
def program() -> FakeProgram:
    return FakeProgram()


@pytest.mark.parametrize("entry", ["run", "prepare"])
def test_each_input_has_its_name(program: FakeProgram, entry: str) -> None:
    getattr(DrivingModel(program), entry)(make_inputs())
    ((called, inputs),) = program.calls
    assert called == entry
    values = {name: np.unique(array).tolist() for name, array in inputs.items()}
    assert values == {
        "road_frame": [8],
        "wide_frame": [9],
        "road_geometry": [32, 64, 128, 4096],
        "wide_geometry": [32, 64, 128, 4096],
        "road_transform": [1],
        "wide_transform": [2],
        "desire": [3],
        **({"traffic_convention": [4]} if entry == "run" else {}),
    }


def test_warm_up_runs_once_and_resets_and_checks_the_outputs(program: FakeProgram) -> None:
    assert DrivingModel(program).warm_up() > 0
    assert [entry for entry, _ in program.calls] == ["run"]
    assert program.resets == 1
    program.raw["policy"] = np.zeros((1, 999), np.float32)
    with pytest.raises(ModelInterfaceError, match=r"policy_outputs: expected float32 \(1, 1000\)"):
        DrivingModel(program).warm_up()


STATES = {"state_feat_q": ((96, 1, 512), "float32"), "state_prev_feat": ((1, 512), "float32")}
NO_HISTORY: dict[str, Any] = {"desire": None, "features": None}


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        # 25 samples, 4 frames apart.
        ({}, 100),
        ({"desire": None, "features": HistoryRule(99, 1, current=False, newest=True)}, 99),
        ({**NO_HISTORY, "image": ImageRule("nearest", 4)}, 5),
        (
            {
                **NO_HISTORY,
                "image": ImageRule("nearest", 0),
                "states": tuple(STATES),
                "models": (*make_interface().models, ModelPart("supercombo", "", 1, {}, STATES)),
            },
            96,
        ),
    ],
)
def test_runs_until_the_histories_are_full(changes: dict[str, Any], runs: int) -> None:
    assert DrivingModel(FakeProgram(make_interface(**changes))).history_runs == runs


NO_POLICY = make_interface(models=make_interface().models[:1]).plain()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "expected the interface of a driving model, found none; compile .* without --plain"),
        ({"interface": "split-2025"}, "found the name 'split-2025' .*; compile the artifact again"),
        ({"interface": {"name": "x"}}, r"metadata.interface: the field 'models' is missing"),
        ({"interface": NO_POLICY}, "plan: missing"),
    ],
)
def test_metadata_that_does_not_fit_is_rejected_in_one_line(
    program: FakeProgram, metadata: dict[str, Any], message: str
) -> None:
    program.metadata = metadata
    with pytest.raises(ModelInterfaceError, match=message) as caught:
        DrivingModel(program)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


def test_missing_entry_is_named(program: FakeProgram) -> None:
    program.entries = ("run",)
    with pytest.raises(ModelInterfaceError, match=r"expected entry 'prepare', got run;"):
        DrivingModel(program)


def test_frames_are_handed_over_without_a_copy(program: FakeProgram, monkeypatch: Patch) -> None:
    frame, given = frame_of(1), {}
    run = program.run

    def keep(inputs: Any, entry: str | None = None) -> Any:
        given.update(inputs)
        return run(inputs, entry)

    monkeypatch.setattr(program, "run", keep)
    model = DrivingModel(program)
    model.run(make_inputs(frame, frame))
    assert np.shares_memory(given["road_frame"], frame.data)
    geometry = given["road_geometry"]
    model.run(make_inputs(frame, frame))
    assert given["road_geometry"] is geometry


@pytest.mark.parametrize(
    ("form", "size", "message"),
    [
        (BARE, 959, r"at least 960 bytes, .* found 959"),
        (TICI, TICI.size, r"at most \d+ .* 1928x1208 with"),
        (FrameFormat(40, 16, 40, 600, 960), 960, "chroma after the luma rows"),
        (FrameFormat(40, 16, 32, 640, 960), 960, "stride >= width"),
        (FrameFormat(40, 15, 40, 640, 960), 960, "expected even sides"),
        (FrameFormat(0, 16, 40, 640, 960), 960, "expected even sides"),
    ],
)
@pytest.mark.parametrize("camera", ["road", "wide"])
def test_frames_that_cannot_be_used_are_refused_by_name(
    program: FakeProgram, form: FrameFormat, size: int, message: str, camera: str
) -> None:
    model = DrivingModel(program)
    bad, good = Frame(np.zeros(size, np.uint8), form, 3, 0, 0), frame_of(3)
    frames = FramePair(bad, good) if camera == "road" else FramePair(good, bad)
    with pytest.raises(CameraSizeError, match=f"{camera} camera, frame 3: .*{message}"):
        model.check_frames(frames)
    # The next good one is taken as ever.
    model.check_frames(FramePair(good, good))

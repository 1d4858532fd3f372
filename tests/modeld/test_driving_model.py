from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cereal.frames import Frame, FrameFormat
from modeld.driving_model import DrivingModel, ModelInputs
from modeld.errors import CameraSizeError, ModelInterfaceError
from modeld.frame_sync import FramePair
from runtime.driving_interface import HistoryRule, ImageRule, ModelPart
from tests.modeld.fake_program import FakeProgram, make_interface

FrameOf = Callable[..., Frame]


def make_inputs(main: Frame, extra: Frame) -> ModelInputs:
    return ModelInputs(
        frames=FramePair(main, extra),
        main_transform=np.full((3, 3), 1, np.float32),
        extra_transform=np.full((3, 3), 2, np.float32),
        desire_pulse=np.full(8, 3, np.float32),
        traffic_convention=np.full((1, 2), 4, np.float32),
        lateral_control_params=np.full((1, 2), 5, np.float32),
        action_t=np.full((1, 2), 6, np.float32),
    )


def test_run_gives_each_input_its_name(small_program: FakeProgram, frame_of: FrameOf) -> None:
    DrivingModel(small_program).run(make_inputs(frame_of(8), frame_of(9)))
    ((entry, inputs),) = small_program.calls
    assert entry == "run"
    values = {name: np.unique(array).tolist() for name, array in inputs.items()}
    assert values == {
        "road_frame": [8],
        "wide_frame": [9],
        "road_geometry": [32, 64, 128, 4096],
        "wide_geometry": [32, 64, 128, 4096],
        "road_transform": [1],
        "wide_transform": [2],
        "desire": [3],
        "traffic_convention": [4],
    }


def test_prepare_runs_the_other_entry(small_program: FakeProgram, frame_of: FrameOf) -> None:
    DrivingModel(small_program).prepare(make_inputs(frame_of(8), frame_of(9)))
    ((entry, inputs),) = small_program.calls
    assert entry == "prepare"
    assert "traffic_convention" not in inputs


def test_run_parses_both_vectors(small_program: FakeProgram, frame_of: FrameOf) -> None:
    small_program.vision[0, 87:90] = 5.0
    small_program.policy[0, 0:15] = range(15)
    result = DrivingModel(small_program).run(make_inputs(frame_of(1), frame_of(1)))
    assert result.finite
    assert result.outputs.pose.tolist() == [5, 5, 5, 0, 0, 0]
    assert result.outputs.plan[0].tolist() == list(range(15))
    assert result.execution_time_s > 0
    raw = np.frombuffer(result.raw_bytes(), np.float32)
    assert raw.size == 1576 + 1000
    assert raw[87] == 5.0
    assert raw[1576 + 14] == 14.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_outputs_keep_the_last_good_ones_and_reset(
    small_program: FakeProgram, frame_of: FrameOf, bad: float
) -> None:
    model = DrivingModel(small_program)
    inputs = make_inputs(frame_of(1), frame_of(1))
    small_program.vision[0, 87] = 5.0
    assert model.run(inputs).finite
    small_program.vision[0, 87] = 6.0
    small_program.policy[0, 999] = bad
    result = model.run(inputs)
    assert not result.finite
    assert result.outputs.pose[0] == 5.0
    assert small_program.resets == 1


def test_warm_up_runs_once_and_resets(small_program: FakeProgram) -> None:
    assert DrivingModel(small_program).warm_up() > 0
    assert [entry for entry, _ in small_program.calls] == ["run"]
    assert small_program.resets == 1


def test_warm_up_checks_the_outputs(small_program: FakeProgram) -> None:
    small_program.raw["policy"] = np.zeros((1, 999), np.float32)
    with pytest.raises(ModelInterfaceError, match=r"policy_outputs: expected float32 \(1, 1000\)"):
        DrivingModel(small_program).warm_up()


def program_of(small_format: FrameFormat, **changes: Any) -> FakeProgram:
    return FakeProgram(make_interface(**changes), small_format.size)


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("traffic_convention", "action_t"),
        ("traffic_convention", "lateral_control_params", "action_t"),
    ],
)
def test_the_program_gets_the_host_inputs_that_its_interface_names(
    small_format: FrameFormat, frame_of: FrameOf, names: tuple[str, ...]
) -> None:
    program = program_of(small_format, host_inputs=names)
    model = DrivingModel(program)
    model.warm_up()
    model.run(make_inputs(frame_of(1), frame_of(1)))
    values = {"traffic_convention": 4.0, "lateral_control_params": 5.0, "action_t": 6.0}
    given = program.calls[-1][1]
    assert {n: given[n][0].tolist() for n in values if n in given} == {
        n: [values[n]] * 2 for n in names
    }


def test_the_interface_says_what_happens_after_a_drop(small_format: FrameFormat) -> None:
    assert DrivingModel(program_of(small_format)).skip_on_drop
    # A program that runs also after a drop has no other entry.
    assert not DrivingModel(program_of(small_format, drop_policy="run")).skip_on_drop


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        # 25 samples, 4 frames apart.
        ({}, 100),
        ({"desire": None, "features": HistoryRule(99, 1, current=False, newest=True)}, 99),
        ({"desire": None, "features": None, "image": ImageRule("nearest", 4)}, 5),
        (
            {
                "desire": None,
                "features": None,
                "image": ImageRule("nearest", 0),
                "states": ("state_feat_q", "state_prev_feat"),
                "models": (
                    *make_interface().models,
                    ModelPart(
                        "supercombo",
                        "",
                        1,
                        {},
                        {
                            "state_feat_q": ((96, 1, 512), "float32"),
                            "state_prev_feat": ((1, 512), "float32"),
                        },
                    ),
                ),
            },
            96,
        ),
    ],
)
def test_runs_until_the_histories_are_full(
    small_format: FrameFormat, changes: dict[str, Any], runs: int
) -> None:
    assert DrivingModel(program_of(small_format, **changes)).history_runs == runs


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "expected the interface of a driving model, found none; compile .* without --plain"),
        ({"interface": "split-2025"}, "found the name 'split-2025' .*; compile the artifact again"),
        (
            {"interface": {"name": "x"}},
            "artifact metadata.interface: the field 'models' is missing",
        ),
        (
            {"interface": make_interface(models=make_interface().models[:1]).plain()},
            "plan: missing",
        ),
    ],
)
def test_metadata_that_does_not_fit_is_rejected_in_one_line(
    small_program: FakeProgram, metadata: dict[str, Any], message: str
) -> None:
    small_program.metadata = metadata
    with pytest.raises(ModelInterfaceError, match=message) as caught:
        DrivingModel(small_program)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


def test_missing_entry_is_named(small_program: FakeProgram) -> None:
    small_program.entries = ("run",)
    with pytest.raises(ModelInterfaceError, match=r"expected entry 'prepare', got run;"):
        DrivingModel(small_program)


def test_road_and_wide_may_have_any_formats_and_change_them(small_format: FrameFormat) -> None:
    program = program_of(small_format)
    model = DrivingModel(program)
    # Unpadded: 16 rows of 40 bytes, then 8 rows of chroma.
    bare = FrameFormat(40, 16, 40, 640, 960)
    padded = Frame(np.full(small_format.size, 1, np.uint8), small_format, 1, 0, 0)
    small = Frame(np.full(960, 2, np.uint8), bare, 1, 0, 0)
    seen = []
    for main, extra in ((padded, small), (small, padded), (small, small)):
        model.run(make_inputs(main, extra))
        given = program.calls[-1][1]
        seen.append(
            [
                (given[f"{name}_geometry"].tolist(), given[f"{name}_frame"].size)
                for name in ("road", "wide")
            ]
        )
    # 64x32 padded: stride 128, chroma from 32 * 128, 16 rows of it.
    large, little = ([64, 32, 128, 4096], 4096 + 128 * 16), ([40, 16, 40, 640], 960)
    assert seen == [[large, little], [little, large], [little, little]]


def test_frames_are_handed_over_without_a_copy(
    small_program: FakeProgram, frame_of: FrameOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, given = frame_of(1), {}
    run = small_program.run

    def keep(inputs: Any, entry: str | None = None) -> Any:
        given.update(inputs)
        return run(inputs, entry)

    monkeypatch.setattr(small_program, "run", keep)
    model = DrivingModel(small_program)
    model.run(make_inputs(frame, frame))
    assert np.shares_memory(given["road_frame"], frame.data)
    geometry = given["road_geometry"]
    model.run(make_inputs(frame, frame))
    assert given["road_geometry"] is geometry


@pytest.mark.parametrize(
    ("form", "size", "message"),
    [
        (FrameFormat(40, 16, 40, 640, 960), 959, r"at least 960 bytes, .* found 959"),
        (
            FrameFormat(1928, 1208, 2048, 2490368, 4804608),
            4804608,
            r"at most \d+ .* 1928x1208 with",
        ),
        (FrameFormat(40, 16, 40, 600, 960), 960, "chroma after the luma rows"),
        (FrameFormat(40, 16, 32, 640, 960), 960, "stride >= width"),
        (FrameFormat(40, 15, 40, 640, 960), 960, "expected even sides"),
        (FrameFormat(0, 16, 40, 640, 960), 960, "expected even sides"),
    ],
)
@pytest.mark.parametrize("camera", ["road", "wide"])
def test_frames_that_cannot_be_used_are_refused_by_name(
    small_program: FakeProgram,
    frame_of: FrameOf,
    form: FrameFormat,
    size: int,
    message: str,
    camera: str,
) -> None:
    model = DrivingModel(small_program)
    bad, good = Frame(np.zeros(size, np.uint8), form, 3, 0, 0), frame_of(3)
    frames = FramePair(bad, good) if camera == "road" else FramePair(good, bad)
    with pytest.raises(CameraSizeError, match=f"{camera} camera, frame 3: .*{message}"):
        model.check_frames(frames)
    # The next good one is taken as ever.
    model.check_frames(FramePair(good, good))

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cereal.frames import Frame, FrameFormat, nv12_format
from modeld.driving_model import DrivingModel, ModelInputs
from modeld.errors import CameraSizeError, ModelInterfaceError
from modeld.frame_sync import FramePair

if TYPE_CHECKING:
    from tests.modeld.conftest import FakeProgram

FrameOf = Callable[..., Frame]


def make_inputs(main: Frame, extra: Frame) -> ModelInputs:
    return ModelInputs(
        frames=FramePair(main, extra),
        main_transform=np.full((3, 3), 1, np.float32),
        extra_transform=np.full((3, 3), 2, np.float32),
        desire_pulse=np.full(8, 3, np.float32),
        traffic_convention=np.full((1, 2), 4, np.float32),
    )


def test_run_gives_each_input_its_name(
    small_program: "FakeProgram", small_format: FrameFormat, frame_of: FrameOf
) -> None:
    DrivingModel(small_program, small_format).run(make_inputs(frame_of(8), frame_of(9)))
    ((entry, inputs),) = small_program.calls
    assert entry == "run:64x32"
    values = {name: np.unique(array).tolist() for name, array in inputs.items()}
    assert values == {
        "road_frame": [8],
        "wide_frame": [9],
        "road_transform": [1],
        "wide_transform": [2],
        "desire": [3],
        "traffic_convention": [4],
    }


def test_prepare_runs_the_other_entry(
    small_program: "FakeProgram", small_format: FrameFormat, frame_of: FrameOf
) -> None:
    DrivingModel(small_program, small_format).prepare(make_inputs(frame_of(8), frame_of(9)))
    ((entry, inputs),) = small_program.calls
    assert entry == "prepare:64x32"
    assert "traffic_convention" not in inputs


def test_run_parses_both_vectors(
    small_program: "FakeProgram", small_format: FrameFormat, frame_of: FrameOf
) -> None:
    small_program.vision[0, 87:90] = 5.0
    small_program.policy[0, 0:15] = range(15)
    result = DrivingModel(small_program, small_format).run(make_inputs(frame_of(1), frame_of(1)))
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
    small_program: "FakeProgram", small_format: FrameFormat, frame_of: FrameOf, bad: float
) -> None:
    model = DrivingModel(small_program, small_format)
    inputs = make_inputs(frame_of(1), frame_of(1))
    small_program.vision[0, 87] = 5.0
    assert model.run(inputs).finite
    small_program.vision[0, 87] = 6.0
    small_program.policy[0, 999] = bad
    result = model.run(inputs)
    assert not result.finite
    assert result.outputs.pose[0] == 5.0
    assert small_program.resets == 1


def test_warm_up_runs_once_and_resets(
    small_program: "FakeProgram", small_format: FrameFormat
) -> None:
    assert DrivingModel(small_program, small_format).warm_up() > 0
    assert [entry for entry, _ in small_program.calls] == ["run:64x32"]
    assert small_program.resets == 1


def test_warm_up_checks_the_outputs(
    small_program: "FakeProgram", small_format: FrameFormat
) -> None:
    small_program.policy = np.zeros((1, 999), np.float32)
    with pytest.raises(ModelInterfaceError, match=r"policy_outputs: expected float32 \(1, 1000\)"):
        DrivingModel(small_program, small_format).warm_up()


def test_metadata_says_what_happens_after_a_drop(
    small_program: "FakeProgram", small_format: FrameFormat
) -> None:
    assert DrivingModel(small_program, small_format).skip_on_drop
    small_program.metadata = {**small_program.metadata, "drop_policy": "run"}
    assert not DrivingModel(small_program, small_format).skip_on_drop


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interface": "supercombo-2023"}, r"interface 'split-2025', got 'supercombo-2023'"),
        ({"drop_policy": "sometimes"}, r"drop_policy: expected one of skip, run"),
        ({"models": {}}, r"expected models with their output slices"),
        ({"models": {"vision": {"output_width": 9, "output_slices": {}}}}, r"plan: missing"),
    ],
)
def test_metadata_that_does_not_fit_is_rejected(
    small_program: "FakeProgram",
    small_format: FrameFormat,
    changes: dict[str, object],
    message: str,
) -> None:
    small_program.metadata = {**small_program.metadata, **changes}
    with pytest.raises(ModelInterfaceError, match=message) as caught:
        DrivingModel(small_program, small_format)
    assert caught.value.exit_code == 4


def test_plain_artifact_is_rejected(
    small_program: "FakeProgram", small_format: FrameFormat
) -> None:
    small_program.metadata = {}
    with pytest.raises(ModelInterfaceError, match="expected interface 'split-2025', got None"):
        DrivingModel(small_program, small_format)


def test_other_camera_size_names_the_compiled_ones(small_program: "FakeProgram") -> None:
    with pytest.raises(
        CameraSizeError, match=r"960x540: .* compiled for 64x32; .*--camera 960x540"
    ):
        DrivingModel(small_program, nv12_format(960, 540))


def test_other_layout_of_the_same_size_is_rejected(
    small_program: "FakeProgram", small_format: FrameFormat
) -> None:
    with pytest.raises(CameraSizeError, match=r"stride: the artifact expects 128, got 64"):
        DrivingModel(small_program, replace(small_format, stride=64))


def test_missing_entry_is_named(small_program: "FakeProgram", small_format: FrameFormat) -> None:
    small_program.entries = ("run:64x32",)
    with pytest.raises(ModelInterfaceError, match=r"expected entry 'prepare:64x32', got run:64x32"):
        DrivingModel(small_program, small_format)


def test_frame_of_another_format_is_rejected(
    small_program: "FakeProgram", small_format: FrameFormat, frame_of: FrameOf
) -> None:
    model = DrivingModel(small_program, small_format)
    other = replace(frame_of(3), format=nv12_format(32, 32))
    with pytest.raises(CameraSizeError, match="frame 3: expected"):
        model.run(make_inputs(frame_of(3), other))

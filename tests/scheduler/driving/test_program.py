"""The compiled driving program against numpy and onnxruntime, bit by bit where it is integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.frames import nv12_format
from runtime import load_program
from runtime.executor import Program
from scheduler.compile import compile_driving
from scheduler.driving.warp import Camera
from scheduler.errors import ModelError
from tests.scheduler.driving.frame_loop import FrameLoop, model_image, warp_plane
from tools.make_model import write_models

pytestmark = pytest.mark.opencl
LAYOUT = nv12_format(320, 200)
CAMERA = Camera(LAYOUT.width, LAYOUT.height, LAYOUT.stride, LAYOUT.uv_offset, LAYOUT.payload_bytes)
RUN, PREPARE = "run:320x200", "prepare:320x200"
HIDDEN = slice(1064, 1576)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("models")
    vision, policy = (path for path, _ in write_models(directory))
    return vision, policy


@pytest.fixture(scope="module")
def artifact(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "driving.pkl"
    compile_driving(*models, [CAMERA]).write(path)
    return path


@pytest.fixture
def program(artifact: Path) -> Program:
    return load_program(artifact)


def frame_inputs(rng: np.random.Generator, i: int) -> dict[str, NDArray[np.generic]]:
    """Random frames under moving, rotated and zooming views that reach over the border."""
    angle, zoom = 0.01 * i, 0.5 + 0.02 * i
    rotation = np.array(
        [[np.cos(angle), -np.sin(angle), 3.0 * i - 20], [np.sin(angle), np.cos(angle), 5.0]]
    )
    view = np.vstack([rotation * zoom, [1e-4 * i, -2e-4, 1.0]]).astype(np.float32)
    frames = rng.integers(0, 256, (2, CAMERA.payload_bytes)).astype(np.uint8)
    desire = np.zeros(8, np.float32)
    desire[3] = float(i % 7 == 0)
    return {
        "road_frame": frames[0],
        "wide_frame": frames[1],
        "road_transform": view,
        "wide_transform": np.linalg.inv(view).astype(np.float32),
        "desire": desire,
        "traffic_convention": np.array([[1, 0]], np.float32),
    }


def test_thirty_frames_agree_with_the_reference_loop(
    program: Program, models: tuple[Path, Path]
) -> None:
    rng = np.random.default_rng(7)
    loop = FrameLoop(*models, CAMERA)
    for i in range(30):
        inputs = frame_inputs(rng, i)
        got = program.run(inputs, RUN)
        vision, policy = loop.run(inputs, HIDDEN)
        for name in ("road", "wide"):
            queue = program.state(f"{name}_images")
            assert np.array_equal(queue[4], loop.images[name][-1]), f"frame {i}: {name} image"
            assert np.array_equal(queue[0], loop.images[name][0]), f"frame {i}: {name} queue"
        assert np.array_equal(program.state("desire"), np.stack(loop.desires))
        assert np.abs(got["vision_outputs"] - vision).max() <= 1e-4 * np.abs(vision).max()
        assert np.abs(got["policy_outputs"] - policy).max() <= 1e-4 * np.abs(policy).max()
        features = np.stack(loop.features)
        assert np.abs(program.state("features") - features).max() <= 1e-4 * np.abs(features).max()


def test_prepare_advances_images_and_desire_but_not_features(program: Program) -> None:
    rng = np.random.default_rng(8)
    inputs = frame_inputs(rng, 0)
    program.run(inputs, RUN)
    features = program.state("features")
    given = {k: v for k, v in frame_inputs(rng, 7).items() if k != "traffic_convention"}
    assert program.run(given, PREPARE) == {}
    assert np.array_equal(program.state("features"), features)
    assert program.state("desire")[-2:, 3].tolist() == [1, 1]
    expected = model_image(
        given["road_frame"], given["road_transform"], 320, 200, CAMERA.stride, CAMERA.uv_offset
    )
    assert np.array_equal(program.state("road_images")[4], expected)


def test_reset_returns_to_the_first_frame(program: Program) -> None:
    inputs = frame_inputs(np.random.default_rng(9), 3)
    first = {k: v.copy() for k, v in program.run(inputs, RUN).items()}
    program.run(inputs, RUN)
    program.reset()
    again = program.run(inputs, RUN)
    assert all(np.array_equal(first[k], again[k]) for k in first)


def test_exchanged_transforms_change_the_outputs(program: Program) -> None:
    inputs = frame_inputs(np.random.default_rng(10), 5)
    first = {k: v.copy() for k, v in program.run(inputs, RUN).items()}
    program.reset()
    swapped = dict(inputs)
    swapped["road_transform"], swapped["wide_transform"] = (
        inputs["wide_transform"],
        inputs["road_transform"],
    )
    again = program.run(swapped, RUN)
    assert not np.array_equal(first["vision_outputs"], again["vision_outputs"])


def test_zero_transform_repeats_the_first_pixel(program: Program) -> None:
    inputs = frame_inputs(np.random.default_rng(11), 1)
    inputs["road_transform"] = np.zeros((3, 3), np.float32)
    program.run(inputs, RUN)
    image = program.state("road_images")[4]
    assert (image[:4] == inputs["road_frame"][0]).all()
    assert (image[4] == inputs["road_frame"][CAMERA.uv_offset]).all()


def test_reference_warp_by_hand() -> None:
    plane = np.array([[0, 100], [50, 200]], np.uint8)
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]], np.float32)
    # (0.5, 0.5): the mean of four pixels, 87.5, rounds up; past the border the last pixels repeat.
    assert warp_plane(plane, half, 2, 2).tolist() == [[88, 150], [125, 200]]


def test_models_of_another_interface_are_refused(models: tuple[Path, Path]) -> None:
    vision, policy = models
    with pytest.raises(ModelError, match="expected the vision model first, found the policy"):
        compile_driving(policy, vision, [CAMERA])

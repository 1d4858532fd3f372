"""The compiled driving program of each revision against numpy and onnxruntime.

Queues and images are compared bit by bit, output vectors within 1e-4 of the largest value.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cereal.frames import nv12_format
from runtime import load_program
from runtime.driving_interface import Interface, parse_interface
from runtime.executor import Program
from scheduler.compile import compile_driving
from scheduler.driving.revisions import load_revisions
from tests.scheduler.driving.frame_loop import (
    Array,
    FrameLoop,
    model_image,
    nearest_image,
    nearest_plane,
    warp_plane,
)
from tools.make_model import write_interface

pytestmark = pytest.mark.opencl
LAYOUT = nv12_format(320, 200)
GEOMETRY = np.array([LAYOUT.width, LAYOUT.height, LAYOUT.stride, LAYOUT.uv_offset], np.int32)
DISTINCT = 7  # frames, a period that no step of a history has
TOLERANCE = 1e-4
REVISIONS = load_revisions()
WARPS = {"bilinear": model_image, "nearest": nearest_image}


@cache
def camera(index: int) -> dict[str, Array]:
    """Random frames under a moving, rotated and zooming view that reaches over the border."""
    rng = np.random.default_rng(index)
    angle, zoom = 0.04 * index, 0.5 + 0.08 * index
    rotation = np.array(
        [[np.cos(angle), -np.sin(angle), 12.0 * index - 20], [np.sin(angle), np.cos(angle), 5.0]]
    )
    view = np.vstack([rotation * zoom, [4e-4 * index, -2e-4, 1.0]]).astype(np.float32)
    frames = rng.integers(0, 256, (2, LAYOUT.payload_bytes)).astype(np.uint8)
    return {
        "road_frame": frames[0],
        "wide_frame": frames[1],
        "road_geometry": GEOMETRY,
        "wide_geometry": GEOMETRY,
        "road_transform": view,
        "wide_transform": np.linalg.inv(view).astype(np.float32),
    }


@cache
def images(index: int, mode: str) -> dict[str, Array]:
    """What the models see of a camera."""
    seen = camera(index)
    return {
        name: WARPS[mode](
            seen[f"{name}_frame"], seen[f"{name}_transform"], *(int(n) for n in GEOMETRY)
        )
        for name in ("road", "wide")
    }


def desire_at(frame: int) -> Array:
    """A pulse now and then, not always of the same kind."""
    desire = np.zeros(8, np.float32)
    desire[frame % 5 + 1] = float(frame % 6 == 0)
    return desire


def host_at(frame: int, interface: Interface) -> dict[str, Array]:
    """The inputs that the host computes."""
    side = np.eye(2, dtype=np.float32)[frame % 2][None]
    times = np.array([[0.2 + 0.001 * frame, 0.3]], np.float32)
    speed = np.array([[0.1 * frame, 0.25]], np.float32)
    values = {"traffic_convention": side, "action_t": times, "lateral_control_params": speed}
    return {name: values[name] for name in interface.host_inputs}


def write_small_models(name: str, directory: Path) -> list[Path]:
    """Write the example of a revision; returns the files in run order."""
    return [path for path, _ in write_interface(directory, name)]


def compiled_program(paths: list[Path], out: Path, precision: str = "fp32") -> Program:
    """Compile models, given in the other order, for frames of the test's size."""
    made = compile_driving(paths[::-1], capacity=LAYOUT.payload_bytes, precision=precision)
    made.write(out)
    return load_program(out)


def interface_of(program: Program) -> Interface:
    return parse_interface(program.metadata["interface"])


def close(found: Array, expected: Array, tolerance: float = TOLERANCE) -> bool:
    return bool(np.abs(found - expected).max() <= tolerance * np.abs(expected).max())


def check_queues(program: Program, loop: FrameLoop, hidden: list[Array]) -> None:
    """Compare what the device keeps with the lists of the loop, and its own features, exactly."""
    rules = loop.interface
    if rules.image.gap:
        for name, queue in loop.images.items():
            assert np.array_equal(program.state(f"{name}_images"), np.stack(queue))
    if loop.desires is not None:
        assert np.array_equal(program.state("desire"), np.stack(loop.desires))
    if loop.features is not None:
        kept = program.state("features")
        newest = hidden[-len(kept) :]
        rows = kept.reshape(len(kept), -1)
        assert np.array_equal(rows[len(kept) - len(newest) :], np.array(newest))
        assert not rows[: len(kept) - len(newest)].any()
        assert close(kept, np.stack(loop.features))
    if loop.curvatures is not None:
        assert np.abs(program.state("curvature") - np.stack(loop.curvatures)).max() <= TOLERANCE
    for name, value in loop.states.items():
        state = program.state(name)
        assert state.dtype == value.dtype
        assert np.abs(state.astype(np.float32) - value).max() <= TOLERANCE


def turning_over(interface: Interface) -> int:
    """Return frames enough for all histories to be full, and to lose their first rows."""
    rules = (interface.desire, interface.features, interface.curvature)
    return max([100, *(rule.frames for rule in rules if rule is not None)]) + 12


@pytest.mark.parametrize("name", REVISIONS)
def test_every_revision_agrees_with_the_reference_loop(name: str, tmp_path: Path) -> None:
    paths = write_small_models(name, tmp_path)
    with compiled_program(paths, tmp_path / "driving.pkl") as program:
        interface = interface_of(program)
        assert interface.name == name
        loop = FrameLoop(interface, paths)
        assert ("prepare" in program.entries) == (interface.drop_policy == "skip")
        source = next((p for p in interface.models if "hidden_state" in p.slices), None)
        hidden: list[Array] = []
        first: dict[str, Array] = {}
        frames = turning_over(interface)
        for i in range(frames):
            given = camera(i % DISTINCT) | {"desire": desire_at(i)}
            seen = images(i % DISTINCT, interface.image.mode)
            if i % 23 == 11 and "prepare" in program.entries:
                assert program.run(given, "prepare") == {}
                loop.push(seen, given["desire"])
            else:
                host = host_at(i, interface)
                got = program.run(given | host, "run")
                expected = loop.run(seen, given["desire"], host)
                assert list(got) == [f"{part.role}_outputs" for part in interface.models]
                for role, vector in expected.items():
                    assert close(got[f"{role}_outputs"], vector), f"frame {i}: {role}"
                if source is not None:
                    vector = got[f"{source.role}_outputs"][0]
                    hidden.append(vector[slice(*source.slices["hidden_state"])].copy())
                first = first or {n: a.copy() for n, a in got.items()}
            if i % 20 == 12 or i == frames - 1:
                check_queues(program, loop, hidden)
        program.reset()
        again = program.run(camera(0) | {"desire": desire_at(0)} | host_at(0, interface), "run")
        assert all(np.array_equal(first[n], again[n]) for n in first)


def test_exchanged_transforms_change_the_outputs(tmp_path: Path) -> None:
    paths = write_small_models("split-2025", tmp_path)
    with compiled_program(paths, tmp_path / "driving.pkl") as program:
        inputs = camera(5) | {"desire": desire_at(0)} | host_at(0, interface_of(program))
        first = program.run(inputs, "run")["vision_outputs"].copy()
        program.reset()
        swapped = dict(inputs)
        swapped["road_transform"] = inputs["wide_transform"]
        swapped["wide_transform"] = inputs["road_transform"]
        assert not np.array_equal(first, program.run(swapped, "run")["vision_outputs"])


def test_zero_transform_repeats_the_first_pixel(tmp_path: Path) -> None:
    paths = write_small_models("split-2025", tmp_path)
    with compiled_program(paths, tmp_path / "driving.pkl") as program:
        inputs = dict(camera(1)) | {"desire": desire_at(0)}
        inputs["road_transform"] = np.zeros((3, 3), np.float32)
        program.run(inputs | host_at(0, interface_of(program)), "run")
        image = program.state("road_images")[4]
        assert (image[:4] == inputs["road_frame"][0]).all()
        assert (image[4] == inputs["road_frame"][LAYOUT.uv_offset]).all()


def test_half_storage_stays_near_the_reference_loop(tmp_path: Path) -> None:
    paths = write_small_models("split-2025", tmp_path)
    with compiled_program(paths, tmp_path / "driving.pkl", "fp16") as program:
        loop = FrameLoop(interface_of(program), paths)
        for i in range(DISTINCT):
            host = host_at(i, loop.interface)
            got = program.run(camera(i) | {"desire": desire_at(i)} | host, "run")
            expected = loop.run(images(i, "bilinear"), desire_at(i), host)
            for role, vector in expected.items():
                assert close(got[f"{role}_outputs"], vector, 1e-2)
            assert np.array_equal(program.state("road_images"), np.stack(loop.images["road"]))


def test_compiling_twice_in_any_order_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = write_small_models("split-2025", tmp_path)
    files = [tmp_path / "first.pkl", tmp_path / "second.pkl"]
    for path, models in zip(files, (paths, paths[::-1]), strict=True):
        compile_driving(models, capacity=LAYOUT.payload_bytes).write(path)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_reference_warp_by_hand() -> None:
    plane = np.array([[0, 100], [50, 200]], np.uint8)
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]], np.float32)
    # (0.5, 0.5): the mean of four pixels, 87.5, rounds up; past the border the last pixels repeat.
    assert warp_plane(plane, half, 2, 2).tolist() == [[88, 150], [125, 200]]
    # Halves go to the even pixel: 0.5 to 0, 1.5 to 2, which is past the border.
    assert nearest_plane(plane, half, 2, 2).tolist() == [[0, 100], [50, 200]]
    assert nearest_plane(plane, np.zeros((3, 3), np.float32), 1, 1).tolist() == [[0]]

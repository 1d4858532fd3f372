"""Planted faults disturb what they say; what cameras saw is painted again and compared."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modeld.constants import X_IDXS
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from tools.report.picture import encode_jpeg
from tools.simulator.closed_loop.device import Cameras, Pictures, device_cameras
from tools.simulator.closed_loop.faults import FAULTS, LateFeatures
from tools.simulator.closed_loop.film import (
    COMPARED_M,
    line_errors_m,
    road_pictures,
    scene_of,
    true_curves,
)
from tools.simulator.closed_loop.simulation import TICKS_PER_FRAME, Simulation
from tools.simulator.closed_loop.trial import STANDARD, make_trial
from tools.simulator.render.messages import ReportedValues
from tools.simulator.world.painting.backdrop import Picture
from tools.video.video import read_planes


def pictures(seed: int = 0) -> Pictures:
    rng = np.random.default_rng(seed)
    shapes = ((8, 12), (4, 6), (4, 6))
    return {
        stream: Picture(*(rng.integers(16, 236, shape).astype(np.uint8) for shape in shapes))
        for stream in (WIDE_STREAM, ROAD_STREAM)
    }


def test_each_fault_disturbs_one_thing() -> None:
    for fault in FAULTS.values():
        planted = fault.plant()
        parts = (planted.pictures, planted.lenses_swapped, planted.reported, planted.program)
        assert sum(bool(part) for part in parts) == 1, fault.name


@pytest.mark.parametrize(
    ("name", "planes"),
    [("chroma-shifted", "uv"), ("chroma-swapped", "uv"), ("luma-stretched", "y")],
)
def test_pictures_are_changed_in_the_planes_that_are_named(name: str, planes: str) -> None:
    given, change = pictures(), FAULTS[name].plant().pictures
    assert change is not None
    for stream, found in change(given).items():
        for letter, before, after in zip("yuv", given[stream], found, strict=True):
            assert after.dtype == np.uint8
            assert np.array_equal(before, after) is (letter not in planes)
        luma, u, v = (plane.astype(int) for plane in given[stream])
        if name == "chroma-shifted":
            # Half a sample is the mean of four.
            four = u[1:, 1:] + u[1:, :-1] + u[:-1, 1:] + u[:-1, :-1]
            assert np.array_equal(found.u[1:, 1:], (four + 2) // 4)
        elif name == "chroma-swapped":
            assert np.array_equal(found.u, v)
            assert np.array_equal(found.v, u)
        else:
            assert np.array_equal(found.luma, (luma - 16) * 255 // 219)


def test_the_wide_camera_is_one_frame_late() -> None:
    change = FAULTS["wide-late"].plant().pictures
    assert change is not None
    given = [pictures(seed) for seed in range(3)]
    for now, before in zip(given, (given[0], *given), strict=False):
        found = change(now)
        assert np.array_equal(found[WIDE_STREAM].luma, before[WIDE_STREAM].luma)
        assert found[ROAD_STREAM] is now[ROAD_STREAM]


def test_messages_are_falsified() -> None:
    truth = ReportedValues(rpy_rad=(0.0, 0.02, -0.01), lateral_delay_s=0.2, speed_mps=20.0)

    def reported(name: str) -> ReportedValues:
        change = FAULTS[name].plant().reported
        assert change is not None
        return change(truth)

    assert reported("delay-zero").lateral_delay_s == 0.0
    turned = np.degrees(np.subtract(reported("yaw-off").rpy_rad, truth.rpy_rad))
    assert turned[:2].tolist() == [0.0, 0.0]
    assert turned[2] == pytest.approx(0.5, abs=0.01)
    assert reported("speed-in-miles").speed_mps == pytest.approx(44.74, abs=0.01)


def test_swapped_lenses_see_as_the_other_camera() -> None:
    trial = make_trial(STANDARD, 0, 50.0)
    simulation = Simulation(trial)
    right, wrong = (
        Cameras(trial, device_cameras(), are_swapped=swapped).frames(simulation, 0, 10**9)
        for swapped in (False, True)
    )
    # The device's cameras are of one size, so the pictures are just those of the other one.
    assert np.array_equal(right[WIDE_STREAM].data, wrong[ROAD_STREAM].data)
    assert np.array_equal(right[ROAD_STREAM].data, wrong[WIDE_STREAM].data)
    assert not np.array_equal(right[ROAD_STREAM].data, right[WIDE_STREAM].data)


def test_late_features_are_those_of_the_pictures_before() -> None:
    given: list[dict[str, float]] = []

    def run(inputs: Mapping[str, NDArray[Any]], _entry: str | None) -> None:
        given.append({name: float(value[0]) for name, value in inputs.items()})

    program: Any = SimpleNamespace(run=run, reset=lambda: given.append({}))
    late = LateFeatures(program)
    inputs = {name: np.zeros(1) for name in ("road_frame", "wide_transform", "desire")}
    for number, entry in enumerate(("run", "prepare", "run", "run"), 1):
        if number == 4:
            late.reset()
        for value in inputs.values():
            value[0] = number
        late.run(inputs, entry)
    for name in ("road_frame", "wide_transform"):
        assert [one.get(name) for one in given] == [1.0, 1.0, 2.0, None, 4.0]
    # What is not of pictures is of now.
    assert [one.get("desire") for one in given] == [1.0, 2.0, 3.0, None, 4.0]


def driven(frames: int = 20) -> Simulation:
    simulation = Simulation(make_trial(STANDARD, 2, 100.0))
    for _ in range(frames * TICKS_PER_FRAME):
        simulation.tick()
    return simulation


def test_a_scene_is_painted_again_as_the_daemon_got_it() -> None:
    simulation = driven()
    frame = Cameras(simulation.trial, device_cameras()).frames(simulation, 0, 0)[ROAD_STREAM]
    jpeg = encode_jpeg(*read_planes(frame.data, frame.format))
    scene, later = scene_of(simulation), scene_of(driven(25))
    assert road_pictures(simulation.trial, [later, scene])[1] == jpeg
    assert road_pictures(simulation.trial, [later])[0] != jpeg


def test_the_truth_is_beside_the_car() -> None:
    simulation = driven()
    trial = simulation.trial
    truth = true_curves(trial, scene_of(simulation))
    half_m = 0.5 * trial.world.lanes.width_m
    offset_m = simulation.body.offset_m - trial.world.lanes.centre_m(trial.lane)
    nearest = truth.lane_lines_m[1:3, 0, 1]
    assert nearest.tolist() == pytest.approx([-half_m - offset_m, half_m - offset_m], abs=0.05)
    assert truth.plan_m[0].tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    assert np.diff(truth.plan_m[:, 0]).min() > 0.0
    # As far below as the camera is high.
    assert truth.road_edges_m[:, 0, 2] == pytest.approx(trial.height_m, abs=0.2)


def test_lines_are_off_by_what_they_are_moved() -> None:
    simulation = driven()
    truth = true_curves(simulation.trial, scene_of(simulation))
    truth, one, none = (
        replace(truth, lane_line_probs=np.array([1.0, *inner, 1.0], np.float32))
        for inner in ((1.0, 1.0), (0.0, 1.0), (0.0, 0.0))
    )
    lines = truth.lane_lines_m.copy()
    lines[1, :, 1] += 0.25
    lines[2, X_IDXS > COMPARED_M, 1] += 9.0
    moved = replace(truth, lane_lines_m=lines)
    near = int((X_IDXS <= COMPARED_M).sum())
    assert line_errors_m(truth, truth).tolist() == [0.0] * 2 * near
    assert line_errors_m(moved, truth).mean() == pytest.approx(0.125, abs=1e-5)
    # Neither a line that is not painted nor one that the model does not see.
    assert line_errors_m(moved, one).max() == 0.0
    assert line_errors_m(replace(moved, lane_line_probs=one.lane_line_probs), truth).max() == 0.0
    assert line_errors_m(moved, none).size == 0

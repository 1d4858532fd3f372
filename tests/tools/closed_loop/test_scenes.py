"""What the cameras saw is painted again, and compared with what the model says it saw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modeld.constants import X_IDXS
from modeld.startup import ROAD_STREAM
from tools.closed_loop.cameras import Cameras, device_cameras
from tools.closed_loop.scenario import STANDARD
from tools.closed_loop.scenes import COMPARED_M, line_errors_m, road_pictures, scene_of, true_curves
from tools.closed_loop.simulation import TICKS_PER_FRAME, Simulation
from tools.closed_loop.trial import make_trial
from tools.lib.picture import encode_jpeg
from tools.lib.video import read_planes


def _driven(frames: int) -> Simulation:
    simulation = Simulation(make_trial(STANDARD, 2, 100.0))
    for _ in range(frames * TICKS_PER_FRAME):
        simulation.tick()
    return simulation


def test_a_scene_is_painted_again_as_the_daemon_got_it() -> None:
    simulation = _driven(20)
    cameras = Cameras(simulation.trial, device_cameras())
    frame = cameras.frames(simulation, 0, 0)[ROAD_STREAM]
    jpeg = encode_jpeg(*read_planes(frame.data, frame.format))
    scene = scene_of(simulation)
    for _ in range(5 * TICKS_PER_FRAME):
        simulation.tick()
    later = scene_of(simulation)
    assert road_pictures(simulation.trial, [later, scene])[1] == jpeg
    assert road_pictures(simulation.trial, [later])[0] != jpeg


def test_the_truth_is_beside_the_car() -> None:
    simulation = _driven(20)
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
    simulation = _driven(20)
    truth = true_curves(simulation.trial, scene_of(simulation))
    truth = replace(truth, lane_line_probs=np.array([1.0, 1.0, 1.0, 1.0], np.float32))
    lines = truth.lane_lines_m.copy()
    lines[1, :, 1] += 0.25
    lines[2, X_IDXS > COMPARED_M, 1] += 9.0
    moved = replace(truth, lane_lines_m=lines)
    near = int((X_IDXS <= COMPARED_M).sum())
    assert line_errors_m(truth, truth).tolist() == [0.0] * 2 * near
    errors = line_errors_m(moved, truth)
    assert errors.mean() == pytest.approx(0.125, abs=1e-5)
    # Neither a line that is not painted nor one that the model does not see.
    one = replace(truth, lane_line_probs=np.array([1.0, 0.0, 1.0, 1.0], np.float32))
    assert line_errors_m(moved, one).max() == 0.0
    assert line_errors_m(replace(moved, lane_line_probs=one.lane_line_probs), truth).max() == 0.0
    none = replace(truth, lane_line_probs=np.zeros(4, np.float32))
    assert line_errors_m(moved, none).size == 0

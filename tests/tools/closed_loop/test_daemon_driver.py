"""The daemon's own code in the loop: an oracle drives well through it, a blind model does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import new_event, read_event
from modeld.actions import Action
from modeld.calibration import Camera, DeviceCameras
from modeld.view_geometry import (
    MED_MODEL_INTRINSICS,
    SBIG_MODEL_INTRINSICS,
    warp_matrix,
)
from tests.tools.closed_loop.oracle import OracleProgram
from tools.closed_loop.cameras import cropped_cameras
from tools.closed_loop.daemon_driver import DaemonDriver, Wire, action_in, ignore
from tools.closed_loop.drivers import drive
from tools.closed_loop.figures import departures_of, figures_of, has_recovered
from tools.closed_loop.run import DaemonDrivers, Selection, drive_all, scenarios_named
from tools.closed_loop.scenario import SCENARIOS
from tools.closed_loop.simulation import End, Simulation, Track
from tools.closed_loop.trial import make_trial
from tools.playback.model import LoadedModel, load_model

pytestmark = pytest.mark.opencl

# For those who do not look at pictures: they cost less.
COARSE = DeviceCameras(Camera(96, 64, 80.0), Camera(96, 64, 40.0))


def oracle_track(
    blind: LoadedModel,
    name: str,
    seed: int = 0,
    length_m: float | None = None,
    record: Callable[[bytes], None] | None = None,
) -> tuple[Track, OracleProgram, DaemonDriver]:
    """Let the oracle drive through the daemon."""
    simulation = Simulation(make_trial(SCENARIOS[name], seed, length_m))
    program = OracleProgram(blind.program)
    program.see(simulation)
    wire = Wire(record or ignore, cameras=COARSE)
    driver = DaemonDriver(simulation, program, wire)
    try:
        track = drive(simulation, driver)
    finally:
        driver.close()
    return track, program, driver


def test_the_oracle_keeps_its_lane_through_the_daemon(blind: LoadedModel) -> None:
    events: list[Any] = []
    track, _, driver = oracle_track(
        blind, "lane-keeping", 1, 200.0, lambda data: events.append(read_event(data))
    )
    figures = figures_of([track])
    assert (track.end, figures.departures) == (End.DONE, 0)
    assert figures.offset_p99_m is not None
    assert figures.offset_p99_m < 0.25
    # Every frame was answered, and all that was said is recorded in the order of stamps.
    frames = [event for event in events if event.which() == "roadCameraState"]
    answers = [event for event in events if event.which() == "modelV2"]
    assert driver.answered == len(answers) == len(frames)
    assert all(event.valid for event in answers)
    stamps = [event.logMonoTime for event in events]
    assert stamps == sorted(stamps)
    assert {event.which() for event in events} >= {
        *("carParams", "carState", "carControl", "deviceState", "drivingModelData"),
        *("cameraOdometry", "liveCalibration", "liveDelay", "livePose", "wideRoadCameraState"),
    }
    assert 4.9 < len([e for e in events if e.which() == "carState"]) / len(frames) < 5.1


@pytest.mark.parametrize("seed", range(3))
def test_the_oracle_recovers_through_the_daemon(blind: LoadedModel, seed: int) -> None:
    track, _, _ = oracle_track(blind, "recovery", seed)
    assert has_recovered(track)


def test_the_oracle_changes_lanes_when_the_machine_of_the_daemon_does(
    blind: LoadedModel,
) -> None:
    states: list[int] = []

    def record(data: bytes) -> None:
        event = read_event(data)
        if event.which() == "modelV2":
            states.append(event.modelV2.meta.laneChangeState.raw)

    track, _, _ = oracle_track(blind, "lane-change", 0, 300.0, record)
    assert (track.end, departures_of(track)) == (End.DONE, 0)
    assert {0, 1, 2} <= set(states)


def test_lost_frames_are_seen_as_drops(blind: LoadedModel) -> None:
    dropped: list[float] = []

    def record(data: bytes) -> None:
        event = read_event(data)
        if event.which() == "modelV2":
            dropped.append(event.modelV2.frameDropPerc)

    track, _, driver = oracle_track(blind, "lost-frames", 0, 200.0, record)
    assert (track.end, departures_of(track)) == (End.DONE, 0)
    assert max(dropped) > 0.0
    assert driver.answered < 100 + len(track.samples)


def test_a_wrong_calibration_reaches_the_program(blind: LoadedModel) -> None:
    track, program, _ = oracle_track(blind, "calibration", 0, 400.0)
    assert track.end is End.DONE
    # Beside the zeros of the warm-up: the right matrix, and the wrong one for 10 s.
    assert len({matrix.tobytes() for matrix in program.transforms if matrix.any()}) == 2


def test_who_sees_nothing_leaves_the_lane(blind: LoadedModel) -> None:
    selection = Selection(seed=1, length_m=400.0)
    drives = drive_all(selection, DaemonDrivers(blind.program, cameras=COARSE))
    figures = figures_of([drive.track for drive in drives])
    assert figures.departures >= 1
    assert not all(drive.is_clean for drive in drives)


def test_two_runs_are_the_same_byte_by_byte(blind: LoadedModel) -> None:
    logs = []
    for _ in range(2):
        said: list[bytes] = []
        selection = Selection(scenarios_named(["recovery"]), drives=2, length_m=30.0)
        drive_all(selection, DaemonDrivers(blind.program, record=said.append, cameras=COARSE))
        logs.append(said)
    assert logs[0] == logs[1]
    stamps = [read_event(data).logMonoTime for data in logs[0]]
    assert stamps == sorted(stamps)


def test_random_weights_fail_all_of_it(random_model: Path) -> None:
    """A test of the test: what has not learnt to drive passes nothing."""
    with load_model(random_model) as model:
        kept = drive_all(Selection(length_m=250.0), DaemonDrivers(model.program))
        drivers = DaemonDrivers(model.program, cameras=COARSE)
        back = drive_all(Selection(scenarios_named(["recovery"]), drives=2), drivers)
        behind = drive_all(Selection(scenarios_named(["stopping-lead"]), drives=1), drivers)
    figures = figures_of([drive.track for drive in kept])
    assert figures.departures > 0
    assert figures.offset_mean_m is not None
    assert figures.offset_mean_m > 0.25
    assert figures.offset_p99_m is not None
    assert figures.offset_p99_m > 0.7
    assert figures_of([drive.track for drive in back]).recovered_share == 0.0
    assert not any(drive.is_clean for drive in behind)


def test_nothing_that_the_model_sees_is_cropped_away() -> None:
    cameras = cropped_cameras()
    assert cameras.wide is not None
    views = ((cameras.road, MED_MODEL_INTRINSICS), (cameras.wide, SBIG_MODEL_INTRINSICS))
    trials = [make_trial(SCENARIOS["calibration"], seed, 10.0) for seed in range(12)]
    mountings = [rpy for trial in trials for rpy in (trial.rpy_rad, trial.wrong_rpy_rad)]
    # The outermost that a seed can say.
    mountings += [(0.0, p, y) for p, y in itertools.product((-0.04, 0.07), (-0.05, 0.05))]
    for (camera, intrinsics), rpy in itertools.product(views, mountings):
        matrix = warp_matrix(rpy, camera.intrinsics, intrinsics)
        for corner in itertools.product((0, 511), (0, 255)):
            column, row, scale = matrix @ np.array([*corner, 1.0])
            assert 1.0 <= column / scale <= camera.width - 2.0
            assert 1.0 <= row / scale <= camera.height - 2.0


def _model_event(curvature: float, *, valid: bool) -> bytes:
    event = new_event("modelV2", mono_time_ns=1, valid=valid)
    event.modelV2.action.desiredCurvature = curvature
    event.modelV2.action.desiredAcceleration = -0.5
    event.modelV2.action.shouldStop = True
    return bytes(event.to_bytes())


def test_only_a_valid_command_of_numbers_is_one() -> None:
    other = bytes(new_event("cameraOdometry", mono_time_ns=1, valid=True).to_bytes())
    assert action_in([other, _model_event(0.25, valid=True)]) == Action(0.25, -0.5, True)
    assert action_in([other, _model_event(0.25, valid=False)]) is None
    assert action_in([_model_event(float("nan"), valid=True)]) is None
    assert action_in([]) is None

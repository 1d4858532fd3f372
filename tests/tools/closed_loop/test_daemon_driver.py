"""The daemon's own code in the loop: an oracle drives well through it, a blind model does not."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.schema import new_event, read_event
from modeld.constants import IDX_COUNT, PLAN_WIDTH, T_IDXS
from modeld.model.driving_model import DrivingProgram
from modeld.outputs.verdict import Action
from modeld.vehicle.cameras import (
    MED_MODEL_INTRINSICS,
    SBIG_MODEL_INTRINSICS,
    Camera,
    DeviceCameras,
    warp_matrix,
)
from tests.support.selection import quick_cases
from tests.tools.tiny_driving import INTERFACE
from tools.lib.wrapped_program import WrappedProgram
from tools.playback.model import LoadedModel, load_model
from tools.simulator.closed_loop.daemon_driver import DaemonDriver, Wire, action_in
from tools.simulator.closed_loop.device import cropped_cameras
from tools.simulator.closed_loop.faults import FAULTS
from tools.simulator.closed_loop.result import departures_of, figures_of, has_recovered
from tools.simulator.closed_loop.run import (
    DaemonDrivers,
    Selection,
    drive,
    drive_all,
    scenarios_named,
)
from tools.simulator.closed_loop.simulation import End, Simulation, Track
from tools.simulator.closed_loop.trial import SCENARIOS, make_trial
from tools.simulator.world.expert import Expert

pytestmark = pytest.mark.opencl

# For those who do not look at pictures: they cost less.
COARSE = DeviceCameras(Camera(96, 64, 80.0), Camera(96, 64, 40.0))


class Planned(WrappedProgram):
    """Answers with a plan of its own: all of the loop is real but the network."""

    def plan(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return 33 rows of 15: a turn to the right that gets faster and faster."""
        del inputs
        plan = np.zeros((IDX_COUNT, PLAN_WIDTH))
        plan[:, 11], plan[:, 14] = 0.01 * T_IDXS, 0.01
        return plan

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        results = dict(super().run(inputs, entry))
        if entry != "run":
            return results
        role, start, _ = INTERFACE.heads["plan"]
        vector = results[f"{role}_outputs"].copy()
        vector[0, start : start + IDX_COUNT * PLAN_WIDTH] = self.plan(inputs).ravel()
        return {**results, f"{role}_outputs": vector}


class OracleProgram(Planned):
    """Plans as the expert does."""

    def __init__(self, inner: DrivingProgram, simulation: Simulation) -> None:
        super().__init__(inner)
        trial = simulation.trial
        self._simulation = simulation
        self._expert = Expert(trial.world, trial.lane, simulation.set_speed_mps)
        self.transforms: list[NDArray[np.float32]] = []

    def plan(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        simulation, expert = self._simulation, self._expert
        self.transforms.append(inputs["road_transform"].copy())
        if side := simulation.lane - expert.lane:
            expert.change_lane(side)
        return expert.plan(simulation.body, simulation.vehicles).array()


class OracleDrive:
    """A drive of the oracle through the daemon, and what was said in it."""

    def __init__(
        self, blind: LoadedModel, name: str, seed: int = 0, length_m: float | None = None
    ) -> None:
        simulation = Simulation(make_trial(SCENARIOS[name], seed, length_m))
        self.program = OracleProgram(blind.program, simulation)
        self.events: list[Any] = []
        record = Wire(lambda data: self.events.append(read_event(data)), cameras=COARSE)
        driver = DaemonDriver(simulation, self.program, record)
        try:
            self.track: Track = drive(simulation, driver)
        finally:
            driver.close()
        self.answered = driver.answered
        self.models = [event.modelV2 for event in self.events if event.which() == "modelV2"]

    def stays(self) -> bool:
        return (self.track.end, departures_of(self.track)) == (End.DONE, 0)


@pytest.mark.usefixtures("grey")
def test_the_oracle_keeps_its_lane_through_the_daemon(blind: LoadedModel) -> None:
    oracle = OracleDrive(blind, "lane-keeping", 1, 200.0)
    assert oracle.stays()
    offset_m = figures_of([oracle.track]).offset_p99_m
    assert offset_m is not None
    assert offset_m < 0.25
    # Every frame was answered, and all that was said is recorded in the order of stamps.
    names = [event.which() for event in oracle.events]
    frames = names.count("roadCameraState")
    assert oracle.answered == names.count("modelV2") == frames
    assert all(event.valid for event in oracle.events if event.which() == "modelV2")
    stamps = [event.logMonoTime for event in oracle.events]
    assert stamps == sorted(stamps)
    assert set(names) >= {
        *("carParams", "carState", "carControl", "deviceState", "drivingModelData"),
        *("cameraOdometry", "liveCalibration", "liveDelay", "livePose", "wideRoadCameraState"),
    }
    assert 4.9 < names.count("carState") / frames < 5.1


@pytest.mark.usefixtures("grey")
@pytest.mark.parametrize("seed", quick_cases(range(3), 0))
def test_the_oracle_recovers_through_the_daemon(blind: LoadedModel, seed: int) -> None:
    assert has_recovered(OracleDrive(blind, "recovery", seed).track)


@pytest.mark.usefixtures("grey")
@pytest.mark.slow
def test_the_oracle_changes_lanes_when_the_machine_of_the_daemon_does(blind: LoadedModel) -> None:
    oracle = OracleDrive(blind, "lane-change", 0, 300.0)
    assert oracle.stays()
    assert {model.meta.laneChangeState.raw for model in oracle.models} >= {0, 1, 2}


@pytest.mark.usefixtures("grey")
def test_lost_frames_are_seen_as_drops(blind: LoadedModel) -> None:
    oracle = OracleDrive(blind, "lost-frames", 0, 200.0)
    assert oracle.stays()
    assert max(model.frameDropPerc for model in oracle.models) > 0.0
    assert oracle.answered < 100 + len(oracle.track.samples)


@pytest.mark.slow
@pytest.mark.usefixtures("grey")
def test_a_wrong_calibration_reaches_the_program(blind: LoadedModel) -> None:
    oracle = OracleDrive(blind, "calibration", 0, 400.0)
    assert oracle.track.end is End.DONE
    # Beside the zeros of the warm-up: the right matrix, and the wrong one for 10 s.
    assert len({matrix.tobytes() for matrix in oracle.program.transforms if matrix.any()}) == 2


@pytest.mark.usefixtures("grey")
def test_a_planted_fault_changes_the_way(blind: LoadedModel) -> None:
    # What a plan turns is steered by the speed.
    faults, ways = (None, FAULTS["speed-in-miles"]), []
    for fault in faults:
        drivers = DaemonDrivers(Planned(blind.program), fault, cameras=COARSE)
        (found,) = drive_all(Selection(length_m=30.0), drivers)
        ways.append(found.track.column("offset_m"))
    assert ways[0][-1] > ways[1][-1] + 0.005


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "drives", "length_m"),
    [("lane-keeping", 1, 5.0), ("recovery", 2, 30.0)],
)
def test_two_runs_are_the_same_byte_by_byte(
    blind: LoadedModel, name: str, drives: int, length_m: float
) -> None:
    logs = []
    for _ in range(2):
        said: list[bytes] = []
        selection = Selection(scenarios_named([name]), drives=drives, length_m=length_m)
        drive_all(selection, DaemonDrivers(blind.program, record=said.append, cameras=COARSE))
        logs.append(said)
    assert logs[0] == logs[1]
    stamps = [read_event(data).logMonoTime for data in logs[0]]
    assert stamps == sorted(stamps)


@pytest.mark.slow
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


def test_only_a_valid_command_of_numbers_is_one() -> None:
    def model(curvature: float, *, valid: bool) -> bytes:
        event = new_event("modelV2", mono_time_ns=1, valid=valid)
        event.modelV2.action = {
            "desiredCurvature": curvature,
            "desiredAcceleration": -0.5,
            "shouldStop": True,
        }
        return bytes(event.to_bytes())

    other = bytes(new_event("cameraOdometry", mono_time_ns=1, valid=True).to_bytes())
    assert action_in([other, model(0.25, valid=True)]) == Action(0.25, -0.5, True)
    assert action_in([other, model(0.25, valid=False)]) is None
    assert action_in([model(float("nan"), valid=True)]) is None
    assert action_in([]) is None

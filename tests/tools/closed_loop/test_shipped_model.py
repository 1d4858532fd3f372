"""The model of tools/models drives: 2 km of roads that nobody trained on, recoveries, leads.

A small part of `make drives`, with the same bounds. That a model of random weights fails all of it
is a test of `test_daemon_driver`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cereal.schema import read_event
from scheduler.compile import compile_driving
from scheduler.device.targets import target_for
from scheduler.flags import Flags
from tools.behaviour.gates import parse_gates
from tools.closed_loop.faults import FAULTS
from tools.closed_loop.judged import gate_names, judge_outcome
from tools.closed_loop.result import Outcome, table_of
from tools.closed_loop.run import (
    DaemonDrivers,
    Errand,
    Selection,
    drive_all,
    drive_one,
    scenarios_named,
)
from tools.closed_loop.scenario import STANDARD
from tools.closed_loop.simulation import Track
from tools.closed_loop.trial import FIRST_WORLD
from tools.playback.model import LoadedModel, load_model
from tools.training.options import FIRST_HELD_OUT

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "tools/models"
# Time is what a drive costs: fast roads, one with a little rain, and leads that brake soon.
ROADS = (130, 111)
LEADS = (0, 2)
# Behind where it is judged.
RECOVERY_M = 60.0
# A road that a fault is planted on, and by how much the car's way must then be another one
# somewhere. Drives are deterministic, so without a fault it would be 0.
FAULT_ROAD, FAULT_ROAD_M = 130, 150.0
CHANGED_M = 0.005
# By which share its own speed may be wrong, in the middle one of the frames.
SPEED_SHARE = 0.15
FAULTS_OF_A_DRIVE = ("cameras-swapped", "features-late", "chroma-shifted", "delay-zero")

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    """The model that lies in the repository, compiled for any CPU and loaded."""
    path = tmp_path_factory.mktemp("shipped") / "driving.pkl"
    flags = replace(Flags.from_environment(), tuned=False)
    files = [MODELS / f"{role}.onnx" for role in ("vision", "policy")]
    compile_driving(files, target=target_for("cpu"), flags=flags).write(path)
    with load_model(path) as loaded:
        yield loaded


def judged(shipped: LoadedModel, name: str, *selections: Selection) -> None:
    """Drive, and fail with the figures where a gate of the project does not hold."""
    drivers = DaemonDrivers(shipped.program)
    drives = [drive for one in selections for drive in drive_all(one, drivers)]
    outcome = Outcome("the model", tuple(drives))
    gates = parse_gates([], ROOT / f"tests/regression/{name}.gates", gate_names(selections[0]))
    verdicts = judge_outcome(outcome, gates)
    assert verdicts
    broken = [one.text for one in verdicts if not one.holds]
    assert not broken, "\n".join([*broken, table_of(outcome)])


def test_nobody_trains_on_roads_that_are_driven() -> None:
    assert FIRST_HELD_OUT < FIRST_WORLD


def test_it_keeps_its_lane_for_two_kilometres(shipped: LoadedModel) -> None:
    roads = [Selection(seed=seed, length_m=1000.0) for seed in ROADS]
    judged(shipped, "lane-keeping", *roads)


def test_it_comes_back_to_its_lane(shipped: LoadedModel) -> None:
    trials = Selection(scenarios_named(["recovery"]), drives=3, length_m=RECOVERY_M)
    judged(shipped, "recovery", trials)


def test_it_stops_behind_a_car_that_stops(shipped: LoadedModel) -> None:
    leads = [Selection(scenarios_named(["stopping-lead"]), seed) for seed in LEADS]
    judged(shipped, "stopping-lead", *leads)


def driven(shipped: LoadedModel, fault: str | None, record: list[bytes]) -> Track:
    """Drive on the road that faults are planted on; keep what is said."""
    trial = Errand(STANDARD.name, FAULT_ROAD, FAULT_ROAD_M).trial()
    planted = None if fault is None else FAULTS[fault]
    return drive_one(trial, DaemonDrivers(shipped.program, planted, record.append)).track


@pytest.fixture(scope="module")
def said() -> list[bytes]:
    """What is said in the drive without a fault."""
    return []


@pytest.fixture(scope="module")
def undisturbed(shipped: LoadedModel, said: list[bytes]) -> Track:
    """The drive without a fault."""
    return driven(shipped, None, said)


def test_it_knows_how_fast_it_is(undisturbed: Track, said: list[bytes]) -> None:
    # Commands are made of differences of speeds, so a car may well follow wrong ones.
    models = [event.modelV2 for event in map(read_event, said) if event.which() == "modelV2"]
    speeds = np.array([model.velocity.x[0] for model in models])
    true = undisturbed.column("speed_mps")
    assert true.size > 50
    assert np.median(np.abs(speeds[-true.size :] / true - 1.0)) < SPEED_SHARE


@pytest.mark.parametrize("fault", FAULTS_OF_A_DRIVE)
def test_a_fault_that_leaves_outputs_plausible_changes_the_drive(
    shipped: LoadedModel, undisturbed: Track, fault: str
) -> None:
    ways = [track.column("offset_m") for track in (driven(shipped, fault, []), undisturbed)]
    frames = min(way.size for way in ways)
    assert frames > 50
    assert np.abs(ways[0][:frames] - ways[1][:frames]).max() > CHANGED_M

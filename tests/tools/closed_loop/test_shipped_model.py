"""The model of tools/models drives: 2 km of roads that nobody trained on, recoveries, leads.

A small part of `make drives`, with the same bounds. That a model of random weights fails all of it
is a test of `test_daemon_driver`.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cereal.schema import read_event
from tests.support.built import built
from tests.tools.closed_loop.conftest import compile_for_any_cpu
from tools.behaviour.gates import parse_gates
from tools.playback.model import LoadedModel, load_model
from tools.simulator.closed_loop import run
from tools.simulator.closed_loop.faults import FAULTS
from tools.simulator.closed_loop.result import Outcome, table_of
from tools.simulator.closed_loop.run import (
    DaemonDrivers,
    Selection,
    gate_names,
    judge_outcome,
    scenarios_named,
)
from tools.simulator.closed_loop.simulation import Track
from tools.simulator.closed_loop.trial import FIRST_WORLD, STANDARD
from tools.simulator.training.options import FIRST_HELD_OUT

ROOT = Path(__file__).parents[3]
# Time is what a drive costs: fast roads, one with a little rain, leads that brake soon, and of
# recoveries what lies behind where they are judged.
SELECTIONS = {
    "lane-keeping": [Selection(seed=seed, length_m=1000.0) for seed in (130, 111)],
    "recovery": [Selection(scenarios_named(["recovery"]), drives=3, length_m=60.0)],
    "stopping-lead": [Selection(scenarios_named(["stopping-lead"]), seed) for seed in (0, 2)],
}
# A road that a fault is planted on, and by how much the car's way must then be another one
# somewhere. Drives are deterministic, so without a fault it would be 0.
FAULT_ROAD, FAULT_ROAD_M, CHANGED_M = 130, 150.0, 0.005
# By which share its own speed may be wrong, in the middle one of the frames.
SPEED_SHARE = 0.15

# Compiling takes minutes on a busy machine.
pytestmark = [pytest.mark.opencl, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def shipped() -> Iterator[LoadedModel]:
    """The model that lies in the repository, compiled for any CPU and loaded."""
    files = [ROOT / f"tools/models/{role}.onnx" for role in ("vision", "policy")]
    place = built("shipped", lambda to: compile_for_any_cpu(files, to))
    with load_model(place / "driving.pkl") as loaded:
        yield loaded


def test_nobody_trains_on_roads_that_are_driven() -> None:
    assert FIRST_HELD_OUT < FIRST_WORLD


@pytest.mark.parametrize("name", SELECTIONS)
def test_gates_of_the_project_hold(shipped: LoadedModel, name: str) -> None:
    drivers, selections = DaemonDrivers(shipped.program), SELECTIONS[name]
    drives = [drive for one in selections for drive in run.drive_all(one, drivers)]
    outcome = Outcome("the model", tuple(drives))
    gates = parse_gates([], ROOT / f"tests/regression/{name}.gates", gate_names(selections[0]))
    verdicts = judge_outcome(outcome, gates)
    assert verdicts
    broken = [one.text for one in verdicts if not one.holds]
    assert not broken, "\n".join([*broken, table_of(outcome)])


def driven(shipped: LoadedModel, fault: str | None, record: list[bytes]) -> Track:
    """Drive on the road that faults are planted on; keep what is said."""
    trial = run.DriveRequest(STANDARD.name, FAULT_ROAD, FAULT_ROAD_M).trial()
    planted = None if fault is None else FAULTS[fault]
    return run.drive_one(trial, DaemonDrivers(shipped.program, planted, record.append)).track


@pytest.fixture(scope="module")
def undisturbed(shipped: LoadedModel) -> tuple[Track, list[bytes]]:
    """The drive without a fault, and what is said in it."""
    said: list[bytes] = []
    return driven(shipped, None, said), said


def test_it_knows_how_fast_it_is(undisturbed: tuple[Track, list[bytes]]) -> None:
    # Commands are made of differences of speeds, so a car may well follow wrong ones.
    track, said = undisturbed
    models = [event.modelV2 for event in map(read_event, said) if event.which() == "modelV2"]
    true = track.column("speed_mps")
    assert true.size > 50
    speeds = np.array([model.velocity.x[0] for model in models])[-true.size :]
    assert np.median(np.abs(speeds / true - 1.0)) < SPEED_SHARE


@pytest.mark.parametrize(
    "fault", ["cameras-swapped", "features-late", "chroma-shifted", "delay-zero"]
)
def test_a_fault_that_leaves_outputs_plausible_changes_the_drive(
    shipped: LoadedModel, undisturbed: tuple[Track, list[bytes]], fault: str
) -> None:
    ways = [track.column("offset_m") for track in (driven(shipped, fault, []), undisturbed[0])]
    frames = min(way.size for way in ways)
    assert frames > 50
    assert np.abs(ways[0][:frames] - ways[1][:frames]).max() > CHANGED_M

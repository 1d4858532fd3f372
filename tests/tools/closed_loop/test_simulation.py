"""The simulation without a model: hand-overs, what is noted, how well an expert drives in it."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from modeld.outputs.verdict import Action
from tests.support.selection import quick_cases
from tools.errors import UsageError
from tools.simulator.closed_loop import simulation as loop
from tools.simulator.closed_loop.result import departures_of, figures_of, has_recovered
from tools.simulator.closed_loop.run import (
    ExpertDriver,
    Selection,
    drive,
    expert_drives,
    scenarios_named,
)
from tools.simulator.closed_loop.simulation import End, Sample, Simulation, Track
from tools.simulator.closed_loop.trial import FIRST_WORLD, SCENARIOS, STANDARD, make_trial
from tools.simulator.world.car import FRONT_M, LENGTH_M
from tools.simulator.world.traffic import Vehicle

# A driver who never steers.
STRAIGHT: Any = SimpleNamespace(
    answered=0, tick=lambda: None, answer=lambda: Action(0.0, 0.0), close=lambda: None
)


def simulation_of(name: str, seed: int = 0, length_m: float | None = None) -> Simulation:
    return Simulation(make_trial(SCENARIOS[name], seed, length_m))


def expert_track(name: str, seed: int = 0, length_m: float | None = None) -> Track:
    simulation = simulation_of(name, seed, length_m)
    return drive(simulation, ExpertDriver(simulation))


@pytest.mark.parametrize("seed", range(6))
def test_a_recovery_begins_where_it_says(seed: int) -> None:
    simulation = simulation_of("recovery", seed)
    trial, body = simulation.trial, simulation.body
    while not simulation.is_engaged:
        before = body
        simulation.tick()
        body = simulation.body
        # The way there is one that a car can drive.
        assert abs(body.curvature_1pm) * body.speed_mps**2 < 6.0
        assert body.s_m >= before.s_m
    heading = body.heading_rad - trial.world.road.at(body.s_m).heading_rad
    offset_m = body.offset_m - trial.world.lanes.centre_m(trial.lane)
    assert abs(offset_m) == pytest.approx(1.0, abs=1e-6)
    assert abs(math.degrees(heading)) == pytest.approx(3.0, abs=0.01)
    assert body.s_m == pytest.approx(trial.hand_over_m)


def test_the_expert_keeps_its_lane() -> None:
    figures = figures_of([expert_track("lane-keeping", seed, 300.0) for seed in range(2)])
    assert figures.km == pytest.approx(0.6, abs=0.01)
    assert (figures.departures, figures.collisions, figures.completed) == (0, 0, 2)
    assert figures.offset_mean_m is not None
    assert figures.offset_mean_m < 0.05
    assert figures.offset_p99_m is not None
    assert figures.offset_p99_m < 0.2


@pytest.mark.parametrize("seed", quick_cases(range(4), 0))
def test_the_expert_recovers(seed: int) -> None:
    track = expert_track("recovery", seed)
    assert has_recovered(track)
    assert figures_of([track]).recovered_share == 1.0


@pytest.mark.parametrize("seed", quick_cases(range(3), 0))
def test_the_expert_stops_behind_a_lead(seed: int) -> None:
    track = expert_track("stopping-lead", seed)
    assert track.end is End.DONE
    assert track.column("speed_mps")[-1] < 0.1
    assert 1.0 < track.column("gap_m")[-1] < 20.0


def test_the_expert_changes_lanes() -> None:
    simulation = simulation_of("lane-change", 0, 500.0)
    trial = simulation.trial
    assert trial.world.lanes.count > 1
    track = drive(simulation, ExpertDriver(simulation))
    assert (track.end, departures_of(track)) == (End.DONE, 0)
    assert simulation.lane == trial.lane + sum(change.side for change in trial.requested_changes)
    # Judged before and after, not while it is between two lanes.
    assert 0.0 < track.column("counts").mean() < 1.0


@pytest.mark.slow
def test_the_expert_slows_down_for_curves() -> None:
    track = expert_track("curves", 0)
    speed = track.column("speed_mps")
    assert track.end is End.DONE
    assert (np.abs(track.column("curvature_1pm")) * speed**2).max() < 2.8
    assert speed.min() < 0.9 * speed.max()


def test_who_never_steers_leaves_the_lane() -> None:
    figures = figures_of([drive(simulation_of(STANDARD.name, 0, 600.0), STRAIGHT)])
    assert figures.departures >= 1
    assert figures.offset_p99_m is not None
    assert figures.offset_p99_m > 0.7
    assert not has_recovered(drive(simulation_of("recovery"), STRAIGHT))
    assert drive(simulation_of("stopping-lead", 1), STRAIGHT).end is not End.DONE


def test_the_same_seed_is_the_same_drive_on_no_road_of_training() -> None:
    one, two, other = (expert_track("lane-keeping", s, 60.0).samples for s in (5, 5, 6))
    assert np.array_equal(one, two)
    assert not np.array_equal(one[:50], other[:50])
    assert make_trial(STANDARD, 0, 100.0).world.seed == FIRST_WORLD


def track_of(**columns: list[float]) -> Track:
    """Return a track of these values; all others are 0, and nobody is ahead."""
    rows = np.zeros((max([0, *map(len, columns.values())]), len(Sample._fields)))
    for name, values in {"counts": [1.0], "gap_m": [np.inf], **columns}.items():
        rows[:, Sample._fields.index(name)] = values
    return Track(make_trial(STANDARD, 0, 100.0), rows, End.DONE)


def test_figures_of_known_tracks() -> None:
    track = track_of(
        offset_m=[-1.0, 0.5, 0.0, 0.5],
        out=[1.0, 0.0, 1.0, 1.0],
        heading_rad=[0.0, 0.0, 0.0, math.radians(2.0)],
        speed_mps=[10.0, 10.0, 10.0, 1.0],
        curvature_1pm=[0.0, 0.0, 0.01, 0.01],
        gap_m=[30.0, 20.0, np.inf, 0.5],
    )
    figures = figures_of([track])
    assert figures.departures == 2
    assert figures.offset_mean_m == pytest.approx(0.5)
    assert figures.heading_mean_deg == pytest.approx(0.5)
    # The last gap is that of a car that hardly moves.
    assert figures.time_gap_min_s == pytest.approx(2.0)
    assert figures.lateral_jerk_p99_mps3 is not None
    assert figures.lateral_jerk_p99_mps3 == pytest.approx(20.0, rel=0.02)
    assert figures.recovered_share is None
    assert departures_of(replace(track_of(out=[0.0, 0.0]), end=End.LEFT_ROAD)) == 1
    figures = figures_of([replace(track_of(), end=End.STALLED)])
    assert (figures.km, figures.offset_mean_m, figures.completed) == (0.0, None, 0)


def test_who_is_ahead_and_who_is_hit() -> None:
    body = simulation_of(STANDARD.name, 0, 100.0).body

    def vehicle(ahead_m: float, aside_m: float) -> Vehicle:
        return Vehicle(body.s_m + ahead_m, body.offset_m + aside_m, 0.0, 0.0, 1.8, 1.5, 4.5, 0)

    assert loop.gap_ahead(body, (vehicle(FRONT_M + 7.0, 0.5),)) == pytest.approx(7.0)
    assert loop.gap_ahead(body, (vehicle(FRONT_M + 7.0, 3.5), vehicle(-20.0, 0.0))) == math.inf
    for ahead_m, aside_m, hit in (
        (FRONT_M - 0.1, 1.0, True),
        (FRONT_M + 0.1, 0.0, False),
        (0.0, 2.0, False),
        (FRONT_M - LENGTH_M - 4.4, 0.0, True),
    ):
        assert loop.overlaps(body, vehicle(ahead_m, aside_m)) is hit


def test_lost_frames_are_seeded_and_a_calibration_is_wrong_for_a_while() -> None:
    trial = make_trial(SCENARIOS["lost-frames"], 0, 100.0)
    lost = [trial.loses(0, number) for number in range(2000)]
    assert 0.03 < np.mean(lost) < 0.05
    assert lost == [trial.loses(0, number) for number in range(2000)]
    assert not make_trial(STANDARD, 0, 100.0).loses(0, 1)
    trial = make_trial(SCENARIOS["calibration"], 0, 100.0)
    assert trial.reported_rpy_rad(-1.0) == trial.rpy_rad == trial.reported_rpy_rad(20.0)
    error = np.subtract(trial.reported_rpy_rad(6.0), trial.rpy_rad)
    assert np.abs(np.degrees(error)) == pytest.approx([0.0, 0.5, 1.0])


def test_a_selection_drives_each_scenario_from_seed_to_seed() -> None:
    assert scenarios_named([]) == (STANDARD,)
    assert scenarios_named(["all"]) == tuple(SCENARIOS.values())
    assert [one.name for one in scenarios_named(["rain", "night", "rain"])] == ["rain", "night"]
    with pytest.raises(UsageError, match="--scenario snow: expected one of lane-keeping, "):
        scenarios_named(["snow"])
    selection = Selection(scenarios_named(["night", "rain"]), seed=3, drives=2, length_m=60.0)
    drives = expert_drives(selection)
    found = [(d.track.trial.scenario.name, d.track.trial.seed) for d in drives]
    assert found == [("night", 3), ("night", 4), ("rain", 3), ("rain", 4)]
    assert all(drive.frames > loop.RUN_UP_TICKS // 5 for drive in drives)

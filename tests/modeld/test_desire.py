from dataclasses import replace

import pytest

from modeld.desire import (
    Desire,
    LaneChangeDirection,
    LaneChangeMachine,
    LaneChangeState,
    VehicleState,
)

OFF, PRE = LaneChangeState.OFF, LaneChangeState.PRE
STARTING, FINISHING = LaneChangeState.STARTING, LaneChangeState.FINISHING
CRUISE = VehicleState(v_ego_mps=20.0, lateral_active=True)
LEFT = replace(CRUISE, left_blinker=True)
RIGHT = replace(CRUISE, right_blinker=True)
NUDGE_LEFT = replace(LEFT, steering_pressed=True, steering_torque=1.0)
NUDGE_RIGHT = replace(RIGHT, steering_pressed=True, steering_torque=-1.0)


def machine_after(*vehicles: VehicleState, probability: float = 1.0) -> LaneChangeMachine:
    machine = LaneChangeMachine()
    for vehicle in vehicles:
        machine.update(vehicle, probability)
    return machine


def test_blinker_edge_arms() -> None:
    machine = machine_after(CRUISE, LEFT)
    assert (machine.state, machine.direction) == (PRE, LaneChangeDirection.LEFT)
    assert machine.desire is Desire.NONE


@pytest.mark.parametrize(
    "vehicle",
    [
        replace(LEFT, v_ego_mps=8.94),
        replace(LEFT, right_blinker=True),
        replace(LEFT, lateral_active=False),
        CRUISE,
    ],
    ids=["just below 20 mph", "hazard lights", "not steering", "no blinker"],
)
def test_does_not_arm(vehicle: VehicleState) -> None:
    assert machine_after(CRUISE, vehicle).state is OFF


def test_arms_at_20_mph() -> None:
    assert machine_after(CRUISE, replace(LEFT, v_ego_mps=20 * 0.44704)).state is PRE


def test_blinker_level_without_edge_does_not_arm() -> None:
    slow = replace(LEFT, v_ego_mps=1.0)
    assert machine_after(slow, LEFT).state is OFF


@pytest.mark.parametrize("vehicle", [CRUISE, replace(LEFT, v_ego_mps=5.0)])
def test_pre_disarms(vehicle: VehicleState) -> None:
    machine = machine_after(LEFT, vehicle)
    assert (machine.state, machine.direction) == (OFF, LaneChangeDirection.NONE)


def test_pre_follows_the_blinker_side() -> None:
    assert machine_after(LEFT, RIGHT).direction is LaneChangeDirection.RIGHT


@pytest.mark.parametrize(
    ("blinker", "nudge", "desire"),
    [
        (LEFT, NUDGE_LEFT, Desire.LANE_CHANGE_LEFT),
        (RIGHT, NUDGE_RIGHT, Desire.LANE_CHANGE_RIGHT),
    ],
)
def test_nudge_starts(blinker: VehicleState, nudge: VehicleState, desire: Desire) -> None:
    machine = machine_after(blinker, nudge)
    assert machine.state is STARTING
    assert machine.desire is desire


@pytest.mark.parametrize(
    "vehicle",
    [
        replace(NUDGE_LEFT, steering_torque=-1.0),
        replace(NUDGE_LEFT, steering_pressed=False),
        replace(NUDGE_LEFT, left_blindspot=True),
    ],
    ids=["wrong way", "not pressed", "blind spot"],
)
def test_nudge_does_not_start(vehicle: VehicleState) -> None:
    assert machine_after(LEFT, vehicle).state is PRE


def test_blindspot_on_the_other_side_does_not_matter() -> None:
    assert machine_after(LEFT, replace(NUDGE_LEFT, right_blindspot=True)).state is STARTING


def test_starting_takes_ten_frames_to_fade_and_needs_the_model_to_be_done() -> None:
    machine = machine_after(LEFT, NUDGE_LEFT)
    for _ in range(9):
        machine.update(LEFT, 0.0)
        assert machine.state is STARTING
    machine.update(LEFT, 0.02)
    assert machine.state is STARTING
    machine.update(LEFT, 0.0199)
    assert machine.state is FINISHING
    assert machine.desire is Desire.LANE_CHANGE_LEFT


def finishing() -> LaneChangeMachine:
    machine = machine_after(LEFT, NUDGE_LEFT)
    for _ in range(10):
        machine.update(LEFT, 0.0)
    assert machine.state is FINISHING
    return machine


@pytest.mark.parametrize(("vehicle", "end"), [(CRUISE, OFF), (LEFT, PRE)])
def test_finishing_takes_twenty_frames(vehicle: VehicleState, end: LaneChangeState) -> None:
    machine = finishing()
    for _ in range(19):
        machine.update(vehicle, 0.0)
        assert machine.state is FINISHING
    machine.update(vehicle, 0.0)
    assert (machine.state, machine.direction) == (end, LaneChangeDirection.NONE)
    assert machine.desire is Desire.NONE
    assert machine.timer_s == 0.0


def test_disengaging_ends_at_once() -> None:
    machine = finishing()
    machine.update(replace(LEFT, lateral_active=False), 0.0)
    assert (machine.state, machine.desire) == (OFF, Desire.NONE)


def test_gives_up_after_ten_seconds() -> None:
    machine = machine_after(LEFT, NUDGE_LEFT)
    frames = 0
    while machine.state is not OFF and frames < 220:
        machine.update(LEFT, 1.0)
        frames += 1
    # The timer passes 10 s with the frame after 200 steps of 0.05 s; the next frame switches off.
    assert 200 <= frames <= 201
    # The blinker is still on: no new edge, no new lane change.
    machine.update(LEFT, 1.0)
    assert machine.state is OFF

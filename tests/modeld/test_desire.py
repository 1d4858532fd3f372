"""Both lane change machines, frame by frame."""

from dataclasses import replace

import pytest

from modeld.vehicle.desire import (
    Desire,
    FadingLaneChange,
    LaneChangeDirection,
    LaneChangeState,
    TimedLaneChange,
    VehicleState,
    lane_change_machine,
)

NONE, TO_LEFT, TO_RIGHT = LaneChangeDirection
CRUISE = VehicleState(v_ego_mps=20.0, lateral_active=True)
LEFT, RIGHT = replace(CRUISE, left_blinker=True), replace(CRUISE, right_blinker=True)
HAZARD = replace(LEFT, right_blinker=True)
IDLE = replace(LEFT, lateral_active=False)
NUDGE_LEFT = replace(LEFT, steering_pressed=True, steering_torque=1.0)
NUDGE_RIGHT = replace(RIGHT, steering_pressed=True, steering_torque=-1.0)
MPH_20 = 20 * 0.44704

Frame = tuple[LaneChangeState, LaneChangeDirection, Desire]
Given = list[tuple[VehicleState, float]]
OFF: Frame = (LaneChangeState.OFF, NONE, Desire.NONE)
PRE_LEFT: Frame = (LaneChangeState.PRE, TO_LEFT, Desire.NONE)
PRE_RIGHT: Frame = (LaneChangeState.PRE, TO_RIGHT, Desire.NONE)
START_LEFT: Frame = (LaneChangeState.STARTING, TO_LEFT, Desire.LANE_CHANGE_LEFT)
START_RIGHT: Frame = (LaneChangeState.STARTING, TO_RIGHT, Desire.LANE_CHANGE_RIGHT)
FINISH_LEFT: Frame = (LaneChangeState.FINISHING, TO_LEFT, Desire.LANE_CHANGE_LEFT)


def trace(name: str, frames: Given) -> list[Frame]:
    machine = lane_change_machine(name)
    seen = []
    for vehicle, probability in frames:
        machine.update(vehicle, probability)
        seen.append((machine.state, machine.direction, machine.desire))
    return seen


def test_an_interface_names_its_machine() -> None:
    assert isinstance(lane_change_machine("A"), FadingLaneChange)
    assert isinstance(lane_change_machine("B"), TimedLaneChange)


# The vehicle in each frame, while the model is sure that a change is under way; the last frame.
@pytest.mark.parametrize("name", ["A", "B"])
@pytest.mark.parametrize(
    ("vehicles", "last"),
    [
        # The edge of a blinker arms, from 20 mph on, if it is one alone and the software steers.
        ([CRUISE, LEFT], PRE_LEFT),
        ([CRUISE, RIGHT], PRE_RIGHT),
        ([CRUISE, replace(LEFT, v_ego_mps=MPH_20)], PRE_LEFT),
        ([CRUISE, replace(LEFT, v_ego_mps=8.94)], OFF),
        ([CRUISE, HAZARD], OFF),
        ([CRUISE, IDLE], OFF),
        ([CRUISE, CRUISE], OFF),
        # A blinker that was on already does not.
        ([replace(LEFT, v_ego_mps=1.0), LEFT], OFF),
        # What is armed follows the blinker, and ends with it, or below 20 mph.
        ([LEFT, RIGHT], PRE_RIGHT),
        ([LEFT, CRUISE], OFF),
        ([LEFT, HAZARD], OFF),
        ([LEFT, replace(LEFT, v_ego_mps=8.94)], OFF),
        ([LEFT, replace(LEFT, v_ego_mps=MPH_20)], PRE_LEFT),
        # A nudge to that side starts, into a lane that is free.
        ([LEFT, NUDGE_LEFT], START_LEFT),
        ([RIGHT, NUDGE_RIGHT], START_RIGHT),
        ([LEFT, replace(NUDGE_LEFT, steering_torque=-1.0)], PRE_LEFT),
        ([LEFT, replace(NUDGE_LEFT, steering_torque=0.0)], PRE_LEFT),
        ([RIGHT, replace(NUDGE_RIGHT, steering_torque=0.0)], PRE_RIGHT),
        ([LEFT, replace(NUDGE_LEFT, steering_pressed=False)], PRE_LEFT),
        ([LEFT, replace(NUDGE_LEFT, left_blindspot=True)], PRE_LEFT),
        ([RIGHT, replace(NUDGE_RIGHT, right_blindspot=True)], PRE_RIGHT),
        ([LEFT, replace(NUDGE_LEFT, right_blindspot=True)], START_LEFT),
        ([RIGHT, replace(NUDGE_RIGHT, left_blindspot=True)], START_RIGHT),
        # All ends at once when steering ends.
        ([LEFT, NUDGE_LEFT, IDLE], OFF),
        ([LEFT, NUDGE_LEFT, IDLE, IDLE], OFF),
    ],
)
def test_arming_and_starting(name: str, vehicles: list[VehicleState], last: Frame) -> None:
    assert trace(name, [(vehicle, 1.0) for vehicle in vehicles])[-1] == last


@pytest.mark.parametrize(("name", "armed"), [("A", False), ("B", True)])
def test_a_blinker_that_is_on_when_steering_begins(name: str, armed: bool) -> None:
    seen = trace(name, [(CRUISE, 0.0), (IDLE, 0.0), (IDLE, 0.0), (LEFT, 0.0)])
    assert seen[-1] == (PRE_LEFT if armed else OFF)


STARTED: Given = [(LEFT, 0.0), (NUDGE_LEFT, 0.0)]
# Ten frames fade the lines out: this is where machine A may finish.
FADED: Given = [*STARTED, *[(LEFT, 0.0)] * 9]


@pytest.mark.parametrize(
    ("name", "frames", "expected"),
    [
        # Armed, nudged, faded out in 10 frames, done by the model, faded in in 20.
        (
            "A",
            [(CRUISE, 0.0), *STARTED, *[(LEFT, 0.5)] * 12, (LEFT, 0.01), *[(CRUISE, 0.0)] * 20],
            [OFF, PRE_LEFT, *[START_LEFT] * 13, *[FINISH_LEFT] * 20, OFF],
        ),
        # The model is done below 0.02, and not at it.
        ("A", [*FADED, (LEFT, 0.02), (LEFT, 0.0199)], [PRE_LEFT, *[START_LEFT] * 11, FINISH_LEFT]),
        # A blinker that is on to the same side when the lines are back arms the next change.
        (
            "A",
            [*FADED, *[(LEFT, 0.0)] * 21],
            [PRE_LEFT, *[START_LEFT] * 10, *[FINISH_LEFT] * 20, PRE_LEFT],
        ),
        # It changes side while the lines fade in: armed to that side at once, and nudged in the
        # frame after. No frame of PRE is without a direction.
        (
            "A",
            [*FADED, (LEFT, 0.0), *[(RIGHT, 0.0)] * 20, (NUDGE_RIGHT, 0.0)],
            [PRE_LEFT, *[START_LEFT] * 10, *[FINISH_LEFT] * 20, PRE_RIGHT, START_RIGHT],
        ),
        ("A", [*FADED, (LEFT, 0.0), (IDLE, 0.0)], [PRE_LEFT, *[START_LEFT] * 10, FINISH_LEFT, OFF]),
        # The timer passes 10 s with the frame after 200 steps of 0.05 s; the next frame switches
        # off. The blinker is still on: no new edge, no new lane change.
        ("A", [*STARTED, *[(LEFT, 1.0)] * 220], [PRE_LEFT, *[START_LEFT] * 200, *[OFF] * 21]),
        # Done by the model at once, but half a second has to pass: ten times 0.05 in floating
        # point is a little less, so it is the 11th frame.
        (
            "B",
            [(CRUISE, 0.0), *STARTED, *[(CRUISE, 0.0)] * 12],
            [OFF, PRE_LEFT, *[START_LEFT] * 11, *[OFF] * 2],
        ),
        # The blinker stays on, and changes side at the end: armed anew, without a new edge.
        (
            "B",
            [*STARTED, *[(LEFT, 0.02)] * 14, (RIGHT, 0.0199), *STARTED, (LEFT, 0.0)],
            [PRE_LEFT, *[START_LEFT] * 15, PRE_RIGHT, PRE_LEFT, *[START_LEFT] * 2],
        ),
        # It begins at 0, and 200 times 0.05 is a little more than 10 in floating point.
        ("B", [*STARTED, *[(LEFT, 1.0)] * 220], [PRE_LEFT, *[START_LEFT] * 201, *[OFF] * 20]),
    ],
)
def test_whole_changes(name: str, frames: Given, expected: list[Frame]) -> None:
    assert trace(name, frames) == expected


def test_the_timer_of_a_finished_change_is_reset() -> None:
    machine = FadingLaneChange()
    for vehicle, probability in [*FADED, *[(CRUISE, 0.0)] * 21]:
        machine.update(vehicle, probability)
    assert (machine.state, machine.timer_s) == (LaneChangeState.OFF, 0.0)

from dataclasses import replace

import pytest

from modeld.desire import (
    Desire,
    FadingLaneChange,
    LaneChangeDirection,
    LaneChangeState,
    TimedLaneChange,
    VehicleState,
    lane_change_machine,
)

OFF, PRE = LaneChangeState.OFF, LaneChangeState.PRE
STARTING, FINISHING = LaneChangeState.STARTING, LaneChangeState.FINISHING
CRUISE = VehicleState(v_ego_mps=20.0, lateral_active=True)
LEFT = replace(CRUISE, left_blinker=True)
RIGHT = replace(CRUISE, right_blinker=True)
NUDGE_LEFT = replace(LEFT, steering_pressed=True, steering_torque=1.0)
NUDGE_RIGHT = replace(RIGHT, steering_pressed=True, steering_torque=-1.0)


def machine_after(*vehicles: VehicleState, probability: float = 1.0) -> FadingLaneChange:
    machine = FadingLaneChange()
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


def finishing() -> FadingLaneChange:
    machine = machine_after(LEFT, NUDGE_LEFT)
    for _ in range(10):
        machine.update(LEFT, 0.0)
    assert machine.state is FINISHING
    return machine


@pytest.mark.parametrize(
    ("vehicle", "end", "direction"),
    [
        (CRUISE, OFF, LaneChangeDirection.NONE),
        (LEFT, PRE, LaneChangeDirection.LEFT),
        (RIGHT, PRE, LaneChangeDirection.RIGHT),
    ],
)
def test_finishing_takes_twenty_frames(
    vehicle: VehicleState, end: LaneChangeState, direction: LaneChangeDirection
) -> None:
    machine = finishing()
    for _ in range(19):
        machine.update(vehicle, 0.0)
        assert machine.state is FINISHING
    machine.update(vehicle, 0.0)
    assert (machine.state, machine.direction) == (end, direction)
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


# --- traces of both machines, frame by frame -----------------------------------------------------

NONE, TO_LEFT, TO_RIGHT = LaneChangeDirection
Frame = tuple[LaneChangeState, LaneChangeDirection, Desire]


def trace(name: str, *frames: tuple[VehicleState, float]) -> list[Frame]:
    machine = lane_change_machine(name)
    seen = []
    for vehicle, probability in frames:
        machine.update(vehicle, probability)
        seen.append((machine.state, machine.direction, machine.desire))
    return seen


def test_an_interface_names_its_machine() -> None:
    assert isinstance(lane_change_machine("A"), FadingLaneChange)
    assert isinstance(lane_change_machine("B"), TimedLaneChange)


OFF_FRAME = (OFF, NONE, Desire.NONE)
PRE_LEFT = (PRE, TO_LEFT, Desire.NONE)
START_LEFT = (STARTING, TO_LEFT, Desire.LANE_CHANGE_LEFT)


def test_trace_of_a_left_change_by_machine_a() -> None:
    # Armed, nudged, faded out in 10 frames, done by the model, faded in in 20.
    frames = [(CRUISE, 0.0), (LEFT, 0.0), (NUDGE_LEFT, 0.0)]
    frames += [(LEFT, 0.5)] * 12 + [(LEFT, 0.01)] + [(CRUISE, 0.0)] * 20
    finish = (FINISHING, TO_LEFT, Desire.LANE_CHANGE_LEFT)
    assert trace("A", *frames) == [
        OFF_FRAME,
        PRE_LEFT,
        *[START_LEFT] * 13,
        *[finish] * 20,
        OFF_FRAME,
    ]


def test_trace_of_two_changes_in_a_row_by_machine_a() -> None:
    # The blinker changes side while the lines fade in: the next change is armed to that side at
    # once, and nudged in the frame after. No frame of PRE is without a direction.
    frames = [(LEFT, 0.0), (NUDGE_LEFT, 0.0)] + [(LEFT, 0.0)] * 10 + [(RIGHT, 0.0)] * 20
    frames += [(NUDGE_RIGHT, 0.0)]
    finish = (FINISHING, TO_LEFT, Desire.LANE_CHANGE_LEFT)
    assert trace("A", *frames) == [
        PRE_LEFT,
        *[START_LEFT] * 10,
        *[finish] * 20,
        (PRE, TO_RIGHT, Desire.NONE),
        (STARTING, TO_RIGHT, Desire.LANE_CHANGE_RIGHT),
    ]


def test_trace_of_a_left_change_by_machine_b() -> None:
    # Armed, nudged; done by the model at once, but half a second has to pass: ten times 0.05 in
    # floating point is a little less, so it is the 11th frame.
    frames = [(CRUISE, 0.0), (LEFT, 0.0), (NUDGE_LEFT, 0.0)] + [(CRUISE, 0.0)] * 12
    assert trace("B", *frames) == [
        OFF_FRAME,
        PRE_LEFT,
        *[START_LEFT] * 11,
        *[OFF_FRAME] * 2,
    ]


def test_trace_of_two_changes_in_a_row_by_machine_b() -> None:
    # The blinker stays on, and changes side at the end: armed anew, without a new edge.
    frames = [(LEFT, 0.0), (NUDGE_LEFT, 0.0)] + [(LEFT, 0.02)] * 14 + [(RIGHT, 0.0199)]
    frames += [(LEFT, 0.0), (NUDGE_LEFT, 0.0), (LEFT, 0.0)]
    assert trace("B", *frames) == [
        PRE_LEFT,
        *[START_LEFT] * 15,
        (PRE, TO_RIGHT, Desire.NONE),
        PRE_LEFT,
        *[START_LEFT] * 2,
    ]


def test_machine_b_gives_up_after_ten_seconds() -> None:
    frames = [(LEFT, 1.0), (NUDGE_LEFT, 1.0)] + [(LEFT, 1.0)] * 220
    seen = trace("B", *frames)
    # It begins at 0, and 200 times 0.05 is a little more than 10 in floating point.
    assert seen == [PRE_LEFT, *[START_LEFT] * 201, *[OFF_FRAME] * 20]


@pytest.mark.parametrize(("name", "armed"), [("A", False), ("B", True)])
def test_a_blinker_that_is_on_when_steering_begins(name: str, armed: bool) -> None:
    idle = replace(LEFT, lateral_active=False)
    seen = trace(name, (CRUISE, 0.0), (idle, 0.0), (idle, 0.0), (LEFT, 0.0))
    assert seen[-1] == (PRE_LEFT if armed else OFF_FRAME)


@pytest.mark.parametrize("name", ["A", "B"])
def test_both_machines_know_the_side_from_the_first_armed_frame_on(name: str) -> None:
    assert trace(name, (CRUISE, 0.0), (LEFT, 0.0))[-1] == PRE_LEFT
    assert trace(name, (CRUISE, 0.0), (RIGHT, 0.0))[-1] == (PRE, TO_RIGHT, Desire.NONE)


@pytest.mark.parametrize("name", ["A", "B"])
@pytest.mark.parametrize(
    "vehicle",
    [CRUISE, replace(LEFT, v_ego_mps=8.94), replace(LEFT, right_blinker=True)],
    ids=["no blinker", "slow", "hazard lights"],
)
def test_both_machines_disarm(name: str, vehicle: VehicleState) -> None:
    assert trace(name, (LEFT, 0.0), (vehicle, 0.0))[-1] == OFF_FRAME


@pytest.mark.parametrize("name", ["A", "B"])
def test_both_machines_end_at_once_when_steering_ends(name: str) -> None:
    idle = replace(LEFT, lateral_active=False)
    seen = trace(name, (LEFT, 0.0), (NUDGE_LEFT, 0.0), (idle, 1.0), (idle, 1.0))
    assert seen[1:] == [START_LEFT, OFF_FRAME, OFF_FRAME]


@pytest.mark.parametrize(
    "vehicle",
    [
        replace(NUDGE_LEFT, steering_torque=-1.0),
        replace(NUDGE_LEFT, steering_pressed=False),
        replace(NUDGE_LEFT, left_blindspot=True),
    ],
    ids=["wrong way", "not pressed", "blind spot"],
)
def test_machine_b_waits_for_a_nudge_into_a_free_lane(vehicle: VehicleState) -> None:
    assert trace("B", (LEFT, 0.0), (vehicle, 0.0))[-1] == PRE_LEFT

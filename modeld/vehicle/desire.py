"""The two state machines of a lane change: blinker, steering nudge, maneuver, end.

They compute the desire, the model's request for a lane change. The interface specifies the machine
with which a model was trained. Both run after inference at 20 Hz, so a desire reaches the model one
frame later. Constants: openpilot, 2023-2026. The keep-left and keep-right desires of older models
are not sent; ADR 0021 lists this and other deliberate differences.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from modeld.constants import DT_MODEL_S

MIN_SPEED_MPS: Final = 20 * 0.44704  # 20 mph
MAX_TIME_S: Final = 10.0
# Machine A: the weight of the current lane's lines fades out in 0.5 s and back in within 1 s.
FADE_OUT_PER_FRAME: Final = 2 * DT_MODEL_S
FADE_IN_PER_FRAME: Final = DT_MODEL_S
DONE_PROBABILITY: Final = 0.02
# Machine B: the shortest duration of a maneuver.
START_TIME_S: Final = 0.5
FADED_OUT: Final = 0.01
FADED_IN: Final = 0.99


class Desire(IntEnum):
    """Index into the model's desire vector; values as in ``log.Desire``."""

    NONE = 0
    TURN_LEFT = 1
    TURN_RIGHT = 2
    LANE_CHANGE_LEFT = 3
    LANE_CHANGE_RIGHT = 4
    KEEP_LEFT = 5
    KEEP_RIGHT = 6


class LaneChangeState(IntEnum):
    """State of a lane change; values as in ``log.LaneChangeState``."""

    OFF = 0
    PRE = 1
    STARTING = 2
    FINISHING = 3


class LaneChangeDirection(IntEnum):
    """Direction of a lane change; values as in ``log.LaneChangeDirection``."""

    NONE = 0
    LEFT = 1
    RIGHT = 2


@dataclass(frozen=True, slots=True)
class VehicleState:
    """The state of the car and the driver's actions at one frame."""

    v_ego_mps: float = 0.0  # speed; negative only if the model's interface allows it
    left_blinker: bool = False
    right_blinker: bool = False
    steering_pressed: bool = False  # the driver turns the wheel
    steering_torque: float = 0.0  # the driver's torque in the car's unit, positive to the left
    left_blindspot: bool = False  # a vehicle is in the left blind spot
    right_blindspot: bool = False  # a vehicle is in the right blind spot
    lateral_active: bool = False  # the software is steering

    @property
    def one_blinker(self) -> bool:
        """Whether exactly one blinker is on; both together are hazard lights."""
        return self.left_blinker != self.right_blinker

    @property
    def blinker_direction(self) -> LaneChangeDirection:
        """Side of the blinker; right unless the left one is on."""
        return LaneChangeDirection.LEFT if self.left_blinker else LaneChangeDirection.RIGHT

    def nudges(self, direction: LaneChangeDirection) -> bool:
        """Return whether the driver confirms the maneuver by turning the wheel to that side."""
        torque = self.steering_torque
        return self.steering_pressed and (
            torque > 0 if direction is LaneChangeDirection.LEFT else torque < 0
        )

    def blindspot(self, direction: LaneChangeDirection) -> bool:
        """Return whether a vehicle is in the blind spot on that side."""
        left = direction is LaneChangeDirection.LEFT
        return self.left_blindspot if left else self.right_blindspot


class LaneChangeMachine(Protocol):
    """State machine of a lane change, advanced once per frame. Its state is published."""

    state: LaneChangeState
    direction: LaneChangeDirection

    @property
    def desire(self) -> Desire:
        """The desire for the model."""

    def update(self, vehicle: VehicleState, lane_change_probability: float) -> None:
        """Advance by one frame; the probability is the model's P(left) + P(right)."""


def lane_change_machine(name: str) -> LaneChangeMachine:
    """Return a new machine; `name` is "A" or "B", from the model's interface."""
    return FadingLaneChange() if name == "A" else TimedLaneChange()


def _desire_to(direction: LaneChangeDirection) -> Desire:
    left = direction is LaneChangeDirection.LEFT
    return Desire.LANE_CHANGE_LEFT if left else Desire.LANE_CHANGE_RIGHT


@dataclass(slots=True)
class FadingLaneChange:
    """Machine A, for models until 2025: a maneuver fades the current lane's lines out and in again.

    The direction is set as soon as the state is PRE, as in the last revisions (see ADR 0021).
    """

    state: LaneChangeState = LaneChangeState.OFF
    direction: LaneChangeDirection = LaneChangeDirection.NONE
    lane_line_weight: float = 1.0  # weight of the current lane's lines; 0 in mid-maneuver
    timer_s: float = 0.0  # time since the maneuver began
    _had_one_blinker: bool = False

    @property
    def desire(self) -> Desire:
        """The desire for the model; NONE unless a maneuver is in progress."""
        if self.state not in (LaneChangeState.STARTING, LaneChangeState.FINISHING):
            return Desire.NONE
        return _desire_to(self.direction)

    def update(self, vehicle: VehicleState, lane_change_probability: float) -> None:
        """Advance by one frame, as `LaneChangeMachine.update`."""
        if not vehicle.lateral_active or self.timer_s > MAX_TIME_S:
            self._switch_off()
        elif self.state is LaneChangeState.OFF:
            self._update_off(vehicle)
        elif self.state is LaneChangeState.PRE:
            self._update_pre(vehicle)
        elif self.state is LaneChangeState.STARTING:
            self._update_starting(lane_change_probability)
        else:
            self._update_finishing(vehicle)
        moving = self.state in (LaneChangeState.STARTING, LaneChangeState.FINISHING)
        self.timer_s = self.timer_s + DT_MODEL_S if moving else 0.0
        self._had_one_blinker = vehicle.one_blinker

    def _switch_off(self) -> None:
        self.state = LaneChangeState.OFF
        self.direction = LaneChangeDirection.NONE

    def _update_off(self, vehicle: VehicleState) -> None:
        # The blinker must have just been switched on. If it stays on after a lane change, it must
        # not start another one.
        edge = vehicle.one_blinker and not self._had_one_blinker
        if edge and vehicle.v_ego_mps >= MIN_SPEED_MPS:
            self.state = LaneChangeState.PRE
            self.direction = vehicle.blinker_direction
            self.lane_line_weight = 1.0

    def _update_pre(self, vehicle: VehicleState) -> None:
        if not vehicle.one_blinker or vehicle.v_ego_mps < MIN_SPEED_MPS:
            self._switch_off()
            return
        self.direction = vehicle.blinker_direction
        if vehicle.nudges(self.direction) and not vehicle.blindspot(self.direction):
            self.state = LaneChangeState.STARTING

    def _update_starting(self, lane_change_probability: float) -> None:
        self.lane_line_weight = max(self.lane_line_weight - FADE_OUT_PER_FRAME, 0.0)
        if lane_change_probability < DONE_PROBABILITY and self.lane_line_weight < FADED_OUT:
            self.state = LaneChangeState.FINISHING

    def _update_finishing(self, vehicle: VehicleState) -> None:
        self.lane_line_weight = min(self.lane_line_weight + FADE_IN_PER_FRAME, 1.0)
        if self.lane_line_weight > FADED_IN:
            if vehicle.one_blinker:
                self.state = LaneChangeState.PRE
                self.direction = vehicle.blinker_direction
            else:
                self._switch_off()


@dataclass(slots=True)
class TimedLaneChange:
    """Machine B, for models of 2026: a maneuver lasts at least half a second; nothing fades.

    It does not use the state FINISHING. A blinker that is on when the software starts steering
    counts as just switched on.
    """

    state: LaneChangeState = LaneChangeState.OFF
    direction: LaneChangeDirection = LaneChangeDirection.NONE
    timer_s: float = 0.0  # time since the maneuver began; stops at its end
    _had_one_blinker: bool = False

    @property
    def desire(self) -> Desire:
        """The desire for the model; NONE unless a maneuver is in progress."""
        if self.state is not LaneChangeState.STARTING:
            return Desire.NONE
        return _desire_to(self.direction)

    def update(self, vehicle: VehicleState, lane_change_probability: float) -> None:
        """Advance by one frame, as `LaneChangeMachine.update`."""
        if not vehicle.lateral_active or self.timer_s > MAX_TIME_S:
            self._leave(vehicle, again=False)
            self.timer_s = 0.0
        elif self.state is LaneChangeState.OFF:
            edge = vehicle.one_blinker and not self._had_one_blinker
            if edge and vehicle.v_ego_mps >= MIN_SPEED_MPS:
                self._leave(vehicle, again=True)
        elif self.state is LaneChangeState.PRE:
            self._update_pre(vehicle)
        else:
            self.timer_s += DT_MODEL_S
            if lane_change_probability < DONE_PROBABILITY and self.timer_s >= START_TIME_S:
                self._leave(vehicle, again=vehicle.one_blinker)
        self._had_one_blinker = vehicle.one_blinker and vehicle.lateral_active

    def _leave(self, vehicle: VehicleState, *, again: bool) -> None:
        """Enter PRE, from which a maneuver can begin, if `again`; else OFF."""
        self.state = LaneChangeState.PRE if again else LaneChangeState.OFF
        self.direction = vehicle.blinker_direction if again else LaneChangeDirection.NONE

    def _update_pre(self, vehicle: VehicleState) -> None:
        if not vehicle.one_blinker or vehicle.v_ego_mps < MIN_SPEED_MPS:
            self._leave(vehicle, again=False)
            return
        self.direction = vehicle.blinker_direction
        if vehicle.nudges(self.direction) and not vehicle.blindspot(self.direction):
            self.state, self.timer_s = LaneChangeState.STARTING, 0.0

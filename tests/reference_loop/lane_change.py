"""Both lane change machines. They run after the model; their desire is for the next frame."""

from dataclasses import dataclass
from typing import Protocol

DT = 0.05
SLOWEST = 20 * 0.44704  # 20 mph
OFF, PRE, STARTING, FINISHING = range(4)
NOWHERE, LEFT, RIGHT = range(3)
NO_DESIRE, DESIRE_LEFT, DESIRE_RIGHT = 0, 3, 4


@dataclass(frozen=True, slots=True)
class Driver:
    """Car and driver at one frame; torque is positive to the left."""

    v_ego: float
    left_blinker: bool = False
    right_blinker: bool = False
    steering_pressed: bool = False
    steering_torque: float = 0.0
    left_blindspot: bool = False
    right_blindspot: bool = False
    lat_active: bool = False

    def one_blinker(self) -> bool:
        return self.left_blinker is not self.right_blinker

    def side(self) -> int:
        return LEFT if self.left_blinker else RIGHT

    def may_start(self, side: int) -> bool:
        """The driver pulls to that side and nobody is there."""
        if side == LEFT:
            pulls, taken = self.steering_torque > 0, self.left_blindspot
        else:
            pulls, taken = self.steering_torque < 0, self.right_blindspot
        return self.steering_pressed and pulls and not taken


class Machine(Protocol):
    """What both machines tell."""

    state: int
    direction: int

    def step(self, driver: Driver, probability: float) -> int:
        """Advance by a frame; `probability` that a change is under way. Returns the next desire."""


class MachineA:
    """To 2025: the old lane's lines fade out in half a second, the new ones' in within a second."""

    def __init__(self) -> None:
        self.state, self.direction = OFF, NOWHERE
        self.lines, self.timer = 1.0, 0.0
        self.blinker_before = False

    def step(self, driver: Driver, probability: float) -> int:
        if not driver.lat_active or self.timer > 10.0:
            self.state, self.direction = OFF, NOWHERE
        elif self.state == OFF:
            self._off(driver)
        elif self.state == PRE:
            self._pre(driver)
        elif self.state == STARTING:
            self.lines = max(self.lines - 2 * DT, 0.0)
            if probability < 0.02 and self.lines < 0.01:
                self.state = FINISHING
        else:
            self.lines = min(self.lines + DT, 1.0)
            if self.lines > 0.99:
                again = driver.one_blinker()
                self.state = PRE if again else OFF
                self.direction = driver.side() if again else NOWHERE
        self.timer = 0.0 if self.state in (OFF, PRE) else self.timer + DT
        self.blinker_before = driver.one_blinker()
        if self.state in (STARTING, FINISHING):
            return DESIRE_LEFT if self.direction == LEFT else DESIRE_RIGHT
        return NO_DESIRE

    def _off(self, driver: Driver) -> None:
        if driver.one_blinker() and not self.blinker_before and driver.v_ego >= SLOWEST:
            # We set the direction at once; August 2025 published one frame without.
            self.state, self.direction, self.lines = PRE, driver.side(), 1.0

    def _pre(self, driver: Driver) -> None:
        if not driver.one_blinker() or driver.v_ego < SLOWEST:
            self.state, self.direction = OFF, NOWHERE
            return
        self.direction = driver.side()
        if driver.may_start(self.direction):
            self.state = STARTING


class MachineB:
    """2026: no finishing; starting lasts half a second at least."""

    def __init__(self) -> None:
        self.state, self.direction, self.timer = OFF, NOWHERE, 0.0
        self.blinker_before = False

    def step(self, driver: Driver, probability: float) -> int:
        if not driver.lat_active or self.timer > 10.0:
            self.state, self.direction, self.timer = OFF, NOWHERE, 0.0
        elif self.state == OFF:
            if driver.one_blinker() and not self.blinker_before and driver.v_ego >= SLOWEST:
                self.state, self.direction = PRE, driver.side()
        elif self.state == PRE:
            self._pre(driver)
        else:
            self._starting(driver, probability)
        self.blinker_before = driver.one_blinker() and driver.lat_active
        if self.state == STARTING:
            return DESIRE_LEFT if self.direction == LEFT else DESIRE_RIGHT
        return NO_DESIRE

    def _pre(self, driver: Driver) -> None:
        if not driver.one_blinker() or driver.v_ego < SLOWEST:
            self.state, self.direction = OFF, NOWHERE
            return
        self.direction = driver.side()
        if driver.may_start(self.direction):
            self.state, self.timer = STARTING, 0.0

    def _starting(self, driver: Driver, probability: float) -> None:
        self.timer += DT
        # The sum of ten steps of 0.05 is a little less than half a second in binary: eleven steps.
        if probability < 0.02 and self.timer >= 0.5:
            self.timer = 0.0
            if driver.one_blinker():
                self.state, self.direction = PRE, driver.side()
            else:
                self.state, self.direction = OFF, NOWHERE


MACHINES: dict[str, type[MachineA] | type[MachineB]] = {"A": MachineA, "B": MachineB}

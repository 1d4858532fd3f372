"""Rules of the car: commands of a plan or of heads, confidence, hard braking, lane changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

T = [10.0 * (i / 32) ** 2 for i in range(33)]
DT = 0.05


@dataclass(frozen=True, slots=True)
class Action:
    """1/m positive to the right, m/s^2, and whether to stand still."""

    curvature: float = 0.0
    acceleration: float = 0.0
    stop: bool = False


def smoothed(value: float, before: float, tau: float) -> float:
    """One step of a first-order filter; tau 0 is none."""
    if tau == 0:
        return value
    share = 1 - exp(-DT / tau)
    return share * value + (1 - share) * before


def curvature_from_plan(plan: Any, v_ego: float, when: float) -> float:
    """Twice the mean curvature to the yaw at `when`, less the curvature now."""
    speed = max(v_ego, 1.0)
    yaw = float(np.interp(when, T, plan[:, 11]))
    return float(2 * yaw / (speed * when) - plan[0, 14] / speed)


def acceleration_from_plan(plan: Any, when: float) -> tuple[float, bool]:
    """Acceleration at constant jerk that meets the speed at `when`; stop by two planned speeds."""
    speeds = plan[:, 3]
    target = float(np.interp(when, T, speeds))
    later = float(np.interp(when + 1.0, T, speeds))
    acceleration = 2 * (target - float(speeds[0])) / when - float(plan[0, 6])
    return acceleration, target < 0.05 and later < 0.05


def act(rule: Any, parsed: dict[str, Any], v_ego: float, times: Any, before: Action) -> Action:
    """The command of a frame.

    `rule`: lateral, longitudinal, lat_tau, long_tau, hold_below, stop of a revision. `times`:
    lateral and longitudinal, s.
    """
    plan = parsed["plan"]
    if rule.lateral == "plan":
        curvature = curvature_from_plan(plan, v_ego, times[0])
    elif rule.lateral == "action":
        curvature = float(parsed["action"][0]) / max(1.0, v_ego) ** 2
    else:
        curvature = float(parsed["desired_curvature"][0])
    if rule.hold_below and v_ego <= rule.hold_below:
        curvature = before.curvature
    else:
        curvature = smoothed(curvature, before.curvature, rule.lat_tau)
    if rule.longitudinal == "none":
        return Action(curvature)
    if rule.longitudinal == "action":
        acceleration, stop = float(parsed["action"][1]), False
    else:
        acceleration, stop = acceleration_from_plan(plan, times[1])
    if rule.stop == "speed":
        stop = v_ego < 0.3 and acceleration < 0.1
    return Action(curvature, smoothed(acceleration, before.acceleration, rule.long_tau), stop)


# --- confidence of the drive, and hard braking, from the head `meta` ----------------------------

RED, YELLOW, GREEN = range(3)


class Confidence:
    """Every 2 s a row of five chances; row i says of its column 4 - i what it says of now."""

    def __init__(self) -> None:
        self.rows = [[0.0] * 5 for _ in range(5)]

    def step(self, frame_id: int, causes: Sequence[Sequence[float]]) -> int:
        """Grade a frame.

        `causes`: brake, gas and steer, cumulative chances at 2, 4, 6, 8, 10 s.
        """
        if frame_id % 40 == 0:
            self.rows = [*self.rows[1:], slices_of(causes)]
        score = sum(self.rows[i][4 - i] for i in range(5)) / 5
        if score < 0.01165:
            return GREEN
        return YELLOW if score < 0.06157 else RED


def slices_of(causes: Sequence[Sequence[float]]) -> list[float]:
    """The chance of each 2 s given none before; 1 where one before is certain, not 0/0."""
    chances, before = [], 1.0
    for i in range(5):
        left = 1.0
        for cause in causes:
            left *= 1.0 - float(cause[i])
        chances.append((before - left) / before if before > 1e-6 else 1.0)
        before = left
    return chances


class HardBrake:
    """True when the last five frames agree on harder than 5, and the last two on harder than 3."""

    def __init__(self) -> None:
        self.five, self.three = [0.0] * 5, [0.0] * 2

    def step(self, first_of_five: float, first_of_three: float) -> bool:
        """`first_of_...`: chance within 2 s of braking harder than 5, 3 m/s^2."""
        self.five = [*self.five[1:], first_of_five]
        self.three = [*self.three[1:], first_of_three]
        return all(
            value > float(np.float32(limit))
            for value, limit in zip(
                [*self.five, *self.three], [0.05, 0.05, 0.15, 0.15, 0.15, 0.7, 0.7], strict=True
            )
        )


# --- lane changes: a machine runs after the model, its desire is for the next frame -------------

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


class Machine:
    """What both machines have in common."""

    def __init__(self) -> None:
        self.state, self.direction, self.timer = OFF, NOWHERE, 0.0
        self.blinker_before = False

    def step(self, driver: Driver, probability: float) -> int:
        """Advance by a frame; `probability` that a change is under way. Returns the next desire."""
        raise NotImplementedError

    def off(self, driver: Driver) -> None:
        """Wait for a blinker, fast enough."""
        if driver.one_blinker() and not self.blinker_before and driver.v_ego >= SLOWEST:
            # We set the direction at once; August 2025 published one frame without.
            self.state, self.direction = PRE, driver.side()

    def pre(self, driver: Driver) -> None:
        """Wait for the driver to pull."""
        if not driver.one_blinker() or driver.v_ego < SLOWEST:
            self.state, self.direction = OFF, NOWHERE
            return
        self.direction = driver.side()
        if driver.may_start(self.direction):
            self.state, self.timer = STARTING, 0.0

    def ended(self, driver: Driver) -> None:
        """Begin again with a blinker that is still on."""
        again = driver.one_blinker()
        self.state, self.direction = (PRE, driver.side()) if again else (OFF, NOWHERE)

    def desire(self) -> int:
        """What the model is told of the change that goes on."""
        if self.state not in (STARTING, FINISHING):
            return NO_DESIRE
        return DESIRE_LEFT if self.direction == LEFT else DESIRE_RIGHT


class MachineA(Machine):
    """To 2025: the old lane's lines fade out in half a second, the new ones' in within a second."""

    lines = 1.0

    def step(self, driver: Driver, probability: float) -> int:
        if not driver.lat_active or self.timer > 10.0:
            self.state, self.direction = OFF, NOWHERE
        elif self.state == OFF:
            self.off(driver)
            self.lines = 1.0 if self.state == PRE else self.lines
        elif self.state == PRE:
            self.pre(driver)
        elif self.state == STARTING:
            self.lines = max(self.lines - 2 * DT, 0.0)
            if probability < 0.02 and self.lines < 0.01:
                self.state = FINISHING
        else:
            self.lines = min(self.lines + DT, 1.0)
            if self.lines > 0.99:
                self.ended(driver)
        self.timer = 0.0 if self.state in (OFF, PRE) else self.timer + DT
        self.blinker_before = driver.one_blinker()
        return self.desire()


class MachineB(Machine):
    """2026: no finishing; starting lasts half a second at least."""

    def step(self, driver: Driver, probability: float) -> int:
        if not driver.lat_active or self.timer > 10.0:
            self.state, self.direction, self.timer = OFF, NOWHERE, 0.0
        elif self.state == OFF:
            self.off(driver)
        elif self.state == PRE:
            self.pre(driver)
        else:
            # The sum of ten steps of 0.05 is a little less than half a second in binary: eleven.
            self.timer += DT
            if probability < 0.02 and self.timer >= 0.5:
                self.timer = 0.0
                self.ended(driver)
        self.blinker_before = driver.one_blinker() and driver.lat_active
        return self.desire()


MACHINES: dict[str, type[Machine]] = {"A": MachineA, "B": MachineB}

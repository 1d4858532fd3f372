"""Both lane change machines. They run after the model; their desire is for the next frame."""

from dataclasses import dataclass

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

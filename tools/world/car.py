"""The simulated car: a kinematic bicycle whose steering and drive answer late, stepped at 100 Hz.

The centre of the model is the rear axle, over which the camera stands: there the path's curvature
is that of the steering, and the heading is that of the path. Used by the closed loop and by
everything that lets a body drift from where an expert would be.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tools.world.body import Body, body_at
from tools.world.curves import sin_cos
from tools.world.road import Road

# The rate of carState.
TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class CarModel:
    """What a car can do; the figures are those of a middle-sized family car.

    Attributes:
        steering_delay_s, steering_lag_s: dead time of the steering, then its time constant.
        drive_delay_s, drive_lag_s: the same of motor and brakes.
        max_curvature_1pm: at the stop of the steering, 5 m of radius.
        max_curvature_rate_1pms: the steering's motor; a turn of the wheel in about a second.
        max_lateral_acceleration_mps2: curvature times speed squared beyond this is refused, as
            the car's own safety code does (ISO 11270 allows 3).
        max_lateral_jerk_mps3: the same for the rate (ISO 11270 allows 5).
        acceleration_limits_mps2: lowest and highest (ISO 15622 allows -3.5 and 2).
        wheelbase_m: for the steering angle that the car reports.
        steer_ratio: turns of the steering wheel per turn of the wheels.
    """

    steering_delay_s: float = 0.1
    steering_lag_s: float = 0.1
    drive_delay_s: float = 0.1
    drive_lag_s: float = 0.2
    max_curvature_1pm: float = 0.2
    max_curvature_rate_1pms: float = 0.1
    max_lateral_acceleration_mps2: float = 3.0
    max_lateral_jerk_mps3: float = 5.0
    acceleration_limits_mps2: tuple[float, float] = (-3.5, 2.0)
    wheelbase_m: float = 2.7
    steer_ratio: float = 15.0

    @property
    def lateral_delay_s(self) -> float:
        """From a command to its curvature, as ``liveDelay`` would have learnt it."""
        return self.steering_delay_s + self.steering_lag_s

    @property
    def longitudinal_delay_s(self) -> float:
        """The delay from a command to its acceleration, as in ``carParams``."""
        return self.drive_delay_s + self.drive_lag_s

    def steering_angle_deg(self, curvature_1pm: float) -> float:
        """Return the angle of the steering wheel, positive to the left as in ``carState``."""
        return -curvature_1pm * self.wheelbase_m * self.steer_ratio * 57.29577951308232


FAMILY_CAR = CarModel()


@dataclass(slots=True)
class Car:
    """One car and what is still on its way to the wheels.

    Attributes:
        heading_rad: positive to the right of the world's x axis.
        s_m: where along the road it is looked for; `body` keeps it up to date.
        curvature_1pm: of its path as it is now, positive to the right.
        model: what it can do.
    """

    x_m: float
    y_m: float
    heading_rad: float
    speed_mps: float
    s_m: float = 0.0
    acceleration_mps2: float = 0.0
    curvature_1pm: float = 0.0
    model: CarModel = FAMILY_CAR
    _rest_s: float = field(default=0.0, init=False)
    _target_1pm: float = field(init=False)
    _steering: deque[float] = field(init=False)
    _drive: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        """Fill the delays as if the present curvature and acceleration had been commanded."""
        self._target_1pm = self.curvature_1pm
        self._steering = _delay_line(self.model.steering_delay_s, self.curvature_1pm)
        self._drive = _delay_line(self.model.drive_delay_s, self.acceleration_mps2)

    @classmethod
    def on_road(
        cls,
        road: Road,
        s_m: float,
        offset_m: float,
        speed_mps: float,
        heading_error_rad: float = 0.0,
        model: CarModel = FAMILY_CAR,
    ) -> Car:
        """Return a car on a road that steers as the road bends."""
        x, y, _ = road.places(np.array(s_m), np.array(offset_m))
        point = road.at(s_m)
        return cls(
            x_m=float(x),
            y_m=float(y),
            heading_rad=point.heading_rad + heading_error_rad,
            speed_mps=speed_mps,
            s_m=s_m,
            # Concentric with the road.
            curvature_1pm=point.curvature_1pm / (1.0 - point.curvature_1pm * offset_m),
            model=model,
        )

    def step(self, dt_s: float, curvature_1pm: float, acceleration_mps2: float) -> None:
        """Move on under a command that holds meanwhile.

        The rest of `dt_s` below a whole tick is kept for the next step. A negative acceleration
        holds a car that stands.
        """
        self._rest_s += dt_s
        # Half a tick more than nothing: ten times 0.01 are not quite 0.1.
        while self._rest_s > 0.5 * TICK_S:
            self._rest_s -= TICK_S
            self._tick(curvature_1pm, acceleration_mps2)

    def body(self, road: Road) -> Body:
        """Return the car's place on a road, near the last one returned."""
        body = body_at(
            road,
            self.x_m,
            self.y_m,
            self.heading_rad,
            self.speed_mps,
            self.acceleration_mps2,
            self.curvature_1pm,
            near_s_m=self.s_m,
        )
        self.s_m = body.s_m
        return body

    def _tick(self, curvature_1pm: float, acceleration_mps2: float) -> None:
        self._steer(curvature_1pm)
        self._accelerate(acceleration_mps2)
        start_mps = self.speed_mps
        self.speed_mps = max(0.0, start_mps + self.acceleration_mps2 * TICK_S)
        if self.speed_mps == 0.0:
            self.acceleration_mps2 = 0.0
        way_m = 0.5 * (start_mps + self.speed_mps) * TICK_S
        turn_rad = self.curvature_1pm * way_m
        # The chord of an arc points half way between its ends.
        sine, cosine = sin_cos(self.heading_rad + 0.5 * turn_rad)
        self.x_m += float(cosine) * way_m
        self.y_m += float(sine) * way_m
        self.heading_rad += turn_rad

    def _steer(self, curvature_1pm: float) -> None:
        """Let the commanded curvature through limits, delay and lag."""
        model = self.model
        square = max(self.speed_mps, 1.0) ** 2
        limit = min(model.max_curvature_1pm, model.max_lateral_acceleration_mps2 / square)
        rate = min(model.max_curvature_rate_1pms, model.max_lateral_jerk_mps3 / square) * TICK_S
        wanted = _clip(curvature_1pm, -limit, limit)
        self._target_1pm = _clip(wanted, self._target_1pm - rate, self._target_1pm + rate)
        self._steering.append(self._target_1pm)
        late = self._steering.popleft()
        self.curvature_1pm += _share(model.steering_lag_s) * (late - self.curvature_1pm)

    def _accelerate(self, acceleration_mps2: float) -> None:
        model = self.model
        self._drive.append(_clip(acceleration_mps2, *model.acceleration_limits_mps2))
        late = self._drive.popleft()
        if self.speed_mps == 0.0 and late <= 0.0:
            self.acceleration_mps2 = 0.0
            return
        self.acceleration_mps2 += _share(model.drive_lag_s) * (late - self.acceleration_mps2)


def _delay_line(delay_s: float, value: float) -> deque[float]:
    return deque([value] * round(delay_s / TICK_S))


def _share(lag_s: float) -> float:
    """Return how much of the difference a tick makes good; a ramp is followed `lag_s` late."""
    return TICK_S / (lag_s + TICK_S)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)

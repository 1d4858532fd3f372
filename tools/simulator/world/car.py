"""The ego car: at one moment a body on the road, and stepped at 100 Hz a kinematic bicycle.

Its place is that of the camera's foot: the middle of the rear axle on the road. There the path's
curvature is that of the steering, and the heading is that of the path. The *calibrated frame* is
fixed to the car: x forward, y right, z down; its axes in the world are the columns of Rz(heading)
Ry(pitch) Rx(roll), where pitch and roll are those of the road below.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tools.simulator.world.curves import Floats, arctangent, arctangent_of, sin_cos, sine_cosine
from tools.simulator.world.road import Road, RoadFrames

# A passenger car: from the rear axle to the front bumper, and its size.
FRONT_M = 3.7
LENGTH_M = 4.6
WIDTH_M = 1.85


@dataclass(frozen=True, slots=True)
class Body:
    """The ego car.

    Attributes:
        s_m: arc length of the road next to the rear axle.
        offset_m: from the reference line to the right.
        x_m, y_m, z_m: position in the world of the rear axle, on the road; z points down.
        heading_rad, curvature_1pm: positive to the right; the curvature is that of the path.
        pitch_rad, roll_rad: nose up and right side down positive.
    """

    s_m: float
    offset_m: float
    x_m: float
    y_m: float
    z_m: float
    heading_rad: float
    pitch_rad: float
    roll_rad: float
    speed_mps: float
    acceleration_mps2: float = 0.0
    curvature_1pm: float = 0.0

    def axes(self) -> tuple[tuple[float, float, float], ...]:
        """Return the forward, right and down axes of the calibrated frame, in the world."""
        (sy, cy), (sp, cp), (sr, cr) = (
            sine_cosine(angle) for angle in (self.heading_rad, self.pitch_rad, self.roll_rad)
        )
        return (
            (cy * cp, sy * cp, -sp),
            (cy * sp * sr - sy * cr, sy * sp * sr + cy * cr, cp * sr),
            (cy * sp * cr + sy * sr, sy * sp * cr - cy * sr, cp * cr),
        )

    def seen(self, x_m: Floats, y_m: Floats, z_m: Floats) -> tuple[Floats, Floats, Floats]:
        """Return points of the world in the calibrated frame, but from the camera's foot.

        The camera is above it: in the frame of a picture z is larger by the camera's height.
        """
        x, y, z = x_m - self.x_m, y_m - self.y_m, z_m - self.z_m
        ahead, right, down = (a * x + b * y + c * z for a, b, c in self.axes())
        return ahead, right, down


def tilt(frames: RoadFrames, offset_m: Floats) -> Floats:
    """Return the slope of the surface next to the reference line, down along it, (n,).

    The bank changes along the road, so beside its middle the surface climbs or falls relative to
    the plane of the road frame.
    """
    return np.asarray(offset_m * frames.roll_1pm / (1.0 - offset_m * frames.yaw_1pm))


def axes_on(frames: RoadFrames, offset_m: Floats, sine: Floats, cosine: Floats) -> Floats:
    """Return the axes of cars that stand on the road in the world, (3, 3, n).

    The first index is that of the world's axis, the second one forward, right, down of the car.
    """
    down = frames.down - tilt(frames, offset_m) * frames.forward
    down *= 1.0 / np.sqrt(down[0] * down[0] + down[1] * down[1] + down[2] * down[2])
    fall = -(down[0] * cosine + down[1] * sine) / down[2]
    scale = 1.0 / np.sqrt(1.0 + fall * fall)
    axes = np.empty((3, 3, fall.size))
    forward, right = axes[:, 0], axes[:, 1]
    forward[0], forward[1], forward[2] = cosine * scale, sine * scale, fall * scale
    right[0] = down[1] * forward[2] - down[2] * forward[1]
    right[1] = down[2] * forward[0] - down[0] * forward[2]
    right[2] = down[0] * forward[1] - down[1] * forward[0]
    axes[:, 2] = down
    return axes


def attitudes(
    road: Road, s_m: Floats, offset_m: Floats, heading_rad: Floats
) -> tuple[Floats, Floats]:
    """Return pitch and roll of cars on a road as `body_at` has them, (n,) each."""
    axes = axes_on(road.frames(s_m), offset_m, *sin_cos(heading_rad))
    forward, right, down = axes.transpose(1, 0, 2)
    level = np.sqrt(forward[0] * forward[0] + forward[1] * forward[1])
    return arctangent(-forward[2] / level), arctangent(right[2] / down[2])


def body_at(  # noqa: PLR0913, PLR0917 - a state has as many parts
    road: Road,
    x_m: float,
    y_m: float,
    heading_rad: float,
    speed_mps: float,
    acceleration_mps2: float = 0.0,
    curvature_1pm: float = 0.0,
    *,
    near_s_m: float,
) -> Body:
    """Return the car at a place of the world, lying on the road there.

    `near_s_m` is an arc length within some tens of metres of the car, such as its last one.
    """
    s, offset = road.locate(x_m, y_m, near_s_m)
    places = np.array([s])
    frames = road.frames(places)
    sine, cosine = sine_cosine(heading_rad)
    axes = axes_on(frames, np.array([offset]), np.array([sine]), np.array([cosine]))
    forward, right, down = axes[:, :, 0].T.tolist()
    level = math.sqrt(forward[0] * forward[0] + forward[1] * forward[1])
    return Body(
        s_m=s,
        offset_m=offset,
        x_m=x_m,
        y_m=y_m,
        z_m=float(road.places(places, offset)[2][0]),
        heading_rad=heading_rad,
        pitch_rad=arctangent_of(-forward[2] / level),
        roll_rad=arctangent_of(right[2] / down[2]),
        speed_mps=speed_mps,
        acceleration_mps2=acceleration_mps2,
        curvature_1pm=curvature_1pm,
    )


# --- The car that drives: its steering and its motor answer late ------------------------------

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

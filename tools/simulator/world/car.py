"""The ego car: its pose on the road (`Body`), and a kinematic bicycle stepped at 100 Hz (`Car`).

The car's position is the middle of the rear axle on the road, straight below the camera. At this
point the path's curvature follows from the steering angle, and the path's heading equals the car's.
The *calibrated frame* is fixed to the car: x forward, y right, z down. Its axes in the world are
the columns of Rz(heading) Ry(pitch) Rx(roll), with the pitch and roll of the road below the car.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tools.simulator.world.curves import Floats, arctangent, arctangent_of, sin_cos, sine_cosine
from tools.simulator.world.road import Road, RoadFrames

# Dimensions of a passenger car; FRONT_M is the distance from the rear axle to the front bumper.
FRONT_M = 3.7
LENGTH_M = 4.6
WIDTH_M = 1.85


@dataclass(frozen=True, slots=True)
class Body:
    """The state of the ego car at one time: pose, speed, acceleration and path curvature.

    Attributes:
        s_m: arc length of the road at the rear axle.
        offset_m: lateral offset from the reference line, positive to the right.
        x_m, y_m, z_m: world position of the rear axle on the road surface; z points down.
        heading_rad, curvature_1pm: heading and curvature of the path, positive to the right.
        pitch_rad, roll_rad: positive with the nose up and the right side down.
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
        """Return the world coordinates of the calibrated frame's forward, right and down axes."""
        (sy, cy), (sp, cp), (sr, cr) = (
            sine_cosine(angle) for angle in (self.heading_rad, self.pitch_rad, self.roll_rad)
        )
        return (
            (cy * cp, sy * cp, -sp),
            (cy * sp * sr - sy * cr, sy * sp * sr + cy * cr, cp * sr),
            (cy * sp * cr + sy * sr, sy * sp * cr - cy * sr, cp * cr),
        )

    def seen(self, x_m: Floats, y_m: Floats, z_m: Floats) -> tuple[Floats, Floats, Floats]:
        """Return world points in the calibrated frame, but relative to the point below the camera.

        The camera is above that point: relative to the camera, z is larger by its height.
        """
        x, y, z = x_m - self.x_m, y_m - self.y_m, z_m - self.z_m
        ahead, right, down = (a * x + b * y + c * z for a, b, c in self.axes())
        return ahead, right, down


def tilt(frames: RoadFrames, offset_m: Floats) -> Floats:
    """Return the downward slope of the surface along the road at a lateral offset, (n,).

    The bank changes along the road, so away from the reference line the surface climbs or falls
    relative to the plane of the road frame.
    """
    return np.asarray(offset_m * frames.roll_1pm / (1.0 - offset_m * frames.yaw_1pm))


def axes_on(frames: RoadFrames, offset_m: Floats, sine: Floats, cosine: Floats) -> Floats:
    """Return the world axes of cars standing on the road, (3, 3, n).

    The first index is the world axis; the second is the car's forward, right or down axis.
    `sine` and `cosine` belong to the car's heading.
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
    """Return pitch and roll of cars on a road as `body_at` computes them, (n,) each."""
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
    """Return the car at a position in the world, resting on the road surface.

    `near_s_m` is an arc length within some tens of metres of the car, such as its previous one.
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


# --- The moving car: steering, motor and brakes respond with a delay -----------------------------

# Time step of the model, equal to the period of carState.
TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class CarModel:
    """The dynamic limits of a car; the defaults are those of a mid-size family car.

    Attributes:
        steering_delay_s, steering_lag_s: dead time and time constant of the steering.
        drive_delay_s, drive_lag_s: dead time and time constant of motor and brakes.
        max_curvature_1pm: curvature at full lock, a radius of 5 m.
        max_curvature_rate_1pms: limit of the steering motor; about one turn of the steering wheel
            per second.
        max_lateral_acceleration_mps2: limit of curvature times speed squared, as enforced by the
            car's own safety code (ISO 11270 allows 3).
        max_lateral_jerk_mps3: limit of the rate of lateral acceleration (ISO 11270 allows 5).
        acceleration_limits_mps2: lowest and highest acceleration (ISO 15622 allows -3.5 and 2).
        wheelbase_m: distance between the axles, for the reported steering angle.
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
        """The delay from a command to its curvature, as ``liveDelay`` would learn it."""
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
    """A car with the commands that its actuators have not yet executed.

    Attributes:
        heading_rad: heading relative to the world's x axis, positive to the right.
        s_m: arc length near the car, where the search for it starts; `body` updates it.
        curvature_1pm: present curvature of the path, positive to the right.
        model: limits and delays of the car.
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
        """Fill the delay lines as if the present curvature and acceleration had been commanded."""
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
        """Return a car on a road, steering concentrically with the road's curve."""
        x, y, _ = road.places(np.array(s_m), np.array(offset_m))
        point = road.at(s_m)
        return cls(
            x_m=float(x),
            y_m=float(y),
            heading_rad=point.heading_rad + heading_error_rad,
            speed_mps=speed_mps,
            s_m=s_m,
            curvature_1pm=point.curvature_1pm / (1.0 - point.curvature_1pm * offset_m),
            model=model,
        )

    def step(self, dt_s: float, curvature_1pm: float, acceleration_mps2: float) -> None:
        """Advance by `dt_s` under a constant command.

        A remainder shorter than a tick is carried over to the next step. A standing car stays at
        rest under a negative acceleration.
        """
        self._rest_s += dt_s
        # The threshold is half a tick because ten times 0.01 is not exactly 0.1.
        while self._rest_s > 0.5 * TICK_S:
            self._rest_s -= TICK_S
            self._tick(curvature_1pm, acceleration_mps2)

    def body(self, road: Road) -> Body:
        """Return the car's state on a road, searched near the last one returned."""
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
        distance_m = 0.5 * (start_mps + self.speed_mps) * TICK_S
        turn_rad = self.curvature_1pm * distance_m
        # The chord of an arc has the heading at the middle of the arc.
        sine, cosine = sin_cos(self.heading_rad + 0.5 * turn_rad)
        self.x_m += float(cosine) * distance_m
        self.y_m += float(sine) * distance_m
        self.heading_rad += turn_rad

    def _steer(self, curvature_1pm: float) -> None:
        """Apply limits, dead time and lag to the commanded curvature."""
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
    """Return the fraction of the error removed per tick; a ramp is followed `lag_s` late."""
    return TICK_S / (lag_s + TICK_S)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)

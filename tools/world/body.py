"""The ego car at one moment: its place on the road and its attitude.

Its place is that of the camera's foot: the middle of the rear axle on the road. The *calibrated
frame* is fixed to the car: x forward, y right, z down; its axes in the world are the columns of
Rz(heading) Ry(pitch) Rx(roll), where pitch and roll are those of the road below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tools.world.curves import Floats, arctangent, arctangent_of, sin_cos, sine_cosine
from tools.world.road import Road, RoadFrames

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

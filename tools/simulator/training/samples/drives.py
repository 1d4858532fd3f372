"""Simulates drives from which the policy learns, driven by the expert or by the student.

Five times a second both views are rendered, and the expert plans from the car's state. In between,
the car follows the driver's plan as the daemon would. Drives start off the lane's centre, and now
and then the car is displaced, or swerves as if somebody turned the wheel, or the driver must change
lanes. Each drive is stored in a file of the training's directory.
"""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from modeld.constants import (
    DESIRE_LENGTH,
    DT_MODEL_S,
    PLAN_ACCELERATION,
    PLAN_ORIENTATION,
    PLAN_ORIENTATION_RATE,
    PLAN_VELOCITY,
    T_IDXS,
)
from modeld.outputs.verdict import acceleration_from_plan, curvature_from_plan, smooth
from modeld.vehicle.desire import Desire
from runtime.files.user_file import whole_file
from tools.errors import TrainingError
from tools.lib.given_data import write_npz
from tools.simulator.training.heads import POLICY_HEADS, ROW_S, Bytes, Singles, target_of
from tools.simulator.training.options import Seeds
from tools.simulator.training.samples.situations import (
    ViewRenderer,
    as_pair,
    moved,
    random_cameras,
    slowed_mps,
    training_world,
)
from tools.simulator.world.car import Car
from tools.simulator.world.expert import LEFT, RIGHT, Expert
from tools.simulator.world.traffic import ScriptedLead, Traffic
from tools.simulator.world.truth import truth_of

# Shares of drives without a lead car, and of brakings to a stop.
_NONE_SHARE, _STOP_SHARE = 0.3, 0.6
# Initial distance of the lead car; the farthest are beyond the range in which leads are reported.
_GAP_M = (8.0, 150.0)
# Speeds of the lead car as shares of the road's limit: driving, and slowed down.
_DRIVING, _SLOWED = (0.3, 1.0), (0.2, 0.8)
# Phases of the lead car: it drives steadily, brakes (m/s^2), waits, and accelerates. Half of the
# waits are short; the others let a creeping car come near. Hard braking is rare on roads, so each
# drive contains many cases of it (ADR 0098).
_STEADY_S, _BRAKES_MPS2 = (1.0, 10.0), (0.7, 6.0)
_SOON_S, _LONG_S, _PULLS_AWAY_S = (0.5, 3.0), (3.0, 25.0), (4.0, 10.0)
_SHORTEST_S = 0.5


def random_lead(
    limit_mps: float, rng: np.random.Generator, duration_s: float
) -> ScriptedLead | None:
    """Return a lead car that brakes again and again, or None in some drives."""
    if rng.random() < _NONE_SHARE:
        return None
    gap, driving = rng.uniform(*_GAP_M), limit_mps * rng.uniform(*_DRIVING)
    time_s, speeds = 0.0, [(0.0, driving)]
    while time_s < duration_s:
        slow = 0.0 if rng.random() < _STOP_SHARE else limit_mps * rng.uniform(*_SLOWED)
        begin = time_s + rng.uniform(*_STEADY_S)
        end = begin + max((driving - slow) / rng.uniform(*_BRAKES_MPS2), _SHORTEST_S)
        again = end + rng.uniform(*(_SOON_S if rng.random() < 0.5 else _LONG_S))
        time_s = again + rng.uniform(*_PULLS_AWAY_S)
        speeds += [(begin, driving), (end, slow), (again, slow), (time_s, driving)]
    return ScriptedLead(gap, tuple(speeds))


# Shortest and longest drive, in rows of 0.2 s.
ROWS = (50, 175)
DRIVES = "drives"
# Length of the road, enough for the longest drive.
_WORLD_M = 1400.0
_STEPS = round(ROW_S / DT_MODEL_S)
# The daemon's frame delay, and time constants of its filters, for this interface.
_FRAME_S, _LATERAL_SMOOTH_S, _LONGITUDINAL_SMOOTH_S = 0.05, 0.1, 0.3
# Below this speed, a stopping car is held with this acceleration.
_HOLD_MPS, _HOLD_MPS2 = 0.5, -1.0
_PUSH_ROWS = (12, 40)
_CHANGE_ROWS = (8, 50)
_OFF_M, _OFF_RAD = 1.4, math.radians(3.5)
# A student with a larger distance from the expert's lane centre has left the road.
_LOST_M = 2.6
_CHANGE_LEAST_MPS = 9.0
# Swerves: lateral displacement of a complete one, m; largest lateral acceleration, m/s^2; and the
# share of its duration after which the driver takes over.
_SWERVE_M, _SWERVE_MPS2, _SWERVE_SHARE = (0.6, 1.4), (1.0, 2.5), (0.5, 1.0)
# The largest second derivative of 10 u^3 - 15 u^4 + 6 u^5.
_SHARPEST = 10.0 / math.sqrt(3.0)
# Side of the road, (right, left): the worlds drive on the right, their mirror images on the left.
CONVENTION = np.array([1.0, 0.0], np.float32)


@dataclass(frozen=True, slots=True)
class DriveRecord:
    """The recorded data of one drive.

    Attributes:
        features: (rows, 512) float16 `hidden_state`.
        mirrored: (rows, 512) float16 `hidden_state` of the mirrored views.
        targets: (rows, size) float32 targets of `POLICY_HEADS`.
        pulses: (rows, 8) float32 desires at their rising edge.
        is_student: whether the student drove.
        off_m: (rows,) float32 distance from the centre of the expert's lane.
    """

    features: NDArray[np.float16]
    mirrored: NDArray[np.float16]
    targets: Singles
    pulses: Singles
    is_student: bool
    off_m: Singles


@dataclass(frozen=True, slots=True)
class Swerve:
    """A sideways motion along a quintic, whatever the driver wants.

    Attributes:
        begin_s: start time in the drive.
        whole_s: duration of the complete motion.
        end_s: time at which the driver takes over again.
        aside_m: displacement by the complete motion, positive to the right.
    """

    begin_s: float
    whole_s: float
    end_s: float
    aside_m: float

    def lateral_mps2(self, time_s: float) -> float:
        """Return the lateral acceleration relative to the road."""
        u = (time_s - self.begin_s) / self.whole_s
        return self.aside_m / self.whole_s**2 * u * (60.0 + u * (120.0 * u - 180.0))


class Drive:
    """One drive in progress."""

    def __init__(self, seed: int, worlds: Seeds, number: int, *, is_student: bool) -> None:
        """Place a car on the road with a number."""
        self._rng = np.random.default_rng((seed, 3, number))
        rng = self._rng
        self.is_student = is_student
        self._world = training_world(worlds.at(number), _WORLD_M, rng)
        world = self._world
        self._cameras = random_cameras(rng)
        self._renderer = ViewRenderer(world, self._cameras)
        lane = int(rng.integers(world.lanes.count))
        self._expert = Expert(world, lane, world.speed_limit_mps)
        s = rng.uniform(40.0, 200.0)
        speed = world.speed_limit_mps * rng.uniform(0.4, 1.05)
        self._car = Car.on_road(
            world.road,
            s,
            world.lanes.centre_m(lane) + self._random_offset(_OFF_M),
            min(speed, slowed_mps(world, lane, s, rng)),
            self._random_offset(_OFF_RAD),
        )
        self.body = self._car.body(world.road)
        self._traffic = Traffic(
            world,
            int(rng.integers(1 << 30)),
            self.body,
            lead=random_lead(world.speed_limit_mps, rng, ROWS[1] * ROW_S),
        )
        self._frame: Bytes | None = None
        self._row, self._rows = 0, int(rng.integers(*ROWS))
        self._swerve: Swerve | None = None
        self._push_row = int(rng.integers(*_PUSH_ROWS))
        self._change_row = int(rng.integers(*_CHANGE_ROWS))
        self._curvature, self._acceleration = self._car.curvature_1pm, 0.0
        self._pulse = np.zeros(DESIRE_LENGTH, np.float32)
        self._features: list[NDArray[np.float16]] = []
        self._mirrored: list[NDArray[np.float16]] = []
        self._targets: list[Singles] = []
        self._pulses: list[Singles] = []
        self._off: list[float] = []
        self._plan: Singles = np.zeros((len(T_IDXS), 15), np.float32)

    @property
    def is_over(self) -> bool:
        """Whether the rows are complete, the road ends, or the student is lost."""
        # During a lane change, the distance from the new lane starts with one lane width.
        limit = _LOST_M + (self._world.lanes.width_m if self._expert.changing else 0.0)
        lost = bool(self._off) and self._off[-1] > limit
        return self._row >= self._rows or lost or self.body.s_m > _WORLD_M

    def look(self) -> Bytes:
        """Return the model's present input, (2, 12, 128, 256); disturb the car before."""
        self._perturb()
        number = int(self._rng.integers(1 << 30))
        vehicles = self._traffic.vehicles
        if self._frame is None:
            self._frame = self._renderer.see(
                moved(self._world, self.body, -ROW_S), vehicles, number
            )
        newer = self._renderer.see(self.body, vehicles, number + 4)
        pair = as_pair(self._frame, newer)
        self._frame = newer
        return pair

    def record_row(self, feature: Singles, mirrored: Singles) -> Singles:
        """Record this row's features and the expert's plan as ground truth; return the pulse."""
        world, vehicles = self._world, self._traffic.vehicles
        expert_plan = self._expert.plan(self.body, vehicles)
        height = self._cameras.height_m
        truth = truth_of(world, self.body, vehicles, expert_plan, height_m=height)
        self._features.append(feature.astype(np.float16))
        self._mirrored.append(mirrored.astype(np.float16))
        self._targets.append(target_of(POLICY_HEADS, truth))
        self._pulses.append(self._pulse)
        self._off.append(abs(self.body.offset_m - world.lanes.centre_m(self._expert.lane)))
        self._plan = expert_plan.array()
        return self._pulse

    def step(self, plan: Singles | None) -> None:
        """Drive to the next row with a plan (33, 15), or with the expert's plan."""
        if plan is None:
            plan = self._plan
        for step in range(_STEPS):
            self._command(later_plan(plan, step * DT_MODEL_S))
            self._steer_swerve((self._row + step / _STEPS) * ROW_S)
            self._car.step(DT_MODEL_S, self._curvature, self._acceleration)
            self.body = self._car.body(self._world.road)
            self._traffic.step(DT_MODEL_S, self.body)
        self._row += 1

    def record(self) -> DriveRecord:
        """Return the recorded data."""
        return DriveRecord(
            np.stack(self._features),
            np.stack(self._mirrored),
            np.stack(self._targets),
            np.stack(self._pulses),
            self.is_student,
            np.array(self._off, np.float32),
        )

    def _command(self, plan: Singles) -> None:
        speed, car = self.body.speed_mps, self._car.model
        curvature = curvature_from_plan(
            plan, speed, car.lateral_delay_s + _FRAME_S + _LATERAL_SMOOTH_S
        )
        acceleration, stops = acceleration_from_plan(
            plan, car.longitudinal_delay_s + _FRAME_S + _LONGITUDINAL_SMOOTH_S
        )
        self._curvature = smooth(curvature, self._curvature, _LATERAL_SMOOTH_S)
        self._acceleration = smooth(acceleration, self._acceleration, _LONGITUDINAL_SMOOTH_S)
        if stops and speed < _HOLD_MPS:
            self._acceleration = _HOLD_MPS2

    def _perturb(self) -> None:
        """Displace the car, start a swerve, or request a lane change, if it is due."""
        self._pulse = np.zeros(DESIRE_LENGTH, np.float32)
        if self._row >= self._push_row and not self._expert.changing:
            self._push_row = self._row + int(self._rng.integers(*_PUSH_ROWS))
            if self._rng.random() < 0.5:
                self._push()
            else:
                self._swerve = self._random_swerve()
        may_change = self.body.speed_mps > _CHANGE_LEAST_MPS and self._swerve is None
        if self._row >= self._change_row and may_change:
            self._change_row = self._row + int(self._rng.integers(*_CHANGE_ROWS))
            side = LEFT if self._rng.random() < 0.5 else RIGHT
            if not self._expert.changing and self._expert.change_lane(side):
                left = side == LEFT
                self._pulse[Desire.LANE_CHANGE_LEFT if left else Desire.LANE_CHANGE_RIGHT] = 1.0

    def _push(self) -> None:
        """Move the car to another place; both frames of this row are rendered from there."""
        car = self._car
        pushed = Car.on_road(
            self._world.road,
            self.body.s_m,
            self._world.lanes.centre_m(self._expert.lane) + self._random_offset(_OFF_M),
            car.speed_mps,
            self._random_offset(_OFF_RAD),
        )
        pushed.acceleration_mps2 = car.acceleration_mps2
        self._car, self._frame = pushed, None
        self.body = pushed.body(self._world.road)

    def _random_swerve(self) -> Swerve:
        rng, begin = self._rng, self._row * ROW_S
        aside = rng.uniform(*_SWERVE_M) * (LEFT if rng.random() < 0.5 else RIGHT)
        whole = math.sqrt(_SHARPEST * abs(aside) / rng.uniform(*_SWERVE_MPS2))
        return Swerve(begin, whole, begin + rng.uniform(*_SWERVE_SHARE) * whole, aside)

    def _steer_swerve(self, time_s: float) -> None:
        """Steer along the current swerve, if there is one."""
        if self._swerve is None or time_s >= self._swerve.end_s:
            self._swerve = None
            return
        body, square = self.body, max(self.body.speed_mps, 3.0) ** 2
        bend = self._world.road.at(body.s_m).curvature_1pm
        along = bend / (1.0 - bend * body.offset_m)
        self._curvature = along + self._swerve.lateral_mps2(time_s) / square

    def _random_offset(self, most: float) -> float:
        """Return a random displacement of at most `most`, often a small one."""
        size = self._rng.random()
        return float(most * self._rng.uniform(-1.0, 1.0) * (1.0 if size < 0.65 else 0.3))


def later_plan(plan: Singles, elapsed_s: float) -> Singles:
    """Return the remaining plan after driving by a plan for some time.

    From (33, 15) to (33, 15) with speeds, accelerations, yaw and yaw rates; the rest is 0.
    """
    if elapsed_s == 0.0:
        return plan
    times = T_IDXS + elapsed_s
    found = np.zeros_like(plan)
    yaw = PLAN_ORIENTATION.start + 2
    for column in (PLAN_VELOCITY.start, PLAN_ACCELERATION.start, PLAN_ORIENTATION_RATE.start + 2):
        found[:, column] = np.interp(times, T_IDXS, plan[:, column])
    found[:, yaw] = np.interp(times, T_IDXS, plan[:, yaw])
    found[:, yaw] -= np.interp(elapsed_s, T_IDXS, plan[:, yaw])
    return found


# --- Files of drives, in the directory of a training ---------------------------------------------


def write_drive(directory: Path, number: int, record: DriveRecord) -> None:
    """Write a drive to the training's existing folder of drives."""
    data = io.BytesIO()
    write_npz(data, asdict(record))
    with whole_file(_path(directory, number)) as file:
        file.write(data.getbuffer())


def read_drives(directory: Path, first: int, end: int) -> list[DriveRecord]:
    """Return drives of a training, in order.

    `end` is at most the number of drives in the training's checkpoint.

    Raises:
        TrainingError: a drive is missing or corrupt.
    """
    drives = []
    for number in range(first, end):
        path = _path(directory, number)
        try:
            with path.open("rb") as file, np.load(file) as content:
                arrays = {name: content[name] for name in content.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise TrainingError(
                f"{path}: expected drive {number} of {end}, found none that can be read "
                f"({type(error).__name__}); train again"
            ) from None
        arrays["is_student"] = bool(arrays["is_student"])
        drives.append(DriveRecord(**arrays))
    return drives


def _path(directory: Path, number: int) -> Path:
    return directory / DRIVES / f"{number:06}.npz"

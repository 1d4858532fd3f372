"""The script of a rendered drive: its road, and how a car and the car ahead move along it.

Everything is a function of a seed, or of a recording and a seed. A longer drive of the same seed
begins like a shorter one.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.drives.comma2k19 import read_comma2k19
from tools.drives.comma2k19_files import telemetry_files
from tools.errors import TelemetryError
from tools.render.spec import FRAME_NS
from tools.world.curves import Floats, random_walk, through_knots
from tools.world.expert import LEFT, RIGHT
from tools.world.road import BEHIND_M, GRID_M, SIGHT_M, Road, integrated, straights_and_arcs

# The world is stepped at the rate of carState.
TICK_NS = 10_000_000
TICKS_PER_S = 100
# What is ahead of the last frame: the model plans 10 s, and the car ahead is beyond.
LOOKAHEAD_S = 11.0
_LEAD_REACH_M = 80.0

# The road is a fast one; the car keeps below its limit.
SPEED_LIMIT_MPS = 30.0
_SPEED_SPACING_S = 8.0
_SPEED_LIMITS_MPS = (14, 27)
_GAP_SPACING_S = 7.0
_GAP_LIMITS_M = (16, 56)
_WOBBLE_SPACING_M = 55.0
_WOBBLE_M = 0.14
FIRST_LANE_CHANGE_S = 5.0

# Slower, a yaw rate says nothing of the road; the curvature of the last fast place holds.
_MIN_SPEED_MPS = 3.0
# Poses of single frames shake; roads do not bend within half a second.
_SMOOTHING_S = 1.0
# Tighter, the road would leave the sight of what follows it.
_MAX_CURVATURE_1PM = 8e-3
# Rounded, because the pose goes through matrix products that differ between processors.
_ROUNDING = 2.0**20


@dataclass(frozen=True, slots=True)
class LaneChange:
    """One change of lane: when it begins, and to which side."""

    start_s: float
    side: int


@dataclass(frozen=True, slots=True)
class Script:
    """What happens, on ticks of 10 ms.

    Attributes:
        road: its middle is that of the middle lane.
        speed_mps: (n,) of the car.
        gap_m: (n,) arc length from the camera to the rear of the car ahead.
        wobble_m: lateral offset on the road's grid, without lane changes.
    """

    seed: int
    road: Road
    speed_mps: Floats
    gap_m: Floats
    lane_changes: tuple[LaneChange, ...]
    wobble_m: Floats

    @property
    def driven_m(self) -> Floats:
        """Way of the car at each tick, (n,)."""
        return np.concatenate([[0.0], np.cumsum(self.speed_mps[:-1])]) / TICKS_PER_S


def seeded_script(seed: int, seconds: float) -> Script:
    """Return the script of a seed: a road of the simulated world, a lead, a change now and then."""
    ticks = round((seconds + LOOKAHEAD_S) * TICKS_PER_S) + 1
    last_s = (ticks - 1) / TICKS_PER_S

    def walk(part: int, spacing_s: float, step: int, limits: tuple[int, int]) -> Floats:
        rng = np.random.default_rng((seed, part))
        knots = random_walk(rng, int(last_s / spacing_s) + 3, step, limits)
        times = np.arange(ticks) / TICKS_PER_S
        return through_knots(knots.astype(np.float64), spacing_s, times)

    speed = walk(1, _SPEED_SPACING_S, 4, _SPEED_LIMITS_MPS)
    length_m = float(speed.sum()) / TICKS_PER_S + _LEAD_REACH_M
    road = straights_and_arcs(np.random.default_rng((seed, 3)), length_m, SPEED_LIMIT_MPS)
    rng = np.random.default_rng((seed, 4))
    wobbles = rng.integers(-100, 101, int(road.end_m / _WOBBLE_SPACING_M) + 5)
    return Script(
        seed=seed,
        road=road,
        speed_mps=speed,
        gap_m=walk(2, _GAP_SPACING_S, 9, _GAP_LIMITS_M),
        lane_changes=_seeded_lane_changes(seed, last_s),
        wobble_m=through_knots(
            _WOBBLE_M / 100.0 * wobbles.astype(np.float64),
            _WOBBLE_SPACING_M,
            road.s_m + BEHIND_M,
        ),
    )


def _seeded_lane_changes(seed: int, last_s: float) -> tuple[LaneChange, ...]:
    rng = np.random.default_rng((seed, 5))
    changes = []
    lane, start_s = 0, FIRST_LANE_CHANGE_S
    while start_s < last_s:
        side = (LEFT, RIGHT)[int(rng.integers(2))]
        if lane:
            side = -lane
        changes.append(LaneChange(start_s, side))
        lane += side
        start_s += float(rng.integers(15, 23))
    return tuple(changes)


def recorded_script(path: Path, seed: int, frames: int | None) -> tuple[Script, int]:
    """Return the script of a recording and its length in frames.

    The flat road is the path that was driven: its curvature is the recorded yaw rate over the
    speed, by distance. The car keeps the middle lane of it, at the recorded speed. The seed draws
    the car ahead.

    `path` is a comma2k19 segment directory; without `frames` all of it is used.

    Raises:
        DriveError: the directory cannot be read as a segment.
        TelemetryError: it has no pose, or is shorter than `frames`.
    """
    recording = read_comma2k19(path)
    times = recording.times_s
    if times.size < 2:
        raise TelemetryError(f"{path}: expected a segment with global_pose, found none")
    frame_s = FRAME_NS / 1e9
    available = round(float(times[-1]) / frame_s) + 1
    count = available if frames is None else frames
    if count > available:
        raise TelemetryError(
            f"{path}: expected {count} frames of telemetry, found {available}; ask for at most "
            f"--seconds {available * frame_s:g}"
        )
    base = seeded_script(seed, count * frame_s)
    ticks = np.arange(base.speed_mps.size) / TICKS_PER_S
    speed = np.interp(ticks, times, recording.velocities_mps[:, 0])
    # Beyond the recording its last speed holds: the plan looks 10 s further.
    speed = np.rint(np.maximum(speed, 0.0) * _ROUNDING) / _ROUNDING
    middles = 0.5 * (times[:-1] + times[1:])
    yaw_rate = _smoothed(np.interp(ticks, middles, recording.rotation_rates_radps()[:, 2]))
    is_fast = speed > _MIN_SPEED_MPS
    if not is_fast.any():
        raise TelemetryError(f"{path}: expected a car that drives, found one that stands")
    script = dataclasses.replace(base, speed_mps=speed, lane_changes=())
    driven = script.driven_m
    last_m = float(driven[-1])
    grid = np.arange(-BEHIND_M, last_m + _LEAD_REACH_M + SIGHT_M, GRID_M)
    curvature = yaw_rate[is_fast] / speed[is_fast]
    curvature = np.clip(curvature, -_MAX_CURVATURE_1PM, _MAX_CURVATURE_1PM)
    curvature = np.interp(grid, driven[is_fast], curvature)
    # Straight on where nobody has driven.
    curvature[grid > last_m] = 0.0
    curvature = np.rint(curvature * _ROUNDING**2) / _ROUNDING**2
    level = np.zeros_like(grid)
    road = integrated(curvature, level, level)
    return dataclasses.replace(script, road=road, wobble_m=level), count


def recording_digest(path: Path) -> str:
    """Return a digest of a recording's telemetry, 16 hex digits.

    Raises:
        OSError: a file of it cannot be read.
    """
    digest = hashlib.sha256()
    for file in telemetry_files(path):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _smoothed(values: Floats) -> Floats:
    """Return a moving mean; at the ends over what is there."""
    half = round(_SMOOTHING_S * TICKS_PER_S / 2)
    until = np.concatenate([[0.0], np.cumsum(values)])
    last = np.minimum(np.arange(values.size) + half + 1, values.size)
    first = np.maximum(np.arange(values.size) - half, 0)
    return np.asarray((until[last] - until[first]) / (last - first))

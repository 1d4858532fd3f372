"""The script of a rendered drive: its road, and the motion of the car and of a lead car on it.

    seed, or recording and seed -> `Script` -> `ScriptedDrive` -> state of both cars at each tick

A drive is a deterministic function of a seed, or of a recording and a seed. A longer drive of the
same seed begins like a shorter one.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.drives.comma2k19 import read_comma2k19
from tools.drives.comma2k19_files import telemetry_files
from tools.errors import TelemetryError
from tools.simulator.render.spec import FRAME_NS
from tools.simulator.world.car import Body, attitudes
from tools.simulator.world.curves import (
    Floats,
    arctangent,
    ease,
    ease_slope,
    random_walk,
    through_knots,
)
from tools.simulator.world.expert import LANE_CHANGE_S, LEFT, RIGHT
from tools.simulator.world.road import (
    BEHIND_M,
    GRID_M,
    SIGHT_M,
    Road,
    integrated,
    straights_and_arcs,
)
from tools.simulator.world.scenery import PLAIN
from tools.simulator.world.traffic import Vehicle
from tools.simulator.world.world import Lanes, Marking, MarkingKind, World

# Time step of the world, equal to the period of carState.
TICK_NS = 10_000_000
TICKS_PER_S = 100
# The script extends beyond the last frame: the model plans 10 s, and the lead car is further ahead.
LOOKAHEAD_S = 11.0
_LEAD_REACH_M = 80.0

# The speed limit is that of a fast road; the car stays below it.
SPEED_LIMIT_MPS = 30.0
_SPEED_SPACING_S = 8.0
_SPEED_LIMITS_MPS = (14, 27)
_GAP_SPACING_S = 7.0
_GAP_LIMITS_M = (16, 56)
_WOBBLE_SPACING_M = 55.0
_WOBBLE_M = 0.14
FIRST_LANE_CHANGE_S = 5.0

# Below this speed a yaw rate does not define a curvature, which is interpolated instead.
_MIN_SPEED_MPS = 3.0
# Poses of single frames are noisy; the curvature of roads changes more slowly than this window.
_SMOOTHING_S = 1.0
# The curvature is limited so that the road ahead stays in sight.
_MAX_CURVATURE_1PM = 8e-3
# Values are rounded because pose products differ in their last bits between processors.
_ROUNDING = 2.0**20


@dataclass(frozen=True, slots=True)
class LaneChange:
    """One lane change: its start time and its side."""

    start_s: float
    side: int


@dataclass(frozen=True, slots=True)
class Script:
    """The events of a drive, on ticks of 10 ms.

    Attributes:
        seed: seed of the random parts.
        road: road whose reference line is the centre of the middle lane.
        speed_mps: (n,) speed of the car.
        gap_m: (n,) arc length from the camera to the rear of the lead car.
        lane_changes: lane changes in time order.
        wobble_m: lateral offset at the points of the road's grid, without lane changes.
    """

    seed: int
    road: Road
    speed_mps: Floats
    gap_m: Floats
    lane_changes: tuple[LaneChange, ...]
    wobble_m: Floats

    @property
    def driven_m(self) -> Floats:
        """Distance driven at each tick, (n,)."""
        return np.concatenate([[0.0], np.cumsum(self.speed_mps[:-1])]) / TICKS_PER_S


def seeded_script(seed: int, seconds: float) -> Script:
    """Return the script of a seed: a random road, a lead car, and occasional lane changes."""
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

    The road is flat and follows the driven path: its curvature is the recorded yaw rate divided
    by the speed, as a function of distance. The car stays in the middle lane at the recorded
    speed. The seed determines the lead car.

    `path` is a comma2k19 segment directory; without `frames` the whole segment is used.

    Raises:
        DriveError: the directory cannot be read as a segment.
        TelemetryError: the segment has no pose, no motion, or fewer frames than `frames`.
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
    # The last recorded speed is kept beyond the end, for the plan of the next 10 s.
    speed = np.rint(np.maximum(speed, 0.0) * _ROUNDING) / _ROUNDING
    middles = 0.5 * (times[:-1] + times[1:])
    yaw_rate = _smoothed(np.interp(ticks, middles, recording.rotation_rates_radps()[:, 2]))
    is_fast = speed > _MIN_SPEED_MPS
    if not is_fast.any():
        raise TelemetryError(f"{path}: expected a moving car, found one that never drives")
    script = dataclasses.replace(base, speed_mps=speed, lane_changes=())
    driven = script.driven_m
    last_m = float(driven[-1])
    grid = np.arange(-BEHIND_M, last_m + _LEAD_REACH_M + SIGHT_M, GRID_M)
    curvature = yaw_rate[is_fast] / speed[is_fast]
    curvature = np.clip(curvature, -_MAX_CURVATURE_1PM, _MAX_CURVATURE_1PM)
    curvature = np.interp(grid, driven[is_fast], curvature)
    # The road is straight beyond the recorded path.
    curvature[grid > last_m] = 0.0
    curvature = np.rint(curvature * _ROUNDING**2) / _ROUNDING**2
    level = np.zeros_like(grid)
    road = integrated(curvature, level, level)
    return dataclasses.replace(script, road=road, wobble_m=level), count


def recording_digest(path: Path) -> str:
    """Return a digest of a recording's telemetry, 16 hex digits.

    Raises:
        OSError: a telemetry file cannot be read.
    """
    digest = hashlib.sha256()
    for file in telemetry_files(path):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _smoothed(values: Floats) -> Floats:
    """Return a moving mean, over the available part of the window at both ends."""
    half = round(_SMOOTHING_S * TICKS_PER_S / 2)
    until = np.concatenate([[0.0], np.cumsum(values)])
    last = np.minimum(np.arange(values.size) + half + 1, values.size)
    first = np.maximum(np.arange(values.size) - half, 0)
    return np.asarray((until[last] - until[first]) / (last - first))


# --- A car that follows a script through the simulated world -------------------------------------

# Three lanes of the usual highway width.
LANE_WIDTH_M = 3.6
_KINDS = (MarkingKind.SOLID, MarkingKind.DASHED, MarkingKind.DASHED, MarkingKind.SOLID)
LANES = Lanes(
    width_m=LANE_WIDTH_M,
    count=3,
    markings=tuple(
        Marking((index - 1.5) * LANE_WIDTH_M, kind, is_yellow=index == 0)
        for index, kind in enumerate(_KINDS)
    ),
    left_edge_m=-6.6,
    right_edge_m=6.6,
)
# A day scene without noise, which would mostly cost encoding time.
SCENERY = replace(
    PLAIN,
    asphalt=(84.0, 128.0, 128.0),
    verge=(100.0, 108.0, 122.0),
    haze_m=300.0,
    asphalt_grain=2.0,
    verge_grain=5.0,
    post_m=25.0,
    trees=0.7,
    signs=2.0,
)
# The lead car: width, height and length, and the index of its paint, blue.
_LEAD_SIZE_M, _LEAD_PAINT = (1.82, 1.46, 4.5), 9
# Indices of x, y, z, heading and speed among the fields of `Body`.
_TRACK = [2, 3, 4, 5, 8]
# A lane change starts with the blinker, then the driver's torque on the wheel, then the motion.
BLINKER_LEAD_S = 1.5
NUDGE_S = (-0.4, 0.6)


class DriveState(NamedTuple):
    """The state of a drive at one time.

    Attributes:
        body: our car.
        lead: the lead car.
        blinker: ``LEFT``, ``RIGHT`` or 0.
        nudge: direction of the driver's torque on the wheel: ``LEFT``, ``RIGHT`` or 0.
    """

    body: Body
    lead: Vehicle
    blinker: int
    nudge: int


class ScriptedDrive:
    """The exact state of a scripted drive at any tick of 10 ms.

    The texture, trees and hills of its world depend on the script's seed.
    """

    def __init__(self, script: Script) -> None:
        road, changes = script.road, script.lane_changes
        scenery = replace(SCENERY, texture=script.seed)
        self.world = World(script.seed, road, LANES, scenery, SPEED_LIMIT_MPS)
        s, driven = road.s_m, script.driven_m
        offset, slope = script.wobble_m.copy(), np.gradient(script.wobble_m, GRID_M)
        for change in changes:
            # Changes are placed by distance, so the lead car changes lanes at the same place before
            # us.
            tick = min(round(change.start_s * TICKS_PER_S), driven.size - 1)
            length = LANE_CHANGE_S * script.speed_mps[tick]
            t = (s - driven[tick]) / length
            offset += change.side * LANE_WIDTH_M * ease(t)
            slope += change.side * LANE_WIDTH_M / length * ease_slope(t)
        # The path on the road's grid, later interpolated to ticks.
        place = road.places(s, offset)
        heading = road.heading_rad + arctangent(slope / (1.0 - road.curvature_1pm * offset))
        steps = np.sqrt(sum(np.diff(axis) ** 2 for axis in place))
        travelled = np.concatenate([[0.0], np.cumsum(steps)])
        travelled -= np.interp(0.0, s, travelled)
        angles = (*attitudes(road, s, offset, heading), heading)
        curvature = np.gradient(heading) / np.gradient(travelled)
        here = np.interp(driven, travelled, s)
        there = here + script.gap_m
        lead_speed = np.gradient(np.interp(there, s, travelled)) * TICKS_PER_S
        speeds = (script.speed_mps, lead_speed)
        gain, lead_gain = (np.gradient(speed) * TICKS_PER_S for speed in speeds)
        lead_offset = np.interp(there, s, offset)
        offset, x, y, z, pitch, roll, heading, curvature = (
            np.interp(here, s, column) for column in (offset, *place, *angles, curvature)
        )
        self._bodies = np.stack(
            [here, offset, x, y, z, heading, pitch, roll, script.speed_mps, gain, curvature],
            axis=1,
        )
        self._leads = np.stack([there, lead_offset, lead_speed, lead_gain], axis=1)
        self._blinker = _sides(changes, driven.size, (-BLINKER_LEAD_S, LANE_CHANGE_S))
        self._nudge = _sides(changes, driven.size, NUDGE_S)

    def state_at(self, tick: int) -> DriveState:
        """Return the state of both cars at a tick."""
        s, offset, speed, gain = self._leads[tick].tolist()
        return DriveState(
            Body(*self._bodies[tick].tolist()),
            Vehicle(s, offset, speed, gain, *_LEAD_SIZE_M, _LEAD_PAINT),
            int(self._blinker[tick]),
            int(self._nudge[tick]),
        )

    def ahead(self, tick: int, times_s: Floats) -> Floats:
        """Return x, y, z, heading and speed of the car at times after a tick, (5, n).

        Positions and headings are in the world; z is the height of the road, positive down.
        """
        at = tick + times_s * TICKS_PER_S
        first = at.astype(np.int64)
        before, after = self._bodies[first], self._bodies[first + 1]
        rows = before + (after - before) * (at - first)[:, None]
        return np.asarray(rows.T[_TRACK])


def _sides(
    changes: tuple[LaneChange, ...], ticks: int, span_s: tuple[float, float]
) -> NDArray[np.int8]:
    """Return the side of the lane change at each tick of a time span around its start, else 0."""
    sides = np.zeros(ticks, np.int8)
    for change in changes:
        first, last = (max(0, round((change.start_s + at) * TICKS_PER_S)) for at in span_s)
        sides[first:last] = change.side
    return sides

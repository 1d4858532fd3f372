"""The motion of a recorded comma2k19 segment, as the motion of a rendered one.

The rendered road is the path that was driven: its curvature is the recorded yaw rate over the
speed, by distance. The car keeps the middle lane of it, at the recorded speed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from tools.drives.comma2k19 import read_comma2k19
from tools.drives.comma2k19_files import telemetry_files
from tools.errors import TelemetryError
from tools.render.spec import FRAME_NS
from tools.render.world import TICKS_PER_S, Motion, road_grid, seeded_motion
from tools.world.curves import Floats

# Slower, a yaw rate says nothing of the road; the curvature of the last fast place holds.
_MIN_SPEED_MPS = 3.0
# Poses of single frames shake; roads do not bend within half a second.
_SMOOTHING_S = 1.0
# Tighter, the road would leave the sight of what follows it.
_MAX_CURVATURE_1PM = 8e-3
# Rounded, because the pose goes through matrix products that differ between processors.
_ROUNDING = 2.0**20


def recorded_motion(path: Path, seed: int, frames: int | None) -> tuple[Motion, int]:
    """Return the motion of a recording and its length in frames.

    `path` is a comma2k19 segment directory. The seed draws what it lacks: the car ahead. Without
    `frames` all of it is used.

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
    base = seeded_motion(seed, count * frame_s)
    ticks = np.arange(base.speed_mps.size) / TICKS_PER_S
    speed = np.interp(ticks, times, recording.velocities_mps[:, 0])
    # Beyond the recording its last speed holds: the plan looks 10 s further.
    speed = _rounded(np.maximum(speed, 0.0))
    middles = 0.5 * (times[:-1] + times[1:])
    yaw_rate = _smoothed(np.interp(ticks, middles, recording.rotation_rates_radps()[:, 2]))
    is_fast = speed > _MIN_SPEED_MPS
    if not is_fast.any():
        raise TelemetryError(f"{path}: expected a car that drives, found one that stands")
    driven = np.concatenate([[0.0], np.cumsum(speed[:-1])]) / TICKS_PER_S
    grid = road_grid(float(driven[-1]))
    curvature = yaw_rate[is_fast] / speed[is_fast]
    curvature = np.clip(curvature, -_MAX_CURVATURE_1PM, _MAX_CURVATURE_1PM)
    curvature = np.interp(grid, driven[is_fast], curvature)
    # Straight on where nobody has driven.
    curvature[grid > driven[-1]] = 0.0
    motion = dataclasses.replace(
        base,
        speed_mps=speed,
        curvature_1pm=np.rint(curvature * _ROUNDING**2) / _ROUNDING**2,
        lane_changes=(),
        wobble_m=np.zeros_like(grid),
    )
    return motion, count


def recording_digest(path: Path) -> str:
    """Return a digest of a recording's telemetry, 16 hex digits.

    Raises:
        OSError: a file of it cannot be read.
    """
    digest = hashlib.sha256()
    for file in telemetry_files(path):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _rounded(values: Floats) -> Floats:
    return np.asarray(np.rint(values * _ROUNDING) / _ROUNDING)


def _smoothed(values: Floats) -> Floats:
    """Return a moving mean; at the ends over what is there."""
    half = round(_SMOOTHING_S * TICKS_PER_S / 2)
    until = np.concatenate([[0.0], np.cumsum(values)])
    last = np.minimum(np.arange(values.size) + half + 1, values.size)
    first = np.maximum(np.arange(values.size) - half, 0)
    return np.asarray((until[last] - until[first]) / (last - first))

"""How well was driven: figures of one drive and of many, in metres."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tools.closed_loop.simulation import FRAME_S, End, Track
from tools.world.curves import Floats

# A recovery: from where it is judged on, the camera is so close to the lane's centre.
RECOVERED_M = 0.3
# A gap in seconds means nothing for a car that hardly moves.
TIME_GAP_FROM_MPS = 2.0
_DEGREES = 180.0 / math.pi


@dataclass(frozen=True, slots=True)
class Figures:
    """Metrics of one drive, or of several together; None if there was nothing to measure.

    Attributes:
        km: driven after the hand-over, along the road.
        departures: how many times a side of the car crossed the border of its lane.
        collisions: how many drives ended in one.
        offset_mean_m: distance of the camera from the centre of its lane, mean.
        offset_p99_m: the same, 99th percentile of the frames.
        heading_mean_deg: angle between car and road, mean.
        lateral_jerk_p99_mps3: change of lateral acceleration (curvature times speed squared).
        longitudinal_jerk_p99_mps3: change of acceleration.
        time_gap_min_s: least time to what is ahead, at speed.
        speed_mean_mps: over time.
        recoveries, recovered_share: how many drives began off their lane, and the share of these
            that were back near the centre in time.
        completed, completed_share: how many came to their end.
    """

    km: float
    departures: int
    collisions: int
    offset_mean_m: float | None
    offset_p99_m: float | None
    heading_mean_deg: float | None
    heading_p99_deg: float | None
    lateral_jerk_p99_mps3: float | None
    longitudinal_jerk_p99_mps3: float | None
    lateral_p99_mps2: float | None
    time_gap_min_s: float | None
    speed_mean_mps: float | None
    recoveries: int
    recovered_share: float | None
    drives: int
    completed: int
    completed_share: float | None

    def as_json(self) -> dict[str, Any]:
        """Return plain values, rounded to their precision."""
        return {
            name: round(value, 5) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def figures_of(tracks: Sequence[Track]) -> Figures:
    """Return the figures of drives taken together: their frames are pooled."""
    off = np.abs(_pooled(tracks, _judged("offset_m")))
    turned = np.abs(_pooled(tracks, _judged("heading_rad"))) * _DEGREES
    jerks = [np.abs(_pooled(tracks, _change_of(one))) for one in (_lateral, _forward)]
    lateral = np.abs(_pooled(tracks, _lateral))
    speed = _pooled(tracks, lambda track: track.column("speed_mps"))
    recoveries = [track for track in tracks if track.trial.scenario.off_m]
    back = [track for track in recoveries if has_recovered(track)]
    completed = sum(track.end is End.DONE for track in tracks)
    return Figures(
        km=sum(track.driven_m for track in tracks) / 1e3,
        departures=sum(departures_of(track) for track in tracks),
        collisions=sum(track.end is End.COLLISION for track in tracks),
        offset_mean_m=_mean(off),
        offset_p99_m=_p99(off),
        heading_mean_deg=_mean(turned),
        heading_p99_deg=_p99(turned),
        lateral_jerk_p99_mps3=_p99(jerks[0]),
        longitudinal_jerk_p99_mps3=_p99(jerks[1]),
        lateral_p99_mps2=_p99(lateral),
        time_gap_min_s=_least(_pooled(tracks, _time_gaps)),
        speed_mean_mps=_mean(speed),
        recoveries=len(recoveries),
        recovered_share=len(back) / len(recoveries) if recoveries else None,
        drives=len(tracks),
        completed=completed,
        completed_share=completed / len(tracks) if tracks else None,
    )


def departures_of(track: Track) -> int:
    """Return how many times the car left its lane; leaving the road is at least one."""
    out = track.column("out") > 0.0
    entered = int(out[:1].sum() + (out[1:] & ~out[:-1]).sum())
    return max(entered, int(track.end is End.LEFT_ROAD))


def has_recovered(track: Track) -> bool:
    """Tell whether a car that began off its lane was back in time, and stayed in the lane."""
    if track.end is not End.DONE or departures_of(track):
        return False
    offsets = _judged("offset_m")(track)
    return bool(offsets.size) and abs(float(offsets[0])) <= RECOVERED_M


def _judged(name: str) -> Callable[[Track], Floats]:
    return lambda track: track.column(name)[track.column("counts") > 0.0]


def _lateral(track: Track) -> Floats:
    return np.asarray(track.column("curvature_1pm") * track.column("speed_mps") ** 2)


def _forward(track: Track) -> Floats:
    return track.column("acceleration_mps2")


def _change_of(value: Callable[[Track], Floats]) -> Callable[[Track], Floats]:
    """Return the rate of change from frame to frame."""
    return lambda track: np.diff(value(track)) / FRAME_S


def _time_gaps(track: Track) -> Floats:
    speed, gap = track.column("speed_mps"), track.column("gap_m")
    known = (speed >= TIME_GAP_FROM_MPS) & np.isfinite(gap)
    return np.asarray(gap[known] / speed[known])


def _pooled(tracks: Iterable[Track], value: Callable[[Track], Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *(value(track) for track in tracks)])


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None


def _p99(values: Floats) -> float | None:
    return float(np.percentile(values, 99)) if values.size else None


def _least(values: Floats) -> float | None:
    return float(values.min()) if values.size else None

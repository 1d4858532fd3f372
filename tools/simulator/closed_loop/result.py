"""The result of a closed loop: driving metrics of one drive or of many.

A result is printed as JSON, as a table, and as one line at the end of each drive.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tools.errors import UsageError
from tools.lib.json_output import json_text
from tools.lib.terminal import format_table
from tools.simulator.closed_loop.simulation import FRAME_S, End, Track
from tools.simulator.world.curves import Floats

# A recovery succeeds if the offset is below this where judging starts.
RECOVERED_M = 0.3
# Below this speed a time gap is meaningless.
TIME_GAP_FROM_MPS = 2.0
_DEGREES = 180.0 / math.pi


@dataclass(frozen=True, slots=True)
class Figures:
    """Metrics of one drive, or of several together; None if there was nothing to measure.

    Attributes:
        km: distance driven after the hand-over, along the road.
        departures: number of times that a side of the car crossed the border of its lane.
        collisions: number of drives that ended in a collision.
        offset_mean_m, offset_p99_m: distance of the camera from the centre of its lane, mean and
            99th percentile of the frames.
        heading_mean_deg, heading_p99_deg: angle between car and road.
        lateral_jerk_p99_mps3: rate of change of lateral acceleration.
        longitudinal_jerk_p99_mps3: rate of change of acceleration.
        lateral_p99_mps2: lateral acceleration, curvature times speed squared.
        time_gap_min_s: least time gap to the vehicle ahead.
        speed_mean_mps: mean over time.
        recoveries: number of drives that began off their lane.
        recovered_share: share of these that returned to the centre in time.
        drives: number of drives.
        completed, completed_share: number and share of drives that reached their end.
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
        """Return plain values, rounded to 5 decimals."""
        return {
            name: round(value, 5) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def figures_of(tracks: Sequence[Track]) -> Figures:
    """Return the metrics of drives taken together, with their frames pooled."""
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
    """Return the number of times that the car left its lane; leaving the road is at least one."""
    out = track.column("out") > 0.0
    entered = int(out[:1].sum() + (out[1:] & ~out[:-1]).sum())
    return max(entered, int(track.end is End.LEFT_ROAD))


def has_recovered(track: Track) -> bool:
    """Return whether a car that began off its lane returned in time and stayed in the lane."""
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


@dataclass(frozen=True, slots=True)
class Drive:
    """One finished drive.

    Attributes:
        track: record of the drive.
        frames: number of frames that the cameras exposed, run-up included.
        answered: number of frames with a valid answer.
        wall_s: duration of the run.
        fault: name of the injected fault, or empty.
    """

    track: Track
    frames: int
    answered: int
    wall_s: float
    fault: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether the drive reached its end without a departure, and recovered if it had to."""
        figures = self.figures
        recovered = figures.recovered_share in (None, 1.0)
        return self.track.end is End.DONE and figures.departures == 0 and recovered

    @property
    def figures(self) -> Figures:
        """The metrics of this drive."""
        return figures_of([self.track])

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        trial = self.track.trial
        planted = {"fault": self.fault} if self.fault else {}
        return {
            **planted,
            "scenario": trial.scenario.name,
            "seed": trial.seed,
            "end": str(self.track.end),
            "frames": self.frames,
            "answered": self.answered,
            "wall_s": round(self.wall_s, 3),
            **self.figures.as_json(),
        }


OnDrive = Callable[[Drive], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All drives of one command, in order; `facts` describe artifact, device and run."""

    driver: str
    drives: tuple[Drive, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> Figures:
        """The metrics of all drives taken together."""
        return figures_of([drive.track for drive in self.drives])

    def by_scenario(self) -> Iterator[tuple[str, tuple[Drive, ...]]]:
        """Yield each scenario with its drives, in the order of their first drives."""
        for name in dict.fromkeys(drive.track.trial.scenario.name for drive in self.drives):
            yield name, tuple(d for d in self.drives if d.track.trial.scenario.name == name)

    def as_json(self) -> dict[str, Any]:
        """Return plain values: the metrics of all drives, of each scenario and of each drive."""
        wall_s = sum(drive.wall_s for drive in self.drives)
        frames = sum(drive.frames for drive in self.drives)
        return {
            "driver": self.driver,
            **self.facts,
            **self.figures.as_json(),
            "frames": frames,
            "answered": sum(drive.answered for drive in self.drives),
            "frames_per_s": round(frames / wall_s, 2) if wall_s > 0.0 else None,
            "wall_s": round(wall_s, 3),
            "scenarios": [
                {"scenario": name, **figures_of([d.track for d in drives]).as_json()}
                for name, drives in self.by_scenario()
            ],
            "per_drive": [drive.as_json() for drive in self.drives],
        }


# Title of each column, and its metric.
COLUMNS = (
    ("km", "km"),
    ("departures", "departures"),
    ("collisions", "collisions"),
    ("offset m", "offset_mean_m"),
    ("p99", "offset_p99_m"),
    ("heading deg", "heading_mean_deg"),
    ("p99", "heading_p99_deg"),
    ("jerk lat", "lateral_jerk_p99_mps3"),
    ("long", "longitudinal_jerk_p99_mps3"),
    ("gap s", "time_gap_min_s"),
    ("m/s", "speed_mean_mps"),
    ("recovered", "recovered_share"),
)


def row_of(name: str, figures: Figures) -> list[object]:
    """Return a row of the table of metrics."""
    done = f"{figures.completed}/{figures.drives}"
    return [name, done, *(getattr(figures, column) for _, column in COLUMNS)]


def table_header(first: str) -> list[str]:
    """Return the titles of the table of metrics."""
    return [first, "done", *(title for title, _ in COLUMNS)]


def table_of(outcome: Outcome) -> str:
    """Return a table with a line per scenario, and one for all if there are several."""
    rows = [
        row_of(name, figures_of([drive.track for drive in drives]))
        for name, drives in outcome.by_scenario()
    ]
    if len(rows) > 1:
        rows.append(row_of("all", outcome.figures))
    return format_table(table_header("scenario"), rows)


# --- Reports of each drive at its end, so that an interrupted run keeps them ---------------------


@contextmanager
def drive_reporter(drives: int, lines: Path | None, *, show: bool) -> Iterator[OnDrive]:
    """Yield a function to call after each drive; `lines` receives one JSON object per line.

    Raises:
        UsageError: the file cannot be written.
    """
    if lines is None:
        yield _Reporter(drives, None, show=show)
        return
    try:
        file = lines.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--lines {lines}: cannot be written: {error.strerror}; name another file"
        ) from error
    with file:
        yield _Reporter(drives, file, show=show)


class _Reporter:
    """Counts and reports finished drives."""

    def __init__(self, drives: int, file: TextIO | None, *, show: bool) -> None:
        self._all = drives
        self._done = 0
        self._file = file
        self._show = show

    def __call__(self, drive: Drive) -> None:
        """Report a finished drive."""
        self._done += 1
        if self._file is not None:
            self._file.write(f"{json_text(drive.as_json())}\n")
            # Flush, so that an interrupted run keeps this drive.
            self._file.flush()
        if self._show:
            print(f"{self._done} of {self._all}: {line_of(drive)}", file=sys.stderr, flush=True)


def line_of(drive: Drive) -> str:
    """Return the result of a drive as one line."""
    trial, figures = drive.track.trial, drive.figures
    offset = "-" if figures.offset_mean_m is None else f"{figures.offset_mean_m:.3f} m"
    recovered = {None: "", 0.0: ", did not recover", 1.0: ", recovered"}
    planted = f" with {drive.fault}" if drive.fault else ""
    return (
        f"{trial.scenario.name} {trial.seed}{planted}: {figures.km:.2f} km, {drive.track.end}"
        f"{recovered[figures.recovered_share]}, departures {figures.departures}, offset {offset}, "
        f"{drive.wall_s:.1f} s"
    )

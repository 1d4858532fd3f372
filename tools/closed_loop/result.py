"""The result of a closed loop: its drives, their figures, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.closed_loop.figures import Figures, figures_of
from tools.closed_loop.simulation import End, Track
from tools.lib.table import format_table


@dataclass(frozen=True, slots=True)
class Drive:
    """One finished drive; `frames` that the cameras exposed include the run-up.

    `answered` of them had a valid answer. `fault` names what was planted, or is empty.
    """

    track: Track
    frames: int
    answered: int
    wall_s: float
    fault: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether it came to its end without a departure, and recovered if it had to."""
        figures = self.figures
        recovered = figures.recovered_share in (None, 1.0)
        return self.track.end is End.DONE and figures.departures == 0 and recovered

    @property
    def figures(self) -> Figures:
        """Of this drive."""
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
    """All drives of one command, in order; `facts` name the artifact, the device and the way."""

    driver: str
    drives: tuple[Drive, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> Figures:
        """Of all drives taken together."""
        return figures_of([drive.track for drive in self.drives])

    def by_scenario(self) -> Iterator[tuple[str, tuple[Drive, ...]]]:
        """Yield the drives of each scenario, in the order of their first ones."""
        for name in dict.fromkeys(drive.track.trial.scenario.name for drive in self.drives):
            yield name, tuple(d for d in self.drives if d.track.trial.scenario.name == name)

    def as_json(self) -> dict[str, Any]:
        """Return plain values: the figures of all, of each scenario and of each drive."""
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


# Title of a column, and the figure below it.
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
    """Return a row of the table of figures."""
    done = f"{figures.completed}/{figures.drives}"
    return [name, done, *(getattr(figures, column) for _, column in COLUMNS)]


def table_header(first: str) -> list[str]:
    """Return the titles of the table of figures."""
    return [first, "done", *(title for title, _ in COLUMNS)]


def table_of(outcome: Outcome) -> str:
    """Return a line for each scenario, and one for all where there are several."""
    rows = [
        row_of(name, figures_of([drive.track for drive in drives]))
        for name, drives in outcome.by_scenario()
    ]
    if len(rows) > 1:
        rows.append(row_of("all", outcome.figures))
    return format_table(table_header("scenario"), rows)

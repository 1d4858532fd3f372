"""Writes the report of a closed loop: metrics, and charts of each drive.

The charts show the road from above with the car's path, and offset, heading and speed over time.
The page has no script and no external resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from runtime.texts import count_text
from tools.behaviour.gates import GateVerdict
from tools.report.report_page import (
    Chart,
    facts_part,
    padded_range,
    table_part,
    tiles_section,
    whole_page,
    write_page,
)
from tools.simulator.closed_loop.result import (
    Drive,
    Figures,
    Outcome,
    figures_of,
    row_of,
    table_header,
)
from tools.simulator.closed_loop.simulation import Track
from tools.simulator.world.curves import Floats

# With a larger share of late frames, the timing decided the drive, and its result means little.
MOST_LATE = 0.5
# The maximum number of drives with charts; more would make the page too long.
SHOWN = 12
_WIDTH = 1120
_TOP_HEIGHTS = (110, 420)
_STYLE = """
.chart .verge { stroke: #94a3b8; stroke-width: 1; }
.chart .border { stroke: #cbd5e1; stroke-width: 1; stroke-dasharray: 3 3; }
.chart .driven { stroke: var(--accent); stroke-width: 1.8; }
.chart .limit { stroke: var(--unsure); stroke-dasharray: 5 3; }
.chart .other { stroke: #94a3b8; }
.out-dot { fill: var(--bad); }
.clip { max-width: 640px; border-radius: 4px; margin: 14px 0 0; }
@media (prefers-reduced-motion: reduce) { .clip { display: none; } }
td.figure { white-space: nowrap; font-variant-numeric: tabular-nums; text-align: right; }
.figures th, .figures td { padding-right: 12px; }
"""


def write_drive_report(
    path: Path,
    outcome: Outcome,
    gates: Sequence[GateVerdict] = (),
    *,
    title: str = "Closed loop",
    seen: Sequence[str] = (),
    timing: Sequence[str] = (),
) -> None:
    """Write the page; the file appears complete or not at all.

    `seen` are HTML sections about the model's outputs, shown before the drives. `timing` are
    sections about speed, shown after them.

    Raises:
        UsageError: the file cannot be written.
    """
    figures = outcome.figures
    drives = count_text(len(outcome.drives), "simulated drive")
    lead = "" if seen else _lead(outcome)
    head = (
        f"<header><h1>{escape(title)}</h1>{lead}<p>{drives}, {figures.km:.2f} km, driven by "
        f"{escape(outcome.driver)}.</p></header>"
    )
    drawn = _drives(outcome, gates)
    parts = (*seen, tiles_section(_tiles(figures)), *drawn, *timing, _facts(outcome))
    write_page(path, [whole_page(title, (head, *parts), _STYLE)])


def _lead(outcome: Outcome) -> str:
    """Return the conclusion as HTML: the number of good drives, and the failures of the others."""
    figures, count = outcome.figures, len(outcome.drives)
    clean = sum(drive.is_clean for drive in outcome.drives)
    wrong = [
        f"{number} {text}"
        for number, text in (
            (figures.drives - figures.completed, "did not reach the end"),
            (sum(drive.figures.departures > 0 for drive in outcome.drives), "left the lane"),
            (figures.collisions, "ended in a collision"),
            (
                sum(drive.figures.recovered_share == 0.0 for drive in outcome.drives),
                "did not recover",
            ),
        )
        if number
    ]
    said = f"{clean} of {count_text(count, 'drive')} went well"
    text = f"{said}: {', '.join(wrong)}." if wrong else f"{said}."
    offset = figures.offset_p99_m
    if offset is not None:
        text += f" The car stayed within {offset:.2f} m of the lane centre 99 % of the time."
    late = outcome.facts.get("late_share", 0.0)
    if late > MOST_LATE:
        text += f" {late:.0%} of the frames had no answer in time."
    is_good = clean == count and late <= MOST_LATE
    return f'<p class="lead {"good" if is_good else "bad"}">{escape(text)}</p>'


def _drives(outcome: Outcome, gates: Sequence[GateVerdict]) -> Iterator[str]:
    yield f"<section><h2>By scenario</h2>{_table(outcome)}</section>"
    if gates:
        judged = [("holds" if one.holds else "fails", one.text) for one in gates]
        yield f"<section><h2>Gates</h2>{table_part(('', 'gate'), judged)}</section>"
    for drive in _shown(outcome.drives):
        yield _drive_section(drive)
    if len(outcome.drives) > SHOWN:
        yield f"<p>{len(outcome.drives) - SHOWN} more drives are in the JSON only.</p>"


def _facts(outcome: Outcome) -> str:
    if not outcome.facts:
        return ""
    facts = facts_part({name: str(value) for name, value in outcome.facts.items()})
    return f"<section><h2>Conditions of the run</h2>{facts}</section>"


def _tiles(figures: Figures) -> list[tuple[str, str, str]]:
    share = figures.recovered_share
    gap_s = figures.time_gap_min_s
    gap = "" if gap_s is None else f"minimum time gap {gap_s:.2f} s"
    tiles = [
        ("driven", f"{figures.km:.2f} km", f"{figures.completed} of {figures.drives} to the end"),
        ("departures", str(figures.departures), "lane departures"),
        ("offset", _text(figures.offset_mean_m, " m"), f"p99 {_text(figures.offset_p99_m, ' m')}"),
        ("heading", _text(figures.heading_mean_deg, "°"), f"p99 {_text(figures.heading_p99_deg)}°"),
        ("collisions", str(figures.collisions), gap),
    ]
    if share is not None:
        tiles.append(("recovered", f"{100 * share:.0f} %", f"of {figures.recoveries}"))
    return tiles


def _text(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _table(outcome: Outcome) -> str:
    rows = [row_of(name, figures_of([d.track for d in ds])) for name, ds in outcome.by_scenario()]
    if len(rows) > 1:
        rows.append(row_of("all", outcome.figures))
    first, *titles = table_header("scenario")
    head = f"<th>{first}</th>"
    head += "".join(f'<th class="number">{escape(title)}</th>' for title in titles)
    body = "".join(
        f"<tr><th>{escape(str(row[0]))}</th>"
        + "".join(f'<td class="figure">{_cell(value)}</td>' for value in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide figures"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else escape(str(value))


def _shown(drives: Sequence[Drive]) -> list[Drive]:
    """Return the drives with charts: those with failures first."""
    ordered = sorted(range(len(drives)), key=lambda at: (drives[at].is_clean, at))
    return [drives[at] for at in ordered[:SHOWN]]


def _drive_section(drive: Drive) -> str:
    track, figures = drive.track, drive.figures
    trial = track.trial
    title = f"{trial.scenario.name}, seed {trial.seed}"
    offsets = f"offset {_text(figures.offset_mean_m)} m, p99 {_text(figures.offset_p99_m)} m"
    said = (
        f"{trial.scenario.what}: {figures.km:.2f} km, {track.end}, "
        f"{count_text(figures.departures, 'departure')}, {offsets}; lane {trial.lane + 1} of "
        f"{trial.world.lanes.count}, {trial.world.lanes.width_m:.2f} m wide"
    )
    charts = ""
    if len(track.samples) > 1:
        drawn = (_from_above, _offset, _heading, _speed)
        charts = f'<div class="wide">{"".join(draw(track) for draw in drawn)}</div>'
    return f"<section><h2>{escape(title)}</h2><p>{escape(said)}</p>{charts}</section>"


def _from_above(track: Track) -> str:
    """Return a chart of the road and the path on it, rotated to run from left to right."""
    world = track.trial.world
    s = world.road.s_m
    first, last = track.trial.hand_over_m - 5.0, float(track.column("s_m").max()) + 20.0
    near = s[(s >= first) & (s <= last)]
    x, y = track.column("x_m"), track.column("y_m")
    turn = _Turned(world.road.places(near[[0, -1]], 0.0))
    lanes = world.lanes
    lines = [
        ("verge", lanes.left_edge_m),
        ("verge", lanes.right_edge_m),
        *(("border", marking.offset_m) for marking in lanes.painted),
    ]
    drawn = [(css, *turn(*world.road.places(near, offset)[:2])) for css, offset in lines]
    path = turn(x, y)
    xs = np.concatenate([path[0], *(one[1] for one in drawn)])
    ys = np.concatenate([path[1], *(one[2] for one in drawn)])
    span = max(float(xs.max() - xs.min()), 1.0)
    height = float(ys.max() - ys.min()) / span * _WIDTH + 60.0
    height = min(max(height, _TOP_HEIGHTS[0]), _TOP_HEIGHTS[1])
    # Both axes have the same scale, so the height of the chart follows from the path.
    metres = span * (height - 50.0) / (_WIDTH - 68.0)
    middle = 0.5 * float(ys.max() + ys.min())
    half = 0.5 * max(metres, float(ys.max() - ys.min()) * 1.05)
    chart = Chart(
        _WIDTH,
        round(height),
        (float(xs.min()), float(xs.min()) + span),
        (middle - half, middle + half),
        "m",
        "m",
        "The road from above, and the path of the car",
    )
    for css, line_x, line_y in drawn:
        chart.line(line_x, line_y, css)
    chart.line(*path, "driven")
    out = track.column("out") > 0.0
    chart.dots(path[0][out], path[1][out], "out-dot")
    return chart.render()


class _Turned:
    """Rotates the world so that two points lie on a level line, left to right; y points up."""

    def __init__(self, ends: tuple[Floats, Floats, Floats]) -> None:
        (x0, x1), (y0, y1) = ends[0].tolist(), ends[1].tolist()
        length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-6)
        self._origin = x0, y0
        self._ahead = (x1 - x0) / length, (y1 - y0) / length

    def __call__(self, x_m: Floats, y_m: Floats) -> tuple[Floats, Floats]:
        x, y = x_m - self._origin[0], y_m - self._origin[1]
        cosine, sine = self._ahead
        return np.asarray(x * cosine + y * sine), np.asarray(x * sine - y * cosine)


def _offset(track: Track) -> str:
    offset = track.column("offset_m")
    chart = _over_time(track, "offset, m", "Offset from the centre of the lane", offset, 1.0)
    _judged_and_not(chart, track, offset)
    for level in (-0.3, 0.3):
        chart.level(level, "", "level-budget")
    return chart.render()


def _heading(track: Track) -> str:
    heading = np.rad2deg(track.column("heading_rad"))
    chart = _over_time(track, "heading, deg", "Heading against the road", heading, 2.0)
    _judged_and_not(chart, track, heading)
    return chart.render()


def _over_time(track: Track, label: str, what: str, values: Floats, span: float) -> Chart:
    """Return an empty chart for values that are positive to the right."""
    time_range = (0.0, max(float(track.column("time_s").max()), 1.0))
    value_range = padded_range(values, minimum_span=span)
    about = f"{what} over time, positive to the right"
    return Chart(_WIDTH, 190, time_range, value_range, "s", label, about)


def _judged_and_not(chart: Chart, track: Track, values: Floats) -> None:
    """Draw values, pale where they are not judged, with dots where the car was out of its lane."""
    time = track.column("time_s")
    chart.line(time, values, "other")
    chart.line(time, np.where(track.column("counts") > 0.0, values, np.nan), "driven")
    out = track.column("out") > 0.0
    chart.dots(time[out], values[out], "out-dot")


def _speed(track: Track) -> str:
    time, speed = track.column("time_s"), track.column("speed_mps")
    limit = track.trial.world.speed_limit_mps
    chart = Chart(
        _WIDTH,
        170,
        (0.0, max(float(time.max()), 1.0)),
        padded_range(np.append(speed, limit), floor=0.0, minimum_span=5.0),
        "s",
        "speed, m/s",
        "Speed over time, and the limit of the road",
    )
    chart.line(np.array([0.0, time.max()]), np.array([limit, limit]), "limit")
    chart.line(time, speed, "driven")
    return chart.render()

"""Renders the report of a regression as one self-contained HTML page without scripts.

It starts with the verdict in a sentence and a table of drives. Each changed drive has its worst
frames with both planned paths, causes, gates and effects in metres; all outputs and their curves
are collapsed. Execution times and environments of both sides follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from runtime.texts import count_text, size_text
from tools.behaviour.describe import (
    TITLE,
    behaviour_part,
    gates_sentence,
    length_text,
    path_sentence,
    worst_path,
)
from tools.compare.findings import Comparison, FieldSeries
from tools.errors import ToolError
from tools.regress.judge.frame_changes import Change
from tools.regress.judge.packing import unpack
from tools.regress.judge.reference import Histogram, histogram
from tools.regress.judge.verdict import DriveVerdict
from tools.regress.run import Plan, RunVerdict, TimingOutcome
from tools.regress.run_facts import differing
from tools.regress.tell.pictures import draw, plans_of, take_shots, worst_frames
from tools.regress.tell.summary import conclusion
from tools.regress.tell.whole import whole_section
from tools.report.report_page import (
    Chart,
    Margins,
    folded,
    padded_range,
    tiles_section,
    whole_page,
    write_page,
)

# Limits on the page's length; the JSON contains everything.
MAX_CHANGES = 40
MAX_PLOTS = 9
MAX_PICTURES = 2
# Maximum number of drives whose frames are decoded again for pictures.
MAX_PICTURED_DRIVES = 8
# Kinds of changes that have their own table or a collapsed one.
FOLDED = ("outputs", "gate")
_STATUS = {"failed": "not judged"}

MORE_STYLE = """
.passed { color: var(--good); } .changed { color: var(--bad); font-weight: 600; }
.failed { color: var(--unsure); font-weight: 600; }
.chart .before { stroke: #64748b; stroke-width: 2.6; } .chart .now { stroke: #dc2626; }
.key.before { background: #64748b; } .key.now { background: #dc2626; }
.path-now { fill: #dc2626; fill-opacity: 0.35; stroke: #dc2626; stroke-width: 2; }
.path-before { fill: none; stroke: #22c55e; stroke-width: 4; stroke-dasharray: 14 8; }
.key.path-before { background: #22c55e; } .key.path-now { background: #dc2626; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr));
  gap: 16px; }
td.name { white-space: nowrap; }
"""


def write_report(path: Path, plan: Plan, verdict: RunVerdict) -> None:
    """Write the page atomically.

    Raises:
        UsageError: the file cannot be written.
    """
    write_page(path, [render(plan, verdict)])


def render(plan: Plan, verdict: RunVerdict) -> str:
    """Return the page as HTML text."""
    title = f"Regression of {plan.model.name}"
    told = [drive for drive in verdict.drives if drive.changes or drive.meant]
    told.sort(key=_badness, reverse=True)
    held = [drive for drive in verdict.drives if drive.behaviour.gates and drive not in told]
    whole = whole_section(verdict.whole, (verdict.against or "reference", "now"))
    is_one = len(verdict.drives) == 1
    sections = [
        f"<header><h1>{escape(title)}</h1>{_summary(verdict)}</header>",
        _tiles(verdict),
        _table(verdict),
        # The section of a single drive has more detail and pictures.
        "" if is_one else whole,
        *(_drive(plan, drive, number < MAX_PICTURED_DRIVES) for number, drive in enumerate(told)),
        *(_gates(drive) for drive in held),
        whole if is_one else "",
        _timing(verdict),
        _environment(verdict),
    ]
    return whole_page(title, sections, MORE_STYLE)


def _summary(verdict: RunVerdict) -> str:
    """Return the conclusion and the effect on the drives, as paragraphs."""
    rows = [row for drive in verdict.drives for row in drive.behaviour.rows]
    gates = [gate for drive in verdict.drives for gate in drive.behaviour.gates]
    errors = [drive.error for drive in verdict.drives if drive.status == "failed"]
    css = "unsure" if errors else "bad" if verdict.exit_code else "good"
    said = [(f"lead {css}", conclusion(verdict)), *(("", error) for error in errors[:1])]
    metres = " ".join(filter(None, (path_sentence(rows), gates_sentence(gates))))
    said += [("lead", metres)] if metres else []
    return "".join(f'<p class="{css}">{_with_code(text)}</p>' for css, text in said)


def _with_code(text: str) -> str:
    """Return text as HTML; text in backticks becomes code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if at % 2 else one for at, one in enumerate(pieces))


def _tiles(verdict: RunVerdict) -> str:
    states = [drive.status for drive in verdict.drives]
    slower = [timing.verdict.slower for timing in verdict.timings]
    known = [value for value in slower if value is not None]
    tiles = [
        ("drives", str(len(states)), ""),
        ("passed", str(states.count("passed")), ""),
        ("changed", str(states.count("changed")), ""),
        ("not judged", str(states.count("failed")), ""),
    ]
    if known:
        tiles.append(("speed", f"{max(known):+.1%}", "slower than the reference"))
    return tiles_section(tiles)


def _table(verdict: RunVerdict) -> str:
    rows = []
    for drive in sorted(verdict.drives, key=_badness, reverse=True):
        measured = drive.result.measured if drive.result and not drive.error else None
        moved = worst_path(drive.behaviour.rows)
        cells = [
            f'<td class="{drive.status}">{_STATUS.get(drive.status, drive.status)}</td>',
            f'<td class="name">{escape(drive.name)}</td><td>{escape(drive.summary)}</td>',
            *(
                f'<td class="number">{text}</td>'
                for text in (
                    length_text(moved.max) if moved else "-",
                    f"{measured.wall_s:.1f} s" if measured else "-",
                    size_text(measured.peak_rss_bytes) if measured else "-",
                )
            ),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("", "drive", "result"))
    head += "".join(
        f'<th class="number">{name}</th>' for name in ("path moves at most", "time", "memory")
    )
    accepted = "".join(f"<p>{escape(line)}</p>" for line in verdict.accepted)
    return (
        f"<section><h2>Drives</h2><table><tr>{head}</tr>{''.join(rows)}</table>{accepted}</section>"
    )


def _badness(drive: DriveVerdict) -> tuple[int, float]:
    """Return the sort key of a drive: not judged, changed, passed; then the path's displacement."""
    moved = worst_path(drive.behaviour.rows)
    return ("passed", "changed", "failed").index(drive.status), moved.max if moved else 0.0


def _drive(plan: Plan, drive: DriveVerdict, with_pictures: bool) -> str:
    causes = [_change(one, one.kind) for one in drive.changes if one.kind not in FOLDED]
    outputs = [_change(one, one.kind) for one in drive.changes if one.kind == "outputs"]
    meant = [_change(one, f"meant: {one.kind}") for one in drive.meant]
    fields = count_text(len(outputs), "output") + " beyond tolerance"
    overridden = count_text(len(meant), "change") + " overridden by gates"
    lead = path_sentence(drive.behaviour.rows)
    warnings = drive.comparison.warnings if drive.comparison else ()
    notes = "".join(f"<p>{escape(text)}</p>" for text in warnings)
    pictures = _pictures(plan, drive) if with_pictures else ""
    return (
        f'<section><h2>{escape(drive.name)}</h2><p class="lead">{escape(lead)}</p>{pictures}'
        f"{_listed(causes)}{notes}{_behaviour(drive)}{folded(fields, _listed(outputs))}"
        f"{folded(overridden, _listed(meant))}"
        f"{folded('Curves of the fields that differ most', _plots(drive.comparison))}</section>"
    )


def _gates(drive: DriveVerdict) -> str:
    """Return the section of an unchanged drive that has gates."""
    return f"<section><h2>{escape(drive.name)}</h2>{_behaviour(drive)}</section>"


def _behaviour(drive: DriveVerdict) -> str:
    content = behaviour_part(drive.behaviour, ("reference", "now"))
    return f"<h3>{TITLE}</h3>{content}" if content else ""


def _listed(rows: Sequence[str]) -> str:
    if not rows:
        return ""
    rest = len(rows) - MAX_CHANGES
    more = f"<p>{rest} more are in the JSON.</p>" if rest > 0 else ""
    return f"<table>{''.join(rows[:MAX_CHANGES])}</table>{more}"


def _change(change: Change, kind: str) -> str:
    return f"<tr><th>{kind}</th><td>{escape(change.text)}</td></tr>"


def _plots(comparison: Comparison | None) -> str:
    """Draw the curves of the fields with findings, worst first."""
    if comparison is None:
        return ""
    curves = {(series.service, series.field): series for series in comparison.series}
    names = dict.fromkeys((finding.service, finding.field) for finding in comparison.findings)
    chosen = [curves[name] for name in names if name in curves][:MAX_PLOTS]
    if not chosen:
        return ""
    figures = "".join(_plot(series) for series in chosen)
    return (
        '<p>Mean over the field, frame by frame: <span class="key before"></span>reference '
        f'<span class="key now"></span>now.</p><div class="row">{figures}</div>'
    )


def _plot(series: FieldSeries) -> str:
    name = f"{series.service}.{series.field}"
    frames = series.frames.astype(np.float64)
    if not frames.size:
        return ""
    x_range = (float(frames.min()), max(float(frames.max()), float(frames.min()) + 1.0))
    values = np.concatenate([series.left, series.right])
    finite = values[np.isfinite(values)]
    span = float(np.ptp(finite)) if finite.size else 0.0
    # Leave some room around a constant field, whatever its unit.
    size = float(np.abs(finite).max()) if finite.size else 0.0
    limits = padded_range(values, minimum_span=max(span, 1e-6 * size, 1e-9))
    margins = Margins(left=74)
    chart = Chart(362, 190, x_range, limits, "frame id", "", f"{name}, both sides", margins)
    chart.line(frames, series.left, "before")
    chart.line(frames, series.right, "now")
    return f"<figure><h3>{escape(name)}</h3>{chart.render()}</figure>"


def _pictures(plan: Plan, drive: DriveVerdict) -> str:
    """Draw both planned paths over the worst frames; an unreadable drive only lacks pictures."""
    if drive.comparison is None or drive.reference is None or drive.result is None:
        return ""
    before, now = unpack(drive.reference.outputs), unpack(drive.result.outputs)
    plans_before, plans_now = plans_of(before), plans_of(now)
    wanted = worst_frames(drive, MAX_PICTURES)
    try:
        shots = take_shots(drive.text, plan.options, now, wanted)
    except ToolError as error:
        return f'<p class="warning">No pictures: {escape(str(error))}</p>'
    if not shots:
        return ""
    figures = "".join(
        f"<figure>{draw(shot, plans_before.get(shot.frame_id), plans_now.get(shot.frame_id))}"
        f"<figcaption>frame {shot.frame_id}</figcaption></figure>"
        for shot in sorted(shots, key=lambda shot: wanted.index(shot.frame_id))
    )
    return (
        '<p>Planned path at the worst frames: <span class="key path-before"></span>reference '
        f'<span class="key path-now"></span>now.</p><div class="pair">{figures}</div>'
    )


def _timing(verdict: RunVerdict) -> str:
    rows = "".join(_timing_row(timing) for timing in verdict.timings)
    gate = f"<table>{rows}</table>" if rows else "<p>The speed was not judged.</p>"
    # With another model, times are not drawn: the sides played the drives at different times.
    judged = [one for one in verdict.drives if one.reference and one.result and not verdict.against]
    charts = "".join(
        _histograms(drive.name, drive.reference.execution, drive.result.measured.execution_s)
        for drive in judged[:MAX_PICTURED_DRIVES]
        if drive.reference and drive.result
    )
    note = (
        "<p>Execution time of the drives' frames, share of the frames: "
        '<span class="key before"></span>when the reference was made <span class="key now"></span>'
        "now. These are wall times of different moments, maybe of different machines: they are not "
        "judged.</p>"
    )
    drawn = f'{note}<div class="row">{charts}</div>' if charts else ""
    return f"<section><h2>Time</h2>{gate}{drawn}</section>"


def _timing_row(timing: TimingOutcome) -> str:
    state = timing.status
    detail = ""
    if timing.result is not None:
        ratio = timing.result.ratio
        detail = (
            f"; {ratio.mean:.3f} times the calibration workload ({ratio.low:.3f} to "
            f"{ratio.high:.3f}), {timing.result.model_ms:.1f} ms on one core"
        )
    text = "<br>".join(map(escape, (timing.verdict.text + detail, *timing.verdict.lines)))
    return (
        f'<tr><td class="{state.split()[-1]}">{state}</td><td>{escape(timing.entry)}</td>'
        f"<td>{text}</td></tr>"
    )


def _histograms(name: str, before: Histogram, execution_s: Sequence[float]) -> str:
    now = histogram(tuple(execution_s))
    sides = [(side, css) for side, css in ((before, "before"), (now, "now")) if side.counts]
    if not sides:
        return ""
    low = min(side.start_ms for side, _ in sides)
    high = max(side.start_ms + side.step_ms * len(side.counts) for side, _ in sides)
    top = max(max(side.counts) / sum(side.counts) / side.step_ms for side, _ in sides)
    about = f"{name}: execution times"
    chart = Chart(362, 190, (low, max(high, low + 0.1)), (0.0, 1.1 * top), "ms", "", about)
    for side, css in sides:
        edges = side.start_ms + side.step_ms * np.arange(len(side.counts) + 1)
        # Densities per millisecond, so that bins of different widths enclose the same area.
        share = np.array(side.counts) / sum(side.counts) / side.step_ms
        chart.line(np.repeat(edges, 2)[1:-1], np.repeat(share, 2), css)
    medians = ", ".join(f"{side.median_ms:.1f} ms {css}" for side, css in sides)
    return (
        f"<figure><h3>{escape(name)}</h3>{chart.render()}"
        f"<figcaption>medians: {medians}</figcaption></figure>"
    )


def _environment(verdict: RunVerdict) -> str:
    reference = next((drive.reference for drive in verdict.drives if drive.reference), None)
    before: Mapping[str, str] = reference.provenance if reference else {}
    now = verdict.environment
    unlike = set(differing(before, now)) if before else set()
    names = dict.fromkeys([*before, *now])
    rows = {
        name: f"<tr><th>{escape(name)}</th>"
        f'<td class="long">{escape(before.get(name, "-"))}</td>'
        f'<td class="long">{escape(now.get(name, "-"))}</td></tr>'
        for name in names
    }
    head = "<tr><th></th><th>reference</th><th>now</th></tr>"
    differ = "".join(rows[name] for name in names if name in unlike)
    same = "".join(rows[name] for name in names if name not in unlike)
    same += "".join(
        f'<tr><th>{escape(name)}</th><td></td><td class="long">{escape(value)}</td></tr>'
        for name, value in verdict.model.items()
    )
    if reference is None:
        said = "There is no reference to compare with."
    elif unlike:
        said = f"This differs between the reference of {reference.drive.name} and this run."
    else:
        said = f"The reference of {reference.drive.name} and this run ran in the same place."
    shown = f"<table>{head}{differ}</table>" if differ else ""
    title = "Everything else" if differ else "Details"
    return (
        f"<section><h2>Where both sides ran</h2><p>{escape(said)}</p>{shown}"
        f"{folded(title, f'<table>{head}{same}</table>')}</section>"
    )

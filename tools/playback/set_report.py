"""Writes one page about several drives and models, with the models side by side for each drive.

The page has no script and no external resource, like ``tools.report.report``. It is written drive
by drive, so that memory use does not grow with the number of drives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cereal.errors import LogError
from runtime.texts import count_text
from tools.compare.compare import compare_logs
from tools.compare.page import COMPARE_STYLE, findings_part, verdict_part
from tools.errors import CompareError
from tools.messages.drive_log import DriveLog
from tools.playback.pictures import main_camera
from tools.playback.result import DriveResult
from tools.report.report import MEASURED_TIMES, WARM_UP_FRAMES, Picture, Report, panel, road_figure
from tools.report.report_page import (
    PAGE_END,
    Chart,
    facts_part,
    folded,
    padded_range,
    page_start,
    write_page,
)

Values = NDArray[np.float64]

# One color per model, distinguishable by color-blind readers, from Okabe and Ito (2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
# Enough bins to show the shape of the distribution, and few enough for a minute of frames.
BINS = 60
# Pictures per drive. Each is shown once for every model, so more would make the page long.
PICTURES = 2
# Findings shown for each pair of models; `modeld compare` shows all of them, with plots.
FINDINGS = 8
_EXTRA_STYLE = """
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 12px 16px; margin: 16px 0; }
.beside figcaption { color: var(--soft); font-size: 13px; }
""" + "".join(
    f".chart .model-{i} {{ stroke: {c}; }} .model-key-{i} {{ background: {c}; }}\n"
    for i, c in enumerate(COLOURS)
)


def write_set_report(
    path: Path, title: str, drives: Iterable[Sequence[DriveResult]], errors: Sequence[str]
) -> None:
    """Write the page; the file appears complete or not at all.

    `title`: heading of the page. `drives`: for each drive, a result for each model. Drives are
    read one at a time, so they can be played while the page is written. `errors`: one line for
    each missing drive; read after the last drive.

    Raises:
        UsageError: the file cannot be written.
    """
    write_page(path, _parts(title, drives, errors))


def _parts(
    title: str, drives: Iterable[Sequence[DriveResult]], errors: Sequence[str]
) -> Iterator[str]:
    yield (
        page_start(title, COMPARE_STYLE + _EXTRA_STYLE) + f"<header><h1>{escape(title)}</h1>"
        "<p>Each drive with all models: how they differ, and the same frames side by side. "
        f"Execution times are {escape(MEASURED_TIMES)}.</p></header>"
    )
    for results in drives:
        if results:
            yield _drive_section(results)
    if errors:
        items = "".join(f"<li>{escape(error)}</li>" for error in errors)
        yield f'<section><p class="warning">Not replayed:</p><ul>{items}</ul></section>'
    yield PAGE_END


def _drive_section(results: Sequence[DriveResult]) -> str:
    info = results[0].info
    parts = [f"<section><h2>{escape(info.name)}</h2>", _table(results)]
    if any(result.drive.frame_ids.size for result in results):
        parts += [_differences(results), _panels(results), _charts(results)]
    facts = folded("About the drive", facts_part(info.facts))
    return "".join([*parts, facts, "</section>"])


def _table(results: Sequence[DriveResult]) -> str:
    rows = []
    for index, result in enumerate(results):
        figures = result.as_json()
        times = figures["execution_ms"] or {}
        cells = [
            figures["frames"],
            figures["published"],
            figures["valid"],
            *(f"{times[name]:.1f}" if name in times else "-" for name in ("median", "p99", "max")),
            result.problem or "",
        ]
        rows.append(
            f'<tr><th><span class="key model-key-{index % len(COLOURS)}"></span>'
            f"{escape(result.model.name)}</th>"
            + "".join(f'<td class="number">{escape(str(cell))}</td>' for cell in cells)
            + "</tr>"
        )
    heads = ("model", "frames", "published", "valid", "median ms", "p99 ms", "maximum ms", "")
    head = "".join(
        f'<th class="{"number" if at else ""}">{name}</th>' for at, name in enumerate(heads)
    )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _charts(results: Sequence[DriveResult]) -> str:
    charts = [_histogram(results)]
    for title, label, minimum_span, name, scale in (
        ("Planned speed", "m/s", 4.0, "plan_speed_mps", 1.0),
        ("Desired curvature", "1/km", 2.0, "curvature_1pm", 1e3),
        ("Desired acceleration", "m/s²", 1.0, "acceleration_mps2", 1.0),
    ):
        curves = [(result.drive, scale * getattr(result.drive, name)) for result in results]
        charts.append(_over_time(title, label, minimum_span, curves))
    return f'<div class="row four">{"".join(charts)}</div>'


def _over_time(
    title: str, label: str, minimum_span: float, curves: Sequence[tuple[DriveLog, Values]]
) -> str:
    end_s = max((float(drive.times_s[-1]) for drive, _ in curves if drive.times_s.size), default=0)
    limits = padded_range(
        np.concatenate([values for _, values in curves]), minimum_span=minimum_span
    )
    chart = Chart(362, 210, (0.0, max(end_s, 0.1)), limits, "s", label, title)
    for index, (drive, values) in enumerate(curves):
        chart.line(drive.times_s, values, f"model-{index % len(COLOURS)}")
    return f"<figure><h3>{escape(title)}</h3>{chart.render()}</figure>"


def _histogram(results: Sequence[DriveResult]) -> str:
    """Draw the distribution of execution times; the slowest 1 % are in the last bin."""
    title = "Execution time"
    times = [result.drive.execution_ms for result in results]
    finite = [one[np.isfinite(one)] for one in times]
    everything = np.concatenate(finite)
    if not everything.size:
        return ""
    top = max(1.2 * float(np.percentile(everything, 99)), 1.0)
    edges = np.linspace(0.0, top, BINS + 1)
    counts = [np.histogram(np.minimum(one, top), edges)[0].astype(float) for one in finite]
    highest = max(float(one.max()) for one in counts)
    chart = Chart(362, 210, (0.0, top), (0.0, max(highest, 1.0)), "ms", "frames", title)
    for index, heights in enumerate(counts):
        # Draw each bin as a step from its left to its right edge.
        chart.line(
            np.repeat(edges, 2)[1:-1], np.repeat(heights, 2), f"model-{index % len(COLOURS)}"
        )
    return f"<figure><h3>{title}</h3>{chart.render()}</figure>"


def _differences(results: Sequence[DriveResult]) -> str:
    """Compare each further model's log with the first one's."""
    first, *others = results
    parts = []
    for other in others:
        names = f"<h3>{escape(first.model.name)} and {escape(other.model.name)}</h3>"
        try:
            comparison = compare_logs(first.log, other.log)
        except (CompareError, LogError) as error:
            parts.append(f'{names}<p class="warning">{escape(str(error))}</p>')
            continue
        findings = comparison.findings
        more = len(findings) - FINDINGS
        rest = f"<p>and {count_text(more, 'finding')} more</p>" if more > 0 else ""
        title = count_text(len(findings), "finding")
        listed = folded(title, findings_part(findings[:FINDINGS]) + rest) if findings else ""
        parts.append(names + verdict_part(comparison, with_names=False) + listed)
    return "".join(parts)


def _panels(results: Sequence[DriveResult]) -> str:
    """Show the same frames with the output of each model."""
    camera = main_camera(results[0].info)
    if camera is None:
        return ""
    panels = []
    drawn = panel if len(results) == 1 else road_figure
    # Earlier frames have too little history for the model.
    pictures = [one for one in results[0].pictures if one[0] >= WARM_UP_FRAMES]
    pictures = pictures or list(results[0].pictures)
    for position in _spread(len(pictures)):
        frame_id, jpeg = pictures[position]
        for result in results:
            if frame_id not in result.drive.curves:
                continue
            row = int(np.flatnonzero(result.drive.frame_ids == frame_id)[0])
            report = Report(
                title=result.model.name,
                summary="",
                facts={},
                drive=result.drive,
                frames_sent=0,
                pictures=[],
                mounting=result.info.mounting,
            )
            panels.append(drawn(Picture(row, jpeg, camera), report))
    shown = "".join(panels)
    return shown if len(results) == 1 else f'<div class="beside">{shown}</div>'


def _spread(count: int) -> list[int]:
    rows: list[int] = np.linspace(0, count - 1, min(count, PICTURES)).round().astype(int).tolist()
    return rows

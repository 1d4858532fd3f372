"""One self-contained page about two logs: verdict, worst frame, metres; the rest is folded."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cereal.errors import CerealError
from cereal.log_reader import read_log
from runtime.quantities import count_text
from tools.behaviour.describe import TITLE, behaviour_part, worst_frame
from tools.compare.findings import Comparison
from tools.compare.page_parts import (
    COMPARE_STYLE,
    findings_part,
    plots_part,
    statistics_part,
    verdict_part,
)
from tools.report.report_page import folded, title_of_two, whole_page, write_page
from tools.report.svg import Chart, padded_range

# --- the worst frame from above, drawn from the logs alone: no camera frame is needed -------------

# As far as a path is drawn, and what the model may say of it at most.
FAR_M = 100.0
_SIZE = (560, 190)

Points = NDArray[np.float64]


def worst_paths(comparison: Comparison) -> tuple[int, Points, Points] | None:
    """Return the worst frame and the paths of both logs in it, read once more from their files.

    The result is the frame id, and twice (n, 2) float64 in metres (x forward, y right); None where
    no path moves, or a log is no file that can be read again.
    """
    frame = worst_frame(comparison.behaviour.rows)
    if frame < 0:
        return None
    paths = [_path_at(Path(name), frame) for name in (comparison.left, comparison.right)]
    left, right = paths
    return None if left is None or right is None else (frame, left, right)


def _path_at(log: Path, frame: int) -> Points | None:
    try:
        for event in read_log(log):
            if event.which() == "modelV2" and event.modelV2.frameId == frame:
                position = event.modelV2.position
                x, y = list(position.x), list(position.y)
                return np.array([x, y], np.float64).T if len(x) == len(y) else None
    except (CerealError, OSError):
        return None
    return None


def paths_part(frame: int, left: Points, right: Points, sides: tuple[str, str]) -> str:
    """Return two charts as HTML: both paths from above, and the distance between them.

    `frame`: its id. `left`: (n, 2) path of the reference in metres. `right`: (n, 2) path of the
    other side. `sides`: what both are called.
    """
    here, there = (path[_drawn(path)] for path in (left, right))
    if len(here) < 2 or len(there) < 2:
        return ""
    lateral = np.concatenate([here[:, 1], there[:, 1]])
    far = float(min(max(here[-1, 0], there[-1, 0]), FAR_M))
    about = f"Both paths of frame {frame} from above"
    limits = padded_range(lateral, minimum_span=1.0)
    above = Chart(*_SIZE, (0.0, max(far, 1.0)), limits, "m ahead", "m to the right", about)
    above.line(here[:, 0], here[:, 1], "left-line")
    above.line(there[:, 0], there[:, 1], "right-line")
    apart = np.interp(here[:, 0], there[:, 0], there[:, 1], right=math.nan) - here[:, 1]
    factor, unit = (1e3, "mm") if _largest(apart) < 0.1 else (1.0, "m")
    about = f"How far the path of frame {frame} moves to the right"
    between = Chart(
        *_SIZE,
        (0.0, max(far, 1.0)),
        padded_range(factor * apart, minimum_span=1e-3),
        "m ahead",
        f"{unit} to the right",
        about,
    )
    between.line(here[:, 0], factor * apart, "off-line")
    return (
        f'<div class="pair"><h3>Frame {frame}, in which the path moves most: '
        f'<span class="key left-key"></span>{sides[0]} <span class="key right-key"></span>'
        f'{sides[1]} <span class="key off-key"></span>between them</h3>'
        f"{above.render()}{between.render()}</div>"
    )


def _drawn(path: Points) -> NDArray[np.bool_]:
    """Return which points are finite, near, and further ahead than the one before."""
    x = path[:, 0]
    ahead = np.append(True, x[1:] > np.maximum.accumulate(x)[:-1])[: x.size]
    drawn: NDArray[np.bool_] = np.isfinite(path).all(axis=1) & (x <= FAR_M) & ahead
    return drawn


def _largest(values: Points) -> float:
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page; the file appears complete or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    write_page(path, [render(comparison)])


def render(comparison: Comparison) -> str:
    """Return the page as HTML text."""
    title = title_of_two(comparison.left, comparison.right)
    findings, worst = comparison.findings, worst_paths(comparison)
    sections = [
        f"<header><h1>{escape(title)}</h1>{verdict_part(comparison)}</header>",
        "" if worst is None else f"<section>{paths_part(*worst, ('left', 'right'))}</section>",
        _section(TITLE, behaviour_part(comparison.behaviour, ("left", "right"))),
        folded(count_text(len(findings), "finding"), findings_part(findings)),
        folded("Curves of the fields that differ most", plots_part(findings, comparison.series)),
        folded("Fields not equal to the last bit", statistics_part(comparison.statistics)),
    ]
    return whole_page(title, sections, COMPARE_STYLE)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""

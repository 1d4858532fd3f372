"""One self-contained page about two logs: verdict, worst frame, metres; the rest is folded."""

from __future__ import annotations

from html import escape
from pathlib import Path

from runtime.quantities import count_text
from tools.behaviour.describe import TITLE, behaviour_part
from tools.compare.findings import Comparison
from tools.compare.page_parts import (
    COMPARE_STYLE,
    findings_part,
    plots_part,
    statistics_part,
    verdict_part,
)
from tools.compare.paths_part import paths_part, worst_paths
from tools.report.report_page import folded, title_of_two, whole_page, write_page


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

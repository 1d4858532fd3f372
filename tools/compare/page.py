"""One self-contained page about two logs: verdict, findings, plots, statistics. No script."""

from __future__ import annotations

from html import escape
from pathlib import Path

from tools.behaviour.describe import TITLE, behaviour_part
from tools.compare.findings import Comparison
from tools.compare.page_parts import (
    COMPARE_STYLE,
    findings_part,
    plots_part,
    statistics_part,
    verdict_part,
)
from tools.lib.report_page import whole_page, write_page


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page; the file appears complete or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    write_page(path, [render(comparison)])


def render(comparison: Comparison) -> str:
    """Return the page as HTML text."""
    title = f"{Path(comparison.left).name} and {Path(comparison.right).name}"
    sections = [
        f"<header><h1>{escape(title)}</h1>{verdict_part(comparison)}</header>",
        _section(TITLE, behaviour_part(comparison.behaviour, ("left", "right"))),
        _section("Findings", findings_part(comparison.findings)),
        _section("Plots", plots_part(comparison.findings, comparison.series)),
        _section("Fields not equal to the last bit", statistics_part(comparison.statistics)),
    ]
    return whole_page(title, sections, COMPARE_STYLE)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""

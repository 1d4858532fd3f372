"""One self-contained page about two logs: verdict, findings, plots, statistics. No script."""

from __future__ import annotations

from html import escape
from pathlib import Path

from runtime.whole_file import whole_file
from tools.compare.findings import Comparison
from tools.compare.page_parts import (
    COMPARE_STYLE,
    findings_part,
    plots_part,
    statistics_part,
    verdict_part,
)
from tools.errors import UsageError
from tools.lib.report_style import STYLE


def write_page(path: Path, comparison: Comparison) -> None:
    """Write the page; the file appears complete or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    content = render(comparison).encode("utf-8", "replace")
    try:
        with whole_file(path) as file:
            file.write(content)
    except OSError as error:
        raise UsageError(
            f"{path}: the page cannot be written ({error.strerror or error}); name another file"
        ) from error


def render(comparison: Comparison) -> str:
    """Return the page as HTML text."""
    title = f"{Path(comparison.left).name} and {Path(comparison.right).name}"
    sections = [
        f"<header><h1>{escape(title)}</h1>{verdict_part(comparison)}</header>",
        _section("Findings", findings_part(comparison.findings)),
        _section("Plots", plots_part(comparison.findings, comparison.series)),
        _section("Fields not equal to the last bit", statistics_part(comparison.statistics)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}{COMPARE_STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""

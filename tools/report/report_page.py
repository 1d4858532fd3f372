"""The frame that all reports share: page, tiles, and how it is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from runtime.files.whole_file import whole_file
from tools.errors import UsageError
from tools.report.report_style import STYLE

PAGE_END = "</main></body></html>\n"
# What is read from right to left, digit below digit: with a unit, or none at all.
_NUMBER: Final = re.compile(
    r"-|[<+\u2212-]?\s?\d[\d,.]*(e[+-]?\d+)?"
    r"( ?(%|\u00b0|[mc]?m|m?s|m/s[2\u00b2]?|rad|deg|KiB|MiB))?",
    re.ASCII,
)
# Words that judge, as commands write them, and how they look.
_WORDS: Final = {
    **dict.fromkeys(("holds", "AGREE", "passed"), "good"),
    **dict.fromkeys(("fails", "FAILS", "DIFFER", "changed"), "bad"),
    **dict.fromkeys(("FAILED", "not judged"), "unsure"),
}


def page_start(title: str, more_style: str = "") -> str:
    """Return what a page begins with, up to its first section.

    Args:
        title: of the window; plain text.
        more_style: what follows the common style sheet.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}{more_style}</style></head><body><main>"
    )


def whole_page(title: str, sections: Iterable[str], more_style: str = "") -> str:
    """Return a page as HTML text."""
    return f"{page_start(title, more_style)}{''.join(sections)}{PAGE_END}"


def title_of_two(left: str, right: str) -> str:
    """Return what a page about two files is called: what they share is written once.

    Args:
        left: path of the first.
        right: path of the second.
    """
    first, second = Path(left), Path(right)
    if first.name != second.name or first.parent.name == second.parent.name:
        return f"{first.name} and {second.name}"
    return f"{first.name}: {first.parent.name} and {second.parent.name}"


def tiles_section(tiles: Sequence[tuple[str, str, str]]) -> str:
    """Return a row of tiles: name, value and note of each, plain text."""
    cells = "".join(
        f'<div class="tile"><span class="name">{escape(name)}</span>'
        f'<span class="value">{escape(value)}</span><span class="note">{escape(note)}</span></div>'
        for name, value, note in tiles
    )
    return f'<section class="tiles">{cells}</section>'


def table_part(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of plain text that scrolls sideways where it is wider than the page.

    Numbers stand on the right, and are never broken. A title stands over its first cell.
    """
    drawn = list(rows)
    first = drawn[0] if drawn else ()
    head = "".join(
        f"<th{_css(cell) if _NUMBER.fullmatch(cell) else ''}>{escape(title)}</th>"
        for title, cell in zip(header, [*first, *[""] * len(header)], strict=False)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{_css(cell)}>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in drawn
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _css(cell: str) -> str:
    css = "number" if _NUMBER.fullmatch(cell) else _WORDS.get(cell, "")
    return f' class="{css}"' if css else ""


def facts_part(facts: Mapping[str, str]) -> str:
    """Return a table of names and texts, which may be long and break anywhere."""
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="long">{escape(text)}</td></tr>'
        for name, text in facts.items()
    )
    return f"<table>{rows}</table>"


def folded(summary: str, content: str) -> str:
    """Return HTML behind a line of plain text that opens it; "" for none."""
    if not content:
        return ""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def write_page(path: Path, parts: Iterable[str]) -> None:
    """Write a page; the file appears complete or not at all.

    Args:
        path: of the page.
        parts: its text, taken one by one, so that they may be made while the page is written.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with whole_file(path) as file:
            for part in parts:
                # A file name may hold bytes that are no text; it must not cost the report.
                file.write(part.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(
            f"{path}: the report cannot be written ({error.strerror or error}); free some disk "
            "space or name another file"
        ) from error

"""Turns the docstring of a command's module into the text of ``--help``.

A docstring has a summary, paragraphs, and after a line ``Example:`` indented command lines. The
summary may begin with the command's name, which the usage line already shows.
"""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Iterable

_NAME = re.compile(r"^`+modeld [\w-]+`+: *")
_EXAMPLE = re.compile(r"^Examples?:{1,2}\n\n?((?:[ \t]+\S.*\n?)+)", re.MULTILINE)


def split_docstring(docstring: str) -> tuple[str, str]:
    """Return the text for people of a module's docstring, and its example lines, "" without any."""
    text = docstring.strip()
    found = _EXAMPLE.search(text)
    examples = textwrap.dedent(found[1]).strip() if found else ""
    text = _EXAMPLE.sub("", text).strip()
    name = _NAME.match(text)
    if name:
        text = text[name.end() :]
    return text[:1].upper() + text[1:], examples


def epilog(examples: str, *more: str) -> str:
    """Return the end of a help text: the examples, and other sections as they are."""
    lines = examples.splitlines()
    title = "example:" if len(lines) == 1 else "examples:"
    shown = [f"{title}\n{textwrap.indent(examples, '  ')}"] if lines else []
    return "\n\n".join([*shown, *more])


def nearest(word: object, known: Iterable[str]) -> str:
    """Return " (did you mean ...?)" for what comes nearest to a word, "" where nothing does."""
    found = difflib.get_close_matches(str(word), list(known), 1)
    return f" (did you mean {found[0]}?)" if found else ""


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs and lists to the terminal; lines that are to be typed stay whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = re.split(r"\n\s*\n", _plain(text).strip("\n"))
        filled = []
        for paragraph in paragraphs:
            lines = paragraph.splitlines()
            if not any(line.startswith(" ") for line in lines):
                lines = [" ".join(lines)]
            filled.append("\n".join(_fill(line, width, indent) for line in lines))
        return "\n\n".join(filled)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return super()._split_lines(_plain(text), width)


def _plain(text: str) -> str:
    return text.replace("`", "")


def _fill(line: str, width: int, indent: str) -> str:
    """Return a line in several that fit; of a list's item all but the first are indented more."""
    item = re.match(r" +\S+  +", line)
    if line.startswith("  modeld "):
        return indent + line
    return textwrap.fill(
        line,
        width,
        initial_indent=indent,
        subsequent_indent=indent + " " * (item.end() if item else 0),
        break_long_words=False,
        break_on_hyphens=False,
    )

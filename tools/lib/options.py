"""Helpers for command line options: bounds of numbers, conflicting options, help texts.

All commands use the numeric types of this module, which have bounds and refuse NaN, so no command
receives a number that it cannot handle.

The text of a command's ``--help`` is its module's docstring: a summary, paragraphs, and indented
command lines after a line ``Example:``. If the summary begins with the command's name, the help
text omits that, because the usage line already shows it.
"""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tools.errors import UsageError

MOST_COUNT: Final = 100_000_000  # runs, frames or messages: two months at 20 Hz
MOST_SEED: Final = 2**63 - 1  # seeds are stored as signed 64-bit integers
MOST_S: Final = 1e7  # four months
MOST_PX: Final = 1e5
MOST_HZ: Final = 1e4

_NAME = re.compile(r"^`+modeld [\w-]+`+: *")
_EXAMPLE = re.compile(r"^Examples?:{1,2}\n\n?((?:[ \t]+\S.*\n?)+)", re.MULTILINE)


def whole(option: str, least: int = 1, most: int = MOST_COUNT) -> Callable[[str], int]:
    """Return the argument type of an option for integers from `least` to `most`.

    The type raises `UsageError` for any other text.
    """

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise UsageError(
                f"{option}: expected a whole number from {least} to {most}, found {text}"
            )
        return number

    return parse


def seed(option: str = "--seed") -> Callable[[str], int]:
    """Return the argument type of an option for the seed of a random number generator."""
    return whole(option, 0, MOST_SEED)


def real(option: str, least: float, most: float) -> Callable[[str], float]:
    """Return the argument type of an option for numbers from `least` to `most`, both finite.

    The type raises `UsageError` for any other text.
    """
    return _real(option, least, most, "from")


def above(option: str, least: float, most: float) -> Callable[[str], float]:
    """Return the same type as `real`, except that numbers must be larger than `least`."""
    return _real(option, least, most, "above")


def _real(option: str, least: float, most: float, word: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = None
        # This is False for NaN.
        fits = number is not None and least <= number <= most
        if number is None or not fits or (word == "above" and number == least):
            raise UsageError(
                f"{option}: expected a number {word} {least:g} up to {most:g}, found {text}"
            )
        return number

    return parse


def is_given(value: object) -> bool:
    """Return whether a parsed option was given. The number 0 counts as given."""
    return value is not None and value is not False and value not in ([], ())


def refuse(given: Mapping[str, object], rules: Iterable[tuple[str, str]]) -> None:
    """Check rules about combinations of options; raise UsageError for the first violated rule.

    Args:
        given: The parsed options and other values named in rules, by attribute.
        rules: Pairs of terms and a message. A rule is violated if all its terms are true. The term
            ``a|b`` is true if one of these options is given, ``!a|b`` if none is. ``{1}`` in the
            message is the option of the second term.
    """
    for terms, message in rules:
        flags = []
        for term in terms.split():
            names = term.lstrip("!").split("|")
            found = [name for name in names if is_given(given[name])]
            if bool(found) is term.startswith("!"):
                break
            flags.append(f"--{(found or names)[0].replace('_', '-')}")
        else:
            raise UsageError(f"{flags[0]}: {message.format(*flags)}")


def split_docstring(docstring: str) -> tuple[str, str]:
    """Return the help text in a module's docstring, and its example lines or ""."""
    text = docstring.strip()
    found = _EXAMPLE.search(text)
    examples = textwrap.dedent(found[1]).strip() if found else ""
    text = _EXAMPLE.sub("", text).strip()
    name = _NAME.match(text)
    if name:
        text = text[name.end() :]
    return text[:1].upper() + text[1:], examples


def epilog(examples: str, *more: str) -> str:
    """Return the end of a help text: the examples, followed by the sections `more`."""
    lines = examples.splitlines()
    title = "example:" if len(lines) == 1 else "examples:"
    shown = [f"{title}\n{textwrap.indent(examples, '  ')}"] if lines else []
    return "\n\n".join([*shown, *more])


def nearest(word: object, known: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the known word nearest to `word`, or ""."""
    found = difflib.get_close_matches(str(word), list(known), 1)
    return f" (did you mean {found[0]}?)" if found else ""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs and lists to the terminal's width; does not wrap command lines."""

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
    """Return a line wrapped to `width`; continuation lines of a list item are indented."""
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

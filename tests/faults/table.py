"""The table of docs/faults.md as data: the bounds and log lines that tests and soak hold to."""

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs/faults.md"
COLUMNS = (
    "Fault",
    "Published meanwhile",
    "Resumes within, s",
    "Logged",
    "Exit code",
    "Test",
)
_SPAN = re.compile(r"`([^`]+)`")


class Meanwhile(StrEnum):
    """What is published during a fault: the words of the column before a semicolon."""

    NOTHING = "nothing"
    ALL = "all"
    VALID = "valid"
    SOME = "some"
    INVALID = "invalid"
    INVALID_AT_FIRST = "invalid at first"


@dataclass(frozen=True, slots=True)
class Row:
    """One fault.

    Attributes:
        fault: what happens to the daemon.
        meanwhile: what is published, None where the column says it in other words.
        within_s: bound from its end, or from the fault where it does not end, to valid messages.
        logged: regular expressions of lines of the log; ``...`` in the document is any text.
        is_quiet: nothing is logged.
        exit_code: of the process; None if it goes on.
        test: name of the test's function.
    """

    fault: str
    meanwhile: Meanwhile | None
    within_s: float
    logged: tuple[str, ...]
    is_quiet: bool
    exit_code: int | None
    test: str


@functools.cache
def rows() -> dict[str, Row]:
    found: dict[str, Row] = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != len(COLUMNS) or not _SPAN.search(cells[-1]):
            continue
        fault, meanwhile, within, logged, code, test = cells
        words = meanwhile.partition(";")[0]
        (name,) = _SPAN.findall(test)
        assert name not in found, f"{name} has two rows"
        found[name] = Row(
            fault,
            Meanwhile(words) if words in set(Meanwhile) else None,
            float(within) if within != "-" else 0.0,
            tuple(_pattern(span) for span in _SPAN.findall(logged)),
            logged == "nothing",
            int(code) if code.lstrip("-").isdigit() else None,
            name,
        )
    return found


def _pattern(text: str) -> str:
    return ".*".join(re.escape(part) for part in text.split("..."))

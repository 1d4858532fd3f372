"""`--note NAME=VALUE`: where a model came from, as its artifact then says; and it as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.format.lineage import MAX_ENTRIES, MAX_VALUE, fitted, lineage_problem
from tools.errors import UsageError
from tools.lib.table import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence


def add_note(parser: argparse._ActionsContainer) -> None:
    """Declare the option."""
    parser.add_argument(
        "--note",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="where the model came from, such as commit=1a2b3c or data=drives-2026-11, repeatable; "
        f"the artifact keeps it (a value of at most {MAX_VALUE} characters)",
    )


def with_notes(found: Mapping[str, str], texts: Sequence[str]) -> dict[str, str]:
    """Return the lineage of a model with notes: these first where there is no room for all.

    Args:
        found: what its ONNX files say.
        texts: of the option.

    Raises:
        UsageError: a text is not NAME=VALUE, too long or not printable, or a name is given twice.
    """
    notes: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        problem = "" if value else "expected NAME=VALUE, such as commit=1a2b3c"
        problem = problem or lineage_problem(name, value)
        if name in notes:
            problem = f"{name} is given already, as {notes[name]}"
        if problem:
            raise UsageError(f"--note {printable(text)[:80]}: {problem}")
        notes[name] = value
    if len(notes) > MAX_ENTRIES:
        raise UsageError(f"--note: expected at most {MAX_ENTRIES}, found {len(notes)}")
    others = {name: value for name, value in found.items() if name not in notes}
    return dict(sorted({**fitted(others, MAX_ENTRIES - len(notes)), **notes}.items()))


def lineage_text(lineage: Mapping[str, str]) -> str:
    """Return a lineage on one line, "" of none."""
    return printable(", ".join(f"{name}={value}" for name, value in lineage.items()))

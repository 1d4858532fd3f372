"""The table of what was caught, by package, and the survivors by file and line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutants.faults import PACKAGES, Fault
from tests.mutants.plant import Result

FRAME_PATH = ("cereal", "runtime", "modeld")


def share(part: int, whole: int) -> str:
    """Return `part/whole (percent)`."""
    return f"{part}/{whole} ({100 * part / whole:.0f} %)" if whole else "-"


def table(
    root: Path, faults: Sequence[Fault], results: Mapping[int, Result], quick: frozenset[int]
) -> str:
    """Return the table as Markdown.

    Args:
        root: the tree that the faults are drawn from.
        faults: all that were drawn.
        results: number of a fault -> what came of it; one may be missing.
        quick: numbers of faults that the quick tests alone catch.
    """
    lines = [
        "| package | planted | caught by all tests | by `make test`, of those |",
        "|---|---|---|---|",
    ]
    for name in (*PACKAGES, "all"):
        of = [n for n in results if name in ("all", faults[n].file.split("/")[0])]
        caught = [n for n in of if results[n].verdict == "caught"]
        fast = [n for n in caught if n in quick]
        row = (name, str(len(of)), share(len(caught), len(of)), share(len(fast), len(caught)))
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "Not caught:"]
    for n in sorted(results):
        result = results[n]
        if result.verdict != "caught":
            text = (root / faults[n].file).read_text(encoding="utf-8")
            mark = "*" if faults[n].file.startswith(FRAME_PATH) else " "
            lines.append(f"{mark} {result.verdict:10} {faults[n].shown(text)}  {result.by}")
    lines += ["", "Caught by slow tests only:"]
    for n in sorted(results):
        if results[n].verdict == "caught" and n not in quick:
            text = (root / faults[n].file).read_text(encoding="utf-8")
            lines.append(f"  {faults[n].shown(text)}  by {results[n].by}")
    return "\n".join(lines)

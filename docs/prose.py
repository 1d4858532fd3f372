"""Finds phrasings that the documents avoid; docs/prose.tsv has them, with better wordings.

The library for this is vale, but its package downloads a binary, which CI without a network cannot.

Example:
    python docs/prose.py                # all documents; exit code 1 if something is found
    python docs/prose.py docs/view.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What is no prose: fenced and indented code, comments, code spans, and the targets of links.
CODE = re.compile(
    r"^```.*?^```$|(?<=\n\n)(?: {4}.*\n)+|<!--.*?-->|`[^`\n]+`|(?<=\])\([^)\s]+\)",
    re.MULTILINE | re.DOTALL,
)
SKIPPED = frozenset({"build", ".venv", ".git"})


def read_table(path: Path) -> list[tuple[re.Pattern[str], str]]:
    """Return the pattern and the better wording of each row; a space is any white space."""
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return [(re.compile(rf"\b(?i:{p.replace(' ', chr(92) + 's+')})\b"), q) for p, q in rows]


def blank(match: re.Match[str]) -> str:
    """Return as many lines as a match has, and something that no pattern spans."""
    return "`" + "\n" * match[0].count("\n")


def findings(text: str, table: Sequence[tuple[re.Pattern[str], str]]) -> Iterator[str]:
    """Yield `line: 'found' -> 'better'` for each phrasing of the table in a document."""
    prose = CODE.sub(blank, text)
    hits = {
        m.start(): (m[0], better)
        for pattern, better in reversed(table)
        for m in pattern.finditer(prose)
    }
    for start, (words, better) in sorted(hits.items()):
        yield f"{prose.count(chr(10), 0, start) + 1}: '{' '.join(words.split())}' -> '{better}'"


def main(names: Sequence[str]) -> int:
    """Print what is found in the named documents, or in all; return 1 if there is any."""
    table = read_table(ROOT / "docs/prose.tsv")
    # Other folders are not entered: what is built there may change meanwhile.
    folders = [p for p in ROOT.iterdir() if p.is_dir() and p.name not in SKIPPED]
    every = [*ROOT.glob("*.md"), *(p for folder in folders for p in folder.rglob("*.md"))]
    paths = [Path(name) for name in names] or [p.relative_to(ROOT) for p in sorted(every)]
    lines = [f"{p}:{f}" for p in paths for f in findings((ROOT / p).read_text("utf-8"), table)]
    print("\n".join(lines), end="\n" * bool(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

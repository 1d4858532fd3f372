"""Writes the map of rooms from their docstrings, and the list of decisions from titles.

Example:
    python docs/make_map.py          # write it
    python docs/make_map.py --check  # exit code 1 where it is out of date
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cereal", "runtime", "scheduler", "modeld", "tools")
MAP_HEAD = """# Map of rooms

Each package's folders, from the first lines of their docstrings. `make map` writes this page. The
first line of a file says what the file is.

| room | what | files |
|---|---|---|"""
DECISIONS_HEAD = """# Decisions

One page each: context, decision, consequences. A missing number was merged into the smallest
one on its subject. `make map` writes this list from the titles.

"""


def summary(path: Path) -> str:
    """Return the first line of a package's docstring.

    Raises:
        ValueError: The package does not say what it is.
    """
    said = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    if not said:
        message = f"{path}: no docstring that says what the room is; write one"
        raise ValueError(message)
    return said.replace("``", "`").replace("|", "\\|")


def room_row(folder: Path, root: Path) -> str:
    """Return the row of one folder: its name, its sentence, its files."""
    name = folder.relative_to(root).as_posix()
    package = folder / "__init__.py"
    files = sorted(path.name for path in folder.iterdir() if is_mapped(path))
    return f"| `{name}/` | {summary(package) if package.exists() else ''} | {', '.join(files)} |"


def is_mapped(path: Path) -> bool:
    """Return whether the map names a file."""
    return path.suffix in {".py", ".capnp"} and path.name != "__init__.py"


def map_of(root: Path) -> str:
    """Return the map of the packages below a directory: a row for each folder with code."""
    folders = sorted(  # with packages in the order above, and each folder once for each file
        (PACKAGES.index(path.relative_to(root).parts[0]), path.parent)
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.suffix in {".py", ".capnp"}
    )
    rows = [room_row(folder, root) for (_, folder), _ in itertools.groupby(folders)]
    return "\n".join([MAP_HEAD, *rows, ""])


def decisions(folder: Path) -> str:
    """Return the list of all records of decisions, by number.

    Raises:
        ValueError: A record has no title with its number.
    """
    lines = []
    for path in sorted(folder.glob("[0-9]*.md")):
        title = re.match(r"# (\d{4}): (.+)\n", path.read_text(encoding="utf-8"))
        if title is None or title[1] != path.name[:4]:
            message = f"{path}: expected a first line '# {path.name[:4]}: title'"
            raise ValueError(message)
        lines.append(f"- [{title[1]}]({path.name}): {title[2]}\n")
    return DECISIONS_HEAD + "".join(lines)


def main() -> int:
    """Write both files, or say which is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    check = parser.parse_args().check
    docs = ROOT / "docs"
    texts = {docs / "map.md": map_of(ROOT), docs / "adr" / "README.md": decisions(docs / "adr")}
    stale = [p for p in texts if not p.exists() or p.read_text(encoding="utf-8") != texts[p]]
    for path in stale:
        if check:
            print(f"{path} is out of date; write it with: make map", file=sys.stderr)
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

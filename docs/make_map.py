"""Writes `docs/map.md`, the map of files, from the first line of every module's docstring.

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
MAP = ROOT / "docs" / "map.md"
PACKAGES = ("cereal", "runtime", "scheduler", "modeld", "tools")
HEAD = """# Map of files

Written by `make map` from the first line of every module's docstring; change it there.
"""


def summary(path: Path) -> str:
    """Return the first line of a module's docstring, or the first sentence of a schema's comment.

    Raises:
        ValueError: The file does not say what it is.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        said = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    else:
        comment = itertools.takewhile(lambda line: line[:2] == "# ", text.splitlines())
        said = re.split(r"(?<=\.) ", " ".join(line[2:] for line in comment))[0]
    if not said:
        message = f"{path}: no docstring that says what the file is; write one"
        raise ValueError(message)
    return said.replace("``", "`").replace("|", "\\|")


def folder_text(folder: Path, root: Path) -> str:
    """Return the heading, the sentence and the table of one folder."""
    name = folder.relative_to(root).as_posix()
    package = folder / "__init__.py"
    lines = [f"## `{name}/`", ""]
    if package.exists():
        lines += [summary(package), ""]
    files = sorted(
        path
        for path in folder.iterdir()
        if path.suffix in {".py", ".capnp"} and path.name != "__init__.py"
    )
    if files:
        lines += ["| file | what |", "|---|---|"]
        lines += [f"| `{name}/{path.name}` | {summary(path)} |" for path in files]
        lines.append("")
    return "\n".join(lines)


def map_of(root: Path) -> str:
    """Return the map of the packages below a directory, folder by folder."""
    folders = sorted(  # with packages in the order above, and each folder once for each file
        (PACKAGES.index(path.relative_to(root).parts[0]), path.parent)
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.suffix in {".py", ".capnp"}
    )
    texts = [folder_text(folder, root) for (_, folder), _ in itertools.groupby(folders)]
    return "\n".join([HEAD, *texts])


def main() -> int:
    """Write the map, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    if not parser.parse_args().check:
        MAP.write_text(map_of(ROOT), encoding="utf-8")
    elif not MAP.exists() or MAP.read_text(encoding="utf-8") != map_of(ROOT):
        print("docs/map.md is out of date; write it with: make map", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

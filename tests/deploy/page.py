"""Reads the commands that docs/deploy.md, or another page, shows, in the order of the page.

A comment in front of a block of code, which readers do not see, says who can run it::

    <!-- run: shell -->       every machine
    <!-- run: install -->     where packages may be fetched
    <!-- run: debian -->      as root of a Debian: packages, users
    <!-- run: systemd -->     where systemd runs

Blocks without one show what is said or left to the reader.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/deploy.md"
NEEDS = ("shell", "install", "debian", "systemd")
_HEADING = re.compile(r"^## (.+)$")
_MARK = re.compile(r"^<!-- run: (\w+) -->$")
_JOINED = re.compile(r"\\\n\s*")


@dataclass(frozen=True)
class Step:
    """One command of the page.

    Attributes:
        section: heading it stands under.
        needs: one of ``NEEDS``.
        command: for a shell, in one line unless it has a here-document.
    """

    section: str
    needs: str
    command: str


def steps(text: str | None = None) -> list[Step]:
    """Return the commands of the page."""
    found: list[Step] = []
    section = ""
    lines = iter((text or PAGE.read_text(encoding="utf-8")).splitlines())
    for line in lines:
        if heading := _HEADING.match(line):
            section = heading[1]
        if not (mark := _MARK.match(line)):
            continue
        if mark[1] not in NEEDS or next(lines, "") != "```":
            raise ValueError(f"{PAGE.name}, {section}: expected a block of code after {line!r}")
        block = []
        for inside in lines:
            if inside == "```":
                break
            block.append(inside)
        found += [Step(section, mark[1], command) for command in commands("\n".join(block))]
    return found


def commands(block: str) -> list[str]:
    """Split a block into commands: lines, continued ones and here-documents as one."""
    found: list[str] = []
    end = ""
    for line in _JOINED.sub("", block).splitlines():
        if end:
            found[-1] += f"\n{line}"
            end = "" if line == end else end
        elif line.strip() and not line.startswith("#"):
            found.append(line)
            opened = re.search(r"<<-?\s*'?(\w+)'?", line)
            end = opened[1] if opened else ""
    return found

"""The environment variables of the compiler: all of them, typed, in one place.

Read when a graph is scheduled, not when a module is imported. What each means to a user stands in
docs/env-vars.md.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

DEBUG = "DEBUG"
VIZ = "VIZ"

# Where VIZ=1 writes its pages.
VIZ_DIRECTORY = Path("build")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 60


class Level(IntEnum):
    """The steps of the DEBUG ladder; each includes those below it."""

    SUMMARY = 1  # verify after each pass; a line per schedule: launches, work, memory
    TABLE = 2  # the kernel table
    LOOPS = 3  # loops chosen per kernel: vector, lanes, tiles, hoisted, across, unroll
    SOURCE = 4  # OpenCL C of each kernel
    IR = 5  # the graph after each pass


@dataclass(frozen=True, slots=True)
class Flag:
    """One variable: its name, what values it takes, its value when unset, what it does."""

    name: str
    values: str
    default: str
    meaning: str


FLAGS = (
    Flag(DEBUG, "0 to 5", "0", "how much the compiler checks and logs, see Level"),
    Flag(VIZ, "0, 1 or a path", "0", "write a page that shows passes, kernels and memory"),
)


def debug() -> int:
    """Return the step of the DEBUG ladder, 0 for off.

    Other programs give DEBUG words ("true", "*"); whatever is not a number counts as 1.
    """
    text = os.environ.get(DEBUG, "").strip()
    if not text:
        return 0
    return min(int(text), int(max(Level))) if text.isdecimal() else 1


def viz(name: str) -> Path | None:
    """Return where VIZ asks for a page on what is called `name`, None if it does not.

    "1" is build/viz-<name>.html; any other value but "" and "0" is the path itself.
    """
    text = os.environ.get(VIZ, "").strip()
    if text in ("", "0"):
        return None
    if text == "1":
        return VIZ_DIRECTORY / f"viz-{_UNSAFE.sub('-', name)[:_MAX_NAME] or 'schedule'}.html"
    return Path(text)

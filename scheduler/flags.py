"""The environment variables of the compiler are all read, typed and documented here.

`Flags.from_environment` reads them once, where a compilation begins; everything below takes a
`Flags` value. What each variable means to a user stands in docs/env-vars.md.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from scheduler.errors import SchedulerError

DEBUG = "DEBUG"
VIZ = "VIZ"
FLOAT_UNSAFE = "FLOAT_UNSAFE"
SCHEDULE_CACHE = "SCHEDULE_CACHE"
MAX_KERNEL_BUFFERS = "MAX_KERNEL_BUFFERS"
TUNED = "TUNED"

# Where VIZ=1 writes its pages.
VIZ_DIRECTORY = Path("build")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# Characters of a page's name that come from a model; file systems take 255 bytes in all.
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
    Flag(FLOAT_UNSAFE, "0 or 1", "0", "fold x * 0, x - x, a / a and (a * b) / b for floats too"),
    Flag(SCHEDULE_CACHE, "0 or 1", "1", "keep what was compiled, see scheduler.schedule_cache"),
    Flag(MAX_KERNEL_BUFFERS, "4 or more", "", "buffers per kernel, see scheduler.device.spec"),
    Flag(TUNED, "0 or 1", "1", "take loops from tables of measured ones"),
)


@dataclass(frozen=True, slots=True)
class Flags:
    """The values of the variables, read once."""

    debug: int = 0  # step of the DEBUG ladder, 0 for off
    viz: str = ""  # what VIZ asks for, see `viz_path`
    # x * 0 is 0, x - x is 0, a / a is 1 and (a * b) / b is a, also for floats.
    float_unsafe: bool = False
    schedule_cache: bool = True  # compiled graphs are kept and taken again
    max_kernel_buffers: int | None = None  # buffers per kernel; None if only the device says
    tuned: bool = True  # tables of measured loops are used

    @classmethod
    def from_environment(cls) -> Flags:
        """Return the environment's flags; raise SchedulerError for a value that is no number."""
        return cls(
            _level(os.environ.get(DEBUG, "").strip()),
            os.environ.get(VIZ, "").strip(),
            os.environ.get(FLOAT_UNSAFE, "").strip() not in ("", "0"),
            os.environ.get(SCHEDULE_CACHE, "").strip() != "0",
            _buffers(os.environ.get(MAX_KERNEL_BUFFERS, "").strip()),
            os.environ.get(TUNED, "").strip() != "0",
        )

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to see the compiler at work, so that it has to work."""
        return self.debug > 0 or self.viz not in ("", "0")

    def viz_path(self, name: str) -> Path | None:
        """Return where the page on what is called `name` goes, None if there is to be none.

        "1" is build/viz-<name>.html; any other value but "" and "0" is the path itself.
        """
        if self.viz in ("", "0"):
            return None
        if self.viz == "1":
            return VIZ_DIRECTORY / f"viz-{_UNSAFE.sub('-', name)[:_MAX_NAME] or 'schedule'}.html"
        return Path(self.viz)

    @property
    def viz_file(self) -> Path | None:
        """The path that VIZ names; None where it names none, or leaves the name to us."""
        return None if self.viz in ("", "0", "1") else Path(self.viz)


def _level(text: str) -> int:
    """Return the step of the DEBUG ladder, 0 for off; words that other programs take count as 1."""
    if not text:
        return 0
    return min(int(text), int(max(Level))) if text.isdecimal() else 1


def _buffers(text: str) -> int | None:
    """Return how many buffers a kernel may have (None: the device's), or raise SchedulerError."""
    if not text:
        return None
    if not text.isdecimal():
        raise SchedulerError(f"{MAX_KERNEL_BUFFERS}={text!r}: expected a number, 4 or more")
    return int(text)

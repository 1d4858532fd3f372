"""The compiler's environment variables: reads, types and documents all of them.

`Flags.from_environment` reads them once at the start of a compilation. All other code receives a
`Flags` value. docs/env-vars.md explains each variable to users.
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

# The directory of the pages that VIZ=1 writes.
VIZ_DIRECTORY = Path("build")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# Maximum number of characters of a page's name that come from a model; file systems allow 255
# bytes.
_MAX_NAME = 60


class Level(IntEnum):
    """The levels of the DEBUG variable; each includes those below it."""

    SUMMARY = 1  # verify after each pass; one line per schedule: launches, work, memory
    TABLE = 2  # the kernel table
    LOOPS = 3  # the loops chosen for each kernel: vector, lanes, tiles, hoisted, across, unroll
    SOURCE = 4  # OpenCL C of each kernel
    IR = 5  # the graph after each pass


@dataclass(frozen=True, slots=True)
class Flag:
    """One environment variable: its name, allowed values, default and meaning."""

    name: str
    values: str
    default: str
    meaning: str


FLAGS = (
    Flag(DEBUG, "0 to 5", "0", "how much the compiler checks and logs, see Level"),
    Flag(VIZ, "0, 1 or a path", "0", "write a page that shows passes, kernels and memory"),
    Flag(FLOAT_UNSAFE, "0 or 1", "0", "fold x * 0, x - x, a / a and (a * b) / b for floats too"),
    Flag(SCHEDULE_CACHE, "0 or 1", "1", "cache compiled graphs, see scheduler.schedule_cache"),
    Flag(MAX_KERNEL_BUFFERS, "4 or more", "", "buffers per kernel, see scheduler.device.spec"),
    Flag(TUNED, "0 or 1", "1", "use tables of measured loops"),
)


@dataclass(frozen=True, slots=True)
class Flags:
    """The values of the environment variables, read once."""

    debug: int = 0  # DEBUG level, 0 for off
    viz: str = ""  # value of VIZ, see `viz_path`
    # Whether `canonicalize.FLOAT_RULES` apply, such as x * 0 -> 0, x + 0 -> x and a / a -> 1.
    float_unsafe: bool = False
    schedule_cache: bool = True  # whether compiled graphs are cached
    max_kernel_buffers: int | None = None  # most buffers per kernel; None for the device's limit
    tuned: bool = True  # whether tables of measured loops are used

    @classmethod
    def from_environment(cls) -> Flags:
        """Return the environment's flags; raise SchedulerError if a number is malformed."""
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
        """Whether the user wants to watch the compiler, so that caches must not be used."""
        return self.debug > 0 or self.viz not in ("", "0")

    def viz_path(self, name: str) -> Path | None:
        """Return the path of the page for the schedule called `name`, or None if VIZ is off.

        For VIZ=1 it is build/viz-<name>.html. Any other value except "" and "0" is itself the path.
        """
        if self.viz in ("", "0"):
            return None
        if self.viz == "1":
            return VIZ_DIRECTORY / f"viz-{_UNSAFE.sub('-', name)[:_MAX_NAME] or 'schedule'}.html"
        return Path(self.viz)

    @property
    def viz_file(self) -> Path | None:
        """The path given in VIZ, or None if VIZ is off or 1."""
        return None if self.viz in ("", "0", "1") else Path(self.viz)


def _level(text: str) -> int:
    """Return the DEBUG level, 0 for off. Words, which other programs accept, count as 1."""
    if not text:
        return 0
    return min(int(text), int(max(Level))) if text.isdecimal() else 1


def _buffers(text: str) -> int | None:
    """Return the most buffers of a kernel, None for the device's limit, or raise SchedulerError."""
    if not text:
        return None
    if not text.isdecimal():
        raise SchedulerError(f"{MAX_KERNEL_BUFFERS}={text!r}: expected a number, 4 or more")
    return int(text)

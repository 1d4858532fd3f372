"""The environment variables of the compiler are all read, typed and documented here.

Read when a graph is scheduled, not when a module is imported. What each means to a user stands in
docs/env-vars.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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
    Flag(SCHEDULE_CACHE, "0 or 1", "1", "keep what was compiled, see schedule_cache"),
    Flag(MAX_KERNEL_BUFFERS, "4 or more", "", "buffers per kernel, see device_limits"),
    Flag(TUNED, "0 or 1", "1", "take loops from tables of measured ones, see tuned_table"),
)


@dataclass(frozen=True, slots=True)
class Flags:
    """The values of the variables, read once.

    Attributes:
        debug: step of the DEBUG ladder, 0 for off.
        viz: what VIZ asks for, see `viz_path`.
        float_unsafe: x * 0 is 0, x - x is 0, a / a is 1 and (a * b) / b is a, also for floats.
        schedule_cache: compiled graphs are kept and taken again.
        max_kernel_buffers: buffers per kernel; None if only the device says.
        tuned: tables of measured loops are used.
    """

    debug: int = 0
    viz: str = ""
    float_unsafe: bool = False
    schedule_cache: bool = True
    max_kernel_buffers: int | None = None
    tuned: bool = True

    @classmethod
    def from_environment(cls) -> Flags:
        """Return the flags that the environment sets.

        Raises:
            SchedulerError: MAX_KERNEL_BUFFERS is set to something that is no number.
        """
        return cls(
            debug(),
            os.environ.get(VIZ, "").strip(),
            os.environ.get(FLOAT_UNSAFE, "").strip() not in ("", "0"),
            schedule_cache(),
            max_kernel_buffers(),
            tuned(),
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


def viz_file() -> Path | None:
    """Return the path that VIZ names; None where it names none, or leaves the name to us."""
    path = viz("a")
    return path if path == viz("b") else None


def schedule_cache() -> bool:
    """Return whether compiled graphs are kept and taken again."""
    return os.environ.get(SCHEDULE_CACHE, "").strip() != "0"


def tuned() -> bool:
    """Return whether tables of measured loops are used."""
    return os.environ.get(TUNED, "").strip() != "0"


def max_kernel_buffers() -> int | None:
    """Return how many buffers a kernel may have, None if only the device says.

    Raises:
        SchedulerError: the variable is set to something that is no number.
    """
    text = os.environ.get(MAX_KERNEL_BUFFERS, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise SchedulerError(f"{MAX_KERNEL_BUFFERS}={text!r}: expected a number, 4 or more")
    return int(text)


_float_unsafe: ContextVar[bool | None] = ContextVar("float_unsafe", default=None)


def float_unsafe() -> bool:
    """Return whether floats may cancel as real numbers do: `options` wins over the environment."""
    asked = _float_unsafe.get()
    if asked is not None:
        return asked
    return os.environ.get(FLOAT_UNSAFE, "").strip() not in ("", "0")


@contextmanager
def options(*, float_unsafe: bool) -> Iterator[None]:
    """Set what the environment would, for what is scheduled inside the block.

    Args:
        float_unsafe: x * 0 is 0, x - x is 0, a / a is 1 and (a * b) / b is a, also for floats.
    """
    token = _float_unsafe.set(float_unsafe)
    try:
        yield
    finally:
        _float_unsafe.reset(token)

"""What an emulated processor cannot do: each proved to be so, and the tests that need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.debian.place import Place

# Holds where a limit of memory is kept: then the tests that set one can pass.
_MEMORY_IS_LIMITED: Final = """
import mmap, resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    mmap.mmap(-1, 2 << 30)
except (MemoryError, OSError):
    print("limited")
"""
_NEED_A_LIMIT: Final = ()


def left_out(place: Place) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield reasons that hold in the place, with the tests that they leave out."""
    if place.emulator is None:
        return
    if place.python("-c", _MEMORY_IS_LIMITED).stdout.strip() != "limited":
        yield f"{place.emulator.name} does not keep limits of memory", _NEED_A_LIMIT

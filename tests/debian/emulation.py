"""What an emulated processor cannot do: each proved to be so, and the tests that need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.debian.place import Place

# Prints "kept" where a limit of memory is in force; a test that sets one can pass then.
_LIMIT: Final = """
import mmap, resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    mmap.mmap(-1, 2 << 30)
except (MemoryError, OSError):
    print("kept")
"""
_NEED_A_LIMIT: Final = (
    "tests/runtime/test_device.py::test_too_little_memory_for_a_driver_is_said",
)


def left_out(place: Place) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield reasons that hold in the place, with the tests that they leave out."""
    if place.emulator is None:
        return
    if place.python("-c", _LIMIT).stdout.strip() != "kept":
        yield f"{place.emulator.name} does not keep limits of memory", _NEED_A_LIMIT

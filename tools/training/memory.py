"""Keeps freed memory in the process: large arrays come and go at each step of a training."""

from __future__ import annotations

import contextlib
import ctypes

# mallopt(3) of glibc.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Tell the allocator to give nothing back before the process ends; without glibc nothing.

    Else each large array is mapped anew and each of its pages filled with zeros first. Measured on
    two cores of an AMD EPYC with a batch of 24: 9.9 instead of 15.6 ms of a core for a sample.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _NEVER)

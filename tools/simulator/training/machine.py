"""How a training uses its machine: it keeps the memory that it frees, and takes cores in turns.

Large arrays come and go at each step. Threads of a network wait for each other, and one that shares
its core makes all of them slow. So painters wait while there is enough to learn from, and learning
waits when there is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap

from tools.simulator.training.samples.replay import Replay

# mallopt(3) of glibc.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1
# What a step of a batch of 32 takes at once is below this; what is not touched takes no memory.
_LARGE = 2 << 30
_LARGE_PAGE = 2 << 20
# How often samples are learnt from, in the mean over all that were painted.
MOST_USES = 2.0
# Once painters have their turn, it lasts until there are new samples for so many steps.
TURN_STEPS = 4


def keep_freed_memory() -> None:
    """Keep freed memory in the process until it ends; without glibc this does nothing.

    Otherwise each large array is mapped again, and each of its pages is filled with zeros first. On
    two cores of an AMD EPYC with a batch of 24 a sample took 9.9 instead of 15.6 ms of a core.
    """
    with contextlib.suppress(OSError, AttributeError, ValueError):
        library = ctypes.CDLL(None, use_errno=True)
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, _NEVER)
        # One heap for all threads: gradients are computed in a thread of their own.
        library.mallopt(_ARENA_MAX, 1)
        _ask_for_large_pages(library)


def _ask_for_large_pages(library: ctypes.CDLL) -> None:
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    block = library.malloc(_LARGE)
    if block:
        first = -(-block // _LARGE_PAGE) * _LARGE_PAGE
        library.madvise(first, block + _LARGE - first, mmap.MADV_HUGEPAGE)
        library.free(block)


class Turns:
    """Counts used samples, and makes the painters wait: samples are learnt from twice at most."""

    def __init__(self, replay: Replay, batch: int) -> None:
        """Begin with nothing learnt from.

        Painters look in `replay` whether there is enough.
        """
        self._replay, self._batch, self._used = replay, batch, 0

    @property
    def uses(self) -> float:
        """How often samples were learnt from so far, in the mean."""
        return self._used / self._replay.produced

    def take(self) -> bool:
        """Take the samples of one step and return True, or take nothing and let painters work."""
        replay = self._replay
        ahead = MOST_USES * replay.produced - self._used
        if ahead < self._batch * (1 if replay.is_enough else TURN_STEPS):
            replay.is_enough = False
            return False
        replay.is_enough = True
        self._used += self._batch
        return True

    def give(self) -> None:
        """Let painters work until samples are taken again."""
        self._replay.is_enough = False

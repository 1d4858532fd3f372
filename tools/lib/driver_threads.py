"""Says how many threads OpenCL drivers on the CPU have: they read it when devices are opened."""

from __future__ import annotations

import os
from typing import Final

THREADS_VARIABLE: Final = "POCL_MAX_PTHREAD_COUNT"


def threads_of_one(processes: int) -> int:
    """Return how many threads a driver may have in each of so many processes.

    Its threads wait for each other busily, so all processes together get no more than there are.
    """
    return max(1, len(os.sched_getaffinity(0)) // processes)


def thread_setting(threads: int) -> dict[str, str]:
    """Return what an environment has to say for so many threads."""
    return {THREADS_VARIABLE: str(threads)}


def limit_threads(threads: int) -> None:
    """Let the driver of this process have so many threads, unless the user has said."""
    os.environ.setdefault(THREADS_VARIABLE, str(threads))

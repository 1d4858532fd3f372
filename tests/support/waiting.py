"""Waits for what another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(find: Callable[[], T], timeout_s: float, *, pause_s: float = 0.01) -> T:
    """Ask again and again until the answer is true; return the last answer.

    Args:
        find: what is asked.
        timeout_s: after which it is asked no more.
        pause_s: between two questions.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := find()) and time.monotonic() < deadline:
        time.sleep(pause_s)
    return found

"""Waits for what another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(find: Callable[[], T], timeout_s: float, *, pause_s: float = 0.01) -> T:
    """Ask again and again until the answer is true; return the last answer."""
    deadline = time.monotonic() + timeout_s
    while not (found := find()) and time.monotonic() < deadline:
        time.sleep(pause_s)
    return found

"""Waits for something that another thread or process does."""

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], what: str, patience_s: float = 60.0) -> None:
    """Wait until something holds; fail where it does not within some seconds."""
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, f"not within {patience_s:g} s: {what}"
        time.sleep(0.01)

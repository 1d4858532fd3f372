"""Wakes the readers of a ring: the writer sends a signal to their threads.

The stack uses SIGUSR2, which by default kills a process. A thread that waits here blocks the signal
and receives it with `sigtimedwait`, so no handler runs and no other call is interrupted.
"""

import ctypes
import errno
import platform
import secrets
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

from cereal.msgq.ring import OFFSET_MASK, thread_of

SIGNAL: Final = signal.SIGUSR2
_SIGNAL_NUMBER: Final = int(SIGNAL)
_TKILL: Final = {"x86_64": 200, "aarch64": 130, "riscv64": 130}.get(platform.machine())
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# Polling interval if another library owns the signal.
POLL_S: Final = 0.0005
# A restarted writer does not know its readers. A waiting reader notices that within this time.
LONGEST_WAIT_S: Final = 0.1

T = TypeVar("T")


def block() -> None:
    """Block the signal in the calling thread and in all threads and processes that it starts.

    Calling it twice is harmless. A process must call it before any wait.
    """
    if signal.getsignal(SIGNAL) is signal.SIG_DFL and _is_main_thread():
        # The compiler inside PoCL unblocks all signals when it receives one of its own, for example
        # about a file size limit. A signal pending at that moment must not kill the process.
        signal.signal(SIGNAL, _ignore)
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})


def is_ours() -> bool:
    """Return whether no other library handles the signal; its handler would miss the signal."""
    return signal.getsignal(SIGNAL) in (signal.SIG_DFL, signal.SIG_IGN, _ignore)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. Handles a signal that arrives while it is not blocked."""


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def this_thread() -> int:
    """Return the ID by which other processes know the calling thread."""
    return threading.get_native_id()


def new_uid(thread: int = 0) -> int:
    """Return a uid for a slot in a ring. Writers wake `thread`, or no thread if it is 0."""
    return (secrets.randbits(31) + 1) << 32 | thread


class Waiter:
    """Waits for messages by signal, or by polling.

    `by_signal` selects the signal; None selects it if `is_ours` returns true.
    """

    def __init__(self, *, by_signal: bool | None = None) -> None:
        self.by_signal = is_ours() if by_signal is None else by_signal
        self._blocked = 0

    def thread(self) -> int:
        """Return the ID of the calling thread, for writers to wake; 0 if polling is used."""
        if not self.by_signal:
            return 0
        thread = this_thread()
        if thread != self._blocked:
            # The signal must be blocked before a writer can learn the thread's ID.
            block()
            self._blocked = thread
        return thread

    def wait(self, take: Callable[[], T], idle: Callable[[], None], deadline_s: float) -> T:
        """Wait until `take` returns something, or until `deadline_s` on the monotonic clock.

        `take` returns an empty value if there is nothing to take. It runs before each wait, because
        a pending signal stays pending until it is waited for. `idle` runs each time before the
        thread sleeps.
        """
        while not (taken := take()):
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                break
            idle()
            if self.by_signal:
                signal.sigtimedwait({SIGNAL}, min(remaining_s, LONGEST_WAIT_S))
            else:
                time.sleep(min(remaining_s, POLL_S))
        return taken

    def close(self) -> None:
        """Discard a pending signal of the calling thread, which will not wait again."""
        if self._blocked == this_thread():
            while signal.sigtimedwait({SIGNAL}, 0):
                pass


class Waker:
    """Wakes readers, except ended threads, whose ID may by now belong to another program."""

    def __init__(self) -> None:
        self._ended: set[int] = set()

    def wake(self, uids: list[int]) -> None:
        """Send the signal to the threads of the readers `uids`."""
        for uid in uids:
            thread = uid & OFFSET_MASK
            if thread and uid not in self._ended and not _send(thread):
                self._ended = self._ended.intersection(uids) | {uid}

    def living(self, uids: list[int]) -> list[bool]:
        """Return for each reader whether it may still be running."""
        return [
            uid != 0 and uid not in self._ended and (not thread_of(uid) or is_alive(thread_of(uid)))
            for uid in uids
        ]


def is_alive(thread: int) -> bool:
    """Return whether a thread with this ID exists."""
    return Path(f"/proc/{thread}").exists()


def has_mapped(thread: int, path: Path) -> bool:
    """Return whether the thread's process has mapped the file at `path`; False if unknown."""
    try:
        with Path(f"/proc/{thread}/maps").open(encoding="utf-8", errors="replace") as lines:
            # The file name is the rest of the line.
            return any(line.rstrip("\n").endswith(f" {path}") for line in lines)
    except OSError:
        return False


def _send(thread: int) -> bool:
    """Send the signal to a thread of any process; return False if the thread does not exist."""
    if _TKILL is None:
        return True
    if _LIBC.syscall(_TKILL, thread, _SIGNAL_NUMBER) == 0:
        return True
    # For another user's thread the error only shows that it exists.
    return ctypes.get_errno() != errno.ESRCH

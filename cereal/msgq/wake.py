"""Waking the readers of a ring: the signal that its writer sends to their threads.

The stack uses SIGUSR2, whose default ends a process. A thread that waits here has it blocked, and
takes it with `sigtimedwait`: no handler runs, and nothing else is interrupted.
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
# Another library owns the signal: how often is looked instead.
POLL_S: Final = 0.0005
# A restarted writer has forgotten whom to wake; a reader notices that within this time.
LONGEST_WAIT_S: Final = 0.1

T = TypeVar("T")


def block() -> None:
    """Block the signal in the calling thread, and so in all threads and processes it starts.

    Idempotent. A process must call it before anything that waits.
    """
    if signal.getsignal(SIGNAL) is signal.SIG_DFL and _is_main_thread():
        # The compiler inside PoCL unblocks all signals where one of its own arrives, as of a file
        # that may not grow. What is pending then must not end the process.
        signal.signal(SIGNAL, _ignore)
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})


def is_ours() -> bool:
    """Return whether no other library has a handler for the signal, and would miss it."""
    return signal.getsignal(SIGNAL) in (signal.SIG_DFL, signal.SIG_IGN, _ignore)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: for a signal that comes while it is not blocked."""


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def this_thread() -> int:
    """Return the number by which other processes know the calling thread."""
    return threading.get_native_id()


def new_uid(thread: int = 0) -> int:
    """Return a uid for a place in a ring; writers wake `thread`, or nobody if it is 0."""
    return (secrets.randbits(31) + 1) << 32 | thread


class Waiter:
    """Waits for messages by the signal, or by looking again and again.

    `by_signal` None: as `is_ours` says.
    """

    def __init__(self, *, by_signal: bool | None = None) -> None:
        self.by_signal = is_ours() if by_signal is None else by_signal
        self._blocked = 0

    def thread(self) -> int:
        """Return the thread that writers are to wake: the calling one, 0 for none."""
        if not self.by_signal:
            return 0
        thread = this_thread()
        if thread != self._blocked:
            # Before a writer can know of this thread.
            block()
            self._blocked = thread
        return thread

    def wait(self, take: Callable[[], T], idle: Callable[[], None], deadline_s: float) -> T:
        """Wait until something can be taken, or until `deadline_s` of the monotonic clock.

        `take` returns something empty if there is nothing; it is called before each wait, as a
        signal stays pending until it is waited for. `idle` is called before the thread sleeps.
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
        """Discard a pending signal of the calling thread, which waits for it no more."""
        if self._blocked == this_thread():
            while signal.sigtimedwait({SIGNAL}, 0):
                pass


class Waker:
    """Wakes readers, except threads that ended: another program may have their number by now."""

    def __init__(self) -> None:
        self._ended: set[int] = set()

    def wake(self, uids: list[int]) -> None:
        """Send the signal to the threads of these readers."""
        for uid in uids:
            thread = uid & OFFSET_MASK
            if thread and uid not in self._ended and not _send(thread):
                self._ended = self._ended.intersection(uids) | {uid}

    def living(self, uids: list[int]) -> list[bool]:
        """Return for each reader whether it may still be there."""
        return [
            uid != 0 and uid not in self._ended and (not thread_of(uid) or is_alive(thread_of(uid)))
            for uid in uids
        ]


def is_alive(thread: int) -> bool:
    """Return whether there is a thread of this number."""
    return Path(f"/proc/{thread}").exists()


def has_mapped(thread: int, path: Path) -> bool:
    """Return whether the process of a thread has a file mapped; False if that is unknown."""
    try:
        with Path(f"/proc/{thread}/maps").open(encoding="utf-8", errors="replace") as lines:
            # The name is the rest of the line.
            return any(line.rstrip("\n").endswith(f" {path}") for line in lines)
    except OSError:
        return False


def _send(thread: int) -> bool:
    """Send the signal to a thread of any process; False if there is none."""
    if _TKILL is None:
        return True
    if _LIBC.syscall(_TKILL, thread, _SIGNAL_NUMBER) == 0:
        return True
    # Of another user's thread it can be said only that it is there.
    return ctypes.get_errno() != errno.ESRCH

"""Pins the worker threads of a CPU driver to separate CPUs, unless other processes need them.

An OpenCL driver for CPUs has one thread per CPU. When these wake together, Linux often puts two of
them on the same CPU, where they take turns for a whole frame although another CPU is idle. Pinned
threads cannot collide with each other, but neither can they make way for a process that takes their
CPU. Therefore the time that they wait for a CPU is measured, and if it is long they are unpinned.
ADR 0003 has the measurements.

`runtime.opencl.device` creates the objects, and `runtime.run.program` calls `ran` after each run.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_TASKS: Final = Path("/proc/self/task")
# Shorter runs are judged together: measuring takes 2 us per thread, and a wait of 20 us is noise.
_MIN_RUN_NS: Final = 1_000_000
# A worker that waited for a larger part of a run has lost its CPU. Measured: 0.2 % in quiet runs of
# 25 ms, and 30 to 50 % next to a process that occupies a CPU.
_CONTENDED_PART: Final = 0.15
_CONTENDED_POINTS: Final = 2  # points for a contended run; a calm run subtracts one
_UNPIN_POINTS: Final = 4  # points that end pinning: two contended runs, more with calm ones between
_CALM_RUNS: Final = 4  # consecutive calm runs before workers are pinned (again)
_FIRST_TRIAL: Final = 20  # runs before pinning is tried anyway; doubled after a failure
_LAST_TRIAL: Final = 640  # upper limit of that number


class Governor:
    """Decides from run to run whether to pin the workers. Uses no clock and no system calls."""

    def __init__(self) -> None:
        self.pinned = False
        self._points = 0
        self._calm = 0
        self._runs = 0
        self._trial = _FIRST_TRIAL

    def judge(self, waited_ns: int, ran_ns: int) -> bool:
        """Record a run of `ran_ns`; return whether to pin the workers in the next one.

        `waited_ns` is the longest time that a worker was ready to run but had no CPU.
        """
        contended = waited_ns > _CONTENDED_PART * ran_ns
        self._runs += 1
        self._calm = 0 if contended else self._calm + 1
        # Pin after enough calm runs. Under contention only a trial shows whether pinning helps;
        # trials are rare, because they can fail.
        if not self.pinned:
            if self._calm >= _CALM_RUNS or self._runs >= self._trial:
                self._change(pinned=True)
        else:
            self._points = (
                self._points + _CONTENDED_POINTS if contended else max(0, self._points - 1)
            )
            if self._points >= _UNPIN_POINTS:
                # After a failed trial the next one waits twice as long, up to a limit.
                self._trial = min(2 * self._trial, _LAST_TRIAL)
                self._change(pinned=False)
            # A long calm time means that the load has ended, so return to the first trial length.
            elif self._calm >= self._trial:
                self._trial = _FIRST_TRIAL
        return self.pinned

    def _change(self, *, pinned: bool) -> None:
        self.pinned = pinned
        self._points = self._calm = self._runs = 0


class Workers:
    """The worker threads of one device, pinned or not.

    Programs in several threads can share one object. A run may then be counted twice or not at all,
    which only delays a decision.
    """

    def __init__(self, threads: Sequence[int], home: frozenset[int]) -> None:
        """Open the statistics of the threads; raise OSError if the system has none.

        `home` is the set of CPUs that all of them may use. It has at least one CPU per thread.
        """
        self._shares = [
            (t, share) for t, share in zip(threads, divide_cpus(home, len(threads)), strict=True)
        ]
        self._home = home
        self._governor = Governor()
        self._waits: list[int] = []
        for thread in threads:
            # The files stay open, because opening costs more than reading (at offset 0, `pread`).
            self._waits.append(os.open(_TASKS / str(thread) / "schedstat", os.O_RDONLY))
        self._waited_ns = [self._read(wait) for wait in self._waits]
        self._ran_ns = 0

    @property
    def pinned(self) -> bool:
        """Whether each worker is pinned to its own CPUs."""
        return self._governor.pinned

    @property
    def threads(self) -> tuple[int, ...]:
        """The workers' thread IDs."""
        return tuple(thread for thread, _ in self._shares)

    def run_first(self, priority: int) -> None:
        """Give the workers real-time `priority` (SCHED_FIFO); 0 restores normal scheduling.

        Raises OSError if the system refuses, or a thread has ended.
        """
        policy = os.SCHED_FIFO if priority else os.SCHED_OTHER
        for thread, _ in self._shares:
            os.sched_setscheduler(thread, policy | os.SCHED_RESET_ON_FORK, os.sched_param(priority))

    def ran(self, duration_ns: int) -> None:
        """Record the duration of a run, and pin or unpin the workers for the next one."""
        self._ran_ns += duration_ns
        # Durations of short runs are added up until the wait exceeds noise.
        if self._ran_ns < _MIN_RUN_NS:
            return
        before = self._governor.pinned
        if self._governor.judge(self._longest_wait_ns(), self._ran_ns) != before:
            self._set_affinities(pinned=not before)
        self._ran_ns = 0

    def _longest_wait_ns(self) -> int:
        """Return the longest time that one worker has waited for a CPU since the last call."""
        longest = 0
        for number, wait in enumerate(self._waits):
            # An ended worker keeps its place in the list, so that indices stay valid.
            try:
                waited_ns = self._read(wait)
            except OSError as error:  # the thread has ended
                logger.debug("a worker thread is gone: %s", error)
                continue
            longest = max(longest, waited_ns - self._waited_ns[number])
            self._waited_ns[number] = waited_ns
        return longest

    def _set_affinities(self, *, pinned: bool) -> None:
        for thread, share in self._shares:
            try:
                os.sched_setaffinity(thread, share if pinned else self._home)
            except OSError as error:  # the process lost these CPUs, or the thread has ended
                logger.debug("worker %d stays where it is: %s", thread, error)

    @staticmethod
    def _read(wait: int) -> int:
        """Return the ns that a thread was ready but had no CPU (Linux: proc_pid_schedstat)."""
        return int(os.pread(wait, 96, 0).split()[1])


def divide_cpus(cpus: frozenset[int], count: int) -> list[frozenset[int]]:
    """Divide CPUs among `count` workers in turn: six CPUs for two give 0, 2, 4 and 1, 3, 5."""
    ordered = sorted(cpus)
    return [frozenset(ordered[number::count]) for number in range(count)]


def call_tracking_threads(call: Callable[[], Result]) -> tuple[Result, tuple[int, ...]]:
    """Return the result of a call, and the IDs of the threads that the process started in it."""
    before = _threads()
    result = call()
    return result, tuple(sorted(_threads() - before))


def workers_of(threads: Sequence[int], compute_units: int) -> Workers | None:
    """Return the workers of a device; None if they cannot be pinned.

    `threads` are the candidates that the driver started. Pinning is impossible if their number
    differs from the compute units, somebody has pinned them already, there are fewer CPUs than
    workers, or the system has no statistics about them.
    """
    # Extra threads are not workers, and a single worker needs no CPU of its own.
    if len(threads) != compute_units or compute_units < 2:
        return None
    try:
        home, *others = (frozenset(os.sched_getaffinity(thread)) for thread in threads)
        # Different affinities were set by somebody on purpose, so they are left alone.
        if any(other != home for other in others) or len(home) < compute_units:
            return None
        return Workers(threads, home)
    except (OSError, ValueError, IndexError) as error:
        logger.debug("worker threads are placed by the system: %s", error)
        return None


class Candidates:
    """Threads that may be the workers of one device, which is known only once they have run.

    The loader opens all installed drivers together, and nothing shows which driver a thread belongs
    to. But only the workers of this device run when it executes a kernel.
    """

    def __init__(self, threads: Sequence[int], compute_units: int) -> None:
        self._units = compute_units
        self._workers: Workers | None = None
        self._before = {t: switches for t in threads if (switches := _switches(t)) is not None}

    def workers(self) -> Workers | None:
        """Return the workers, once a kernel has run; None if `workers_of` finds none.

        Each call tries again until the workers are found.
        """
        if self._workers is None:
            worked = [t for t, before in self._before.items() if _switches(t) not in (before, None)]
            self._workers = workers_of(worked, self._units)
        return self._workers


def _switches(thread: int) -> int | None:
    """Return how often a thread was scheduled (Linux: proc_pid_schedstat); None if it ended."""
    try:
        return int((_TASKS / str(thread) / "schedstat").read_text("ascii").split()[2])
    except (OSError, ValueError, IndexError):
        return None


def _threads() -> set[int]:
    try:
        # Linux lists the threads of a process as directories named by thread ID.
        return {int(name) for name in os.listdir(_TASKS)}  # noqa: PTH208 - names, not paths
    except OSError:
        return set()

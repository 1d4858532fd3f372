"""Sets the worker threads of a CPU driver apart, while no other process wants their CPUs.

A driver for CPUs has one thread for each of them. When they are woken together after a pause, the
system often puts two on the same CPU, and they take turns there for a whole frame although another
CPU is idle. Each on CPUs of its own cannot meet the others; but it cannot give way either, to a
process that takes its CPU. So they are set apart, it is watched how long they wait for a CPU, and
where they wait the system places them again. See ADR 0003 for what was measured.

Called by `runtime.opencl.device`, which owns the threads, and once a run by `runtime.run.program`.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_TASKS: Final = Path("/proc/self/task")
# Shorter runs are judged together: to look costs 2 us a thread, and a wait of 20 us means nothing.
_LEAST_RUN_NS: Final = 1_000_000
# A worker that waited for more than this part of a run had its CPU taken. Quiet runs of 25 ms were
# seen to wait for 0.2 %, runs beside a process that occupies a CPU for 30 to 50 %.
_CONTENDED_PART: Final = 0.15
_STRIKE: Final = 2  # points for a contended run; a calm one takes one back
_OUT: Final = 4  # points that end setting apart: two contended runs, or more among calm ones
_CALM_RUNS: Final = 4  # one after the other, until workers are set apart (again)
_FIRST_TRIAL: Final = 20  # contended runs until it is tried all the same; doubles while it fails
_LAST_TRIAL: Final = 640


class Governor:
    """Decides from run to run whether workers are set apart. No clock, no system calls."""

    def __init__(self) -> None:
        self.apart = False
        self._points = 0
        self._calm = 0
        self._runs = 0
        self._trial = _FIRST_TRIAL

    def judge(self, waited_ns: int, ran_ns: int) -> bool:
        """Note a run of `ran_ns`; return whether workers are to be apart in the next one.

        `waited_ns` is how long the worker that waited longest was ready and had no CPU.
        """
        contended = waited_ns > _CONTENDED_PART * ran_ns
        self._runs += 1
        self._calm = 0 if contended else self._calm + 1
        # A trial in spite of contention tells whether setting apart would help; rarely, as it may
        # not.
        if not self.apart:
            if self._calm >= _CALM_RUNS or self._runs >= self._trial:
                self._change(apart=True)
        else:
            self._points = self._points + _STRIKE if contended else max(0, self._points - 1)
            if self._points >= _OUT:
                # A failed trial makes the next one wait twice as long, up to a limit.
                self._trial = min(2 * self._trial, _LAST_TRIAL)
                self._change(apart=False)
            # A long calm time means that the load is gone, so trials may be as frequent as at
            # first.
            elif self._calm >= self._trial:
                self._trial = _FIRST_TRIAL
        return self.apart

    def _change(self, *, apart: bool) -> None:
        self.apart = apart
        self._points = self._calm = self._runs = 0


class Workers:
    """The worker threads of one device, set apart or not.

    Programs of several threads may share one: a run that is counted twice or not at all then
    delays a decision, no more.
    """

    def __init__(self, threads: Sequence[int], home: frozenset[int]) -> None:
        """Open the sources of how long threads waited; raise OSError if the system has none.

        All of them may use the CPUs `home`, at least as many.
        """
        self._shares = [
            (t, share) for t, share in zip(threads, deal(home, len(threads)), strict=True)
        ]
        self._home = home
        self._governor = Governor()
        self._waits: list[int] = []
        for thread in threads:
            # The file stays open: opening it costs more than reading it, and reads go to offset 0
            # (`pread`).
            self._waits.append(os.open(_TASKS / str(thread) / "schedstat", os.O_RDONLY))
        self._waited_ns = [self._read(wait) for wait in self._waits]
        self._ran_ns = 0

    @property
    def apart(self) -> bool:
        """Whether each has CPUs of its own now."""
        return self._governor.apart

    @property
    def threads(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(thread for thread, _ in self._shares)

    def run_first(self, priority: int) -> None:
        """Have the system run them before others, by `priority` of SCHED_FIFO; 0 ends that.

        Raises OSError if the system refuses it, or a thread has ended.
        """
        policy = os.SCHED_FIFO if priority else os.SCHED_OTHER
        for thread, _ in self._shares:
            os.sched_setscheduler(thread, policy | os.SCHED_RESET_ON_FORK, os.sched_param(priority))

    def ran(self, duration_ns: int) -> None:
        """Note the duration of a run, and place the workers for the next one."""
        self._ran_ns += duration_ns
        # Short runs are added up until the wait exceeds noise.
        if self._ran_ns < _LEAST_RUN_NS:
            return
        before = self._governor.apart
        if self._governor.judge(self._longest_wait_ns(), self._ran_ns) != before:
            self._place(apart=not before)
        self._ran_ns = 0

    def _longest_wait_ns(self) -> int:
        """Return how long the worker that waited longest did so since the last call."""
        longest = 0
        for number, wait in enumerate(self._waits):
            # A worker that has ended keeps its number in the list, so that shares stay with their
            # threads.
            try:
                waited_ns = self._read(wait)
            except OSError as error:  # the thread has ended: none waits any more
                logger.debug("a worker thread is gone: %s", error)
                continue
            longest = max(longest, waited_ns - self._waited_ns[number])
            self._waited_ns[number] = waited_ns
        return longest

    def _place(self, *, apart: bool) -> None:
        for thread, share in self._shares:
            try:
                os.sched_setaffinity(thread, share if apart else self._home)
            except OSError as error:  # the process has lost these CPUs, or the thread has ended
                logger.debug("worker %d stays where it is: %s", thread, error)

    @staticmethod
    def _read(wait: int) -> int:
        """Return for how many ns a thread was ready and had no CPU (Linux: proc_pid_schedstat)."""
        return int(os.pread(wait, 96, 0).split()[1])


def deal(cpus: frozenset[int], count: int) -> list[frozenset[int]]:
    """Deal CPUs to workers in turn: 0, 2, 4 and 1, 3, 5 for two of six."""
    ordered = sorted(cpus)
    return [frozenset(ordered[number::count]) for number in range(count)]


def starting(call: Callable[[], Result]) -> tuple[Result, tuple[int, ...]]:
    """Return what a call returns, and the threads of this process that it started."""
    before = _threads()
    result = call()
    return result, tuple(sorted(_threads() - before))


def workers_of(threads: Sequence[int], compute_units: int) -> Workers | None:
    """Return the workers of a device, if they can be set apart.

    None if the threads, which the driver started, are not those of the compute units, if somebody
    has placed them already, if there are fewer CPUs than workers, or if the system reports nothing
    about them.
    """
    # Threads beyond the compute units are not workers, and one worker needs no place of its own.
    if len(threads) != compute_units or compute_units < 2:
        return None
    try:
        home, *others = (frozenset(os.sched_getaffinity(thread)) for thread in threads)
        # An affinity that differs was set by somebody with a reason, which is not overruled.
        if any(other != home for other in others) or len(home) < compute_units:
            return None
        return Workers(threads, home)
    except (OSError, ValueError, IndexError) as error:
        logger.debug("worker threads are placed by the system: %s", error)
        return None


class Candidates:
    """Threads of which some are the workers of one device, until they have worked.

    Where several drivers are installed, the loader opens all of them at once, and nothing tells
    whose thread is whose: but only the workers of this device run when it has something to do.
    """

    def __init__(self, threads: Sequence[int], compute_units: int) -> None:
        self._units = compute_units
        self._workers: Workers | None = None
        self._before = {t: switches for t in threads if (switches := _switches(t)) is not None}

    def workers(self) -> Workers | None:
        """Return the workers, if a kernel has run since; see `workers_of` for when there are none.

        Each call looks again as long as there are none.
        """
        if self._workers is None:
            worked = [t for t, before in self._before.items() if _switches(t) not in (before, None)]
            self._workers = workers_of(worked, self._units)
        return self._workers


def _switches(thread: int) -> int | None:
    """Return how often a thread got a CPU (Linux: proc_pid_schedstat); None if it has ended."""
    try:
        return int((_TASKS / str(thread) / "schedstat").read_text("ascii").split()[2])
    except (OSError, ValueError, IndexError):
        return None


def _threads() -> set[int]:
    try:
        # Linux lists each thread of a process as a directory with the number of the thread.
        return {int(name) for name in os.listdir(_TASKS)}  # noqa: PTH208 - names, not paths
    except OSError:
        return set()

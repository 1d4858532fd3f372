"""Processes that tools start: watched together, ended together, never left behind.

A `Child` is a module of ours whose output is read line by line. A `Pool` calls functions in
processes with a pipe to each. A `Crew` is a pool whose processes do one task each: what a task
raises arrives here, and an end of the pipe before that is a process that died. A process of a pool
whose parent is gone ends at once.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from types import MappingProxyType
from typing import Any, Final

from runtime.own_process import own_command
from tools.errors import ToolError

# A process that was told to end has ended by then: a daemon finishes its frame and closes its
# devices well within this.
STOP_TIMEOUT_S = 10.0
_NOTHING_ELSE: Mapping[str, str] = MappingProxyType({})
# How many threads OpenCL drivers on the CPU have: they read it when devices are opened.
THREADS_VARIABLE: Final = "POCL_MAX_PTHREAD_COUNT"
# Not forked: a child of a process with threads may inherit a lock that nobody releases.
_SPAWN = multiprocessing.get_context("spawn")

# A function of a module: called with a row of arguments, `is_stopped` and `send`.
Task = Callable[..., None]
IsStopped = Callable[[], bool]
Send = Callable[[Any], None]


class ProcessError(ToolError):
    """A child process ended when it should not, or did not do what it was asked."""


class Child:
    """One child process whose stdout is read line by line.

    Args:
        name: for messages.
        module: of ours, run as ``python -m module``.
        arguments: of the module.
        environment: over the one of this process.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] = _NOTHING_ELSE,
    ) -> None:
        self.name = name
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(  # noqa: S603 - our own modules, no shell
            own_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._reader = threading.Thread(target=self._read_lines, name=f"{name} stdout", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def read_line(self, timeout_s: float) -> str | None:
        """Return the next line without its end, or None when none came in time.

        Raises:
            ProcessError: the process has ended.
        """
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if line is None:
            raise ProcessError(
                f"{self.name}: expected it to run, found it ended with exit code "
                f"{self._process.wait()}; its messages are above"
            )
        return line

    def check_running(self) -> None:
        """Raise if the process has ended.

        Raises:
            ProcessError: it has.
        """
        code = self._process.poll()
        if code is not None:
            raise ProcessError(
                f"{self.name}: expected it to run, found it ended with exit code {code}; its "
                "messages are above"
            )

    def write_line(self, text: str) -> None:
        """Send a line to the process's stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def stop(self) -> int:
        """End the process in the ordinary way, by SIGTERM; return its exit code.

        Raises:
            ProcessError: it does not end; it has been killed then.
        """
        self.end()
        if self._process.returncode == -signal.SIGKILL:
            raise ProcessError(
                f"{self.name}: expected it to end after SIGTERM, found it running "
                f"{STOP_TIMEOUT_S:g} s later; it was killed"
            )
        return self._process.returncode

    def remaining_lines(self) -> list[str]:
        """Return what was printed and not read yet; only after ``stop``."""
        lines = []
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                lines.append(line)
        return lines

    def end(self) -> None:
        """End the process if it still runs: by SIGTERM, and by force if that does not help."""
        if self._process.poll() is None:
            self._process.terminate()
        self._close_stdin()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            # It ended before it read everything; its exit code tells the rest.
            return


@dataclass(frozen=True, slots=True)
class Gone:
    """What a pool receives in place of a message when a process has died.

    Attributes:
        how: it ended, to follow the words "its process".
    """

    how: str


@dataclass(slots=True)
class Pool:
    """Processes, known by our ends of their pipes; made by `open_pool`."""

    _processes: dict[Connection, BaseProcess] = field(default_factory=dict)

    def start(self, body: Callable[..., None], *arguments: Any) -> Connection:
        """Start a process and return our end of its pipe.

        Args:
            body: a function of a module, called with the arguments and its end of the pipe.
            arguments: what can be pickled.
        """
        with interrupts_later():
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_live, args=(body, *arguments, theirs), daemon=True)
            process.start()
            # The process holds the other end alone: when it dies, ours reads the end.
            theirs.close()
            self._processes[ours] = process
        return ours

    def receive(
        self, pipes: Collection[Connection], timeout_s: float | None = None
    ) -> Iterator[tuple[Connection, Any]]:
        """Yield one message, or `Gone`, of each of these that has sent one.

        Args:
            pipes: those to listen to.
            timeout_s: how long to wait for the first; None: until it comes.
        """
        for pipe in wait(list(pipes), timeout_s) if pipes else []:
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except (EOFError, OSError, pickle.UnpicklingError):
                process = self._processes[pipe]
                process.join(STOP_TIMEOUT_S)
                pipe.close()
                message = Gone(_how(process))
            yield pipe, message

    def end(self, *, by_force: bool) -> None:
        """End all processes.

        Args:
            by_force: at once; else when they find that their pipe is closed.
        """
        if by_force:
            for process in self._processes.values():
                process.terminate()
        for pipe in self._processes:
            pipe.close()
        for process in self._processes.values():
            process.join(STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes.clear()


@contextmanager
def open_pool() -> Iterator[Pool]:
    """Yield a pool without processes; at the end of the block those that it has are gone."""
    pool = Pool()
    try:
        yield pool
    finally:
        # Nothing of what they may still do is wanted; they end before what they work on goes.
        pool.end(by_force=True)


@dataclass(slots=True)
class Crew:
    """Processes at work; made by `open_crew`."""

    _pool: Pool
    _working: list[Connection]
    _gone: Exception

    @property
    def working(self) -> bool:
        """Whether one of them has not ended."""
        return bool(self._working)

    def receive(self, timeout_s: float = 0.0) -> list[Any]:
        """Return what they have sent; one thing of each at the most.

        Args:
            timeout_s: how long to wait for something.

        Raises:
            Exception: what a task raised, or what is raised where a process is gone.
        """
        found: list[Any] = []
        for pipe, message in self._pool.receive(self._working, timeout_s):
            if message is None:
                self._working.remove(pipe)
            elif isinstance(message, Gone):
                raise self._gone
            elif isinstance(message, _Failure):
                raise message.error
            else:
                found.append(message)
        return found


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a task raised."""

    error: Exception


@contextmanager
def open_crew(task: Task, arguments: Sequence[tuple[Any, ...]], gone: Exception) -> Iterator[Crew]:
    """Start one process for each row of arguments; at the end of the block they are gone.

    Args:
        task: what each does. It may send anything but None; its end is told by itself.
        arguments: of each process; what can be pickled.
        gone: what is raised where a process died.
    """
    stop = _SPAWN.Event()
    with open_pool() as pool:
        try:
            yield Crew(pool, [pool.start(_work, task, row, stop) for row in arguments], gone)
        finally:
            stop.set()


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back from this thread, and from processes that it starts meanwhile for good.

    It reaches every process of the terminal, and the parent decides: the others inherit that they
    do not hear of it, from their first instruction on.
    """
    # The tracker of multiprocessing is started with the first process otherwise, and unblocks the
    # signal.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _how(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None:
        return "does not answer"
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with exit code {code}"


def _live(body: Callable[..., None], *arguments: Any) -> None:
    """Call a body, and end when the process that started this one is gone."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, name="follow parent", daemon=True).start()
    body(*arguments)


def _work(task: Task, row: tuple[Any, ...], stop: Event, pipe: Connection) -> None:
    """Do a task; the body of a process."""
    try:
        task(*row, stop.is_set, pipe.send)
        pipe.send(None)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        pipe.send(_Failure(error))


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

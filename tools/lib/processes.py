"""Starts, watches and ends the child processes of tools.

A `Child` runs a module of this project, and its output is read line by line. A `Pool` calls
functions in processes, with a pipe to each. A `Crew` is a pool whose processes do one task each;
an error of a task is raised in the parent. A process of a pool ends as soon as its parent has
ended, so none is left behind. The last functions divide the CPU cores among such processes.
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

# Longest wait for a process to end after SIGTERM. A daemon needs much less to finish its frame and
# close its devices.
STOP_TIMEOUT_S = 10.0
_NOTHING_ELSE: Mapping[str, str] = MappingProxyType({})
# Variable with the number of PoCL's threads, which PoCL reads when a device is opened.
THREADS_VARIABLE: Final = "POCL_MAX_PTHREAD_COUNT"
# Spawn, not fork: a forked child can inherit a lock held by another thread, and nobody releases it.
_SPAWN = multiprocessing.get_context("spawn")

# The work of one process: a module's function, called with its arguments, `is_stopped` and `send`.
Task = Callable[..., None]
IsStopped = Callable[[], bool]
Send = Callable[[Any], None]


class ProcessError(ToolError):
    """A child process ended unexpectedly, or did not end when asked."""


class Child:
    """One child process whose stdout is read line by line.

    Args:
        name: The name in messages.
        module: A module of this project, run as ``python -m module``.
        arguments: The module's command line.
        environment: Variables to add to those of this process.
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
        """The process id."""
        return self._process.pid

    def read_line(self, timeout_s: float) -> str | None:
        """Return the next line without its end, or None if there is none within `timeout_s`.

        Raises:
            ProcessError: The process has ended.
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
        """Check that the process is running.

        Raises:
            ProcessError: The process has ended.
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
        """End the process with SIGTERM; return its exit code.

        Raises:
            ProcessError: It did not end in time and was killed.
        """
        self.end()
        if self._process.returncode == -signal.SIGKILL:
            raise ProcessError(
                f"{self.name}: expected it to end after SIGTERM, found it running "
                f"{STOP_TIMEOUT_S:g} s later; it was killed"
            )
        return self._process.returncode

    def remaining_lines(self) -> list[str]:
        """Return the printed lines that were not read yet. Call only after ``stop``."""
        lines = []
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                lines.append(line)
        return lines

    def end(self) -> None:
        """End the process if it is running, with SIGTERM and, after a timeout, with SIGKILL."""
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
            # It ended before it read all input; its exit code gives the reason.
            return


@dataclass(frozen=True, slots=True)
class Gone:
    """Received from a pool in place of a message when a process has died."""

    how: str  # how it ended, as a phrase to follow "its process"


@dataclass(slots=True)
class Pool:
    """Child processes, each identified by the parent's end of its pipe. Created by `open_pool`."""

    _processes: dict[Connection, BaseProcess] = field(default_factory=dict)

    def start(self, body: Callable[..., None], *arguments: Any) -> Connection:
        """Start a process and return the parent's end of its pipe.

        Args:
            body: A module's function, called with the arguments and the child's end of the pipe.
            arguments: Values that can be pickled.
        """
        with interrupts_later():
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_live, args=(body, *arguments, theirs), daemon=True)
            process.start()
            # Only the child holds the other end now, so our end reads EOF when the child dies.
            theirs.close()
            self._processes[ours] = process
        return ours

    def receive(
        self, pipes: Collection[Connection], timeout_s: float | None = None
    ) -> Iterator[tuple[Connection, Any]]:
        """Yield one message, or `Gone`, from each pipe that has one.

        Args:
            pipes: The pipes to read.
            timeout_s: Longest wait for the first message; None waits without limit.
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
            by_force: Send SIGTERM; otherwise they end when they find their pipe closed.
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
    """Yield an empty pool; its processes are ended at the end of the block."""
    pool = Pool()
    try:
        yield pool
    finally:
        # Their results are not needed any more. They must end before their files are removed.
        pool.end(by_force=True)


@dataclass(slots=True)
class Crew:
    """Processes that do one task each. Created by `open_crew`."""

    _pool: Pool
    _working: list[Connection]
    _gone: Exception

    @property
    def working(self) -> bool:
        """Whether at least one task has not ended."""
        return bool(self._working)

    def receive(self, timeout_s: float = 0.0) -> list[Any]:
        """Return the objects sent by tasks, at most one from each.

        Args:
            timeout_s: Longest wait for the first object.

        Raises:
            Exception: The error of a task, or `gone` of `open_crew` if a process died.
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
    """Sent by a process whose task raised an error."""

    error: Exception


@contextmanager
def open_crew(task: Task, arguments: Sequence[tuple[Any, ...]], gone: Exception) -> Iterator[Crew]:
    """Start one process per row of arguments; they are ended at the end of the block.

    Args:
        task: The work of each process. It can send any object except None, which marks its end.
        arguments: One row per process, with values that can be pickled.
        gone: The error to raise if a process dies.
    """
    stop = _SPAWN.Event()
    with open_pool() as pool:
        try:
            yield Crew(pool, [pool.start(_work, task, row, stop) for row in arguments], gone)
        finally:
            stop.set()


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Block SIGINT in this thread for the block, and permanently in processes started in it.

    Ctrl-C sends SIGINT to every process of the terminal, but only the parent should react. Children
    inherit the blocked signal, so it cannot reach them even at their start.
    """
    # Otherwise multiprocessing would start its tracker together with the first process, which
    # unblocks the signal.
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
    """Call a body, and end this process when its parent has ended."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, name="follow parent", daemon=True).start()
    body(*arguments)


def _work(task: Task, row: tuple[Any, ...], stop: Event, pipe: Connection) -> None:
    """Do a task and send its end or its error. This is the body of a crew's process."""
    try:
        task(*row, stop.is_set, pipe.send)
        pipe.send(None)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        pipe.send(_Failure(error))


def threads_of_one(processes: int) -> int:
    """Return the number of driver threads for each of several processes.

    The driver's threads spin while they wait for each other, so all processes together must not
    have more threads than there are cores.
    """
    return max(1, len(os.sched_getaffinity(0)) // processes)


def thread_setting(threads: int) -> dict[str, str]:
    """Return the environment variable that sets the number of threads."""
    return {THREADS_VARIABLE: str(threads)}


def limit_threads(threads: int) -> None:
    """Limit the driver of this process to `threads`, unless the user has set a number."""
    os.environ.setdefault(THREADS_VARIABLE, str(threads))

"""A crew of processes: each does one task, and sends what comes of it through a pipe.

What a task raises arrives here, and an end of the pipe before that is a process that died. A
process whose parent is gone ends at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Any

# A process that was told to end has ended by then.
_END_S = 10.0

# A function of a module: called with a row of arguments, `is_stopped` and `send`.
Task = Callable[..., None]
IsStopped = Callable[[], bool]
Send = Callable[[Any], None]


@dataclass(slots=True)
class Crew:
    """Processes at work; made by `open_crew`."""

    _pipes: list[Connection]
    _gone: Exception

    @property
    def working(self) -> bool:
        """Whether one of them has not ended."""
        return bool(self._pipes)

    def receive(self, timeout_s: float = 0.0) -> list[Any]:
        """Return what they have sent; one thing of each at the most.

        Args:
            timeout_s: how long to wait for something.

        Raises:
            Exception: what a task raised, or what is raised where a process is gone.
        """
        found: list[Any] = []
        for pipe in wait(self._pipes, timeout_s) if self._pipes else []:
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                raise self._gone from None
            if message is None:
                self._pipes.remove(pipe)
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
    # Not forked: a child of a process with threads may inherit a lock that nobody releases.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        with interrupts_later():
            for row in arguments:
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(task, row, stop, theirs), daemon=True)
                process.start()
                # The process holds the other end alone: when it dies, ours reads the end.
                theirs.close()
                processes.append(process)
                pipes.append(ours)
        yield Crew(list(pipes), gone)
    finally:
        # Nothing of what they may still do is wanted; they end before what they work on goes.
        stop.set()
        for started in processes:
            started.terminate()
        for started in processes:
            started.join(_END_S)
            if started.is_alive():
                started.kill()
                started.join()
        for pipe in pipes:
            pipe.close()


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


def follow_parent() -> None:
    """Let this process end when the one that started it is gone."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, name="follow parent", daemon=True).start()


def _work(task: Task, row: tuple[Any, ...], stop: Event, pipe: Connection) -> None:
    """Do a task; the body of a process."""
    follow_parent()
    try:
        task(*row, stop.is_set, pipe.send)
        pipe.send(None)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        pipe.send(_Failure(error))

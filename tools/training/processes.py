"""Processes that paint or drive for a training until they are told to end.

Each runs one function with a stop signal and a pipe back; what it raises arrives as one line. A
process whose parent is gone ends by itself.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Any

from tools.errors import TrainingError

_END_S = 10.0
Task = Callable[..., None]


class Crew:
    """Processes at work; made by `open_crew`."""

    def __init__(self, processes: list[BaseProcess], pipes: list[Connection]) -> None:
        self._processes = processes
        self._pipes = pipes

    @property
    def working(self) -> bool:
        """Whether one of them has not ended."""
        return bool(self._pipes)

    def receive(self, timeout_s: float = 0.0) -> list[Any]:
        """Return what they have sent.

        Args:
            timeout_s: how long to wait for something.

        Raises:
            TrainingError: one of them failed, or is gone.
        """
        found: list[Any] = []
        for pipe in wait(self._pipes, timeout_s) if self._pipes else []:
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                raise TrainingError(
                    "train: expected the painting processes to go on, found one gone; is there "
                    "enough memory? Go on with --resume, --workers 1 takes the least"
                ) from None
            if message is None:
                self._pipes.remove(pipe)
            elif isinstance(message, _Failure):
                raise TrainingError(f"train: a painting process failed: {message.text}")
            else:
                found.append(message)
        return found


class _Failure:
    """What a process raised."""

    def __init__(self, error: Exception) -> None:
        self.text = f"{type(error).__name__}: {error}"


@contextmanager
def open_crew(task: Task, arguments: Sequence[tuple[Any, ...]]) -> Iterator[Crew]:
    """Start one process for each row of arguments; at the end of the block they are gone.

    Args:
        task: a function of a module, called with a row of arguments, `is_stopped` and `send`.
        arguments: of each process; what can be pickled.
    """
    # Not forked: a child of a process with threads may inherit a lock that nobody releases.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        with _interrupts_later():
            for row in arguments:
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(task, row, stop, theirs), daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
        yield Crew(processes, list(pipes))
    finally:
        stop.set()
        for started in processes:
            started.terminate()
        for started in processes:
            started.join(_END_S)
        for pipe in pipes:
            pipe.close()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back; processes started meanwhile never see it, their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(task: Task, row: tuple[Any, ...], stop: Event, pipe: Connection) -> None:
    parent = multiprocessing.parent_process()

    def is_stopped() -> bool:
        return stop.is_set() or parent is None or not parent.is_alive()

    try:
        task(*row, is_stopped, pipe.send)
        pipe.send(None)
    except Exception as error:  # noqa: BLE001 - the parent reports it
        pipe.send(_Failure(error))

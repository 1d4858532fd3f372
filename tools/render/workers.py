"""Renders files in several processes, or in this one where a drive is short.

Each process gets its share of the files at its start and sends what came of each through a pipe; an
end of the pipe before that is a process that died.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from tools.errors import ToolError
from tools.render.hevc import Packet
from tools.render.render_file import FileJob, render_file

# How often progress is looked at.
_POLL_S = 0.2
# A process that was told to end has ended by then.
_END_S = 5.0
# Below this a process costs more to start than it saves.
_PICTURES_PER_PROCESS = 100

Progress = Callable[[int], None]
"""Called with the number of pictures that are done."""

_Outcome = tuple[Path, list[Packet] | Exception]


def choose_workers(jobs: Sequence[FileJob], most: int) -> int:
    """Return how many processes are worth their start, 1 to `most`."""
    pictures = sum(len(job.spec.delivered(job.stream, job.segment)) for job in jobs)
    return max(1, min(most, len(jobs), pictures // _PICTURES_PER_PROCESS))


@dataclass(slots=True)
class Workers:
    """What renders files; made by `open_workers`."""

    progress: Progress
    _connections: list[Connection]
    _counter: Synchronized[int] | None = None
    _done: dict[Path, list[Packet]] = field(default_factory=dict)
    _count: int = 0

    def packets(self, job: FileJob) -> list[Packet]:
        """Return what came of a file; waits for it, or renders it here.

        Raises:
            ToolError: a process died.
            OSError: the file cannot be written.
        """
        if self._counter is None:
            return render_file(job, self._count_here)
        while job.path not in self._done:
            for connection in wait(self._connections, _POLL_S):
                assert isinstance(connection, Connection)
                self._receive(connection)
            self.progress(self._counter.value)
        return self._done[job.path]

    def _receive(self, connection: Connection) -> None:
        try:
            outcome: _Outcome | None = connection.recv()
        except EOFError:
            raise ToolError(
                "make-drive: expected the rendering processes to finish, found one gone; is there "
                "enough memory? --workers 1 takes the least"
            ) from None
        if outcome is None:  # all of its files are done
            self._connections.remove(connection)
            return
        path, result = outcome
        if isinstance(result, Exception):
            raise result
        self._done[path] = result

    def _count_here(self) -> None:
        self._count += 1
        self.progress(self._count)


@contextmanager
def open_workers(jobs: Sequence[FileJob], count: int, progress: Progress) -> Iterator[Workers]:
    """Start to render files, in order; at the end of the block the processes are gone.

    Args:
        jobs: the files.
        count: processes; 1 renders in this one, when a file is asked for.
        progress: called now and then.
    """
    if count == 1:
        yield Workers(progress, [])
        return
    # Not forked: a child of a process with threads may inherit a lock that nobody releases.
    context = multiprocessing.get_context("spawn")
    counter: Synchronized[int] = context.Value("q", 0)
    processes: list[BaseProcess] = []
    connections: list[Connection] = []
    try:
        with _interrupts_later():
            for number in range(count):
                ours, theirs = context.Pipe(duplex=False)
                share = list(jobs[number::count])
                process = context.Process(target=_work, args=(share, theirs, counter), daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                connections.append(ours)
        yield Workers(progress, list(connections), counter)
    finally:
        # Nothing of what they may still do is wanted; they end before their files go.
        for started in processes:
            started.terminate()
        for started in processes:
            started.join(_END_S)
        for connection in connections:
            connection.close()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back; processes started meanwhile never see it, their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(jobs: list[FileJob], connection: Connection, counter: Synchronized[int]) -> None:
    """Render files; the body of a worker process."""

    def count() -> None:
        with counter.get_lock():
            counter.value += 1

    for job in jobs:
        result: list[Packet] | Exception
        try:
            result = render_file(job, count)
        except Exception as error:  # noqa: BLE001 - the parent reports it
            result = error
        connection.send((job.path, result))
    connection.send(None)

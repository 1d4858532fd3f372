"""Renders files in several processes, or in this one where a drive is short.

Each process gets its share of the files at its start; it says when a picture is done, and what came
of each file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.errors import ToolError
from tools.lib.crew import Crew, IsStopped, Send, open_crew
from tools.lib.progress_bar import Progress
from tools.render.hevc import Packet
from tools.render.render_file import FileJob, render_file

# How long is waited for a message at a time.
_POLL_S = 0.2
# Below this a process costs more to start than it saves.
_PICTURES_PER_PROCESS = 100
# What is sent when a picture is done; a file is sent as its path and its packets.
_PICTURE = "picture"
_GONE = (
    "make-drive: expected the rendering processes to finish, found one gone; is there enough "
    "memory? --workers 1 takes the least"
)


def choose_workers(jobs: Sequence[FileJob], most: int) -> int:
    """Return how many processes are worth their start, 1 to `most`."""
    pictures = sum(len(job.spec.delivered(job.stream, job.segment)) for job in jobs)
    return max(1, min(most, len(jobs), pictures // _PICTURES_PER_PROCESS))


@dataclass(slots=True)
class Workers:
    """What renders files; made by `open_workers`."""

    progress: Progress
    _crew: Crew | None = None
    _done: dict[Path, list[Packet]] = field(default_factory=dict)
    _count: int = 0

    def packets(self, job: FileJob) -> list[Packet]:
        """Return what came of a file; waits for it, or renders it here.

        Raises:
            ToolError: a process died.
            OSError: the file cannot be written.
        """
        if self._crew is None:
            return render_file(job, self._count_one)
        while job.path not in self._done:
            for message in self._crew.receive(_POLL_S):
                if message == _PICTURE:
                    self._count_one()
                else:
                    path, packets = message
                    self._done[path] = packets
        return self._done[job.path]

    def _count_one(self) -> None:
        self._count += 1
        self.progress(self._count)


@contextmanager
def open_workers(jobs: Sequence[FileJob], count: int, progress: Progress) -> Iterator[Workers]:
    """Start to render files, in order; at the end of the block the processes are gone.

    Args:
        jobs: the files.
        count: processes; 1 renders in this one, when a file is asked for.
        progress: called after each picture.
    """
    if count == 1:
        yield Workers(progress)
        return
    shares = [(list(jobs[number::count]),) for number in range(count)]
    with open_crew(_render, shares, ToolError(_GONE)) as crew:
        yield Workers(progress, crew)


def _render(jobs: list[FileJob], _is_stopped: IsStopped, send: Send) -> None:
    """Render files; the body of a worker process."""
    for job in jobs:
        send((job.path, render_file(job, lambda: send(_PICTURE))))

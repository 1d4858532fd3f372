"""Runs regression jobs in local processes, with exactly one result per drive even after crashes.

A job is one drive to run. A process loads the program once and runs drives one after another. If a
process dies (out of memory, a driver that aborts), it is replaced and its drive runs once more; if
it dies again, the drive's result is an error. Results are stored in a work directory on arrival, so
an interrupted run can continue.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from cereal.errors import CerealError
from runtime.files.user_file import whole_file
from tools.drives.open_drive import open_drive
from tools.errors import ToolError
from tools.lib.processes import Gone, limit_threads, open_pool, threads_of_one
from tools.regress.job import Job, JobResult, ModelHolder, run_job

logger = logging.getLogger(__name__)

# Number of attempts for a drive whose process dies.
ATTEMPTS: Final = 2
WORKER_DIED_EXIT_CODE: Final = 1

# The function that a worker calls for a job; tests replace it.
RunJob = Callable[[Job, ModelHolder], JobResult]
# Called with each result on arrival: (position of the job, result).
OnResult = Callable[[int, JobResult], None]


@dataclass(slots=True)
class _Task:
    position: int
    job: Job
    attempts: int = 0


def run_jobs(
    jobs: Sequence[Job],
    processes: int,
    work: WorkDirectory | None = None,
    on_result: OnResult | None = None,
    run: RunJob = run_job,
) -> list[JobResult]:
    """Run jobs and return their results in the order of the jobs.

    Args:
        jobs: one job per drive; jobs with equal keys run once.
        processes: number of concurrent processes.
        work: stores results, and provides those of earlier runs.
        on_result: called with each result on arrival, for progress.
        run: the workers' function; a module-level function, since workers look it up by name.

    Raises:
        ToolError: a result cannot be stored (disk full). Earlier results are kept.
        KeyboardInterrupt: the run was interrupted; finished results are stored.
    """
    results: dict[str, JobResult] = {}
    positions: dict[str, list[int]] = {}
    for position, job in enumerate(jobs):
        positions.setdefault(job.key, []).append(position)

    def finish(result: JobResult) -> None:
        results[result.key] = result
        for position in positions[result.key]:
            if on_result is not None:
                on_result(position, result)

    tasks: deque[_Task] = deque()
    for places in positions.values():
        kept = work.load(jobs[places[0]]) if work is not None else None
        if kept is not None:
            finish(kept)
        else:
            tasks.append(_Task(places[0], jobs[places[0]]))
    for result in _run_tasks(tasks, max(1, min(processes, len(tasks))), run):
        if work is not None:
            work.store(result)
        finish(result)
    return [results[job.key] for job in jobs]


def _run_tasks(tasks: deque[_Task], processes: int, run: RunJob) -> Iterator[JobResult]:
    """Yield results in the order of completion."""
    level, threads = logging.getLogger().level, threads_of_one(processes)
    busy: dict[Connection, _Task] = {}
    idle: list[Connection] = []
    with open_pool() as pool:
        while tasks or busy:
            while tasks and (idle or len(busy) < processes):
                pipe = idle.pop() if idle else pool.start(_serve, run, level, threads)
                task = busy[pipe] = tasks.popleft()
                task.attempts += 1
                try:
                    pipe.send(task.job)
                except OSError:
                    # The process died while idle. `receive` reports it; the drive is not at fault.
                    task.attempts -= 1
            for pipe, result in pool.receive(busy):
                task = busy.pop(pipe)
                if not isinstance(result, Gone):
                    idle.append(pipe)
                    yield result
                elif task.attempts < ATTEMPTS:
                    logger.warning(
                        "%s: its process %s; running it once more", task.job.drive, result.how
                    )
                    tasks.append(task)
                else:
                    yield _died(task, result.how)
        pool.end(by_force=False)


def _died(task: _Task, how: str) -> JobResult:
    """Return the result of a drive whose process died too often."""
    text = (
        f"{task.job.drive}: expected a result, found that its process {how}, {task.attempts} "
        "times; is there enough memory? Run it alone: --jobs 1"
    )
    return JobResult(task.job.key, error=text, exit_code=WORKER_DIED_EXIT_CODE)


def _serve(run: RunJob, level: int, threads: int, pipe: Connection) -> None:
    """Run the jobs received through the pipe until it is closed; the main function of a worker."""
    limit_threads(threads)
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(levelname).1s %(name)s: %(message)s"
    )
    holder = ModelHolder()
    try:
        while True:
            pipe.send(run(pipe.recv(), holder))
    except (EOFError, OSError):
        # The parent process is gone, possibly while a job was running.
        holder.close()


def drive_identity(job: Job) -> str | None:
    """Return the identity of the drive that a job would run; None if it cannot be opened."""
    try:
        drive = open_drive(job.drive, job.options)
    except (ToolError, CerealError, OSError):
        return None  # running the job will report the reason
    try:
        return drive.info.identity
    finally:
        drive.close()


class WorkDirectory:
    """A directory of job results, one file each, named by the job's key.

    Args:
        path: the directory; created if missing.
        identify: returns the identity of the drive that a job would run, or None if it cannot be
            opened.

    Raises:
        ToolError: the directory cannot be created or written.
    """

    def __init__(self, path: Path, identify: Callable[[Job], str | None] | None = None) -> None:
        self.path = path
        self._identify = identify or drive_identity
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ToolError(
                f"{path}: expected a work directory, found: {error.strerror}; name another one"
            ) from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise ToolError(f"{path}: expected a directory that can be written; name another one")

    def store(self, result: JobResult) -> None:
        """Store a successful result; errors are not stored, so that those jobs run again.

        Raises:
            ToolError: the file cannot be written, for example because the disk is full.
        """
        if result.error:
            return
        path = self._path(result.key)
        try:
            with whole_file(path) as file:
                file.write(pickle.dumps(result))
        except OSError as error:
            raise ToolError(
                f"{path}: the result cannot be stored: {error.strerror}; free some disk space, "
                f"then continue with --work {self.path}"
            ) from error

    def load(self, job: Job) -> JobResult | None:
        """Return the stored result of a job; None if there is none that is valid for its drive."""
        path = self._path(job.key)
        try:
            result = pickle.loads(path.read_bytes())  # noqa: S301 - the user's own directory
        except FileNotFoundError:
            return None
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ValueError) as error:
            logger.warning("%s: cannot be read (%s); the drive is run again", path, error)
            return None
        if not isinstance(result, JobResult) or result.key != job.key or result.drive is None:
            return None
        # The key contains the drive's name only; its files may have been replaced since.
        return result if result.drive.identity == self._identify(job) else None

    def count(self) -> int:
        """Return the number of stored results."""
        return sum(1 for _ in self.path.glob("*.result"))

    def _path(self, key: str) -> Path:
        return self.path / f"{key}.result"

"""Runs jobs in processes of this machine: each drive exactly one result, whatever dies.

A process loads the program once and runs one drive after the other. One that dies (out of memory,
a driver that aborts) is replaced and its drive run once more; the second time the drive gets an
error as its result. Results are kept in a work directory the moment they come, so that a run which
was interrupted goes on where it stopped.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from cereal.errors import CerealError
from runtime.files.whole_file import whole_file
from tools.drives.open_drive import open_drive
from tools.errors import ToolError
from tools.lib.crew import follow_parent, interrupts_later
from tools.lib.processes import limit_threads, threads_of_one
from tools.regress.job import Job, JobResult, ModelHolder, run_job

logger = logging.getLogger(__name__)

# A drive whose process died is run this often in all.
ATTEMPTS: Final = 2
STOP_TIMEOUT_S: Final = 5.0
WORKER_DIED_EXIT_CODE: Final = 1
_SPAWN: Final = get_context("spawn")

# What a worker does with a job; tests plant other ones.
RunJob = Callable[[Job, ModelHolder], JobResult]
# Called with each result as it comes: (position of the job, result).
OnResult = Callable[[int, JobResult], None]


@dataclass(slots=True)
class _Task:
    position: int
    job: Job
    attempts: int = 0


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: _Task | None = None


def run_jobs(
    jobs: Sequence[Job],
    processes: int,
    work: WorkDirectory | None = None,
    on_result: OnResult | None = None,
    run: RunJob = run_job,
) -> list[JobResult]:
    """Run jobs and return their results in the order of the jobs.

    Args:
        jobs: one for each drive; jobs of the same key are run once.
        processes: how many run at a time.
        work: where results are kept, and found again.
        on_result: called as they come, for progress.
        run: what a worker does; a function of a module, since it is looked up in the worker.

    Raises:
        ToolError: a result cannot be kept (disk full); those before it are.
        KeyboardInterrupt: it was interrupted; what had finished is kept.
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
    """Yield results as they come."""
    workers: list[_Worker] = []
    try:
        while tasks or any(worker.task for worker in workers):
            _hand_out(tasks, workers, processes, run)
            busy = {worker.pipe: worker for worker in workers if worker.task}
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker = busy[ready]
                result = _collect(worker, tasks)
                if result is None:
                    workers.remove(worker)
                else:
                    worker.task = None
                    yield result
                    continue
                died = _died(worker)
                if died is not None:
                    yield died
    finally:
        _stop(workers)


def _hand_out(tasks: deque[_Task], workers: list[_Worker], processes: int, run: RunJob) -> None:
    for worker in workers:
        if not tasks:
            return
        if worker.task is None:
            _give(worker, tasks)
    while tasks and len(workers) < processes:
        worker = _start(run, threads_of_one(processes))
        workers.append(worker)
        _give(worker, tasks)


def _give(worker: _Worker, tasks: deque[_Task]) -> None:
    task = tasks.popleft()
    task.attempts += 1
    worker.task = task
    try:
        worker.pipe.send(task.job)
    except OSError:
        # It died while it had nothing to do; reading from it says so.
        logger.debug("worker %s was gone before its drive", worker.process.pid)


def _collect(worker: _Worker, tasks: deque[_Task]) -> JobResult | None:
    """Return what a worker sent; None where it is gone, its task then waits for another one."""
    try:
        result: JobResult = pickle.loads(worker.pipe.recv_bytes())  # noqa: S301 - our own process
    except (EOFError, OSError, pickle.UnpicklingError):
        worker.process.join(STOP_TIMEOUT_S)
        assert worker.task is not None
        if worker.task.attempts < ATTEMPTS:
            logger.warning(
                "%s: its process %s; running it once more",
                worker.task.job.drive,
                _how(worker.process),
            )
            tasks.append(worker.task)
            worker.task = None
        return None
    return result


def _died(worker: _Worker) -> JobResult | None:
    """Return the result of a drive that took its process with it too often."""
    worker.pipe.close()
    task = worker.task
    if task is None:
        return None
    text = (
        f"{task.job.drive}: expected a result, found that its process {_how(worker.process)}, "
        f"{task.attempts} times; is there enough memory? Run it alone: --jobs 1"
    )
    return JobResult(task.job.key, error=text, exit_code=WORKER_DIED_EXIT_CODE)


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


def _start(run: RunJob, threads: int) -> _Worker:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(
        target=_serve, args=(theirs, run, logging.getLogger().level, threads), daemon=True
    )
    with interrupts_later():
        process.start()
    # The worker holds the other end alone: when it dies, ours reads the end of the file.
    theirs.close()
    return _Worker(process, ours)


def _stop(workers: Sequence[_Worker]) -> None:
    """End all workers: those at work by force, since nothing of theirs is kept."""
    for worker in workers:
        worker.pipe.close()
        if worker.task is not None:
            worker.process.terminate()
    for worker in workers:
        worker.process.join(STOP_TIMEOUT_S)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _serve(pipe: Connection, run: RunJob, level: int, threads: int) -> None:
    """Run what comes through the pipe until it is closed: the worker's only function."""
    limit_threads(threads)
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(levelname).1s %(name)s: %(message)s"
    )
    follow_parent()
    holder = ModelHolder()
    try:
        while True:
            result = run(pipe.recv(), holder)
            pipe.send_bytes(pickle.dumps(result))
    except (EOFError, OSError):
        # The other side is gone, with or without having asked for more.
        holder.close()


def drive_identity(job: Job) -> str | None:
    """Return the identity of the drive that a job would run now, None where it cannot be opened."""
    try:
        drive = open_drive(job.drive, job.options)
    except (ToolError, CerealError, OSError):
        return None  # the job says why when it is run
    try:
        return drive.info.identity
    finally:
        drive.close()


class WorkDirectory:
    """Results of jobs as files, one each, named by the job's key.

    Args:
        path: a directory, made if it is missing.
        identify: says which drive a job would run now; None where it cannot be opened.

    Raises:
        ToolError: it cannot be made or written.
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
        """Keep a result that ran well; errors are tried again next time.

        Raises:
            ToolError: the disk is full, or the like.
        """
        if result.error:
            return
        path = self._path(result.key)
        try:
            with whole_file(path) as file:
                file.write(pickle.dumps(result))
        except OSError as error:
            raise ToolError(
                f"{path}: the result cannot be kept: {error.strerror}; free some disk space, then "
                f"go on with --work {self.path}"
            ) from error

    def load(self, job: Job) -> JobResult | None:
        """Return the kept result of a job, None where there is none that holds for its drive."""
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
        # The key has the drive's name; what lies there may have been replaced since.
        return result if result.drive.identity == self._identify(job) else None

    def count(self) -> int:
        """Return how many results are kept."""
        return sum(1 for _ in self.path.glob("*.result"))

    def _path(self, key: str) -> Path:
        return self.path / f"{key}.result"

"""Runs jobs on a Dask cluster: on workers of this machine, or on those of a scheduler elsewhere.

The program goes to each worker once, when it first joins; a worker that joins later, or one that
replaces a lost one, gets it as well. Dask hands a job to another worker when its own is lost. Each
result is taken once, by its job's key, and kept the moment it comes. Drives are opened by the
workers: they have to lie under the same path there.

A cluster runs code and unpickles what it is sent. Workers of this machine listen on loopback only;
a scheduler elsewhere is whoever's who started it (docs/fleet.md).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from runtime.files.user_file import whole_file
from tools.errors import ToolError, UsageError
from tools.regress.job import Job, JobResult, ModelHolder, run_job
from tools.regress.pool import OnResult, WorkDirectory
from tools.regress.run_facts import code_digest

logger = logging.getLogger(__name__)

LOCAL: Final = "local"
PLUGIN: Final = "modeld-program"
CONNECT_TIMEOUT_S: Final = 30
# Workers that a job may take down with it before it is the job's own fault.
ALLOWED_LOSSES: Final = 3
LOST_EXIT_CODE: Final = 1


class ProgramOnWorker:
    """What a worker keeps: the programs' files, the loaded programs, and a turn for each job.

    Dask pickles it once for each worker and calls `setup` there.

    `artifacts`: sha256 of a program, as `Artifact.sha256` -> its file, as bytes.
    """

    name = PLUGIN

    def __init__(self, artifacts: Mapping[str, bytes]) -> None:
        self._artifacts = artifacts

    def setup(self, worker: Any) -> None:
        """Write the programs beside the worker's other files."""
        self._paths: dict[str, Path] = {}
        for sha256, content in self._artifacts.items():
            path = self._paths[sha256] = Path(worker.local_directory) / f"modeld-{sha256}.pkl"
            with whole_file(path) as file:
                file.write(content)
        self._artifacts = {}
        self._holder = ModelHolder()
        self._code = code_digest()
        # A program belongs to one thread at a time, and one drive uses all processors anyway.
        self._turn = threading.Lock()

    def teardown(self, worker: Any) -> None:
        """Release the program."""
        del worker
        self._holder.close()

    def run(self, job: Job) -> JobResult:
        """Run a job with the worker's copy of the program."""
        if job.code_sha256 != self._code:
            return JobResult(
                job.key,
                error=f"{job.drive}: expected a worker with the code {job.code_sha256[:12]}, "
                f"found {self._code[:12]}; install the same modeld on all workers",
                exit_code=LOST_EXIT_CODE,
            )
        with self._turn:
            artifact = self._paths[job.artifact_sha256]
            monitoring = self._paths.get(job.monitoring_sha256)
            return run_job(replace(job, artifact=artifact, monitoring=monitoring), self._holder)


def run_on_worker(job: Job) -> JobResult:
    """Run a job on the worker in whose thread this is called."""
    from distributed import get_worker

    program = cast("ProgramOnWorker", get_worker().plugins[PLUGIN])
    return program.run(job)


def run_jobs_on_cluster(
    address: str, jobs: Sequence[Job], work: WorkDirectory, on_result: OnResult
) -> list[JobResult]:
    """Run jobs and return their results in the order of the jobs.

    `address`: ``tcp://HOST:PORT`` of a Dask scheduler, ``local`` or ``local:N`` for N workers on
    this machine. `jobs`: one for each drive, all of one program; jobs of the same key are run once.
    `work`: where results are kept, and found again. `on_result`: called as they come.

    Raises:
        UsageError: the address has no meaning. ToolError: there is no scheduler, or a result cannot
            be kept.
    """
    positions: dict[str, list[int]] = {}
    for position, job in enumerate(jobs):
        positions.setdefault(job.key, []).append(position)
    results: dict[str, JobResult] = {}

    def finish(result: JobResult) -> None:
        results[result.key] = result
        for position in positions[result.key]:
            on_result(position, result)

    waiting: list[Job] = []
    for places in positions.values():
        kept = work.load(jobs[places[0]])
        if kept is not None:
            finish(kept)
        else:
            waiting.append(jobs[places[0]])
    if waiting:
        with _connected(address) as client:
            for result in _run(client, waiting):
                work.store(result)
                finish(result)
    return [results[job.key] for job in jobs]


def parse_address(text: str) -> tuple[str | None, int]:
    """Return the scheduler's address, or None and a number of local workers (0: one a processor).

    Raises:
        UsageError: it is neither.
    """
    kind, _, count = text.partition(":")
    if kind == LOCAL and (not count or (count.isdecimal() and int(count) > 0)):
        return None, int(count or 0)
    if text.startswith(("tcp://", "tls://")):
        return text, 0
    raise UsageError(
        f"--cluster {text}: expected tcp://HOST:PORT of a Dask scheduler, local, or local:N with a "
        "number of workers; correct it"
    )


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    import dask
    import distributed

    # Of the comings and goings of workers only what is wrong concerns who runs drives.
    logging.getLogger("distributed").setLevel(max(logging.WARNING, logger.getEffectiveLevel()))
    connect, local_cluster = _untyped(distributed.Client), _untyped(distributed.LocalCluster)
    remote, workers = parse_address(address)
    with dask.config.set({"distributed.scheduler.allowed-failures": ALLOWED_LOSSES}):
        if remote is None:
            cluster = local_cluster(
                n_workers=workers or None,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address=None,
            )
            with cluster, connect(cluster) as client:
                yield client
            return
        try:
            client = connect(remote, timeout=CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            raise ToolError(
                f"--cluster {address}: expected a Dask scheduler, found none within "
                f"{CONNECT_TIMEOUT_S} s ({type(error).__name__}); start one with: dask scheduler"
            ) from error
        with client:
            yield client


def _run(client: Any, jobs: Sequence[Job]) -> Iterator[JobResult]:
    """Yield one result for each job, as they come."""
    import distributed

    as_completed = _untyped(distributed.as_completed)
    first = jobs[0]
    artifacts = {first.artifact_sha256: first.artifact.read_bytes()}
    if first.monitoring is not None:
        artifacts[first.monitoring_sha256] = first.monitoring.read_bytes()
    client.register_plugin(_as_plugin(artifacts))
    futures = {client.submit(run_on_worker, job, key=f"modeld-{job.key}"): job for job in jobs}
    for future in as_completed(list(futures)):
        job = futures.pop(future)
        error = future.exception()
        # Nothing of a finished job stays on the cluster: results are as large as references.
        result = future.result() if error is None else _failed(job, error)
        future.release()
        yield result


def _as_plugin(artifacts: Mapping[str, bytes]) -> Any:
    """Return the plugin as a subclass of Dask's, which is imported only here."""
    from distributed import WorkerPlugin

    make: Callable[[Mapping[str, bytes]], Any] = type(
        "ProgramPlugin", (ProgramOnWorker, WorkerPlugin), {"__module__": __name__}
    )
    return make(artifacts)


def _untyped(function: Any) -> Callable[..., Any]:
    """Return a function of a package whose functions have no types."""
    typed: Callable[..., Any] = function
    return typed


def _failed(job: Job, error: BaseException) -> JobResult:
    text = " ".join(str(error).split())
    return JobResult(
        job.key,
        error=f"{job.drive}: {type(error).__name__}: {text}; run this drive without --cluster",
        exit_code=LOST_EXIT_CODE,
    )

"""Runs regression jobs on a Dask cluster: on local workers, or on those of a remote scheduler.

A job is one drive to run. The program is sent to each worker once, when it joins; that includes
workers that join later or replace lost ones. If a worker is lost, Dask moves its job to another.
Each result is taken once, by its job's key, and stored on arrival. Workers open the drives
themselves, so drives need the same path on every worker.

A cluster runs code and unpickles the data it receives. Local workers listen on loopback only; a
remote scheduler is as trustworthy as the person who started it (docs/fleet.md).
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
# Number of lost workers after which a job itself is considered faulty.
ALLOWED_LOSSES: Final = 3
LOST_EXIT_CODE: Final = 1


class ProgramOnWorker:
    """A worker's programs, and a lock that runs one job at a time.

    Dask pickles the object once for each worker and calls `setup` there.

    `artifacts`: sha256 of a program (`Artifact.sha256`) -> bytes of its file.
    """

    name = PLUGIN

    def __init__(self, artifacts: Mapping[str, bytes]) -> None:
        self._artifacts = artifacts

    def setup(self, worker: Any) -> None:
        """Write the programs' files to the worker's directory."""
        self._paths: dict[str, Path] = {}
        for sha256, content in self._artifacts.items():
            path = self._paths[sha256] = Path(worker.local_directory) / f"modeld-{sha256}.pkl"
            with whole_file(path) as file:
                file.write(content)
        self._artifacts = {}
        self._holder = ModelHolder()
        self._code = code_digest()
        # A program can be used by one thread only, and one drive uses all processors anyway.
        self._turn = threading.Lock()

    def teardown(self, worker: Any) -> None:
        """Release the programs."""
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
    """Run a job on the worker that calls this function."""
    from distributed import get_worker

    program = cast("ProgramOnWorker", get_worker().plugins[PLUGIN])
    return program.run(job)


def run_jobs_on_cluster(
    address: str, jobs: Sequence[Job], work: WorkDirectory, on_result: OnResult
) -> list[JobResult]:
    """Run jobs and return their results in the order of the jobs.

    `address`: ``tcp://HOST:PORT`` of a Dask scheduler, ``local``, or ``local:N`` for N workers on
    this machine. `jobs`: one per drive, all for one program; jobs with equal keys run once. `work`:
    stores results, and provides those of earlier runs. `on_result`: called with each result on
    arrival.

    Raises:
        UsageError: the address is invalid.
        ToolError: no scheduler answers, or a result cannot be stored.
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
    """Return the scheduler's address, or None and the number of local workers (0: one per CPU).

    Raises:
        UsageError: the address is invalid.
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

    # Workers join and leave all the time; show only warnings and errors of Dask.
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
    """Yield one result per job, in the order of completion."""
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
        # Release finished jobs on the cluster: a result is as large as a reference.
        result = future.result() if error is None else _failed(job, error)
        future.release()
        yield result


def _as_plugin(artifacts: Mapping[str, bytes]) -> Any:
    """Return the plugin as a subclass of Dask's class, which is imported only here."""
    from distributed import WorkerPlugin

    make: Callable[[Mapping[str, bytes]], Any] = type(
        "ProgramPlugin", (ProgramOnWorker, WorkerPlugin), {"__module__": __name__}
    )
    return make(artifacts)


def _untyped(function: Any) -> Callable[..., Any]:
    """Return a function of a package without type annotations, for strict type checks."""
    typed: Callable[..., Any] = function
    return typed


def _failed(job: Job, error: BaseException) -> JobResult:
    text = " ".join(str(error).split())
    return JobResult(
        job.key,
        error=f"{job.drive}: {type(error).__name__}: {text}; run this drive without --cluster",
        exit_code=LOST_EXIT_CODE,
    )

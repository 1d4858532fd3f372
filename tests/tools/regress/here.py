"""Runs the jobs of a regression in this process, in place of `tools.regress_drives._run_jobs`."""

from __future__ import annotations

from collections.abc import Sequence

from tools.regress.job import Job, JobResult, ModelHolder, run_job
from tools.regress.pool import OnResult, WorkDirectory


def run_here(
    _processes: int, jobs: Sequence[Job], _work: WorkDirectory, on_result: OnResult
) -> list[JobResult]:
    """Run jobs one by one: planted changes reach them, and nothing has to start."""
    holder = ModelHolder()
    results = [run_job(job, holder) for job in jobs]
    holder.close()
    for position, result in enumerate(results):
        on_result(position, result)
    return results

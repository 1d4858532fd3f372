"""Regression on a Dask cluster of this machine: every drive once, whatever dies, the same bytes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runtime.format.artifact import read_artifact
from tests.tools.conftest import MakeVideo
from tools.drives.open_drive import DriveOptions
from tools.errors import UsageError
from tools.regress.cluster import parse_address, run_jobs_on_cluster
from tools.regress.job import Job, JobResult
from tools.regress.pool import WorkDirectory, run_jobs
from tools.regress.run_facts import code_digest

SEGMENTS = 64
FEW = 3
START_TIMEOUT_S = 120.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("local", (None, 0)), ("local:2", (None, 2)), ("tcp://host:8786", ("tcp://host:8786", 0))],
)
def test_addresses(text: str, expected: tuple[str | None, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", "local:0", "local:x", "http://host", "host:8786"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected tcp://HOST:PORT"):
        parse_address(text)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_segments_come_once_each_with_the_same_bytes_though_a_worker_is_killed(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path
) -> None:
    # All different: a result under another drive's key would be seen.
    videos = [make_video(f"{n:02}.mkv", frames=2 + n % 7, fps=20 + n // 7) for n in range(SEGMENTS)]
    sha256, code = read_artifact(tiny_model).sha256, code_digest()
    jobs = [Job(str(video), DriveOptions(), tiny_model, sha256, code) for video in videos]
    work = WorkDirectory(tmp_path / "work")
    seen: Counter[int] = Counter()
    killed: list[int] = []

    def on_result(position: int, result: JobResult) -> None:
        assert result.error == ""
        seen[position] += 1
        if len(seen) == SEGMENTS // 3:
            killed.append(_kill_a_worker())

    results = run_jobs_on_cluster("local:2", jobs, work, on_result)
    assert killed
    assert (seen, work.count()) == (Counter(range(SEGMENTS)), SEGMENTS)
    alone = run_jobs(jobs, 1)
    assert [one.outputs for one in results] == [one.outputs for one in alone]
    assert len({one.digest for one in results}) > SEGMENTS // 2


def _kill_a_worker() -> int:
    """Kill one of the worker processes of this process's cluster the hard way."""
    from distributed import get_client

    pid = int(next(iter(get_client().run(os.getpid).values())))
    assert pid != os.getpid()
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_scheduler_elsewhere_and_results_that_are_there_already(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path
) -> None:
    videos = [str(make_video(f"{n}.mkv", frames=2 + n)) for n in range(FEW)]

    def regress(address: str) -> Any:
        words = ["--model", str(tiny_model), "--drives", *videos, "--cluster", address]
        words += ["--reference", str(tmp_path / "references"), "--work", str(tmp_path / "work")]
        words += ["--no-timing", "--update", "--reason", "first", "--json"]
        command = [sys.executable, "-m", "tools.cli", "regress", *words]
        return json.loads(subprocess.check_output(command, timeout=START_TIMEOUT_S))

    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    serve = ["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    work = ["worker", address, "--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard"]
    work += ["--local-directory", str(tmp_path / "worker")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{name}", *arguments],
            stderr=subprocess.DEVNULL,
        )
        for name, *arguments in (serve, work)
    ]
    try:
        assert len(regress(address)["accepted"]) == FEW
        regress("tcp://127.0.0.1:9")  # nothing was left to ask a cluster for
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(START_TIMEOUT_S)

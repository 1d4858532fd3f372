"""Drives in processes that die, hang and are interrupted: each exactly one result."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.regress.conftest import full_disk
from tests.tools.regress.pool_workers import (
    answer,
    be_interrupted,
    be_slow,
    die_always,
    die_idle,
    die_once,
    make_jobs,
)
from tests.tools.waiting import wait_until
from tools.drives.open_drive import DriveOptions
from tools.errors import ToolError
from tools.regress.job import Job, JobResult
from tools.regress.pool import WorkDirectory, run_jobs

processes = pytest.mark.alone


@pytest.fixture
def work(tmp_path: Path) -> WorkDirectory:
    return WorkDirectory(tmp_path / "work", lambda _: "0" * 64)


def ran(place: Path) -> list[str]:
    return (place / "ran").read_text().split()


def test_each_drive_has_one_result_in_the_order_of_the_jobs(tmp_path: Path) -> None:
    names = ["a", "b", "a", "c", "d"]
    seen: list[tuple[int, str]] = []
    jobs = make_jobs(tmp_path, *names)
    results = run_jobs(
        jobs, 2, on_result=lambda *one: seen.append((one[0], one[1].digest)), run=answer
    )
    assert [result.digest for result in results] == names
    # The same drive twice is run once, and both have its result.
    assert sorted(ran(tmp_path)) == ["a", "b", "c", "d"]
    assert sorted(seen) == list(enumerate(names))


def test_a_drive_whose_process_dies_is_run_once_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = run_jobs(make_jobs(tmp_path, "a", "bad", "c"), 2, run=die_once)
    assert [result.digest for result in results] == ["a", "bad", "c"]
    assert not any(result.error for result in results)
    assert sorted(ran(tmp_path)) == ["a", "bad", "c"]
    assert "bad: its process was ended by SIGKILL; running it once more" in caplog.text


@pytest.mark.slow  # `bad` runs until the other process has died with nothing to do
def test_a_process_that_dies_idle_is_no_attempt_of_the_next_drive(tmp_path: Path) -> None:
    results = run_jobs(make_jobs(tmp_path, "bad", "brief"), 2, run=die_idle)
    assert [result.digest for result in results] == ["bad", "brief"]


@processes
@pytest.mark.slow
def test_a_drive_that_always_kills_its_process_fails_and_the_others_do_not(
    tmp_path: Path, work: WorkDirectory
) -> None:
    results = run_jobs(make_jobs(tmp_path, "bad", "a", "b"), 1, work, run=die_always)
    assert [bool(result.error) for result in results] == [True, False, False]
    assert "ended by SIGKILL, 2 times" in results[0].error
    assert (results[0].exit_code, sorted(ran(tmp_path))) == (1, ["a", "b"])
    assert work.count() == 2  # errors are not kept


@processes
@pytest.mark.slow
def test_workers_leave_ctrl_c_to_the_process_that_started_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = run_jobs(make_jobs(tmp_path, "a", "b"), 2, run=be_interrupted)
    assert [result.error for result in results] == ["", ""]
    assert sorted(ran(tmp_path)) == ["a", "b"]
    assert not caplog.text  # nobody died and was replaced


def test_kept_results_are_taken_up_and_damaged_ones_made_again(
    tmp_path: Path, work: WorkDirectory
) -> None:
    jobs = make_jobs(tmp_path, "a", "b")
    first = run_jobs(jobs, 1, work, run=answer)
    (tmp_path / "work" / f"{jobs[1].key}.result").write_bytes(b"half a res")
    assert (run_jobs(jobs, 1, work, run=answer), ran(tmp_path)) == (first, ["a", "b", "b"])
    # A result of a drive that was replaced is not taken up.
    assert work.load(jobs[0]) is not None
    assert WorkDirectory(tmp_path / "work", lambda _: "1" * 64).load(jobs[0]) is None
    # By default the drive is opened, and there is none called so.
    assert WorkDirectory(tmp_path / "work").load(jobs[0]) is None


def test_a_full_disk_keeps_what_was_kept(work: WorkDirectory, tmp_path: Path) -> None:
    work.store(JobResult("a" * 64, digest="kept"))
    said = "free some disk space, then continue with --work"
    with full_disk(), pytest.raises(ToolError, match=said):
        work.store(JobResult("b" * 64))
    assert work.count() == len(list(work.path.iterdir())) == 1
    # A file is no directory.
    (tmp_path / "file").touch()
    with pytest.raises(ToolError, match="expected a work directory"):
        WorkDirectory(tmp_path / "file")


def test_jobs_and_results_travel(tmp_path: Path) -> None:
    (job,) = make_jobs(tmp_path, "a")
    assert pickle.loads(pickle.dumps(job)) == job
    moved = Job("a", DriveOptions(data_dir=tmp_path), tmp_path / "elsewhere", "0" * 64, "1" * 64)
    # Where files lie is not what a drive says.
    assert moved.key == job.key
    for other in (
        Job("a", DriveOptions(), tmp_path, "2" * 64, "1" * 64),
        Job("a", DriveOptions(), tmp_path, "0" * 64, "2" * 64),
        Job("a", DriveOptions(rate_hz=20.0), tmp_path, "0" * 64, "1" * 64),
    ):
        assert other.key != job.key


SCRIPT = """
import sys
from pathlib import Path
from tests.tools.regress.conftest import full_disk
from tests.tools.regress.pool_workers import be_slow, make_jobs
from tools.regress.pool import run_jobs
from tools.regress.run import work_directory

if __name__ == "__main__":
    place = Path(sys.argv[1])
    with work_directory(place / "work") as work:
        run_jobs(make_jobs(place, "a", "slow"), 1, work, run=be_slow)
"""


@processes
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_keeps_finished_drives_and_leaves_no_process(
    tmp_path: Path, work: WorkDirectory, number: signal.Signals
) -> None:
    script, started = tmp_path / "script.py", tmp_path / "started"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: started.exists() and started.read_text(), "the worker has started")
    worker = Path("/proc", started.read_text())
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does it
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    if number == signal.SIGINT:
        assert f"1 finished drive kept; continue with --work {tmp_path / 'work'}" in said
        assert said.count("Traceback") == 1  # of the script, which is no command
    wait_until(lambda: not worker.exists(), "the worker has ended")
    (result,) = run_jobs(make_jobs(tmp_path, "a"), 1, work, run=be_slow)
    assert (result.digest, ran(tmp_path)) == ("a", ["a"])

"""Drives in processes that die, hang and are interrupted: each exactly one result."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tools.regress.pool_workers import answer, be_interrupted, be_slow, die_always, die_once
from tools.drives.open_drive import DriveOptions
from tools.errors import ToolError
from tools.regress.job import Job, JobResult
from tools.regress.pool import WorkDirectory, run_jobs

pytestmark = pytest.mark.alone


def _jobs(place: Path, *names: str) -> list[Job]:
    return [Job(name, DriveOptions(), place, "0" * 64, "1" * 64) for name in names]


def _work(place: Path) -> WorkDirectory:
    """Return a work directory for drives that are no files."""
    return WorkDirectory(place / "work", lambda _: "0" * 64)


def _ran(place: Path) -> list[str]:
    return (place / "ran").read_text().split()


def test_each_drive_has_one_result_in_the_order_of_the_jobs(tmp_path: Path) -> None:
    names = ["a", "b", "a", "c", "d"]
    seen: list[tuple[int, str]] = []
    results = run_jobs(
        _jobs(tmp_path, *names),
        2,
        on_result=lambda position, result: seen.append((position, result.digest)),
        run=answer,
    )
    assert [result.digest for result in results] == names
    # The same drive twice is run once, and both have its result.
    assert sorted(_ran(tmp_path)) == ["a", "b", "c", "d"]
    assert sorted(seen) == list(enumerate(names))


def test_a_drive_whose_process_dies_is_run_once_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = run_jobs(_jobs(tmp_path, "a", "bad", "c"), 2, run=die_once)
    assert [result.digest for result in results] == ["a", "bad", "c"]
    assert not any(result.error for result in results)
    assert sorted(_ran(tmp_path)) == ["a", "bad", "c"]
    assert "bad: its process was ended by SIGKILL; running it once more" in caplog.text


def test_a_drive_that_always_kills_its_process_fails_and_the_others_do_not(tmp_path: Path) -> None:
    results = run_jobs(_jobs(tmp_path, "bad", "a", "b"), 1, run=die_always)
    assert [bool(result.error) for result in results] == [True, False, False]
    assert "ended by SIGKILL, 2 times" in results[0].error
    assert results[0].exit_code == 1
    assert sorted(_ran(tmp_path)) == ["a", "b"]


def test_workers_leave_ctrl_c_to_the_process_that_started_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = run_jobs(_jobs(tmp_path, "a", "b"), 2, run=be_interrupted)
    assert [result.error for result in results] == ["", ""]
    assert sorted(_ran(tmp_path)) == ["a", "b"]
    assert not caplog.text  # nobody died and was replaced


def test_kept_results_are_taken_up_and_damaged_ones_made_again(tmp_path: Path) -> None:
    work = _work(tmp_path)
    jobs = _jobs(tmp_path, "a", "b")
    first = run_jobs(jobs, 1, work, run=answer)
    (tmp_path / "work" / f"{jobs[1].key}.result").write_bytes(b"half a res")
    assert run_jobs(jobs, 1, work, run=answer) == first
    assert _ran(tmp_path) == ["a", "b", "b"]


def test_a_result_of_a_drive_that_was_replaced_is_not_taken_up(tmp_path: Path) -> None:
    (job,) = _jobs(tmp_path, "a")
    run_jobs([job], 1, _work(tmp_path), run=answer)
    assert _work(tmp_path).load(job) is not None
    assert WorkDirectory(tmp_path / "work", lambda _: "1" * 64).load(job) is None
    # By default the drive is opened, and there is none called so.
    assert WorkDirectory(tmp_path / "work").load(job) is None


def test_errors_are_not_kept(tmp_path: Path) -> None:
    work = _work(tmp_path)
    assert run_jobs(_jobs(tmp_path, "bad"), 1, work, run=die_always)[0].error
    assert work.count() == 0


def test_a_work_directory_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ToolError, match="expected a work directory"):
        WorkDirectory(tmp_path / "file")


def test_a_full_disk_keeps_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = _work(tmp_path)
    work.store(JobResult("a" * 64, digest="kept"))
    monkeypatch.setattr(os, "fsync", _no_space)
    with pytest.raises(ToolError, match="free some disk space, then go on with --work"):
        work.store(JobResult("b" * 64))
    assert work.count() == 1
    assert len(list((tmp_path / "work").iterdir())) == 1


def _no_space(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_jobs_and_results_travel(tmp_path: Path) -> None:
    (job,) = _jobs(tmp_path, "a")
    assert pickle.loads(pickle.dumps(job)) == job
    moved = Job("a", DriveOptions(data_dir=tmp_path), tmp_path / "elsewhere", "0" * 64, "1" * 64)
    # Where files lie is not what a drive says.
    assert moved.key == job.key
    assert Job("a", DriveOptions(), tmp_path, "2" * 64, "1" * 64).key != job.key
    assert Job("a", DriveOptions(rate_hz=20.0), tmp_path, "0" * 64, "1" * 64).key != job.key


SCRIPT = """
import sys
from pathlib import Path
from tests.tools.regress.pool_workers import be_slow
from tests.tools.regress.test_pool import _jobs
from tools.regress.pool import run_jobs
from tools.regress.run import work_directory

if __name__ == "__main__":
    place = Path(sys.argv[1])
    with work_directory(place / "work") as work:
        run_jobs(_jobs(place, "a", "slow"), 1, work, run=be_slow)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_keeps_finished_drives_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(
        [sys.executable, script, tmp_path],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    worker = int(_wait_for(tmp_path / "started"))
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does it
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    if number == signal.SIGINT:
        assert f"1 finished drive kept; go on with --work {tmp_path / 'work'}" in said
        assert said.count("Traceback") == 1  # of the script, which is no command
    _wait_until_gone(worker)
    (result,) = run_jobs(_jobs(tmp_path, "a"), 1, _work(tmp_path), run=be_slow)
    assert result.digest == "a"
    assert _ran(tmp_path) == ["a"]


def _wait_for(path: Path) -> str:
    deadline_ns = time.perf_counter_ns() + 60 * 10**9
    while time.perf_counter_ns() < deadline_ns:
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{path} did not appear")


def _wait_until_gone(pid: int) -> None:
    deadline_ns = time.perf_counter_ns() + 30 * 10**9
    while time.perf_counter_ns() < deadline_ns:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")

"""What tests build once, which of them are quick, and which of the slow ones are sampled."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.session_cache import SESSION
from tests.support.built import built

ROOT = Path(__file__).parents[2]
# Both begin when both are there, and each says whether it was the one that made the thing.
MAKES = """
import sys, time
from tests.support.built import built
made = []
def make(place):
    time.sleep(0.2)
    (place / "file").write_text("whole")
    made.append(place)
sys.stdin.readline()
print(len(made), (built(sys.argv[1], make) / "file").read_text(), len(made))
"""
CASES = """
import pytest
@pytest.mark.slow
@pytest.mark.parametrize("n", range(40))
def test_slow(n): pass
def test_quick(): pass
"""


def test_two_processes_build_a_thing_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKES, f"support-{tmp_path.name}"]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in "ab"
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(said) == [["0", "whole", "0"], ["0", "whole", "1"]]


def test_what_could_not_be_built_is_tried_again(tmp_path: Path) -> None:
    name = f"support-{tmp_path.name}"

    def fails(place: Path) -> None:
        (place / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        built(name, fails, 1)
    place = built(name, lambda to: (to / "whole").touch(), 1)
    assert [path.name for path in place.iterdir()] == ["whole"]
    assert built(name, fails, 1) == place
    assert built(name, lambda to: (to / "other").touch(), 2) != place
    assert place.is_relative_to(SESSION.root)


def collected(directory: Path, *options: str) -> set[str]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"),
            *("-p", "tests.conftest", "--rootdir", str(directory), str(directory), *options),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"::(\S+)", done.stdout))


@pytest.mark.slow
def test_a_sample_of_the_slow_tests_is_told_by_its_seed(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    every = collected(tmp_path)
    some = collected(tmp_path, "--sample", "4", "--sample-seed", "a")
    assert len(every) == 41
    assert "test_quick" in some < every
    assert 4 <= len(some) <= 18
    assert some == collected(tmp_path, "--sample", "4", "--sample-seed", "a")
    assert some != collected(tmp_path, "--sample", "4", "--sample-seed", "b")


@pytest.mark.slow
def test_times_are_written_by_each_process_and_printed(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES.replace("pass", "sum(range(100_000))"))
    times = tmp_path / "times"
    run = [sys.executable, "-m", "pytest", "-q", "-p", "tests.times.plugin", f"--times={times}"]
    asked = [*run, "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    subprocess.run(asked, cwd=ROOT, check=True, capture_output=True)
    rows = [json.loads(line) for p in times.glob("tests-*") for line in p.read_text().splitlines()]
    assert len(rows) == 3 * 41
    assert len(list(times.glob("causes-*"))) == 2
    said = subprocess.run(
        [sys.executable, "-m", "tests.times", str(times)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "41 tests in 1 files" in said
    assert re.search(r"\| test_cases.py \| \d+ \| 100 % \|", said)

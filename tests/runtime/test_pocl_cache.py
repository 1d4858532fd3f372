"""PoCL's own files: damage is noticed, said and mended; each process has a directory of its own."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from runtime.format.plainpickle import encode
from runtime.opencl.binding import PoclDirectory, base_of
from runtime.opencl.device import choose_device
from tests.runtime.children import DAMAGE, EXPECTED, RUN, run, start

pytestmark = pytest.mark.opencl


@pytest.fixture(autouse=True)
def needs_pocl() -> None:
    if not choose_device().info.is_pocl:
        pytest.skip("this is about PoCL's cache")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as one process left it."""
    cache = tmp_path_factory.mktemp("filled")
    assert run(RUN, cache) == (0, EXPECTED, "")
    return cache


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_files_are_named_and_made_again(filled: Path, tmp_path: Path, kind: str) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(filled, cache)
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert files
    for path in files:
        DAMAGE[kind](path)
    code, out, err = run(RUN, cache)
    assert (code, out) == (0, EXPECTED)
    if kind != "unreadable" or os.getuid() != 0:
        assert all(str(path) in err for path in files)
        assert len(err.splitlines()) == len(files)
    assert run(RUN, cache) == (0, EXPECTED, "")


WAIT = """
import os, time
import runtime.opencl.binding
print(os.environ["POCL_CACHE_DIR"], flush=True)
time.sleep(60)
"""


def test_directories_of_killed_processes_are_removed(tmp_path: Path) -> None:
    processes = [start(WAIT, tmp_path) for _ in range(2)]
    paths = [Path(process.stdout.readline().strip()) for process in processes if process.stdout]
    assert all(path.parent == tmp_path / "pocl" for path in paths)
    assert paths[0] != paths[1]
    processes[0].send_signal(signal.SIGKILL)
    processes[0].communicate()
    assert paths[0].exists()
    mine = PoclDirectory(tmp_path / "pocl")
    assert [path.exists() for path in paths] == [False, True]
    assert mine.path.stat().st_mode & 0o777 == 0o700
    processes[1].kill()
    processes[1].communicate()
    mine.close()
    assert list((tmp_path / "pocl").iterdir()) == [paths[1]]


CHILD = f"""
import os, subprocess, sys
import runtime.opencl.binding
first = os.environ["POCL_CACHE_DIR"]
# While this process has one thread only: a child of a process with more may not run Python.
if os.fork() == 0:
    sys.exit(0)
os.wait()
assert os.path.exists(first)
{RUN}
child = "import os, runtime.opencl.binding; print(os.environ['POCL_CACHE_DIR'])"
told = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip()
assert os.path.dirname(told) == os.path.dirname(first) == os.environ["BASE"], told
assert told != first
assert not os.path.exists(told)
assert os.path.exists(first)
"""


@pytest.mark.slow
def test_child_processes_have_their_own_directory_and_leave_the_parents(tmp_path: Path) -> None:
    base = str(tmp_path / "of the user")
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    result = run(CHILD, tmp_path / "cache", POCL_CACHE_DIR=base, BASE=base, **one_thread)
    assert result == (0, EXPECTED, "")
    assert list(Path(base).iterdir()) == []


def test_removed_directory_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = PoclDirectory(tmp_path / "pocl")
    directory.ensure()
    assert caplog.messages == []
    shutil.rmtree(tmp_path / "pocl")
    with directory.new_programs() as added:
        assert directory.path.is_dir()
    assert added == []
    assert caplog.messages == [f"{directory.path}: removed by another process; making it again"]
    # It is locked again: nobody takes it for a dead process's.
    PoclDirectory(tmp_path / "pocl").close()
    assert list((tmp_path / "pocl").iterdir()) == [directory.path]
    directory.close()


@pytest.mark.slow
def test_cache_that_is_emptied_while_a_process_runs_is_made_again(tmp_path: Path) -> None:
    empty = (
        "import os, shutil\n"
        "from runtime.opencl.device import choose_device\n"
        "choose_device()\n"
        "shutil.rmtree(os.environ['MODELD_CACHE_DIR'])\n"
    )
    code, out, err = run(empty + RUN, tmp_path / "cache")
    assert (code, out) == (0, EXPECTED)
    assert "removed by another process; making it again" in err
    assert run(RUN, tmp_path / "cache") == (0, EXPECTED, "")


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["MODELD_CACHE_DIR", "POCL_CACHE_DIR"])
def test_directory_of_no_use_has_its_variable_named(tmp_path: Path, variable: str) -> None:
    (tmp_path / "file").touch()
    wanted = str(tmp_path / "file" / "cache")
    code, out, err = run(RUN, tmp_path / "cache", **{variable: wanted})
    assert (code, out) == (0, EXPECTED)
    assert err.startswith(f"{wanted}: cannot be written or is nearly full; ")
    assert err.endswith(f"(set {variable} to a writable directory)\n")
    assert err.count("\n") == 1


def test_value_that_a_parent_process_set_is_not_the_users(tmp_path: Path) -> None:
    assert base_of(str(tmp_path / "mine")) == tmp_path / "mine"
    assert base_of(str(tmp_path / "mine" / "process-abc")) == tmp_path / "mine"


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        encode({"program": "AB/CD"}),
        encode({"program": "../AB", "files": {}}),
        encode({"program": "AB/CD", "files": {"/etc/passwd": b""}}),
        encode({"program": "AB/CD", "files": {"a/../../b": b""}}),
        encode({"program": "AB/CD", "files": {"a": "text"}}),
    ],
)
def test_what_are_no_files_of_a_program_is_refused(tmp_path: Path, packed: bytes) -> None:
    directory = PoclDirectory(tmp_path)
    with pytest.raises(ValueError, match="not the files of a program"):
        directory.unpack(packed)
    assert [path.name for path in directory.path.iterdir()] == ["lock"]
    directory.close()


def test_packed_files_come_back_in_another_directory(tmp_path: Path) -> None:
    here, there = PoclDirectory(tmp_path), PoclDirectory(tmp_path)
    with here.new_programs() as added:
        kernel = here.path / "AB" / "CD" / "kernel" / "1-1-1"
        kernel.mkdir(parents=True)
        (kernel / "kernel.so").write_bytes(b"code")
        (here.path / "AB" / "CD" / "last_accessed").touch()
    assert added == ["AB/CD"]
    for _ in range(2):  # what is there stays
        there.unpack(here.pack("AB/CD"))
    found = [p.relative_to(there.path).as_posix() for p in there.path.rglob("*") if p.is_file()]
    assert sorted(found) == ["AB/CD/kernel/1-1-1/kernel.so", "lock"]
    for directory in (here, there):
        directory.close()

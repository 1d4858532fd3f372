"""Tests leave the user's caches alone, and a session that does not has failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.files.cache import cache_dir
from tests.session_cache import CACHE, SESSION, SessionCache

ROOT = Path(__file__).parent.parent
STRAY = """
import os
from pathlib import Path
def test_stray():
    directory = Path(os.environ["XDG_CACHE_HOME"]) / "modeld" / "pocl"
    directory.mkdir(parents=True)
    (directory / "program.bc").touch()
"""


def test_caches_are_those_of_the_session() -> None:
    users = Path.home() / ".cache"
    assert not cache_dir().is_relative_to(users)
    assert os.environ["XDG_CACHE_HOME"] == str(SESSION.user)
    opencl = pytest.importorskip("runtime.opencl.binding")
    assert not opencl.pocl_directory.path.is_relative_to(users)
    assert not opencl.pocl_directory.path.is_relative_to(SESSION.user)


def test_child_processes_inherit_the_caches_and_remove_nothing() -> None:
    child = SessionCache()
    assert (child.root, child.owned) == (SESSION.root, False)
    before = os.environ[CACHE]
    child.prefer(Path("/nowhere"))
    child.remove()
    assert os.environ[CACHE] == before
    assert SESSION.root.is_dir()


def test_session_that_writes_into_the_users_cache_fails(tmp_path: Path) -> None:
    (tmp_path / "test_stray.py").write_text(STRAY)
    environment = {k: v for k, v in os.environ.items() if k != "MODELD_TEST_SESSION"}
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "tests.conftest", "--rootdir", str(tmp_path), str(tmp_path / "test_stray.py")),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 passed" in result.stdout
    assert "written into the user's cache: modeld/pocl/program.bc" in result.stdout

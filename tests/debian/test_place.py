"""Places: what this machine must have, and that nothing of one is left behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.keeper import processes_with

ROOT = Path(__file__).parents[2]
ENTER = ROOT / "tests/debian/enter.py"


def may_mount() -> bool:
    """Whether this user may have mounts of its own."""
    return subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0  # noqa: S607


@pytest.fixture
def bare(tmp_path: Path) -> list[str]:
    """The words that run a command in a root that borrows this machine's programs."""
    if not may_mount():
        pytest.skip("only root may mount")
    root = tmp_path / "root"
    for name in ("proc", "sys", "dev/shm", "run", "tmp", "usr"):
        (root / name).mkdir(parents=True)
    for path in (Path("/bin"), Path("/lib"), Path("/lib64")):
        if path.is_symlink():
            (root / path.name).symlink_to(f"usr/{path.name}")
    return [sys.executable, str(ENTER), "--root", str(root), "--bind", "/usr", "/usr", "--"]


@pytest.mark.parametrize(
    ("script", "code", "printed"),
    [
        ("exit 7", 7, ""),
        ("kill -KILL $$", 137, ""),
        ("echo $$ $(ls -d /proc/[0-9]*) $(ls /tmp)", 0, "2 /proc/1 /proc/2 /proc/3\n"),
        ("no-such-program", 127, None),
    ],
)
def test_a_command_has_processes_of_its_own(
    bare: list[str], script: str, code: int, printed: str | None
) -> None:
    done = subprocess.run(
        [*bare, "/bin/sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert printed is None or (done.stdout, done.stderr) == (printed, "")


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_nothing_is_left_behind(bare: list[str], ends: str, tmp_path: Path) -> None:
    mark = f"of-{tmp_path}"
    script = "sleep 600 & touch /tmp/file /dev/shm/file; echo ready; "
    script += "exit 0" if ends == "by itself" else "wait"
    with subprocess.Popen(
        [*bare, "/bin/sh", "-c", script], stdout=subprocess.PIPE, env={**os.environ, "MARK": mark}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if ends == "killed":
            assert len(processes_with("MARK", mark)) >= 3
            process.kill()
        process.wait()
    deadline = time.monotonic() + 60
    while processes_with("MARK", mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_with("MARK", mark) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert list((tmp_path / "root/tmp").iterdir()) == []

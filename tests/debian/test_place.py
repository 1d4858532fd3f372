"""Places: what this machine must have, and that nothing of one is left behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.debian.__main__ import main
from tests.debian.place_error import PlaceError
from tests.debian.wheels import fetch_wheels
from tests.support.keeper import processes_with

ROOT = Path(__file__).parents[2]
ENTER = ROOT / "tests/debian/enter.py"
ROOT_USER = {"geteuid": 0}
OTHER = {**ROOT_USER, "uname": os.uname_result(("", "", "", "", "riscv64"))}


@pytest.mark.parametrize(
    ("system", "words", "code", "said"),
    [
        ({"geteuid": 65534}, "aarch64", 3, "aarch64: expected root, who may mount, found user"),
        (OTHER, "aarch64", 3, "aarch64: expected a machine of x86_64 or aarch64, found riscv64"),
        (ROOT_USER, "aarch64", 3, "apt-get: expected it in PATH, found none"),
        (ROOT_USER, "aarch64 nonsense", 2, "no stage nonsense; there are artifacts, freedreno, "),
        (ROOT_USER, "nonsense", 2, "invalid choice: 'nonsense'"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    system: dict[str, object],
    words: str,
    code: int,
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in system.items():
            patch.setattr(os, name, lambda value=value: value)
        patch.setenv("PATH", "/nowhere")
        patch.setenv("PIP_NO_INDEX", "1")
        try:
            found: object = main([*words.split(), "--directory", str(tmp_path)])
        except SystemExit as end:
            found = end.code
    error = capfd.readouterr().err
    assert found == code
    assert said in error.splitlines()[-1]
    assert code == 2 or error.count("\n") == 1


def test_packages_that_pip_cannot_have_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(PlaceError, match="expected all of numpy, found: No matching distribution"):
        fetch_wheels(["numpy"], "aarch64", tmp_path / "packages")
    assert list(tmp_path.iterdir()) == []


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

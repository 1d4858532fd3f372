"""What a run of tests leaves when it is killed or times out: nothing."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cereal.frames import DIRECTORY
from tests.support.keeper import processes_with

ROOT = Path(__file__).parent.parent
VARIABLE = "MODELD_TEST_SESSION"
# A test that hangs beside a child, with a frame ring and a socket of its own.
HANGS = """
import os, socket, subprocess, sys, time
from pathlib import Path
from cereal.frames import FrameRingWriter, nv12_format

def test_hangs(tmp_path):
    ring = FrameRingWriter(f"keeper-{os.getpid()}", "road", nv12_format(64, 32))
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    # Ctrl-C and a closed terminal do not end it.
    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", ignores], start_new_session=True) as child:
        said = Path(SAID)
        said.with_suffix(".new").write_text(os.environ["MODELD_TEST_SESSION"])
        said.with_suffix(".new").rename(said)
        time.sleep(600)
"""


@pytest.mark.parametrize(
    ("options", "ended_by"),
    [
        ((), signal.SIGKILL),
        pytest.param((), signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(("-n", "2"), signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(("--timeout=1", "--timeout-method=thread"), None, marks=pytest.mark.slow),
    ],
    ids=["killed", "terminated", "killed with workers", "timed out"],
)
def test_a_run_leaves_nothing(
    options: tuple[str, ...], ended_by: signal.Signals | None, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    (tmp_path / "test_hangs.py").write_text(HANGS.replace("SAID", repr(str(said))))
    before = set(DIRECTORY.iterdir())
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options),
            *("-p", "tests.conftest", "--rootdir", str(tmp_path), str(tmp_path / "test_hangs.py")),
        ],
        cwd=ROOT,
        env={name: text for name, text in os.environ.items() if name != VARIABLE},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        wait_until(said.exists)
        session = said.read_text()
        left = [os.pidfd_open(number) for number in processes_with(VARIABLE, session)]
        assert left
        if ended_by is not None:
            run.send_signal(ended_by)
        assert run.wait(30) != 0
    for handle in left:
        assert select.select([handle], [], [], 30)[0], "a process is left"
        os.close(handle)
    wait_until(lambda: not Path(session).exists())
    assert not processes_with(VARIABLE, session)
    rings = {path.name for path in set(DIRECTORY.iterdir()) - before if "keeper-" in path.name}
    assert not rings


def wait_until(holds: object) -> None:
    """Wait half a minute for something that another process does."""
    assert callable(holds)
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)

"""Processes of other users, for tests of who may use what; only root can start them.

A child imports what it needs while it is root, since the checkout may lie where others may not
read, then takes on user, groups and umask, and runs a script.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CAMERA_USER, DAEMON_USER, STRANGER = 61_001, 61_002, 61_003
SHARED_GROUP, OWN_GROUP = 61_100, 61_101

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start processes of other users"
)

_IMPORTS = """
import os, sys
from pathlib import Path
from cereal import frames, errors, schema
from cereal.transport import ZmqTransport
"""
_CHANGE = """
user, group, mask = (int(text) for text in sys.argv[1:4])
arguments = sys.argv[4:]
if user:
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
os.umask(mask)
SMALL = frames.FrameFormat(width=16, height=8, stride=16, uv_offset=128, size=192)

def said(call):
    try:
        call()
    except errors.CerealError as error:
        return str(error)
    return "nothing"

"""


@contextlib.contextmanager
def process_of(
    script: str,
    *arguments: object,
    user: int = 0,
    group: int = 0,
    umask: int = 0o022,
    imports: str = "",
) -> Iterator[subprocess.Popen[str]]:
    """Run a script as another user (0: as this one); its lines arrive on `stdout`.

    `imports` is run first, as root.
    """
    code = _IMPORTS + imports + _CHANGE + script
    # Unbuffered, whatever the environment says: lines of both streams then come in their order.
    command = [sys.executable, "-u", "-c", code, str(user), str(group), str(umask)]
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            child.kill()


def said_by(
    script: str, *arguments: object, user: int = 0, group: int = 0, umask: int = 0o022
) -> str:
    """Run a script to its end and return what it printed; nothing it prints is a traceback."""
    with process_of(script, *arguments, user=user, group=group, umask=umask) as child:
        text = child.communicate(timeout=60)[0]
    assert "Traceback" not in text, text
    return text.strip()


def line(child: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def tell(child: subprocess.Popen[str]) -> None:
    """Let a process go on that waits for a line."""
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory like /dev/shm: everybody may make files there, and remove their own."""
    # Not below tmp_path, which is closed to others.
    directory = Path(tempfile.mkdtemp(prefix="modeld-"))
    directory.chmod(0o1777)
    yield directory
    shutil.rmtree(directory)

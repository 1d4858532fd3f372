"""Removes rings of frames and of messages that killed processes have left in shared memory.

A session of tests that is killed can remove nothing, so its keeper does, or the next one's. Rings
of tests and tools have the number of their process in their names; others are left alone.
"""

import fcntl
import os
import re
import shutil
from pathlib import Path

# Not from cereal: every session looks, and the bus takes a third of a second to import.
DIRECTORY = Path("/dev/shm")  # noqa: S108 - the place of frame rings

# `frames_<name>-<process>_<stream>`, perhaps numbered, and one that was never finished.
_RING = re.compile(r"frames_\D*[-_](\d+)(?:_\d+)?_[a-zA-Z]+")
# A directory of rings of messages, which has the OPENPILOT_PREFIX of a test.
_PREFIX = re.compile(r"(?:msgq_)?test-(\d+)-[0-9a-f]+")
_UNFINISHED = re.compile(r"\.frames_.+\.(\d+)\.\d+")


def remove_left_rings(directory: Path = DIRECTORY) -> None:
    """Remove this user's rings whose process is gone, and which nobody writes."""
    for path in sorted(directory.iterdir()):
        place = _PREFIX.fullmatch(path.name)
        if place is not None and not _lives(place[1]) and _is_ours(path):
            shutil.rmtree(path, ignore_errors=True)
            continue
        match = _RING.fullmatch(path.name) or _UNFINISHED.fullmatch(path.name)
        if match is None or _lives(match[1]):
            continue
        if _is_ours(path) and not _is_written(path):
            path.unlink(missing_ok=True)


def _lives(process: str) -> bool:
    """Return whether a process runs; one that its parent has not waited for yet does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] not in "ZX"


def _is_written(path: Path) -> bool:
    """Return whether a living process holds the lock of a ring."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        # Another session was faster.
        return False
